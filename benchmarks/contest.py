"""Searches that may ask the LM equally often, held against each other on test questions; see ``study.py``.

All choose on the same dev questions by the same objective, with the same answers and rankings kept, and end when the
calls are spent: a study as it is usually run; random search over the same space; one knob after another, as AutoRAG
goes through its nodes (all techniques as written, then the values of each knob of the best one in turn); and DSPy's
MIPROv2 with as many candidates and trials as it calls light, which tunes the prompts of one technique on the same
questions and leaves its knobs as written. Each has a working folder of its own, so that no answer is another's. Test
questions cost none of them any calls.

A contest that was stopped goes on in the same folder. The study resumes its trials; the others begin again, but take
all that was answered from their folders, and a search that had ended is not made again. What was spent stays spent,
but for calls whose answers were under way and were lost: those are asked anew, and counted once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution
from trials import TRAIN, Site

from querywright.errors import BudgetError, InputError
from querywright.files import write_file
from querywright.metrics.statistics import PairedTest, paired_exact_test
from querywright.models.budget import Budget
from querywright.models.store import open_store
from querywright.optimize.evaluate import Evaluation, evaluate
from querywright.optimize.judging import judged_metrics
from querywright.optimize.objectives import objective_named
from querywright.optimize.study.prompts import Variant, make_variant, with_variant
from querywright.optimize.study.resources import Bench, open_bench
from querywright.optimize.study.select import choose
from querywright.optimize.study.spec import AS_WRITTEN
from querywright.optimize.study.storage import StudyStorage, open_storage
from querywright.optimize.study.trial import Worker
from querywright.optimize.study.types import ArmConfig

TECHNIQUES = ("rag_fusion", "multi_query", "step_back", "query2doc", "hcqr")
TUNED = "rag_fusion"
"""Whose prompts MIPROv2 tunes."""

LIGHT = {"optimizer": "mipro", "arguments": {"num_candidates": 6, "num_trials": 20}, "part": "all"}
"""What MIPROv2 calls light for two predictors with demonstrations: 6 candidates, 2 x 4 x log2(6) trials."""

GIVEN, SEARCHED = "contest.json", "searched.json"
"""Files with what all searches are given, and with what one of them came to."""

VALUES = 4
"""Values of a knob that are tried one after another."""


@dataclass(frozen=True)
class Contest:
    """What all searches are given.

    Args:
        lm: The LM's name.
        server: Its address, or None.
        objective: What is chosen by; its first metric is tested, and accuracy.
        dev: Questions to search on.
        test: Questions to test on.
        calls: LM calls of each; None for as many as MIPROv2 makes.
        most_trials: Trials of each at most.
        seed: Of all.
        threads: Questions under way at a time.
    """

    lm: str
    server: str | None
    objective: str
    dev: int
    test: int
    calls: int | None
    most_trials: int
    seed: int
    threads: int


@dataclass(frozen=True)
class Searched:
    """What a search came to.

    Args:
        arm: What it chose.
        variant: Its prompts; None as written.
        calls: LM calls of the search.
        tried: Programs that were scored on dev.
        dev: The value on dev of what was chosen; None where it was not scored there.
        ended: ``calls``, when they were spent, or ``done``.
    """

    arm: ArmConfig
    variant: Mapping[str, Any] | None
    calls: int
    tried: int
    dev: float | None
    ended: str

    def write(self, path: Path) -> None:
        """Keep it."""
        write_file(path, json.dumps({**asdict(self), "arm": self.arm.to_json()}).encode())

    @classmethod
    def read(cls, path: Path) -> Searched:
        """What ``write`` kept."""
        kept = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**kept, "arm": ArmConfig.from_json(kept["arm"])})


@dataclass(frozen=True)
class Found:
    """A search and the test of what it chose.

    Args:
        name: Who searched.
        search: What it came to.
        test: The results on test.
    """

    name: str
    search: Searched
    test: Evaluation


@dataclass(frozen=True)
class Place:
    """Where a search works.

    Args:
        name: Who searches.
        bench: All that it needs.
        store: Its study's storage.
        folder: Of that.
        lost: Calls of runs that were stopped, whose answers never came.
    """

    name: str
    bench: Bench
    store: StudyStorage
    folder: Path
    lost: int

    @property
    def calls(self) -> int:
        """LM calls that were answered."""
        assert self.bench.budget is not None
        return self.bench.budget.spent.calls - self.lost


def contest(site: Site, given: Contest, show: Callable[[str], None]) -> dict[str, Any]:
    """All searches, and how ours compares with each."""
    _same_contest(site.folder / GIVEN, given)
    light = _mipro(site, given, given.calls)
    calls = given.calls or light.search.calls
    show(f"\nequal-calls: {calls} LM calls each, {given.dev} dev and {given.test} test questions, {given.lm}")
    ours = _study(site, given, calls, "study", {})
    drawn = _study(site, given, calls, "random search", {"sampler": {"name": "random"}, "pruner": "none"})
    stepped = _stepwise(site, given, calls)
    searched = (ours, drawn, stepped, light)
    report: list[dict[str, Any]] = [
        {
            "name": one.name, "calls": one.search.calls, "tried": one.search.tried, "dev": one.search.dev,
            "arm": one.search.arm.to_json(), "ended": one.search.ended, "test": {}, "paired": {},
        }
        for one in searched
    ]  # fmt: skip
    for metric in _measured(given):
        show(f"\n{metric:24}{'calls':>7}{'tried':>7}{'dev':>7}{'test':>7}   the study less this one, on test")
        for one, told in zip(searched, report, strict=True):
            paired = None if one is ours else paired_exact_test(ours.test.values(metric), one.test.values(metric))
            found, mean = one.search, one.test.mean(metric).value
            dev = "-" if found.dev is None else f"{found.dev:.2f}"
            show(f"{one.name:24}{found.calls:7}{found.tried:7}{dev:>7}{mean:7.2f}   {_told(paired)}")
            told["test"][metric] = mean
            told["paired"][metric] = None if paired is None else asdict(paired)
    return {"calls": calls, "objective": given.objective, "searches": report}


def _measured(given: Contest) -> list[str]:
    """What the test questions are measured by: what was chosen by, and whether the answer is right."""
    return list(dict.fromkeys([objective_named(given.objective).metrics[0], "accuracy"]))


def _same_contest(path: Path, given: Contest) -> None:
    """See that a folder is this contest's, or free.

    Raises:
        InputError: It is another's.
    """
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        others = [name for name, value in asdict(given).items() if before.get(name) != value]
        if others:
            raise InputError(
                f"{str(path.parent)!r} holds a contest with another {', '.join(others)}: give what it was begun with, "
                "or another --home"
            )
    write_file(path, json.dumps(asdict(given)).encode())


def _told(test: PairedTest | None) -> str:
    if test is None:
        return ""
    return (
        f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}], {test.wins} won, {test.losses} lost, "
        f"p = {test.p_two_sided:.3f}"
    )


@contextmanager
def _opened(site: Site, given: Contest, calls: int | None, name: str, changes: Mapping[str, Any]) -> Iterator[Place]:
    """A study of the contest on a storage and in a working folder of its own."""
    slug = name.replace(" ", "-")
    usual = {
        "lm": given.lm, "api_base": given.server, "reader": "multiple_choice", "objectives": [given.objective],
        "techniques": {technique: {} for technique in TECHNIQUES}, "trials": given.most_trials, "seed": given.seed,
        "threads": given.threads,
    }  # fmt: skip
    if given.server is None:
        usual["api_key_env"] = None
    home, folder = site.home(slug), site.folder / f"contest-{slug}"
    with open_storage("journal", folder, slug) as store:
        lost, answers = 0, open_store(home)
        if not folder.joinpath(SEARCHED).exists():
            lost = max(0, Budget(answers, slug).spent.calls - answers.count("lm"))
        budget = {"calls": None if calls is None else calls + lost}
        spec = site.spec(
            slug, site.questions, (TRAIN, given.dev, given.test), {**usual, "budget": budget, **changes}
        )  # fmt: skip
        yield Place(name, open_bench(spec, home, budget=slug), store, folder, lost)


def _found(place: Place, search: Callable[[Place], Searched]) -> Found:
    """What a search came to, in this run or in one before it, and its test; calls of the test are nobody's."""
    path, bench = place.folder / SEARCHED, place.bench
    if not path.exists():
        search(place).write(path)
    found = Searched.read(path)
    lm = open_bench(bench.spec, bench.home).lm
    program = bench.program(replace(found.arm, prompt=AS_WRITTEN), reads=True)
    program = program if found.variant is None else with_variant(program, Variant.model_validate(found.variant))
    tested = evaluate(
        program, bench.splits.test, lm=lm, name=place.name,
        metrics={**bench.metrics, **judged_metrics(["accuracy"])}, threads=bench.threads,
    )  # fmt: skip
    return Found(place.name, found, tested)


