"""Card, checks and differences of artifacts."""

from __future__ import annotations

import json

import dspy
import pytest

from querywright.errors import ArtifactError, ModelError
from querywright.optimize.artifacts.card import card
from querywright.optimize.artifacts.diff import diff, word_changes
from querywright.optimize.artifacts.files import Golden, read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.verify import drifted, passed, verify
from querywright.programs import make_program


def states(checks):
    return {one.name: one.state for one in checks}


def test_a_card_has_what_an_artifact_is(saved):
    found = card(saved[1])
    assert json.loads(json.dumps(found)) == found
    assert (found["technique"], found["lm"], found["collection"]) == ("hcqr", "scripted/model", "cards")
    assert found["verdict"] == "It is better on test"
    assert found["scores"][1]["metrics"]["accuracy"] == {
        "value": 0.75,
        "low": 0.375,
        "high": 1.0,
        "n": 6,
        "unscored": 0,
    }
    assert found["comparisons"] == ["hcqr compiled won 3, lost 1"]
    assert found["knobs_changed"]["max_passages"]["value"] == 2
    assert found["knobs_changed"]["max_passages"]["default"] != 2
    assert "top_k" not in found["knobs_changed"]
    assert found["prompts"]["reader.predict"]["instructions"]
    assert found["made"] == {"seed": 7}
    assert found["digest"] == read_artifact(saved[1]).manifest.digest


def test_a_card_leaves_out_what_is_not_of_the_form(place, write):
    write(place / "a", made={"test": [{"arm": 7}], "comparisons": "x", "recommended": [], "verdict": {}, "more": [1]})
    found = card(place / "a")
    assert (found["scores"], found["comparisons"], found["recommended"], found["verdict"]) == ([], [], None, None)
    assert found["made"] == {"more": [1]}


def test_all_is_well(saved, make_lm):
    checks = verify(saved[1], lm=make_lm(), home=saved[0], digest=read_artifact(saved[1]).manifest.digest)
    assert states(checks) == dict.fromkeys(
        ["files", "versions", "program", "collection", "LM", "golden answer 1", "golden answer 2"], "ok"
    )
    assert passed(checks)


def test_a_changed_file_or_another_digest_ends_every_check(own, saved, make_lm, make_engine):
    engine = make_engine()
    checks = verify(own, lm=make_lm(engine), home=saved[0], digest="sha256:" + "0" * 64)
    assert states(checks) == {"files": "differs"}
    assert "is asked for" in checks[0].said
    (own / "golden.jsonl").write_text("")
    checks = verify(own, lm=make_lm(engine), home=saved[0])
    assert states(checks) == {"files": "differs"}
    assert "golden.jsonl was changed" in checks[0].said
    assert not passed(checks)
    assert engine.asked == []


def test_a_missing_collection_hides_nothing_else(saved, tmp_path, make_lm):
    checks = verify(saved[1], lm=make_lm(), home=tmp_path / "other")
    assert states(checks) == {
        "files": "ok", "versions": "ok", "program": "ok", "collection": "not possible", "LM": "ok",
        "golden answers": "not possible",
    }  # fmt: skip
    assert "build it: querywright index" in next(one.remedy for one in checks if one.name == "collection")


def test_a_missing_lm_hides_nothing_else(saved):
    found = states(verify(saved[1], lm="no-provider", home=saved[0]))
    assert (found["collection"], found["LM"], found["golden answers"]) == ("ok", "not possible", "not possible")


class Reversed:
    """Passages in the order of their ids, the last first."""

    id = "ce:some/reversed"

    def load(self):
        pass

    def score(self, query, passages):
        order = sorted(passage.id for passage in passages)
        return [float(order.index(passage.id)) for passage in passages]


