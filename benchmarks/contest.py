"""Searches that may ask the LM equally often, held against each other on test questions; see ``study.py``.

All choose on the same dev questions by the same objective, with the same answers and rankings kept, and end when the
calls are spent: a study as it is usually run; random search over the same space; one knob after another, as AutoRAG
goes through its nodes (all techniques as written, then the values of each knob of the best one in turn); and DSPy's
MIPROv2 with as many candidates and trials as it calls light, which tunes the prompts of one technique on the same
questions and leaves its knobs as written. Each has a working folder of its own, so that no answer is another's. Test
questions cost none of them any calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from trials import TRAIN, Site

from querywright.errors import BudgetError
from querywright.metrics.statistics import PairedTest, paired_exact_test
from querywright.models.memo import remembering
from querywright.optimize.domains import Domain
from querywright.optimize.evaluate import Evaluation, evaluate
from querywright.optimize.study.bench import Bench, open_lm
from querywright.optimize.study.engine import open_bench
from querywright.optimize.study.objectives import objective_named
from querywright.optimize.study.prompts import make_variant
from querywright.optimize.study.records import record_of
from querywright.optimize.study.select import choose
from querywright.optimize.study.settling import settle_spec
from querywright.optimize.study.storage import StudyStorage, open_storage
from querywright.optimize.study.types import ArmConfig
from querywright.optimize.study.working import work

TECHNIQUES = ("rag_fusion", "multi_query", "step_back", "query2doc", "hcqr")
TUNED = "rag_fusion"
"""Whose prompts MIPROv2 tunes."""

LIGHT = {"teleprompter": "mipro", "arguments": {"num_candidates": 6, "num_trials": 20}, "part": "all"}
"""What MIPROv2 calls light for two predictors with demonstrations: 6 candidates, 2 x 4 x log2(6) trials."""

VALUES = 4
"""Values of a knob that are tried one after another."""


@dataclass(frozen=True)
class Contest:
    """What all searches are given.

    Args:
        lm: The LM's name.
        server: Its address, or None.
        objective: What is chosen by; its first metric is tested.
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
class Found:
    """What a search came to.

    Args:
        name: Who searched.
        arm: What it chose.
        variant: Its prompts; None as written.
        calls: LM calls of the search.
        tried: Programs that were scored on dev.
        dev: The value on dev of what was chosen; None where it was not scored there.
        test: The results on test.
        ended: ``calls``, when they were spent, or ``done``.
    """

    name: str
    arm: ArmConfig
    variant: Mapping[str, Any] | None
    calls: int
    tried: int
    dev: float | None
    test: Evaluation
    ended: str


def contest(site: Site, given: Contest, show: Callable[[str], None]) -> dict[str, Any]:
    """All searches, and how ours compares with each."""
    light = _mipro(site, given, given.calls)
    calls = given.calls or light.calls
    show(f"\nequal-calls: {calls} LM calls each, {given.dev} dev and {given.test} test questions, {given.lm}")
    ours = _study(site, given, calls, "study", {})
    drawn = _study(site, given, calls, "random search", {"sampler": {"name": "random"}, "pruner": "none"})
    stepped = _stepwise(site, given, calls)
    metric = objective_named(given.objective).metrics[0]
    show(f"{'':24}{'calls':>7}{'tried':>7}{'dev':>7}{'test':>7}   the study less this one, on test")
    report = []
    for one in (ours, drawn, stepped, light):
        test = None if one is ours else paired_exact_test(ours.test.values(metric), one.test.values(metric))
        dev = "-" if one.dev is None else f"{one.dev:.2f}"
        mean = one.test.mean(metric).value
        show(f"{one.name:24}{one.calls:7}{one.tried:7}{dev:>7}{mean:7.2f}   {_told(test)}")
        report.append(
            {
                "name": one.name, "calls": one.calls, "tried": one.tried, "dev": one.dev, "test": mean,
                "arm": one.arm.to_json(), "ended": one.ended, "paired": None if test is None else asdict(test),
            }
        )  # fmt: skip
    return {"calls": calls, "metric": metric, "searches": report}


def _told(test: PairedTest | None) -> str:
    if test is None:
        return ""
    return (
        f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}], {test.wins} won, {test.losses} lost, "
        f"p = {test.p_two_sided:.3f}"
    )