def _study(site: Site, given: Contest, calls: int, name: str, changes: Mapping[str, Any]) -> Found:
    """The trial loop of a study until its calls are spent."""
    with _opened(site, given, calls, name, changes) as place:
        return _found(place, _tried)


def _tried(place: Place) -> Searched:
    bench, ended = place.bench, "done"
    worker = Worker(bench, place.store)
    try:
        worker.work()
    except BudgetError:
        ended = "calls"
    trials = worker.finished()
    winner = choose(trials, bench.objectives, len(bench.splits.test)).winner
    tried = sum(one.state in {"complete", "pruned"} and one.same_as is None for one in trials)
    return Searched(winner.arm, None, place.calls, tried, winner.values.get(bench.objectives[0].name), ended)


def _stepwise(site: Site, given: Contest, calls: int) -> Found:
    """All techniques as written, then the knobs of the best one, one after another."""
    with _opened(site, given, calls, "one knob after another", {}) as place:
        return _found(place, _stepped)


def _stepped(place: Place) -> Searched:
    bench, tried, ended = place.bench, 0, "done"
    best, value = bench.space.as_written("plain"), float("-inf")
    objective = bench.objectives[0]

    def keep_the_best(arms: Sequence[ArmConfig]) -> None:
        nonlocal best, value, tried
        for arm in arms:
            dev = evaluate(
                bench.program(arm), bench.splits.dev, lm=bench.lm, name=place.name, metrics=bench.metrics,
                threads=bench.threads,
            )  # fmt: skip
            tried += 1
            if objective.value(dev) > value:
                best, value = arm, objective.value(dev)

    try:
        keep_the_best([bench.space.as_written(one.name) for one in bench.space.techniques])
        own = bench.space[best.technique]
        for knob in own.knobs:
            if knob.acts(best.knobs):
                values = [one for one in spread(own.domains[knob.name]) if one != best.knobs[knob.name]]
                keep_the_best([replace(best, knobs={**best.knobs, knob.name: one}) for one in values])
    except BudgetError:
        ended = "calls"
    return Searched(best, None, place.calls, tried, value, ended)


