"""What cannot be trained is said at once; a training under way is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from querywright.cli.options import SearchOptions
from querywright.cli.rewriter import RewriteOptions


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--stages", "collect,dream"], "each stage once, of collect,warmup,reinforce"),
        (["--device", "abacus"], "there is no device 'abacus'"),
        (["--base", "nowhere/model", "--stages", "collect,warmup"], "no teacher writes rewrites"),
        (["--teacher", "openai/scripted"], "--teacher"),
        (["--lr", "0"], "lr of a training must be more than 0"),
        (["--sizes", "20,0,10"], "--sizes takes numbers of 1 or more"),
        (["--pairs", "missing.jsonl"], "'missing.jsonl' cannot be read"),
    ],
)
def test_what_cannot_be_trained_is_said_at_once(
    options: list[str], said: str, cli: Any, collection: str, questions: Path, server: Any
) -> None:
    found = cli("rewriter", "train", "--data", questions, "--collection", collection, "--out", "r", *options)
    assert found.status == 2
    assert said in " ".join(found.err.split())
    assert server.requests == []
    assert not Path("r").exists()


@pytest.mark.parametrize(
    ("metric", "knobs", "passages"),
    [("hit", (), 10), ("recall@5", (), 10), ("recall@20", (), 20), ("ndcg@10", ("max_passages=3",), 3)],
)
def test_as_many_passages_are_found_as_the_card_looks_at(metric: str, knobs: tuple[str, ...], passages: int) -> None:
    settings = RewriteOptions("mine", metric=metric).settings(SearchOptions(knob=knobs), 4)
    assert settings.knobs["max_passages"] == passages
