"""Card, checks and differences of artifacts."""

from __future__ import annotations

import json

import pytest

from querywright.errors import ArtifactError
from querywright.optimize.artifacts.card import card
from querywright.optimize.artifacts.diff import diff
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


def test_verifying_and_loading_tell_a_golden_answer_alike(saved, make_lm, make_engine, scripted):
    def write(asked):
        return scripted(asked) if asked.step != "reader" else json.dumps({"answer": f"wrong {asked.number}"})

    lm = make_lm(make_engine(write=write))
    check = next(one for one in verify(saved[1], lm=lm, home=saved[0]) if one.name == "golden answer 1")
    with pytest.raises(ArtifactError) as raised:
        load(saved[1], lm=lm, home=saved[0], verify=True)
    assert str(raised.value) == f"golden.jsonl line 1: {check.said}; {check.remedy}"


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
