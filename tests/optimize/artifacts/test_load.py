"""Loading: what an artifact names is found and checked before anything is asked; and what is said of an artifact."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import dspy
import pytest

from querywright.api import compare
from querywright.data.types import Passage, Question
from querywright.errors import ArtifactError, CollectionError, InputError, ModelError
from querywright.models.embedder import resolve_embedder
from querywright.models.store import open_store
from querywright.optimize.artifacts.card import card
from querywright.optimize.artifacts.files import read_artifact, write_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.save import save_program
from querywright.optimize.artifacts.verify import drifted, passed, verify
from querywright.optimize.program_state import program_from
from querywright.programs import make_program
from querywright.retrieval.engines import open_retriever
from querywright.retrieval.index import build_collection
from querywright.retrieval.types import kind_of

load_module = sys.modules[load.__module__]  # the package gives its name to the function
FACTS = {"lm", "embedder", "collection", "engine", "reranker", "fingerprint", "created", "made"}
ASKED = ("What of number 4?", ["wrong 4", "right 4"])


def rewrite(folder, *, program=None, **changes):
    """The artifact of the folder, written again by our own hand with other facts."""
    read = read_artifact(folder)
    facts = {**read.manifest.model_dump(include=FACTS), "golden": read.golden, "card": "# card\n", **changes}
    write_artifact(folder, program or program_from(read.state, lambda query, k: []), **facts)


@pytest.fixture
def names(monkeypatch):
    """The LMs that are looked for by name; there is none."""
    asked = []

    def resolve_lm(name, **settings):
        asked.append(name)
        raise ModelError(f"no {name} in this test")

    monkeypatch.setattr(load_module, "resolve_lm", resolve_lm)
    return asked


@pytest.fixture
def refused(saved, names, make_lm, make_engine, no_connection):
    """Loads what must be refused; nothing may be asked before."""

    def refuse(error, message, path, **given):
        engine = make_engine()
        with pytest.raises(error, match=message):
            load(path, **{"lm": make_lm(engine), "home": saved[0], **given})
        assert engine.asked == []

    return refuse


@pytest.mark.parametrize("engine", ["dense", "bm25", "hybrid"])
def test_a_loaded_program_searches_as_it_was_compiled_and_answers(engine, built, word_model, make_lm, no_connection):
    home, folder = built(engine)
    manifest = read_artifact(folder).manifest
    embedder = None if engine == "bm25" else resolve_embedder("words", store=open_store(home))
    retriever = open_retriever("cards", engine=engine, embedder=embedder, home=home)
    assert (manifest.engine, manifest.collection, manifest.fingerprint) == (engine, "cards", retriever.fingerprint)
    assert (manifest.embedder is None, manifest.reranker) == (engine == "bm25", None)
    loaded = load(folder, lm=make_lm(), home=home, verify=True)
    found = loaded.program.technique.retriever
    assert (kind_of(found), found.fingerprint) == ("lexical" if engine == "bm25" else engine, retriever.fingerprint)
    prediction = loaded(*ASKED)
    assert prediction.answer == "right 4"
    assert prediction.passages[0].id == "decides-4"
    assert "lm='scripted/model', collection='cards'" in repr(loaded)


def test_verify_asks_the_golden_questions_and_notices_other_passages(saved, make_lm, make_engine):
    engine = make_engine()
    load(saved[1], lm=make_lm(engine), home=saved[0], verify=True)
    golden = {int(one.answer.split()[1]) for one in read_artifact(saved[1]).golden}
    assert {asked.number for asked in engine.asked if asked.step == "reader"} == golden != set()
    with pytest.raises(ArtifactError, match=r"golden.jsonl line 1: the program now finds \['else'\], but found"):
        load(saved[1], lm=make_lm(), retriever=lambda query, k: [Passage("else", "Decides 6.")], verify=True)


@pytest.mark.parametrize("engine", ["dense", "hybrid"])
def test_an_artifact_keeps_the_filter_that_it_was_made_with(engine, tmp_path, write, word_model, make_lm):
    home, where = tmp_path / "home", {"topic": "even", "n": {"$gt": 1}}
    passages = [Passage(f"p{n}", f"About {n}.", metadata={"topic": ("even", "odd")[n % 2], "n": n}) for n in range(6)]
    embedder = resolve_embedder("words", store=open_store(home))
    build_collection("numbers", passages, embedder=embedder, home=home)
    program = make_program("plain", open_retriever("numbers", engine=engine, embedder=embedder, home=home, where=where))
    made = {"lm": make_lm(), "asked": [Question("q", "About what?")], "threads": 1, "made": {}, "card": ""}
    manifest = save_program(tmp_path / "even", program, **made)
    assert manifest.where == {"$and": [{"topic": "even"}, {"n": {"$gt": 1}}]}
    build_collection("numbers", passages, embedder=embedder, home=tmp_path / "other")  # as on another machine

    def found(**options):
        loaded = load(tmp_path / "even", **{"lm": make_lm(), "home": tmp_path / "other", **options})
        return {one.id for one in loaded("About what?").passages}

    assert found(verify=True) == {"p2", "p4"}
    assert found(where={"topic": "odd"}) == {"p1", "p3", "p5"}
    assert len(found(where={})) == 5
    with pytest.raises(InputError, match="where= requires a collection"):
        found(where={"n": 1}, retriever=lambda query, k: [])
    manifest = write(tmp_path / "bare")
    assert b"where" not in manifest.to_bytes()  # so that digests of before stay what they are
    with pytest.raises(ArtifactError, match="the artifact does not name one"):
        load(tmp_path / "bare", lm=make_lm(), where={"n": 1})
    open_store(home).close()
    open_store(tmp_path / "other").close()


# Everything that is wrong is said before anything is asked.


def test_another_collection_than_that_it_was_compiled_on_is_refused(own, refused, tmp_path, world, make_lm, word_model):
    missing = r"no collection 'cards' in .* \(known: none\); build the collection with querywright index"
    refused(CollectionError, missing, own, home=tmp_path / "none")
    other = tmp_path / "other"
    build_collection("cards", [Passage("new", "New.")], embedder=resolve_embedder("words"), home=other)
    its = "'cards' differs from the collection .*: its fingerprint.*restore the collection's passages"
    refused(ArtifactError, its, own, home=other)
    assert load(own, lm=make_lm(), home=other, accept=True)
    open_store(other).close()
    rewrite(own, embedder="st:someone/elses-model")
    refused(CollectionError, "built with the embedder 'st:words'.*compiled with 'st:someone/elses-model'", own)
    rewrite(own, collection=None, engine=None, embedder=None)
    refused(ArtifactError, "custom retriever.*retriever=", own)
    assert load(own, lm=make_lm(), retriever=world)


def test_a_retriever_that_was_opened_before_a_rebuild_is_reported(own, tmp_path, make_lm, word_model, caplog):
    words = resolve_embedder("words")
    for text, n_told in (("Old.", 0), ("New.", 1)):
        build_collection("notes", [Passage("a", text)], embedder=words, home=tmp_path)
        if not n_told:
            early = open_retriever("notes", embedder=words, home=tmp_path)
        assert load(own, lm=make_lm(), retriever=early)
        assert caplog.text.count("the collection 'notes' was rebuilt after the retriever was opened") == n_told


def test_a_comparison_of_an_artifact_reports_a_rebuild_once(own, tmp_path, make_lm, word_model, caplog):
    words = resolve_embedder("words")
    build_collection("notes", [Passage("a", "Old.")], embedder=words, home=tmp_path)
    early = open_retriever("notes", embedder=words, home=tmp_path)
    build_collection("notes", [Passage("a", "New.")], embedder=words, home=tmp_path)
    told: list[str] = []
    asked = [{"question": "What is old?", "evidence": ["a"]}]
    compare([own], asked, retriever=early, lm=make_lm(), metrics=["recall@1"], tell=told.append, home=tmp_path)
    assert [line for line in [*told, *caplog.messages] if "was rebuilt" in line] == told[:1]
    assert "the collection 'notes' was rebuilt after the retriever was opened" in told[0]


def test_an_artifact_says_what_share_of_its_collection_changed(own, saved, tmp_path, make_lm, word_model, caplog):
    passages = list(open_retriever("cards", embedder=resolve_embedder("words"), home=saved[0]).passages())
    other = tmp_path / "other"
    edited = [replace(passages[0], text="New."), *passages[1:]]
    build_collection("cards", edited, embedder=resolve_embedder("words"), home=other)
    assert load(own, lm=make_lm(), home=other)
    share = f"{1 / len(passages):.0%}"
    assert f"the program was compiled (about {share} of its passages). The program searches the current" in caplog.text
    assert "fingerprint" not in caplog.text
    (told,) = (one for one in verify(own, lm=make_lm(), home=other) if one.name == "collection")
    assert told.state != "ok"
    build_collection("cards", [*passages, Passage("new", "New.")], embedder=resolve_embedder("words"), home=other)
    assert load(own, lm=make_lm(), home=other)
    assert "(less than 1% of a sample of its passages)" in caplog.text
    open_store(other).close()


@pytest.mark.parametrize("engine", ["questions", "expanded"])
def test_questions_that_changed_are_refused(engine, built, word_model, refused, tmp_path):
    home, folder = built(engine)
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    rewrite(own, fingerprint="f" * 64)
    refused(ArtifactError, "its fingerprint must be .*questions or stored answers", own, home=home)


class Alphabet:
    """Passages by their ids, the last first."""

    id = "ce:some/alphabet"
    loaded = 0

    def load(self):
        self.loaded += 1

    def score(self, query, passages):
        order = sorted(passage.id for passage in passages)
        return [float(order.index(passage.id)) for passage in passages]


def test_a_reranker_is_given_or_had_by_the_name_of_a_hub_model(own, saved, refused, monkeypatch, world, make_lm):
    refused(ArtifactError, "does not rerank; remove the reranker", own, reranker=Alphabet())
    hub, given = Alphabet(), Alphabet()
    monkeypatch.setattr(load_module, "resolve_reranker", lambda name: hub)
    for name in ("path:mine@12345678", "ce:../../etc", "ce:/etc", "ce:a/b/c", "ce:some/alphabet#64", "x"):
        program = make_program("rerank", world, reader="multiple_choice", reranker=Alphabet())
        rewrite(own, program=program, reranker=name, golden=[])
        refused(ArtifactError, "cannot be loaded by name alone; pass .*reranker=", own)
    assert load(own, lm=make_lm(), home=saved[0], reranker=given).program.technique.reranker is given
    assert load(own, lm=make_lm(), home=saved[0], reranker="a/folder").program.technique.reranker is hub
    assert (given.loaded, hub.loaded) == (0, 1)
    rewrite(own, program=program, reranker=hub.id, golden=[])
    assert load(own, lm=make_lm(), home=saved[0]).program.technique.reranker is hub


@pytest.mark.parametrize(
    ("recorded", "looked_for"),
    [
        ("embedded:SmolLM2-135M-Instruct", "embedded"),
        ("openrouter/meta-llama/llama-3:free@2", "openrouter/meta-llama/llama-3:free@2"),
        *((name, None) for name in ("gguf:/etc/model.gguf", "gguf:m/m.gguf", "huggingface/https://evil.example")),
        *((name, None) for name in ("openai//evil", "no-provider", "a/b c", "embedded:another")),
    ],
)
def test_the_lm_that_the_artifact_names_is_looked_for_where_its_name_holds_no_address(
    recorded, looked_for, artifact, world, names, make_lm, monkeypatch
):
    rewrite(artifact, lm=recorded)
    monkeypatch.setenv("QUERYWRIGHT_ALLOW_LM", "openai/*, openrouter/meta-llama/*,huggingface/*")
    with pytest.raises(ModelError if looked_for else ArtifactError, match="in this test" if looked_for else "as lm="):
        load(artifact, retriever=world)
    assert names == ([looked_for] if looked_for else [])
    lm = dspy.utils.DummyLM([{"answer": "x"}])
    assert load(artifact, lm=lm, retriever=world).lm is lm
    with pytest.raises(InputError, match="lm must be an LM or its name, but got 7"):
        load(artifact, lm=7, retriever=world)


@pytest.mark.parametrize(
    ("allowed", "loads"),
    [("", False), ("openai/*", True), ("anthropic/*, openai/gpt-4o", True), ("openai", False), ("anthropic/*", False)],
)
def test_an_lm_elsewhere_is_named_or_allowed_by_who_loads_and_not_by_the_artifact(
    allowed, loads, artifact, world, names, monkeypatch
):
    rewrite(artifact, lm="openai/gpt-4o")
    monkeypatch.setenv("QUERYWRIGHT_ALLOW_LM", allowed)
    wanted = r"no openai/gpt-4o in this test" if loads else (
        r"pass lm='openai/gpt-4o' \(--lm openai/gpt-4o\), or allow this LM .* QUERYWRIGHT_ALLOW_LM=openai/gpt-4o"
    )  # fmt: skip
    with pytest.raises(ModelError if loads else ArtifactError, match=wanted):
        load(artifact, retriever=world)
    assert names == (["openai/gpt-4o"] if loads else [])
    monkeypatch.setenv("QUERYWRIGHT_ALLOW_LM", "")
    checks = verify(artifact, home=None)
    with pytest.raises(ModelError, match="no anthropic/mine in this test"):
        load(artifact, lm="anthropic/mine", retriever=world)
    assert not passed(checks)


def test_a_service_that_refuses_a_key_is_told_with_the_remedy_in_the_message(artifact, world, make_lm, make_engine):
    def refuse(n, asked):
        raise dspy.utils.exceptions.LMAuthError("no such key")

    loaded = load(artifact, lm=make_lm(make_engine(refuse)), retriever=world)
    with pytest.raises(dspy.utils.exceptions.LMAuthError, match=r"no such key\. The artifact .* pass the LM as lm="):
        loaded(*ASKED)


# What an application waits for when it imports us: in a process of its own.


FORBIDDEN = (
    "optuna", "pandas", "plotly", "torch", "datasets", "sqlalchemy", "scipy", "sklearn", "chromadb", "litellm",
    "sentence_transformers", "xllamacpp", "querywright.optimize.search.compile", "querywright.optimize.evaluate",
    "querywright.optimize.study", "querywright.metrics",
)  # fmt: skip
IMPORT = "import querywright\nquerywright.load\n"
ANSWER = """
import querywright
from dspy.utils import DummyLM
from querywright.optimize.artifacts.files import write_artifact
from querywright.programs import make_program
write_artifact(
    "a", make_program("plain", lambda query, k: [], reader="short_answer"), lm="x/y", embedder=None, collection=None,
    engine=None, reranker=None, fingerprint=None, created="2026-01-02", made={}, golden=[], card="")