def spread(domain: Any, count: int = VALUES) -> list[Any]:
    """A few values of a knob, the ends included."""
    if isinstance(domain, CategoricalDistribution):
        values = list(domain.choices)
    else:
        step = domain.step or (domain.high - domain.low) / (count - 1)
        values = [domain.low + step * place for place in range(round((domain.high - domain.low) / step) + 1)]
    if len(values) <= count:
        return values
    return [values[round(place * (len(values) - 1) / (count - 1))] for place in range(count)]


def _mipro(site: Site, given: Contest, calls: int | None) -> Found:
    """The prompts of one technique, its knobs as written."""
    changes = {
        "techniques": {TUNED: {"search": "named", "prompts": []}}, "prompts": {"light": LIGHT}, "late_trials": 0
    }  # fmt: skip
    with _opened(site, given, calls, "MIPROv2 with fixed knobs", changes) as place:
        return _found(place, _tuned)


def _tuned(place: Place) -> Searched:
    bench, variant, ended = place.bench, None, "done"
    arm = bench.space.as_written(TUNED)
    metric = bench.metrics[bench.objectives[0].metrics[0]]
    try:
        variant = make_variant(
            bench.spec.prompts["light"], "light", bench.program(arm), bench.splits.dev, metric=metric, lm=bench.lm,
            seed=bench.spec.seed, threads=bench.threads,
        )  # fmt: skip
    except BudgetError:
        ended = "calls"
    kept = None if variant is None else variant.model_dump(mode="json")
    return Searched(arm if variant is None else replace(arm, prompt="light"), kept, place.calls, 1, None, ended)
