"""Records made by processes of Ray: the same as by threads, also when a process is killed."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections import Counter
from contextlib import closing
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest

from querywright.data.types import Passage
from querywright.errors import BudgetError, InputError, ModelError, OutageError
from querywright.models.usage import Cost, Ledger
from querywright.optimize.failures import FailedElsewhereError, failure_kind
from querywright.optimize.question_ray import records_by_ray
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


def make(error=None):
    """What a process makes records with; it refuses one passage where an error is given."""

    def record_of(passage):
        if error is not None and passage.id == "p01":
            raise error
        return simple(passage)

    return lambda: record_of


@pytest.fixture
def no_processes(monkeypatch):
    """Ray's names without its processes: what is sent there and back is pickled."""

    def sent(value):
        return pickle.loads(pickle.dumps(value))

    class Actor:
        def __init__(self, worker):
            self.outcome = SimpleNamespace(remote=lambda *given: sent(worker.outcome(*sent(given))))

    class Pool:
        def __init__(self, actors):
            self.actors = actors

        def map_unordered(self, call, items):
            return [call(self.actors[0], one) for one in items]

    def remote(worker):
        made = SimpleNamespace(remote=lambda make: Actor(worker(make)))
        return SimpleNamespace(options=lambda **options: made)

    state = SimpleNamespace(running=False)
    fake = ModuleType("ray")
    fake.remote, fake.kill, fake.is_initialized = remote, lambda actor: None, lambda: state.running
    fake.init = lambda **given: setattr(state, "running", True)
    fake.shutdown = lambda: setattr(state, "running", False)
    fake.exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))
    fake.util = SimpleNamespace(ActorPool=Pool)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.util", fake.util)
    yield state
    assert not state.running


def test_records_and_costs_come_back_as_they_were_made(no_processes):
    ledger = Ledger()
    with closing(records_by_ray(make(), PASSAGES[:3], workers=2, ledger=ledger)) as done:
        assert no_processes.running is False
        assert dict(done) == {n: simple(PASSAGES[n]) for n in range(3)}
    assert ledger.total.calls == 3 * 2


@pytest.mark.parametrize(
    ("error", "kind", "made"),
    [
        (ValueError("broken"), "bug", FailedElsewhereError),
        (BudgetError("no more"), None, BudgetError),
        (OutageError("away"), None, OutageError),
    ],
)
def test_a_failure_keeps_its_kind_and_its_message(no_processes, error, kind, made):
    found = dict(records_by_ray(make(error), PASSAGES[:2], workers=1))
    assert (type(found[1]), str(found[1]), failure_kind(found[1])) == (made, str(error), kind)
    assert found[0] == simple(PASSAGES[0])


def test_what_a_process_cannot_make_is_told_with_a_passage(no_processes):
    def broken():
        raise ModelError("no such file here")

    ((_, found),) = records_by_ray(broken, PASSAGES[:1], workers=1)
    assert (type(found), str(found)) == (ModelError, "no such file here")


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://localhost:{}"])
def test_an_address_where_nobody_listens_is_told_before_ray_is_asked(monkeypatch, form):
    monkeypatch.setitem(sys.modules, "ray", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", form.format(server.getsockname()[1]))
        with pytest.raises(InputError, match=r"pip install 'querywright\[ray\]'"):
            next(records_by_ray(make(), PASSAGES, workers=1))
    with pytest.raises(InputError, match=r"no Ray answers at '.*:\d+' \(.*refused.*correct RAY_ADDRESS, or unset it"):
        next(records_by_ray(make(), PASSAGES, workers=1))


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
    with closing(
        records_by_ray(partial(maker, kill=(5,), fail=(7,)), PASSAGES, workers=2, threads=3, ledger=ledger)
    ) as done:
        found = dict(done)
    assert (type(found[7]), str(found[7])) == (FailedElsewhereError, "broken 7")
    by_threads = bounded_map(maker(), PASSAGES, threads=3)
    assert {n: one for n, one in found.items() if n != 7} == {n: one for n, one in enumerate(by_threads) if n != 7}
    assert (ledger.total.calls, ledger.total.input_tokens) == (24, sum(range(24)))
    (tmp_path / "asked").unlink()
    with (
        closing(records_by_ray(partial(maker, kill_again=(0,)), PASSAGES[:1], workers=1, threads=1)) as done,
        pytest.raises(OutageError, match="processes of Ray ended before their passages were done"),
    ):
        list(done)
    assert Counter((tmp_path / "asked").read_text().split()) == {"p00": 4}
