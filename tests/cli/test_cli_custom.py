"""Programs and techniques in the user's own file, as docs/how-to/technique.md shows them."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

import querywright as qw
from querywright.errors import InputError
from querywright.optimize.artifacts.save import save_program
from querywright.programs import PLACES, RAG, TECHNIQUES, register_technique, technique_class, technique_from
from querywright.technique_names import code_at

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "technique.md"
BLOCK = re.compile(r"test_cli_custom.py -->\n```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def mine(collection, questions, home, monkeypatch):
    """The file of the page, over the tiny collection, under a name that no other test imports."""
    code, _ = BLOCK.findall(PAGE.read_text("utf-8"))
    Path("own_programs.py").write_text(code.replace('"mine"', f'"{collection}"'))
    for name in ("own_programs", "own_programs.Keywords", "catalog_hyde"):
        monkeypatch.delitem(TECHNIQUES if name != "own_programs" else sys.modules, name, raising=False)
    code_at.cache_clear()
    monkeypatch.syspath_prepend(".")
    yield ("--data", questions, "--collection", collection)
    for name in [one for one in TECHNIQUES if one.startswith("own_programs") or one == "catalog_hyde"]:
        TECHNIQUES.pop(name)
    PLACES.clear()
    sys.modules.pop("own_programs", None)


def test_programs_and_techniques_of_a_file_are_compared_with_the_built_in_ones(ok, wrong, mine, server):
    arms = ["own_programs.py:Keywords", "own_programs:first_option", "own_programs.py:CatalogHyDE:n_documents=2"]
    done = ok("compare", "plain", *arms, *mine, "--limit", "6", "--out", "results", "--json", *server.lm)
    found = {one["arm"]: one["metrics"] for one in done.data["arms"]}
    assert list(found) == ["plain", *arms]
    assert found[arms[0]]["recall"]["value"] > 0  # a reader answers from its passages
    assert found[arms[0]]["accuracy"]["value"] is not None
    assert found[arms[1]]["accuracy"]["value"] == 0.0  # it answers itself
    assert found[arms[2]]["recall"]["value"] > 0
    (saved,) = ok("view", "results", "--json").data
    assert [one["name"] for one in saved["arms"]] == ["plain", *arms]
    said = wrong("compare", "plain", *mine, "--limit", "6", "--out", "results", *server.lm)
    assert "includes your program 'own_programs.py:Keywords', but the arms do not" in said


def test_a_program_is_compiled_saved_and_loaded_by_who_names_it(ok, wrong, mine, server):
    given = ("--out", "artifacts/own", "--sizes", "3,4,4", "--trials", "2", *server.lm)
    ok("compile", "own_programs.py:Keywords", *mine, "--objective", "recall@5", "--reader", "none", *given)
    manifest = json.loads(Path("artifacts/own/manifest.json").read_text())
    assert manifest["made"]["technique"] == "own_programs.Keywords"
    asked = ok("ask", "What about feet?", "--technique", "own_programs:Keywords", "--json", *server.lm)
    assert asked.data["passages"]
    program = technique_from(importlib.import_module("own_programs").Keywords, "own_programs.Keywords")
    assert register_technique(program) == "own_programs.Keywords"
    assert technique_class("own_programs.Keywords") is program


def test_an_artifact_of_a_technique_in_a_file_is_opened_by_who_names_the_file(ok, wrong, mine, server, collection):
    place = "own_programs.py:CatalogHyDE"
    program = RAG(code_at(place)(qw.ChromaRetriever(collection)), None)
    lm = qw.resolve_lm("openai/scripted", api_base=server.address, api_key="sk-x")
    save_program(Path("own"), program, lm=lm, asked=[], threads=1, made={}, card="# own\n")
    given = ("ask", "What about feet?", "--artifact", "own", *server.lm)
    for command in (given, ("evaluate", "own", *mine, *server.lm)):
        said = wrong(*command)
        assert "unknown technique 'catalog_hyde'" in said
        assert "--technique FILE.py:NAME" in said
    assert ok(*given, "--technique", place, "--json").data["passages"]
    TECHNIQUES.pop("catalog_hyde")
    done = ok("evaluate", place, "own", *mine, "--limit", "6", "--reader", "none", "--json", *server.lm)
    assert [one["arm"] for one in done.data["arms"]] == [place, "own"]


@pytest.mark.filterwarnings("ignore:.*too few to show", "ignore:the baseline has .* 100 on dev")
def test_a_study_of_code_in_a_file_is_shown_without_the_file(ok, wrong, mine, server, questions, collection, tmp_path):
    with Path("own_programs.py").open("a") as file:
        file.write("\n\ndef found(example, prediction, trace=None):\n    return float(bool(prediction.passages))\n")
    qw.study(
        ["own_programs.py:CatalogHyDE"], Path(questions), retriever=collection, reader=None, trials=2,
        lm=qw.resolve_lm("openai/scripted", api_base=server.address, api_key="sk-x"), out="mine",
        objectives=["own_programs.py:found", "recall@5"], sizes=(3, 6, 4),
    )  # fmt: skip
    TECHNIQUES.pop("catalog_hyde")
    Path("own_programs.py").unlink()
    status = ok("study", "status", "mine")
    assert "own_programs.py:found" in status.out
    assert "n_documents=" in status.out
    assert ok("study", "status", "mine", "--json").data["trials"]["complete"] == 2
    ok("study", "report", "mine", "--out", "mine.html")
    assert "catalog_hyde@dense" in Path("mine.html").read_text()
    ok("study", "export", "mine", "--out", "mine.csv")
    said = wrong("study", "resume", "mine")
    assert "objectives.0: cannot import the metric 'own_programs.py:found'" in said
    assert "techniques.catalog_hyde: unknown technique 'catalog_hyde'" in said


@pytest.mark.filterwarnings("ignore:.*too few to show")
def test_a_study_file_names_code_as_the_command_line_does(ok, mine, server, questions, collection):
    techniques = {"own_programs.py:Keywords": {}, "own_programs:CatalogHyDE": {"knobs": {"n_documents": [1, 2]}}}
    spec = {"name": "own", "questions": str(questions), "collection": collection, "techniques": techniques,
            "reader": "none", "objectives": ["recall@5"], "sizes": [3, 6, 4], "trials": 3, "lm": "openai/scripted",
            "api_base": server.address, "api_key_env": "SCRIPTED_KEY"}  # fmt: skip
    Path("own.yaml").write_text(yaml.safe_dump(spec))
    ok("study", "run", "own.yaml", "--out", "mine", "--workers", "2")
    tried = ok("study", "status", "mine", "--json").data["techniques"]
    assert {one["technique"] for one in tried if one["trials"]} == {"plain", *techniques}
    saved = {json.loads(file.read_text())["technique"]: file.parent for file in Path().glob("mine/*/*/manifest.json")}
    assert len(saved) == 2
    assert "plain" in saved
    (other,) = saved.keys() - {"plain"}
    place = {"own_programs.Keywords": "own_programs.py:Keywords", "catalog_hyde": "own_programs:CatalogHyDE"}[other]
    asked = ("ask", "What about feet?", "--artifact", saved[other], "--technique", place, "--json", *server.lm)
    assert ok(*asked).data["passages"]
    ok("study", "report", "mine", "--out", "mine.html")
    assert "own_programs.py:Keywords@dense" in Path("mine.html").read_text()
    assert not any(":" in name for name in TECHNIQUES), "a location is not a name"


@pytest.mark.parametrize(
    ("techniques", "said"),
    [
        (
            {"own_programs.py:Keywords": {}, "own_programs:Keywords": {}},
            "techniques.own_programs:Keywords: this technique was passed twice, also as own_programs.py:Keywords",
        ),
        (
            {"own_programs.py:CatalogHyDE@hybrid": {}},
            "must be only the technique; write own_programs.py:CatalogHyDE: {engines: [hybrid], knobs: {NAME: VALUE}}",
        ),
        (["own_programs.py:Keywords"], "techniques: must be a mapping, such as {own_programs.py:Keywords: {}}"),
    ],
)
def test_a_study_file_says_how_to_name_code(wrong, mine, questions, collection, techniques, said):
    spec = {"name": "own", "questions": str(questions), "collection": collection, "techniques": techniques}
    Path("own.yaml").write_text(yaml.safe_dump({**spec, "objectives": ["recall@5"]}))
    assert said in wrong("study", "check", "own.yaml")


@pytest.mark.filterwarnings("ignore:.*too few to show")
def test_a_finished_study_says_its_warnings_again(ok, mine, server, questions, collection):
    with Path("own_programs.py").open("a") as file:
        file.write("\n\ndef texts(question):\n    return ['A text.']\n")
    spec = {"name": "own", "questions": str(questions), "collection": collection, "lm": "openai/scripted",
            "techniques": {"own_programs.py:texts": {}}, "objectives": ["recall@5"], "reader": "none",
            "sizes": [3, 6, 4], "trials": 2, "api_base": server.address, "api_key_env": "SCRIPTED_KEY"}  # fmt: skip
    Path("own.yaml").write_text(yaml.safe_dump(spec))
    for again in ([], [], ["--workers", "2"]):
        said = " ".join(ok("study", "run", "own.yaml", "--out", "mine", *again).err.split())
        assert said.count("own_programs.py:texts: 1 of 1 distinct passages that it showed are not in the") == 1


@pytest.mark.filterwarnings("ignore:.*too few to show")
def test_a_study_does_not_resume_if_its_code_changed(ok, cli, wrong, mine, server, questions, collection):
    with Path("own_programs.py").open("a") as file:
        file.write("\n\ndef found(example, prediction, trace=None):\n    return float(bool(prediction.passages))\n")
    spec = {"name": "own", "questions": str(questions), "collection": collection, "lm": "openai/scripted",
            "techniques": {"own_programs.py:Keywords": {}}, "objectives": ["recall@5", "own_programs:found"],
            "reader": "short_answer", "sizes": [3, 6, 4], "trials": 2, "budget": {"calls": 1},
            "api_base": server.address, "api_key_env": "SCRIPTED_KEY"}  # fmt: skip
    Path("own.yaml").write_text(yaml.safe_dump(spec))
    assert cli("study", "run", "own.yaml", "--out", "mine").status != 0
    with Path("own_programs.py").open("a") as file:
        file.write("\n# edited\n")
    said = " ".join(wrong("study", "resume", "mine").split())
    for name in ("own_programs.py:Keywords", "own_programs:found"):
        assert f"the code of {name}" in said
    assert "changed since this study started, so old and new trials cannot be compared" in said


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ("own_programs.py", "'own_programs.py' is a file; name a technique or program in it, as in own_programs.py:"),
        ("nowhere.py:Keywords", "cannot import the program 'nowhere.py:Keywords': there is no file 'nowhere.py'"),
        ("nowhere:Keywords", "cannot import the program 'nowhere:Keywords': ModuleNotFoundError"),
        ("own_programs.py:Keyword", "unknown name 'Keyword' (did you mean Keywords?); available: Keywords, "),
        ("own_programs:Nothing", "unknown name 'Nothing'; available: "),
        ("own_programs.py:index", "a program must be a dspy.Module or a function, but got ChromaRetriever"),
        ("json:loads", "but a program must accept question=; options= and history= are optional"),
        ("own_programs.py:Keywords@bm25", "only a technique accepts an engine and knobs"),
    ],
)
def test_what_is_no_program_is_refused_before_anything_is_asked(wrong, mine, server, arm, said):
    assert said in wrong("evaluate", arm, *mine, *server.lm)


@pytest.mark.filterwarnings("ignore:.*too few to show")
def test_in_python_a_program_is_an_instance_a_class_or_a_function(mine, server, questions, collection):
    lm = qw.resolve_lm("openai/scripted", api_base=server.address, api_key="sk-x")
    own = importlib.import_module("own_programs")

    def both(question, history=None):
        return {"answer": "salt", "passages": [{"id": "p-salt", "text": "Salt."}, "No id."]}

    def odd(question):
        return 7

    _, code = BLOCK.findall(PAGE.read_text("utf-8"))
    code = code.replace("from mine", "from own_programs").replace('"mine"', "collection")
    names = {"lm": lm, "collection": collection}
    exec(code.replace('"openai/gpt-4o-mini"', "lm"), names)
    assert [one.name for one in names["found"].arms] == ["plain", "Keywords", "first_option"]
    with pytest.warns(UserWarning, match="both: 1 of 2 distinct passages that it showed are not in the collection"):
        found = qw.compare([own.Keywords(), own.CatalogHyDE, both], str(questions), retriever=collection, lm=lm)
    assert [one.name for one in found.arms] == ["Keywords", "catalog_hyde", "both"]
    assert {row.answer for row in found.arm("both").rows} == {"salt"}
    assert found.arm("both").rows[0].passages[0] == "p-salt"
    with pytest.raises(InputError, match=r"odd returned 7; a program must return an answer"):
        qw.evaluate(odd, str(questions), lm=lm)
    two = [qw.HyDE(qw.ChromaRetriever(collection), n_documents=number) for number in (1, 2)]
    names = [one.name for one in qw.compare([*two, two[0]], str(questions), lm=lm, reading={"limit": 2}).arms]
    assert names == ["hyde:n_documents=1", "hyde:n_documents=2", "hyde:n_documents=1 (2)"]