lm = DummyLM([{"answer": "tea"}] * 2, adapter=querywright.load.__globals__["dspy"].JSONAdapter())
program = querywright.load("a", lm=lm, retriever=lambda query, k: ["Tea is hot."])
assert program("What is hot?").answer == "tea"
"""


@pytest.mark.parametrize("script", [IMPORT, ANSWER], ids=["import", "answer"])
def test_loading_imports_nothing_that_compiling_needs(script, tmp_path):
    told = f"{script}\nimport sys\nprint([name for name in {FORBIDDEN!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


# What is said of an artifact: its card, its checks, and what tells it from another.


def test_a_card_has_what_an_artifact_is(saved):
    found = card(saved[1])
    assert json.loads(json.dumps(found)) == found
    assert (found["technique"], found["lm"], found["collection"]) == ("hcqr", "scripted/model", "cards")
    assert found["verdict"] == "It is better on test"
    score = {"value": 0.75, "low": 0.375, "high": 1.0, "n": 6, "unscored": 0}
    assert found["scores"][1]["metrics"]["accuracy"] == score
    assert found["comparisons"] == ["hcqr compiled won 3, lost 1"]
    assert found["knobs_changed"]["max_passages"]["value"] == 2 != found["knobs_changed"]["max_passages"]["default"]
    assert "top_k" not in found["knobs_changed"]
    assert found["prompts"]["reader.predict"]["instructions"]
    assert found["made"] == {"seed": 7}
    assert found["digest"] == read_artifact(saved[1]).manifest.digest


def test_a_digest_is_asked_of_an_artifact_that_was_read_too(saved, make_lm):
    with pytest.raises(ArtifactError, match="digest must be"):
        load(read_artifact(saved[1]), lm=make_lm(), home=saved[0], digest="sha256:" + "0" * 64)


def states(checks):
    return {one.name: one.state for one in checks}


WELL = dict.fromkeys(["files", "versions", "program", "collection", "LM", "golden answer 1", "golden answer 2"], "ok")


def test_every_part_of_an_artifact_is_checked_and_none_hides_another(saved, own, tmp_path, make_lm, make_engine):
    checks = verify(saved[1], lm=make_lm(), home=saved[0], digest=read_artifact(saved[1]).manifest.digest)
    assert states(checks) == WELL
    assert passed(checks)
    checks = verify(saved[1], lm=make_lm(), home=tmp_path / "other")
    golden = {"golden answers": "not possible"}
    named = {name: state for name, state in WELL.items() if "golden" not in name}
    assert states(checks) == {**named, "collection": "not possible", **golden}
    assert "build the collection with querywright index" in next(
        one.remedy for one in checks if one.name == "collection"
    )
    engine = make_engine()
    checks = verify(own, lm=make_lm(engine), home=saved[0], digest="sha256:" + "0" * 64)
    assert states(checks) == {"files": "differs"}
    assert "digest must be" in checks[0].said
    (own / "golden.jsonl").write_text("")
    checks = verify(own, lm=make_lm(engine), home=saved[0])
    assert (states(checks), passed(checks)) == ({"files": "differs"}, False)
    assert "golden.jsonl was changed" in checks[0].said
    assert engine.asked == []


def test_without_golden_answers_nothing_is_replayed(place, write, make_lm):
    write(place / "a", make_program("closed_book", None, reader="short_answer"), golden=[])
    checks = verify(place / "a", lm=make_lm())
    assert (states(checks)["golden answers"], passed(checks)) == ("not possible", False)


def test_a_library_in_another_version_is_a_warning_until_an_answer_differs(
    saved, monkeypatch, make_lm, make_engine, scripted
):
    module = sys.modules[verify.__module__]
    real = module.version
    monkeypatch.setattr(module, "version", lambda name: "9.9" if name == "dspy" else real(name))
    manifest = read_artifact(saved[1]).manifest
    assert drifted(manifest) == {"dspy": (manifest.versions["dspy"], "9.9")}
    checks = verify(saved[1], lm=make_lm(), home=saved[0])
    assert (states(checks)["version of dspy"], passed(checks)) == ("warning", True)

    def write(asked):
        return scripted(asked) if asked.step != "reader" else json.dumps({"answer": f"wrong {asked.number}"})

    lm = make_lm(make_engine(write=write))
    checks = verify(saved[1], lm=lm, home=saved[0])
    assert (states(checks)["version of dspy"], passed(checks)) == ("differs", False)
    one = next(check for check in checks if check.name == "golden answer 1")
    with pytest.raises(ArtifactError) as raised:  # loading tells it alike
        load(saved[1], lm=lm, home=saved[0], verify=True)
    assert str(raised.value) == f"golden.jsonl line 1: {one.said}; {one.remedy}"
