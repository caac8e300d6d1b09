"""Records made by processes of Ray: the same as by threads, also when a process is killed."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from functools import partial

import pytest

from querywright.data.types import Passage
from querywright.errors import BudgetError, InputError, ModelError, OutageError
from querywright.models.usage import Cost, Ledger, metered
from querywright.optimize.failures import FailedElsewhereError, failure_kind
from querywright.optimize.pool import bounded_map
from querywright.optimize.question_ray import _result, _Worker, records_by_ray
from querywright.retrieval.generated_questions import COMPLETE, PassageRecord, WrittenQuestion

PASSAGES = [Passage(f"p{n:02}", f"Fact {n} \u6c34.", "t", {"n": n}) for n in range(24)]

of_ray = pytest.mark.filterwarnings("ignore::Warning")  # Ray warns of its own ways

SCRIPT = """
import os, signal
from pathlib import Path

from querywright.data.types import Passage
from querywright.errors import BudgetError
from querywright.models.usage import Cost, Ledger
from querywright.retrieval.generated_questions import COMPLETE, PassageRecord, WrittenQuestion


def maker(folder, kill=(), kill_again=(), fail=(), stop=()):
    (Path(folder) / f"process-{os.getpid()}").touch()

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
        if n in stop:
            raise BudgetError("the limit of calls is reached")
        return PassageRecord(
            passage.id, passage.text_digest(), "s", (WrittenQuestion(f"What of {passage.text}?", COMPLETE, "r"),), n
        )

    return record_of
"""


def make_one(record_of):
    return lambda: record_of


def simple(passage):
    Ledger().add(Cost(calls=2))
    return PassageRecord(passage.id, passage.text_digest(), "s", (WrittenQuestion("What?", COMPLETE),))


def test_an_outcome_survives_its_way_as_text():
    worker = _Worker(make_one(simple))
    outcome = json.loads(worker.outcome(3, json.dumps(asdict(PASSAGES[3]))))
    assert outcome["position"] == 3
    assert _result(outcome) == simple(PASSAGES[3])
    assert Cost.from_json(outcome["cost"]).calls == 2


@pytest.mark.parametrize(
    ("error", "made", "kind"),
    [
        (ValueError("broken"), FailedElsewhereError, "bug"),
        (BudgetError("no more"), BudgetError, None),
        (OutageError("away"), OutageError, None),
    ],
)
def test_a_failure_keeps_its_kind_and_its_message(error, made, kind):
    def record_of(passage):
        raise error

    result = _result(json.loads(_Worker(make_one(record_of)).outcome(0, json.dumps(asdict(PASSAGES[0])))))
    assert type(result) is made
    assert str(result) == str(error)
    assert failure_kind(result) == kind


def test_what_a_process_cannot_make_is_told_with_a_passage():
    def make():
        raise ModelError("no such file here")

    result = _result(json.loads(_Worker(make).outcome(0, json.dumps(asdict(PASSAGES[0])))))
    assert (type(result), str(result)) == (ModelError, "no such file here")


def test_wrong_numbers_and_a_missing_ray_are_told(monkeypatch):
    with pytest.raises(InputError, match="workers and threads must be 1 or more, but got 0 and 4"):
        next(records_by_ray(make_one(simple), PASSAGES, workers=0))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'querywright\[ray\]'"):
        next(records_by_ray(make_one(simple), PASSAGES, workers=1))
    assert list(records_by_ray(make_one(simple), [], workers=1)) == []


@pytest.fixture
def maker(tmp_path, monkeypatch):
    """``maker`` of a module that processes of Ray can import."""
    pytest.importorskip("ray")
    (tmp_path / "ray_maker.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    from ray_maker import maker

    yield partial(maker, str(tmp_path))
    sys.modules.pop("ray_maker", None)


@of_ray
@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_told(maker, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{taken.getsockname()[1]}")
    with pytest.raises(InputError, match=r"reached: nothing answers at 127\.0\.0\.1:.*; see RAY_ADDRESS"):
        next(records_by_ray(maker, PASSAGES, workers=1))


@of_ray
@pytest.mark.slow
def test_records_are_those_of_threads_and_a_killed_process_costs_only_its_passages(maker, tmp_path):
    ledger = Ledger()
    with metered() as meter, closing(
        records_by_ray(partial(maker, kill=(5,), fail=(7,)), PASSAGES, workers=2, threads=3, ledger=ledger)
    ) as done:  # fmt: skip
        found = dict(done)
    assert sorted(found) == list(range(24))
    assert (type(found[7]), str(found[7])) == (FailedElsewhereError, "broken 7")
    by_threads = bounded_map(maker(), PASSAGES, threads=3)
    assert {n: one for n, one in found.items() if n != 7} == {n: one for n, one in enumerate(by_threads) if n != 7}
    assert len(list(tmp_path.glob("process-*"))) == 4  # two, the one in a dead one's place, and this one
    asked = Counter((tmp_path / "asked").read_text().split())
    assert asked["p05"] == 3
    assert ledger.total == meter.total
    assert ledger.total.input_tokens == sum(range(24))
    assert ledger.total.calls == 24


@of_ray
@pytest.mark.slow
def test_what_stops_a_run_comes_back_as_itself_and_ray_ends(maker):
    import ray

    with closing(records_by_ray(partial(maker, stop=(0,)), PASSAGES[:1], workers=1)) as done:
        assert [type(one) for _, one in done] == [BudgetError]
    with closing(records_by_ray(maker, PASSAGES, workers=1, threads=1)) as done:
        next(done)
        assert ray.is_initialized()
    assert not ray.is_initialized()


@of_ray
@pytest.mark.slow
def test_a_passage_that_kills_every_process_ends_the_run(maker, tmp_path):
    with (
        closing(records_by_ray(partial(maker, kill_again=(0,)), PASSAGES[:1], workers=1, threads=1)) as done,
        pytest.raises(OutageError, match="processes of Ray ended before their passages were done"),
    ):
        list(done)
    assert Counter((tmp_path / "asked").read_text().split()) == {"p00": 4}
