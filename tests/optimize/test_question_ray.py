"""Records made by processes of Ray: the same as by threads, also when a process is killed."""

from __future__ import annotations

import os
import pickle
import re
import socket
import sys
from collections import Counter
from contextlib import closing
from functools import partial

import pytest

from querywright.data.types import Passage
from querywright.errors import BudgetError, InputError, ModelError, OutageError
from querywright.models.usage import Cost, Ledger
from querywright.optimize.failures import FailedElsewhereError, failure_kind
from querywright.optimize.question_ray import _Worker, ray_each
from querywright.pool import bounded_map
from querywright.retrieval.generated_questions import COMPLETE, PassageRecord, WrittenQuestion

PASSAGES = [Passage(f"p{n:02}", f"Fact {n} \u6c34.", "t", {"n": n}) for n in range(24)]

SCRIPT = """
import os, signal
from pathlib import Path

from querywright.models.usage import Cost, Ledger
from querywright.retrieval.generated_questions import COMPLETE, PassageRecord, WrittenQuestion


def maker(folder, kill=(), kill_again=(), fail=()):
    def record_of(passage):
        n = int(passage.id[1:])
        Ledger().add(Cost(calls=1, input_tokens=n))
        with (Path(folder) / "asked").open("a") as file:
            file.write(f"{passage.id}\\n")
        mark = Path(folder) / f"killed-{n}"
        if n in kill_again or (n in kill and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if n in fail:
            raise ValueError(f"broken {n}")
        return PassageRecord(
            passage.id, passage.text_digest(), "s", (WrittenQuestion(f"What of {passage.text}?", COMPLETE, "r"),), n
        )

    return record_of
"""


def simple(passage):
    Ledger().add(Cost(calls=2))
    return PassageRecord(passage.id, passage.text_digest(), "s", (WrittenQuestion("What?", COMPLETE),))


@pytest.mark.parametrize(
    ("error", "kind", "made"),
    [
        (ValueError("broken"), "bug", FailedElsewhereError),
        (BudgetError("no more"), None, BudgetError),
        (OutageError("away"), None, OutageError),
    ],
)
def test_records_come_back_as_they_were_made_and_a_failure_keeps_its_kind_and_its_message(error, kind, made):
    def record_of(passage):
        if passage.id == "p01":
            raise error
        return simple(passage)

    worker = _Worker(lambda: record_of)
    (_, record, cost), (place, found, _) = pickle.loads(pickle.dumps([worker.outcome(n, PASSAGES[n]) for n in (0, 1)]))
    assert (record, cost.calls, place) == (simple(PASSAGES[0]), 2, 1)
    assert (type(found), failure_kind(found)) == (made, kind)
    assert re.fullmatch(rf"(ValueError at .*test_question_ray\.py:\d+: )?{error}", str(found))


def test_what_a_process_cannot_make_is_told_with_a_passage():
    def broken():
        raise ModelError("no such file here")

    _, found, _ = _Worker(broken).outcome(0, PASSAGES[0])
    assert (type(found), str(found)) == (ModelError, "no such file here")


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://localhost:{}"])
def test_an_address_where_nobody_listens_is_told_before_ray_is_asked(monkeypatch, form):
    monkeypatch.setitem(sys.modules, "ray", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", form.format(server.getsockname()[1]))
        with pytest.raises(InputError, match=r"pip install 'querywright\[ray\]'"):
            next(ray_each(lambda: simple, PASSAGES, workers=1))
    with pytest.raises(
        InputError, match=r"no Ray cluster answers at '.*:\d+' \(.*refused.*correct RAY_ADDRESS, or unset RAY_ADDRESS"
    ):
        next(ray_each(lambda: simple, PASSAGES, workers=1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::Warning")  # Ray warns of its own ways
def test_a_killed_process_costs_only_its_passages_and_one_that_always_dies_ends_the_run(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    (tmp_path / "ray_maker.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    from ray_maker import maker

    maker, ledger = partial(maker, str(tmp_path)), Ledger()
    with closing(ray_each(partial(maker, kill=(5,), fail=(7,)), PASSAGES, workers=2, threads=3, ledger=ledger)) as done:
        found = dict(done)
    assert type(found[7]) is FailedElsewhereError
    assert re.fullmatch(r"ValueError at .*ray_maker\.py:20: broken 7", str(found[7]))
    by_threads = bounded_map(maker(), PASSAGES, threads=3)
    assert {n: one for n, one in found.items() if n != 7} == {n: one for n, one in enumerate(by_threads) if n != 7}
    assert (ledger.total.calls, ledger.total.input_tokens) == (24, sum(range(24)))
    (tmp_path / "asked").unlink()
    with (
        closing(ray_each(partial(maker, kill_again=(0,)), PASSAGES[:1], workers=1, threads=1)) as done,
        pytest.raises(OutageError, match="Ray workers ended before they were done"),
    ):
        list(done)
    assert Counter((tmp_path / "asked").read_text().split()) == {"p00": 4}