@contextmanager
def _opened(
    site: Site, given: Contest, calls: int | None, name: str, changes: Mapping[str, Any]
) -> Iterator[tuple[Bench, StudyStorage]]:
    """A study of the contest on a storage and in a working folder of its own."""
    slug = name.replace(" ", "-")
    usual = {
        "lm": given.lm, "api_base": given.server, "reader": "multiple_choice", "objectives": [given.objective],
        "techniques": {technique: {} for technique in TECHNIQUES}, "trials": given.most_trials, "seed": given.seed,
        "threads": given.threads, "budget": {"calls": calls},
    }  # fmt: skip
    if given.server is None:
        usual["api_key_env"] = None
    spec = site.spec(slug, site.questions, (TRAIN, given.dev, given.test), {**usual, **changes})
    folder = site.folder / f"contest-{slug}"
    with open_storage("journal", folder, spec.name) as store:
        settle_spec(store, spec)
        bench = open_bench(spec, site.home(slug), store)
        yield bench, store


def _study(site: Site, given: Contest, calls: int, name: str, changes: Mapping[str, Any]) -> Found:
    """The trial loop of a study until its calls are spent."""
    with _opened(site, given, calls, name, changes) as (bench, store):
        ended = "done"
        try:
            work(bench, store, "1")
        except BudgetError:
            ended = "calls"
        study = store.study([objective.direction for objective in bench.objectives])
        trials = [record_of(one) for one in study.get_trials(deepcopy=False)]
        winner = choose(trials, bench.objectives, len(bench.splits.test)).winner
        assert winner.arm is not None
        tried = sum(one.state in {"complete", "pruned"} and one.same_as is None for one in trials)
        made = store.account(bench.spec.budget).spent.calls
        dev = winner.values.get(given.objective)
        return Found(name, winner.arm, None, made, tried, dev, _tested(bench, name, winner.arm), ended)


def _stepwise(site: Site, given: Contest, calls: int) -> Found:
    """All techniques as written, then the knobs of the best one, one after another."""
    name, tried, ended = "one knob after another", 0, "done"
    with _opened(site, given, calls, name, {}) as (bench, store), remembering(bench.memo):
        best, value = bench.space.as_written("plain"), float("-inf")
        objective = bench.objectives[0]

        def keep_the_best(arms: Sequence[ArmConfig]) -> None:
            nonlocal best, value, tried
            for arm in arms:
                dev = evaluate(
                    bench.program(arm), bench.splits.dev, lm=bench.lm, name=name, metrics=bench.metrics,
                    threads=given.threads,
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
        made = store.account(bench.spec.budget).spent.calls
        return Found(name, best, None, made, tried, value, _tested(bench, name, best), ended)


def spread(domain: Domain, count: int = VALUES) -> list[Any]:
    """A few values of a knob, the ends included."""
    if domain.size is None:
        step = (domain.high - domain.low) / (count - 1)
        return [domain.low + step * place for place in range(count)]
    values = domain.values
    if len(values) <= count:
        return values
    return [values[round(place * (len(values) - 1) / (count - 1))] for place in range(count)]


def _mipro(site: Site, given: Contest, calls: int | None) -> Found:
    """The prompts of one technique, its knobs as written."""
    changes = {
        "techniques": {TUNED: {"search": "named", "prompts": []}}, "prompts": {"light": LIGHT}, "late_trials": 0
    }  # fmt: skip
    name, variant, ended = "MIPROv2 with fixed knobs", None, "done"
    with _opened(site, given, calls, name, changes) as (bench, store):
        arm = bench.space.as_written(TUNED)
        metric = bench.metrics[bench.objectives[0].metrics[0]]
        try:
            variant = make_variant(
                bench.spec.prompts["light"], "light", bench.program(arm), bench.splits.dev, metric=metric, lm=bench.lm,
                seed=given.seed, threads=given.threads,
            )  # fmt: skip
        except BudgetError:
            ended = "calls"
        made = store.account(bench.spec.budget).spent.calls
        arm = arm if variant is None else replace(arm, prompt="light")
        return Found(name, arm, variant, made, 1, None, _tested(bench, name, arm, variant), ended)


def _tested(bench: Bench, name: str, arm: ArmConfig, variant: Mapping[str, Any] | None = None) -> Evaluation:
    """Results on test; calls of the test are nobody's."""
    lm = open_lm(bench.spec, bench.store, bench.ledger)
    return evaluate(
        bench.program(arm, variant, reads=True), bench.splits.test, lm=lm, name=name, metrics=bench.metrics,
        threads=bench.spec.threads,
    )  # fmt: skip