@pytest.fixture
def reranking(saved, place, write, make_lm, monkeypatch):
    """An artifact of a program that reranks, with a golden question that was answered so; a name leads to it."""
    monkeypatch.setattr("querywright.optimize.artifacts.load.resolve_reranker", lambda name: Reversed())
    facts = read_artifact(saved[1]).manifest.model_dump(include={"collection", "engine", "embedder", "fingerprint"})
    retriever = load(saved[1], lm=make_lm(), home=saved[0]).program.technique.retriever
    program = make_program("rerank", retriever, reader="multiple_choice", reranker=Reversed())
    options, question = ["wrong 4", "right 4"], "What of number 4?"
    with dspy.context(lm=make_lm()):
        was = program(question, options)
    golden = [Golden(question=question, options=options, answer=was.answer, passages=[one.id for one in was.passages])]
    write(place / "reranks", program, **{**facts, "golden": golden, "reranker": Reversed.id})
    return place / "reranks"


def test_a_reranker_is_a_check_of_its_own(reranking, saved, make_lm):
    checks = verify(reranking, lm=make_lm(), home=saved[0])
    assert passed(checks)
    names = [one.name for one in checks]
    assert names[names.index("collection") + 1 : names.index("LM")] == ["reranker"]
    assert next(one.said for one in checks if one.name == "reranker") == "ce:some/reversed"
    assert "reranker" not in states(verify(saved[1], lm=make_lm(), home=saved[0]))


def test_a_missing_reranker_hides_nothing_else(reranking, saved, make_lm, monkeypatch):
    def missing(name):
        raise ModelError("the reranker cannot be loaded; check its name")

    monkeypatch.setattr("querywright.optimize.artifacts.load.resolve_reranker", missing)
    checks = verify(reranking, lm=make_lm(), home=saved[0])
    found = states(checks)
    assert (found["collection"], found["reranker"], found["LM"]) == ("ok", "not possible", "ok")
    assert found["golden answers"] == "not possible"
    assert next((one.said, one.remedy) for one in checks if one.name == "reranker") == (
        "the reranker cannot be loaded",
        "check its name",
    )


def test_verifying_and_loading_tell_a_golden_answer_alike(saved, make_lm, make_engine, scripted):
    def write(asked):
        return scripted(asked) if asked.step != "reader" else json.dumps({"answer": f"wrong {asked.number}"})

    lm = make_lm(make_engine(write=write))
    check = next(one for one in verify(saved[1], lm=lm, home=saved[0]) if one.name == "golden answer 1")
    with pytest.raises(ArtifactError) as raised:
        load(saved[1], lm=lm, home=saved[0], verify=True)
    assert str(raised.value) == f"golden.jsonl line 1: {check.said}; {check.remedy}"


def test_every_golden_answer_is_told(saved, make_lm, make_engine, scripted):
    def write(asked):
        return scripted(asked) if asked.step != "reader" or asked.number == 6 else json.dumps({"answer": "wrong 7"})

    checks = verify(saved[1], lm=make_lm(make_engine(write=write)), home=saved[0])
    assert [one.state for one in checks if one.name.startswith("golden")] == ["ok", "differs"]
    assert "it now answers 'wrong 7', but answered 'right 7'" in checks[-1].said
    assert not passed(checks)


def test_an_lm_that_fails_is_told(saved, make_lm, make_engine):
    def fail(n, asked):
        raise RuntimeError("the wire is cut")

    checks = verify(saved[1], lm=make_lm(make_engine(before=fail)), home=saved[0])
    assert {one.state for one in checks if one.name.startswith("golden")} == {"not possible"}


def test_a_library_in_another_version_is_a_warning_until_an_answer_differs(
    saved, monkeypatch, make_lm, make_engine, scripted
):
    monkeypatch.setattr(
        "querywright.optimize.artifacts.verify.version", lambda name: {"dspy": "9.9"}.get(name, real(name))
    )
    from importlib.metadata import version as real

    manifest = read_artifact(saved[1]).manifest
    assert drifted(manifest) == {"dspy": (manifest.versions["dspy"], "9.9")}
    checks = verify(saved[1], lm=make_lm(), home=saved[0])
    assert states(checks)["version of dspy"] == "warning"
    assert passed(checks)

    def write(asked):
        return scripted(asked) if asked.step != "reader" else json.dumps({"answer": f"wrong {asked.number}"})

    checks = verify(saved[1], lm=make_lm(make_engine(write=write)), home=saved[0])
    assert states(checks)["version of dspy"] == "differs"
    assert not passed(checks)


