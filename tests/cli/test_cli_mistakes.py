"""A user's mistakes: what is wrong, the remedy, exit status 2, nothing spent and nothing lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

QUESTION = "What is said about salt?"


@pytest.fixture
def wrong(cli, server):
    """Runs a command that must fail before any LM call; returns its message in one line."""

    def call(*arguments):
        before = len(server.requests)
        done = cli(*arguments)
        assert done.status == 2, done
        assert done.out == ""
        assert "Traceback" not in done.err
        assert len(server.requests) == before
        return " ".join(done.err.split())

    return call


def says(text, *parts):
    missing = [part for part in parts if part not in text]
    assert not missing, f"{missing} not in {text!r}"


def test_a_missing_file(wrong, collection, server):
    says(wrong("index", "new", "absent.jsonl"), "absent.jsonl", "no such file", ".jsonl", "hf:NAME")
    says(wrong("evaluate", "absent.jsonl", "--collection", collection, *server.lm), "absent.jsonl", "no such file")
    assert not Path("home/collections/new").exists()


def test_a_malformed_file_is_named_with_every_bad_row(wrong, tmp_path):
    source = tmp_path / "bad.jsonl"
    source.write_text('{"id": "a", "text": "fine"}\n{"id": "b", \n{"id": "c"}\n', encoding="utf-8")
    says(wrong("index", "new", source), "bad.jsonl", "line 2", "line 3", "text")
    source.write_text('{"id": "a", "contents_": "fine"}\n', encoding="utf-8")
    says(wrong("index", "new", source), "no column for 'text'", "contents_")
    says(wrong("index", "new", source, "--column", "text=absent"), "absent")
    says(wrong("index", "new", source, "--column", "text"), "--column takes NAME=VALUE", "'text'")
    says(wrong("index", "new", source, "--column", "words=contents_"), "words", "text")
    says(wrong("index", "Two Words", source), "'Two Words'", "a-z")


def test_one_id_with_two_texts(wrong, write):
    source = write("twice.jsonl", [{"id": "a", "text": "one"}, {"id": "a", "text": "two"}])
    says(wrong("index", "new", source), "twice.jsonl", "'a'", "other content")


def test_a_question_without_options_for_a_program_that_chooses(wrong, collection, rows, write, server, artifact):
    del rows[1]["options"]
    source = write("open.jsonl", rows)
    fixed = ("--collection", collection, *server.lm)
    says(wrong("evaluate", source, "--technique", "plain", "--reader", "multiple_choice", *fixed), "line 2", "options")
    says(wrong("evaluate", source, "--technique", "hcqr", *fixed), "hcqr: every question needs options", "line 2")
    says(wrong("evaluate", source, "--artifact", artifact, *server.lm), "made: every question needs options", "line 2")
    says(wrong("compile", "hcqr", source, "--out", "new", *fixed), "line 2", "options")
    says(wrong("ask", QUESTION, "--technique", "hcqr", *fixed), "hcqr compares options", "--option")
    says(wrong("ask", QUESTION, "--technique", "plain", "--reader", "multiple_choice", *fixed), "compares", "--option")
    says(wrong("ask", QUESTION, "--artifact", artifact, *server.lm), "chooses between options", "--option")


def test_an_answer_that_is_no_option(wrong, collection, rows, write, server):
    rows[3]["answer"] = "pepper"
    source = write("pepper.jsonl", rows)
    for command in (["evaluate", source], ["compile", "hcqr", source, "--out", "new"]):
        says(wrong(*command, "--collection", collection, *server.lm), "line 4", "pepper", "answer")


def test_unknown_names_are_answered_with_the_known_ones(wrong, questions, collection, server):
    fixed = ("--collection", collection, *server.lm)
    says(wrong("evaluate", questions, "--technique", "hcrq", *fixed), "'hcrq'", "hcqr", "plain")
    says(wrong("compile", "hcrq", questions, "--out", "new", *fixed), "'hcrq'", "hcqr")
    says(wrong("ask", QUESTION, "--technique", "hcrq", *fixed), "'hcrq'", "hcqr")
    says(wrong("evaluate", questions, "--metric", "f1", *fixed), "'f1'", "token_f1", "recall")
    for command in (
        ["evaluate", questions],
        ["compile", "hcqr", questions, "--out", "new"],
        ["ask", QUESTION, "--technique", "plain"],
    ):
        says(wrong(*command, "--reader", "long", *fixed), "'long'", "multiple_choice", "none")
    says(wrong("compile", "hcqr", questions, "--out", "new", "--objective", "speed", *fixed), "'speed'", "accuracy")


def test_knobs(wrong, questions, collection, server):
    fixed = ("--collection", collection, *server.lm)
    plain = ("evaluate", questions, "--technique", "plain", *fixed)
    says(wrong(*plain, "--knob", "top_k=3"), "'top_k'", "max_passages", "query_with_options")
    says(wrong(*plain, "--knob", "max_passages=0"), "max_passages", "1 to 50", "0")
    says(wrong(*plain, "--knob", "max_passages=2.5"), "whole number", "2.5")
    says(wrong(*plain, "--knob", "max_passages"), "--knob takes NAME=VALUE")
    says(wrong(*plain, "--knob", "max_passages=1", "--knob", "max_passages=2"), "twice")
    says(wrong("ask", QUESTION, "--technique", "hcqr", "--knob", "fusion=sum", *fixed), "fusion", "interleave", "'sum'")
    says(wrong("ask", QUESTION, "--technique", "plain", "--knob", "fusion=rrf", *fixed), "fusion", "max_passages")
    says(wrong("compile", "hcqr", questions, "--out", "new", "--knob", "top=1", *fixed), "top", "top_k")


def test_models(wrong, questions, collection, monkeypatch):
    ask = ("ask", QUESTION, "--technique", "closed_book")
    says(wrong(*ask, "--lm", "gpt-4o-mini"), "'gpt-4o-mini'", "openai/gpt-4o-mini", "embedded")
    says(wrong(*ask, "--lm", "gguf:absent.gguf"), "absent.gguf", "gguf:PATH")
    says(wrong(*ask, "--api-base", "http://127.0.0.1:9"), "'embedded'", "--api-base", "--lm openai/")
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    for command in (ask, ("evaluate", questions, "--collection", collection)):
        says(wrong(*command, "--lm", "openai/x", "--api-key-env", "ABSENT_KEY"), "'ABSENT_KEY'", "is not set")
    told = wrong(*ask, "--lm", "openai/x", "--api-key-env", "sk-this-is-the-key-itself")
    says(told, "name of a variable")
    assert "this-is-the-key" not in told


def test_collections(wrong, questions, collection, server):
    says(
        wrong("evaluate", questions, "--collection", "absent", *server.lm),
        "'absent'", "known: tiny", "querywright index absent",
    )  # fmt: skip
    says(wrong("evaluate", questions, *server.lm), "plain searches", "--collection")
    says(wrong("ask", QUESTION, "--technique", "plain", *server.lm), "plain searches", "--collection")
    other = ("--embedder", "other", "--collection", collection, *server.lm)
    says(wrong("evaluate", questions, *other), "'embedded:all-MiniLM-L6-v2'", "'st:other'", "querywright index tiny")
    says(wrong("ask", QUESTION, "--technique", "plain", *other), "'embedded:all-MiniLM-L6-v2'", "'st:other'")
    says(wrong("compile", "hcqr", questions, "--out", "new", *other), "'embedded:all-MiniLM-L6-v2'", "'st:other'")


def test_the_remedy_for_a_missing_collection_is_a_command_that_there_is(cli, wrong, server, passages):
    told = wrong("ask", QUESTION, "--technique", "plain", "--collection", "absent", *server.lm)
    remedy = told[told.index("querywright index") :].split()[1:4]
    assert remedy[:2] == ["index", "absent"]
    assert cli("index", "absent", passages).status == 0
    assert cli("ask", QUESTION, "--technique", "plain", "--collection", "absent", *server.lm).status == 0


def test_questions_and_options_on_the_command_line(wrong, collection, server):
    ask = ("--technique", "plain", "--collection", collection, *server.lm)
    for empty in ("", "  \n"):
        says(wrong("ask", empty, *ask), "the question is empty")
    says(wrong("ask", QUESTION, "--option", "salt", *ask), "only one --option", "'salt'", "at least two")
    says(wrong("ask", QUESTION, "--option", "salt", "--option", " ", *ask), "--option is empty")
    says(wrong("ask", QUESTION, "--option", "salt", "--option", "salt ", *ask), "'salt' is given twice")
    says(wrong("ask", QUESTION, *server.lm), "--artifact", "--technique")
    says(wrong("ask", QUESTION, "--verify", *ask), "--verify", "--artifact")


def test_sizes(wrong, questions, collection, server):
    command = ("compile", "hcqr", questions, "--collection", collection, "--out", "new", *server.lm)
    for sizes in ("20,40", "a,b,c", "1,2,3,4", "-1,2,3", "²,1,1", ""):
        says(wrong(*command, f"--sizes={sizes}"), "--sizes takes three whole numbers", "20,40,80")
    says(wrong(*command, "--sizes", "0,2,2"), "1 or more")
    says(wrong(*command, "--sizes", "2,900,2"), "dev", "900")
    says(wrong(*command, "--limit", "1"), "split is empty")


def test_nothing_to_score(wrong, rows, write, collection, server):
    for row in rows:
        del row["evidence"], row["answer"]
    source = write("bare.jsonl", rows)
    command = ("evaluate", source, "--collection", collection, "--technique", "plain", *server.lm)
    says(wrong(*command), "nothing can be scored", "--judge-lm")
    says(wrong(*command, "--metric", "recall"), "nothing can be scored: recall needs evidence")
    says(wrong(*command, "--metric", "hit", "--metric", "mrr@3"), "hit needs answer; mrr@3 needs evidence")
    says(wrong(*command, "--reader", "none"), "nothing can be scored")


def test_metrics_that_the_questions_cannot_be_scored_by(wrong, questions, collection, server):
    command = ("evaluate", questions, "--collection", collection, "--technique", "plain", *server.lm)
    says(wrong(*command, "--metric", "joint_passage_f1"), "needs a reader that names its support (--reader grounded)")
    says(
        wrong(*command, "--metric", "hypothesis_agreement", "--reader", "none"),
        "hypothesis_agreement needs reader",
    )


def copied(artifact: Path, name: str) -> Path:
    return Path(shutil.copytree(artifact, artifact.parent / name))


def test_artifacts(wrong, cli, artifact, questions, server, passages, write):
    options = ("--option", "salt", "--option", "feet")

    def told(path):
        says(wrong("evaluate", questions, "--artifact", path, *server.lm), "")
        return wrong("ask", QUESTION, "--artifact", path, *options, *server.lm)

    says(told("artifacts/absent"), "'absent'", "no artifact", "--out")
    empty = Path("artifacts/empty")
    empty.mkdir()
    says(told(empty), "'empty'", "manifest.json is missing")

    cut = copied(artifact, "cut")
    (cut / "program.json").write_bytes((artifact / "program.json").read_bytes()[:-40])
    says(told(cut), "program.json was changed", "compile again")
    cut = copied(artifact, "cut-manifest")
    (cut / "manifest.json").write_bytes((artifact / "manifest.json").read_bytes()[:200])
    says(told(cut), "manifest.json", "it is no JSON")
    less = copied(artifact, "less")
    (less / "golden.jsonl").unlink()
    says(told(less), "golden.jsonl is missing")

    edited = copied(artifact, "edited")
    state = json.loads((edited / "program.json").read_text())
    state["knobs"]["max_passages"] = 50
    (edited / "program.json").write_text(json.dumps(state))
    says(told(edited), "program.json was changed")
    manifest = copied(artifact, "edited-manifest") / "manifest.json"
    manifest.write_text(manifest.read_text().replace("openai/scripted", "openai/other"))
    says(told(manifest.parent), "manifest.json", "it was changed")

    for option, value in (("--technique", "plain"), ("--collection", "tiny"), ("--reader", "short_answer"),
                          ("--knob", "max_passages=1"), ("--embedder", "other")):  # fmt: skip
        text = wrong("ask", QUESTION, "--artifact", artifact, *options, option, value, *server.lm)
        says(text, "an artifact brings its own", f"leave out {option}")

    source = write("more.jsonl", [{"id": "new", "text": "A passage more."}])
    assert cli("index", "tiny", source).status == 0
    says(told(artifact), "'tiny'", "fingerprint", "index the original")
    assert cli("index", "tiny", passages, "--prune").status == 0
    assert cli("ask", QUESTION, "--artifact", artifact, *options, *server.lm).status == 0
    shutil.rmtree("home/collections/tiny")
    says(told(artifact), "'tiny'", "querywright index tiny")


def test_an_artifact_whose_golden_answers_changed(cli, artifact, server, monkeypatch, tmp_path):
    server.reply = lambda body: '{"answer": "salt"}'
    monkeypatch.setenv("QUERYWRIGHT_HOME", str(tmp_path / "elsewhere"))
    shutil.copytree(tmp_path / "home" / "collections", tmp_path / "elsewhere" / "collections")
    done = cli("ask", QUESTION, "--artifact", artifact, "--verify", "--option", "salt", "--option", "feet", *server.lm)
    assert done.status == 2
    says(done.err, "golden.jsonl line 1", "it now answers 'salt', but answered 'juice'", "compile again")


def test_places_that_cannot_be_written_are_named_before_anything_is_asked(
    wrong, questions, collection, server, artifact
):
    Path("file").write_text("x")
    Path("full").mkdir()
    (Path("full") / "notes.txt").write_text("mine")
    compile_to = ("compile", "hcqr", questions, "--collection", collection, *server.lm, "--out")
    says(wrong(*compile_to, "file"), "'file' is a file", "--out")
    says(wrong(*compile_to, "file/artifact"), "'artifact' cannot be written into 'file'", "--out")
    says(wrong(*compile_to, "full"), "'full' exists and is no artifact", "--out")
    says(wrong("demo", "--out", "file/artifact"), "'artifact' cannot be written into 'file'", "--out")
    evaluate = ("evaluate", questions, "--collection", collection, *server.lm, "--rows")
    says(wrong(*evaluate, "absent/rows.jsonl"), "there is no folder 'absent'", "--rows")
    says(wrong(*evaluate, "full"), "'full' is a folder", "--rows")
    assert (Path("full") / "notes.txt").read_text() == "mine"
    assert not Path("new").exists()
    assert sorted(path.name for path in artifact.parent.iterdir()) == [artifact.name]


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_folder_is_named_before_anything_is_asked(
    wrong, questions, collection, server, monkeypatch, reason
):
    def refused(*_, **__):
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    fixed = (questions, "--collection", collection, *server.lm)
    says(wrong("compile", "hcqr", *fixed, "--out", "deep/in/new"), "'new'", os.strerror(reason), "--out", "make room")
    says(wrong("evaluate", *fixed, "--rows", "rows.jsonl"), "'rows.jsonl'", os.strerror(reason), "--rows")
    assert not Path("deep").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write(wrong, questions, collection, server):
    Path("locked").mkdir(mode=0o500)
    fixed = (questions, "--collection", collection, *server.lm)
    says(wrong("compile", "hcqr", *fixed, "--out", "locked/new"), "'new' cannot be written into 'locked'")
    says(wrong("evaluate", *fixed, "--rows", "locked/rows.jsonl"), "cannot be written into 'locked'")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_rows_that_find_no_room_at_the_end_leave_the_table(cli, questions, server):
    done = cli("evaluate", questions, "--technique", "closed_book", "--limit", "2", "--rows", "/dev/full", "--json",
               *server.lm)  # fmt: skip
    assert done.status == 2
    assert done.data["arms"][0]["n"] == 2
    says(done.err, "'full' could not be written", "No space left", "--rows")


def test_a_working_folder_that_cannot_be_made(wrong, questions, passages, server):
    Path("file").write_text("x")
    for place in ("file", "file/home"):
        says(wrong("index", "tiny", passages, "--home", place), f"{place!r} cannot be made", "--home")
        says(
            wrong("evaluate", questions, "--technique", "closed_book", "--home", place, *server.lm),
            f"{place!r} cannot be made",
        )
