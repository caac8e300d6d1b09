"""The tutorial runs as it stands: the embedder and one answer are real, compiling asks a scripted LM."""

from __future__ import annotations

import pytest

import querywright
from querywright.data import read_passages, read_questions
from querywright.data.reading import check_evidence


@pytest.mark.slow
def test_the_tutorial_runs(docs, page, workshop, play, scripted_lm):
    blocks = page["blocks"]((docs / "tutorial.md").read_text(encoding="utf-8"))
    printed = play(blocks, lm="--lm openai/scripted")

    assert [block.language for block in blocks].count("sh") == 5  # index, ask, evaluate, compare, compile
    assert "no difference shown in" in " ".join(printed.split())
    assert (workshop / "engines" / "report.html").stat().st_size > 20_000
    assert scripted_lm.count > 20
    manifest = querywright.load("artifacts/workshop").manifest
    assert (manifest.collection, manifest.lm) == ("workshop", "openai/scripted")


def test_what_it_says_of_its_figures_is_so(docs, page, workshop, play):
    blocks = page["blocks"]((docs / "tutorial.md").read_text(encoding="utf-8"))
    by_command = {block.commands[0].split()[1]: block for block in blocks if block.commands}
    printed = play([by_command["index"], by_command["evaluate"]])

    assert "only a lead of at least 7:0" in " ".join(printed.split())
    assert "embedded, 0 cached" in printed
    assert "0 added, 0 changed, 0 removed; 0 embedded" in play([by_command["index"]])


def test_output_that_is_not_printed_fails(page, workshop, play):
    blocks = page["blocks"]("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    with pytest.raises(AssertionError, match="the page says '3'"):
        play(blocks)


def test_its_data_fit_together(docs):
    passages = read_passages(docs / "tutorial" / "passages.jsonl")
    questions = read_questions(docs / "tutorial" / "questions.jsonl")

    assert (len(passages), len(questions)) == (20, 20)
    assert not check_evidence(questions, {passage.id for passage in passages})
    assert all("ENTAILED" in question.evidence.values() for question in questions)
    deciding = [id for question in questions for id, label in question.evidence.items() if label == "ENTAILED"]
    assert len(set(deciding)) == 19  # limit decides none