def test_a_library_that_is_not_there_has_drifted(place, write):
    manifest = write(place / "a")
    manifest.versions["no-such-library"] = "1.0"
    assert drifted(manifest) == {"no-such-library": ("1.0", None)}


def test_without_golden_answers_nothing_is_replayed(place, write, make_lm):
    write(place / "a", make_program("closed_book", None, reader="short_answer"), golden=[])
    checks = verify(place / "a", lm=make_lm())
    assert states(checks)["golden answers"] == "not possible"
    assert not passed(checks)


def test_an_artifact_is_like_itself(saved):
    one = read_artifact(saved[1])
    found = diff(one, one)
    assert found.pop("same")
    assert [row["a"] == row["b"] for row in found.pop("scores")] == [True, True]
    assert set(map(len, found.values())) == {0}


def test_what_differs_is_told(place, write):
    one = make_program("hcqr", lambda query, k: [], reader="multiple_choice", top_k=3)
    other = make_program("hcqr", lambda query, k: [], reader="multiple_choice", top_k=8)
    written = one.technique.write_queries.signature.instructions
    other.technique.write_queries.signature = other.technique.write_queries.signature.with_instructions(
        written.replace(written.split()[1], "planted", 1)
    )
    shared = {"question": "Q", "support": "s"}
    one.technique.write_queries.demos = [shared, {"question": "only one"}]
    other.technique.write_queries.demos = [shared, {"question": "only other"}, {"question": "only other"}]
    score = {"value": 0.5, "low": 0.25, "high": 0.75, "n": 4}
    made = {"test": [{"arm": "hcqr", "n": 4, "metrics": {"accuracy": score}}]}
    golden = [Golden(question="Q", options=[], answer="a", passages=["p"])]
    write(place / "a", one, made=made, golden=golden)
    write(place / "b", other, lm="other/model", golden=[golden[0].model_copy(update={"answer": "b"})])
    found = diff(read_artifact(place / "a"), read_artifact(place / "b"))
    assert json.loads(json.dumps(found)) == found
    assert not found["same"]
    assert found["facts"] == [{"name": "lm", "a": "scripted/model", "b": "other/model"}]
    assert found["knobs"] == [{"name": "top_k", "a": 3, "b": 8}]
    assert [row["predictor"] for row in found["prompts"]] == ["technique.write_queries"]
    changes = found["prompts"][0]["changes"]
    assert ["del", written.split()[1]] in changes
    assert ["ins", "planted"] in changes
    assert found["demonstrations"] == [
        {
            "predictor": "technique.write_queries",
            "both": 1,
            "only_a": [{"question": "only one"}],
            "only_b": [{"question": "only other"}, {"question": "only other"}],
        }
    ]
    assert found["scores"] == [{"arm": "hcqr", "metric": "accuracy", "a": {**score, "unscored": 0}, "b": None}]
    assert found["versions"] == []
    assert found["golden"] == [
        {
            "question": "Q", "options": [],
            "a": {"answer": "a", "passages": ["p"]}, "b": {"answer": "b", "passages": ["p"]},
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after"),
    [("", ""), ("a b", "a b"), ("Read it all.", "Read all of it."), ("", "new"), ("old", ""), ("x y z", "1 2 3"),
     ("one two " * 2000, "one two " * 1999 + "three")],
)  # fmt: skip
def test_two_texts_come_back_from_their_changes(before, after):
    changes = word_changes(before, after)
    assert "".join(text for kind, text in changes if kind != "ins") == before
    assert "".join(text for kind, text in changes if kind != "del") == after
    assert all(text for _, text in changes)
