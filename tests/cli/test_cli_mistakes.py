"""A user's mistakes: what is wrong, the remedy, exit status 2, nothing spent and nothing lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from querywright.models.store import open_store

QUESTION = "What is said about salt?"
OPTIONS = ("--option", "salt", "--option", "feet")


def says(text, *parts):
    missing = [part for part in parts if part not in text]
    assert not missing, f"{missing} not in {text!r}"


def test_questions_that_a_program_cannot_be_asked(wrong, collection, rows, write, server, artifact):
    fixed = ("--collection", collection, *server.lm)
    del rows[1]["options"]
    source = write("open.jsonl", rows)
    says(wrong("evaluate", "plain", "--data", source, "--reader", "multiple_choice", *fixed), "line 2", "options")
    says(wrong("evaluate", artifact, "--data", source, *server.lm), "options (required for made)", "line 2")
    says(wrong("compile", "hcqr", "--reader", "multiple_choice", "--data", source, "--out", "new", *fixed), "line 2")
    says(
        wrong("ask", QUESTION, "--technique", "plain", "--reader", "multiple_choice", *fixed),
        "chooses between options",
        "--option",
    )
    says(wrong("ask", QUESTION, "--artifact", artifact, *server.lm), "chooses between options", "--option")


def test_what_is_missing_is_named_with_the_remedy(wrong, questions):
    says(wrong("compare", "plain", "--data", questions), "error: --out is missing; pass --out FOLDER")
    says(wrong("evaluate", "plain"), "error: --data is missing; pass --data QUESTIONS")
    says(wrong("compare", "--data", questions, "--out", "new"), "error: ARM is missing")
    says(wrong("compare", "plain", "--data", questions, "--out"), "--out requires an argument")
    says(
        wrong("index", "kb", "nowhere/"), "nowhere/: no such file or folder", "for a collection, documents (such as .md"
    )


def test_names_that_are_too_long_for_a_file(wrong, questions, passages, collection, server):
    long, fixed = "x" * 300, ("--data", questions, "--collection", collection, "--out", "new", *server.lm)
    for arm in (long, f"hcqr:writer={long}"):
        says(wrong("compare", arm, *fixed), "unknown", "xxx")
    says(wrong("index", "new", long), "is too long; use a shorter name")
    says(wrong("ask", QUESTION, "--artifact", long, *server.lm), "there is no artifact")
    assert not server.requests


def test_a_working_folder_that_cannot_be_written_is_asked_from_alone(
    ok, wrong, questions, collection, artifact, server, home, monkeypatch, caplog
):
    """Read-only as ``os.access`` has it; nothing in it changes."""
    open_store(home).close()
    monkeypatch.setattr("querywright.models.store._stores", {})
    may, before = os.access, {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    monkeypatch.setattr(os, "access", lambda path, mode: "/home" not in f"{path}" and may(path, mode))
    for asked in (
        ["--artifact", artifact, *OPTIONS],
        ["--technique", "rrr", "--collection", collection],
        ["--technique", "plain", "--collection", collection, "--engine", "bm25"],
    ):
        ok("ask", QUESTION, *asked, *server.lm)
    assert caplog.text.count("is not writable, so answers are not saved") == 1
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    says(wrong("evaluate", "--data", questions, "--collection", collection, *server.lm), "must be writable", "--home")


def test_lms(wrong, questions, collection, monkeypatch):
    def told(*lm):
        return wrong("evaluate", "plain", "--data", questions, "--collection", collection, *lm)

    says(told("--lm", "gpt-9"), "gpt-9")
    says(told("--api-base", "http://127.0.0.1:1"), "runs in this process, so it has no URL", "openai/MODEL")
    says(told("--lm", "openai/x", "--api-key-env", "NOT_SET"), "'NOT_SET' is unset or empty")
    said = told("--lm", "openai/x", "--api-key-env", "sk-this-is-the-key-itself")
    says(said, "the variable's name")
    assert "this-is-the-key" not in said


def test_what_cannot_be_asked(wrong, collection, server):
    for arguments, parts in (
        ((QUESTION,), ["--artifact", "--technique"]),
        ((QUESTION, "--technique", "plain", "--verify"), ["--verify", "--artifact"]),
    ):
        says(wrong("ask", *arguments, "--collection", collection, *server.lm), *parts)


def test_sizes(wrong, questions, collection, server):
    command = ("compile", "hcqr", "--data", questions, "--collection", collection, "--out", "new", *server.lm)
    for sizes in ("20,40", "-1,2,3", "²,1,1", ""):
        says(wrong(*command, f"--sizes={sizes}"), "--sizes must be three positive integers", "20,40,80")
    says(wrong(*command, "--sizes", "0,2,2"), "train, dev, and test each need questions")
    says(wrong(*command, "--limit", "1"), "split is empty")
    says(
        wrong(*command, "--sizes", "9,1,1"),
        "(questions: 18)",
        "pass smaller --sizes, more questions, or a different --seed",
    )
    study = {"name": "s", "questions": str(questions), "collection": collection, "techniques": {"hcqr": {}}}
    Path("s.yaml").write_text(json.dumps({**study, "sizes": [9, 1, 1]}))  # JSON is YAML
    told = wrong("study", "check", "s.yaml")
    says(told, "must be at most", "pass smaller sizes: ..., more questions, or a different seed: ...")


def test_a_folder_of_documents_is_no_file_of_questions(wrong, collection, server):
    Path("pages").mkdir()
    (Path("pages") / "a.md").write_text("# A")
    told = wrong("evaluate", "plain", "--data", "pages", "--collection", collection, *server.lm)
    says(told, "pages: this folder has no file with questions", "found ['a.md']")


def test_nothing_to_score(wrong, rows, write, questions, collection, server):
    def told(source, *more):
        return wrong("evaluate", "plain", "--data", source, "--collection", collection, *more, *server.lm)

    said = "joint_passage_f1 needs a reader that cites passages, such as grounded (--reader)"
    says(told(questions, "--metric", "joint_passage_f1"), said)
    says(told(questions, "--metric", "hypothesis_agreement", "--reader", "none"), "hypothesis_agreement needs a reader")
    for row in rows:
        del row["evidence"], row["answer"]
    source = write("bare.jsonl", rows)
    says(told(source), "no metric can be scored", "--labels", "querywright judge label --judge none", "--judge-lm")
    says(told(source, "--metric", "recall"), "no metric can be scored: recall needs labeled evidence")
    says(
        told(source, "--metric", "hit", "--metric", "mrr@3"), "hit needs correct answers; mrr@3 needs labeled evidence"
    )


def test_an_artifact_brings_what_it_was_compiled_with(wrong, artifact, server):
    for option, value in (("--technique", "plain"), ("--reader", "short_answer"), ("--knob", "max_passages=1"),
                          ("--embedder", "other"), ("--engine", "bm25")):  # fmt: skip
        text = wrong("ask", QUESTION, "--artifact", artifact, *OPTIONS, option, value, *server.lm)
        says(text, "an artifact has its own", f"remove {option}")


def test_places_that_cannot_be_written_are_named_before_anything_is_asked(wrong, questions, collection, server):
    Path("file").write_text("x")
    Path("full").mkdir()
    (Path("full") / "notes.txt").write_text("mine")
    compile_to = ("compile", "hcqr", "--data", questions, "--collection", collection, *server.lm, "--out")
    says(wrong(*compile_to, "file"), "'file' is a file", "--out")
    says(wrong(*compile_to, "file/artifact"), "cannot write 'artifact' to 'file'", "--out")
    says(wrong(*compile_to, "full"), "'full' contains other files", "--out")
    says(wrong("demo", "--out", "file/artifact"), "cannot write 'artifact' to 'file'", "--out")
    evaluate = ("evaluate", "--data", questions, "--collection", collection, *server.lm, "--rows")
    says(wrong(*evaluate, "absent/rows.jsonl"), "the folder 'absent' does not exist", "--rows")
    says(wrong(*evaluate, "full"), "'full' is a folder", "--rows")
    for place in ("file", "file/home"):
        says(wrong(*evaluate[:-1], "--home", place), f"cannot create the workspace {place!r}", "--home")
    assert (Path("full") / "notes.txt").read_text() == "mine"
    assert not Path("new").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_rows_that_find_no_room_at_the_end_leave_the_table(cli, questions, server):
    done = cli("evaluate", "closed_book", "--data", questions, "--limit", "2", "--rows", "/dev/full", "--json",
               *server.lm)  # fmt: skip
    assert (done.status, done.data["arms"][0]["n"]) == (2, 2)
    says(done.err, "could not write 'full'", "No space left", "--rows")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["hcrq"], "'hcrq' (did you mean hcqr?)"),
        (["hcrq@hybrid"], "'hcrq' (did you mean hcqr?)"),
        (["rrr:n_querys=3"], "'n_querys' (did you mean n_queries?)"),
        (["plain", "--metric", "recal@5"], "'recal@5' (did you mean recall@K?)"),
        (["plain", "--engine=bm52"], "'bm52' (did you mean bm25?)"),
        (["plain", "--reader", "gruonded"], "'gruonded' (did you mean grounded?)"),
    ],
)
def test_a_misspelled_name(wrong, questions, given, meant):
    assert meant in wrong("evaluate", *given, "--data", questions)


def test_a_technique_with_an_engine_is_only_an_arm(wrong, questions):
    asked = ("ask", "q?", "--collection", "mine", "--technique", "plain@bm25")
    for given in (asked, ("compile", "plain@bm25", "--data", questions, "--out", "x", "--collection", "mine")):
        says(wrong(*given), "'plain@bm25' contains an engine", "use 'plain'", "--engine bm25")


def test_a_message_speaks_of_options(wrong, questions, collection, server):
    says(wrong("evaluate", "plain", "--data", questions, "--column", "text"), "--column: expected NAME=VALUE", "'text'")
    says(wrong("evaluate", "plain", "--data", questions), "plain needs a retriever; pass --collection")
    fixed = ("evaluate", "plain", "--data", questions, "--collection", collection, *server.lm)
    for given in (("--reranker", "x"), ("--writer-lm", "openai/gpt-4o-mini", "--writer-api-key-env", "SCRIPTED_KEY")):
        told = wrong(*fixed, *given)
        assert f"omit {given[0]}" in told
        assert "=" not in told
    Path("rows.jsonl").write_text('{"q_text": "Who?", "answer": "x"}\n')
    told = wrong("evaluate", "plain", "--data", "rows.jsonl", *fixed[4:])
    says(told, "no column for 'question'", "Choose one with --column question=...")
    says(wrong(*fixed, "--split", "dev"), "error: --split dev: only datasets have splits", "omit --split")
    Path("page.md").write_text("# A\n\nB.\n")
    told = wrong("index", "new", "page.md", "--chunk-size", "5", "--chunk-overlap", "9")
    says(told, "--chunk-size must be 1 or more, and --chunk-overlap must be 0 or more and less than the size")


def test_a_missing_key_is_told_before_anything_is_done(cli, wrong, questions, collection, home, monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TOGETHERAI_API_KEY", "TOGETHER_AI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    fixed = ("evaluate", "plain", "--data", questions, "--collection", collection)
    says(wrong(*fixed, "--lm", "openai/gpt-4o-mini"), "needs an API key: set OPENAI_API_KEY", "--api-key-env")
    says(wrong(*fixed, "--lm", "openai/mine", "--api-base", "http://127.0.0.1:9/v1"), "set OPENAI_API_KEY")
    for more in (("--reader", "none"), ("--metric", "recall@3")):
        done = cli(*fixed, "--lm", "openai/gpt-4o-mini", *more)
        assert done.status == 0, done.err
    says(wrong("evaluate", "hyde", *fixed[2:], "--reader", "none", "--lm", "openai/gpt-4o-mini"), "set OPENAI_API_KEY")
    says(wrong(*fixed, "--judge-lm", "anthropic/claude-haiku-4-5"), "set ANTHROPIC_API_KEY")
    says(wrong("evaluate", "rrr", *fixed[2:], "--writer-lm", "together_ai/some/model"), "set TOGETHER")
    built = sorted(home.rglob("*"))
    says(wrong("demo", "--lm", "openai/gpt-4o-mini"), "set OPENAI_API_KEY")
    assert not (home / "collections" / "sample").exists(), built


def test_a_collection_that_is_elsewhere(wrong, ok, passages, questions, home, tmp_path, monkeypatch):
    monkeypatch.delenv("QUERYWRIGHT_HOME")
    ok("index", "mine", passages)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")
    evaluate = ("evaluate", "plain", "--data", questions, "--reader", "none")
    told = wrong(*evaluate, "--collection", "mine")
    says(
        told,
        str(tmp_path / "deep" / "er" / ".querywright"),
        f"the workspace '{tmp_path / '.querywright'}', where this collection exists",
        "--home",
    )
    says(wrong(*evaluate, "--collection", "other"), "querywright index other SOURCE")
    ok(*evaluate, "--collection", "mine", "--home", tmp_path / ".querywright", "--metric", "recall")
