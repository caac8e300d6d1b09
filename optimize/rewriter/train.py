"""A whole training: rewrites are collected, the model is warmed up on the best and reinforced, and what it became kept.

A training that was ended, whichever way, goes on with the same call: LMs' answers are in the store, the pairs in a file
of the working folder, and the warm-up and the reinforcement go on from their last checkpoints.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dspy

from querywright.errors import InputError
from querywright.files import locked, write_file
from querywright.models.hf import EMBEDDED, load_base
from querywright.models.openmp import limit_spinning
from querywright.models.rewriter_bases import RewriterBase
from querywright.models.rewriters import write_rewriter
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation, Progress, evaluate, metrics_by_name
from querywright.optimize.results import NO_REWRITING, today
from querywright.optimize.rewriter.checkpoints import as_plain, read_json, read_lines, write_json
from querywright.optimize.rewriter.collect import collect, collect_from_study
from querywright.optimize.rewriter.episodes import roll_out, run_episodes
from querywright.optimize.rewriter.evaluation import (
    AS_IT_COMES,
    IN_USE,
    TEACHER,
    TRAINED,
    UNTRAINED,
    WARMED_UP,
    RewardChecks,
    checked,
    compared,
    evaluation_of,
    measured_by,
    standing,
    warnings,
)
from querywright.optimize.rewriter.pairs import Pair, read_pairs, write_pairs
from querywright.optimize.rewriter.policy import HFPolicy
from querywright.optimize.rewriter.reinforce import reinforce
from querywright.optimize.rewriter.report import rewriter_card, rewriter_html
from querywright.optimize.rewriter.rewards import Reward
from querywright.optimize.rewriter.settings import (
    COLLECT,
    LOCK,
    REINFORCE,
    WARMUP,
    Given,
    TrainSettings,
    check_training,
    claim,
    data_facts,
    split_pairs,
    teacher_name,
)
from querywright.optimize.rewriter.study_arms import study_arms
from querywright.optimize.rewriter.warmup import warm_up
from querywright.programs import make_program

REPORT, PAIRS = "report.html", "pairs.jsonl"
TOLD_APART = ("technique", "knobs", "base", "recipe", "metric", "device")
"""Settings that stand by themselves in the card, or are of the machine."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training made.

    Args:
        folder: The rewriter.
        card: The content of its ``card.json``.
        dev: Arms on dev.
        test: Arms on test; None where there are no test questions.
        report: The HTML page.
    """

    folder: Path
    card: Mapping[str, Any]
    dev: Compared
    test: Compared | None
    report: Path


def train(
    settings: TrainSettings,
    given: Given,
    *,
    out: Path,
    work: Path,
    progress: Progress | None = None,
) -> Trained:
    """Trains a rewriter.

    Args:
        settings: How.
        given: What with.
        out: The folder of the rewriter.
        work: The working folder; made when it is missing, and taken up again.
        progress: Called with what is being done, how much is done, and how much there is.

    Raises:
        InputError: Something given is wrong or too little, the working folder is another training's, or another process
            trains there.
        TrainingError: The loss is no number, or all rewards are alike.
        OSError: A file cannot be written; the same training goes on from its last checkpoint.
    """
    check_training(settings, given)
    if given.study is not None and COLLECT in settings.stages:
        with study_arms(given.study, settings.technique, home=given.home) as arms:
            arms.met(given.splits.train)
    limit_spinning()  # torch is loaded before llama.cpp here
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    busy = InputError(
        f"another process trains in {work.name!r}; wait until it has ended, or give another folder (--work)"
    )
    with locked(work / LOCK, busy):
        return _Training(settings, given, claim(work, settings, given), out, work, progress).go()


class _Training:
    def __init__(
        self,
        settings: TrainSettings,
        given: Given,
        described: RewriterBase,
        out: Path,
        work: Path,
        progress: Progress | None,
    ) -> None:
        self.settings, self.given, self.described = settings, given, described
        self.out, self.work, self.progress = out, work, progress
        self.recipe, self.techniques = settings.recipe, [settings.technique]
        self.parts = {name: part for name, part in (("dev", given.splits.dev), ("test", given.splits.test)) if part}
        self.finds, self.program = given.program(settings, reads=False), given.program(settings)
        self.reader_lm = given.reader_lm if settings.recipe.needs_reader else None
        self.metrics = metrics_by_name(measured_by(settings.metric, given.splits.dev))
        base = load_base(settings.base, revision=described.digest if described.kind == "hub" else None)
        self.policy = HFPolicy(
            base, rank=settings.rank, device=settings.device, dtype=settings.dtype, seed=settings.seed
        )
        self.reports: dict[str, Any] = {}
        self.arms: dict[str, list[Evaluation]] = {name: [] for name in self.parts}
        self.checks: dict[str, RewardChecks] = {}

    def go(self) -> Trained:
        settings = self.settings
        plain = make_program("plain", self.given.retriever, max_passages=self.finds.technique.max_passages)
        self._evaluate(NO_REWRITING, dspy.LM("none", cache=False), plain)
        self._teacher()
        self._measure(UNTRAINED)
        pairs = self._collected()
        own = [pair for pair in pairs if pair.technique == settings.technique]
        if not own:  # there is no length to aim at
            self.recipe = replace(self.recipe, length_penalty=0.0)
        if WARMUP in settings.stages:
            self.techniques = sorted({*self.techniques, *(pair.technique for pair in pairs)})
            self._done(WARMUP, self._warmed_up(pairs))
            if REINFORCE in settings.stages:
                self._measure(WARMED_UP)
        if REINFORCE in settings.stages:
            self._done(REINFORCE, self._reinforced(own))
        self._measure(TRAINED)
        weights = self.work / "weights"
        self.policy.save(weights)
        self._in_use(weights)
        return self._kept(weights)

    def _measure(self, arm: str) -> None:
        """Answer dev and test greedily with the policy."""
        run = partial(run_episodes, self.finds, settings=self.settings.limits, threads=self.settings.threads)
        for place, (name, part) in enumerate(self.parts.items(), 1):
            episodes = roll_out(self.policy, run, part, self.recipe)
            self.arms[name].append(evaluation_of(arm, episodes, self.metrics))
            if name == "dev":
                self.checks[arm] = checked(episodes)
            if self.progress is not None:
                self.progress(f"measuring: {arm}", place, len(self.parts))

    def _evaluate(self, arm: str, lm: dspy.LM, program: Any = None) -> None:
        """Answer dev and test with an LM."""
        for name, part in self.parts.items():
            found = evaluate(
                program or self.finds,
                part,
                lm=lm,
                name=arm,
                metrics=self.metrics,
                threads=self.settings.threads,
                progress=self.progress,
            )
            self.arms[name].append(found)

    def _teacher(self) -> None:
        teacher = self.given.teacher
        if teacher is None or isinstance(teacher, str) or COLLECT not in self.settings.stages:
            return  # the evidence of a question is known in training alone, so this teacher answers nothing
        opened = self.given.open_lm if self.settings.base == EMBEDDED else None
        if opened is None or teacher.model != opened(EMBEDDED).model:  # else it is the arm AS_IT_COMES
            self._evaluate(TEACHER, teacher)

    def _done(self, stage: str, report: Mapping[str, Any]) -> None:
        self.reports[stage] = report
        write_json(self.work / f"{stage}.json", report)

    def _collected(self) -> list[Pair]:
        """What is learnt from: pairs that were given, those of a study, and those that a teacher writes now."""
        given, settings, file = self.given, self.settings, self.work / PAIRS
        if COLLECT not in settings.stages:
            return list(given.pairs)
        if file.exists():
            self.reports[COLLECT] = read_json(self.work / f"{COLLECT}.json")
            return [*given.pairs, *read_pairs(file)]
        found: list[Pair] = []
        report: dict[str, Any] = {"questions": len(given.splits.train)}
        if given.study is not None:
            told = collect_from_study(settings, given, progress=self.progress)
            found += told.pairs
            report |= {
                "arms of the study": told.arms,
                "not kept there": told.missing,
                "from the study": len(told.pairs),
            }
        if given.teacher is not None:
            now = collect(settings, given, progress=self.progress)
            found += now.pairs
            report |= {"teacher": teacher_name(given.teacher), "collected": len(now.pairs)}
        self._done(COLLECT, report)
        write_pairs(file, found)
        return [*given.pairs, *found]

    def _warmed_up(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        learnt, looked_at = split_pairs(pairs, self.settings.seed)
        settings = self.settings
        done = warm_up(
            self.policy,
            learnt,
            looked_at,
            self.work / WARMUP,
            epochs=settings.epochs,
            batch=settings.warmup_batch,
            lr=settings.warmup_lr,
            least=settings.least_pairs,
            seed=settings.seed,
            progress=self.progress,
        )
        sources = Counter(f"{pair.technique}, {pair.data}" if pair.data else pair.technique for pair in pairs)
        return asdict(done) | {"given": dict(sorted(sources.items()))}

    def _reinforced(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        given, settings, recipe = self.given, self.settings, self.recipe
        target: float | None = None
        shared: dict[str, Any] = {"lm": self.reader_lm, "threads": settings.threads}
        if recipe.length_penalty:
            target = statistics.median(len(self.policy.taught(one.messages, one.text).tokens) for one in pairs)
        done = reinforce(
            self.policy,
            given.splits.train,
            given.splits.dev,
            run=partial(run_episodes, self.program, settings=settings.limits, **shared),
            reward=Reward(recipe, self.program, metric=settings.metric, target=target, **shared),
            recipe=recipe,
            folder=self.work / REINFORCE,
            look_each=settings.look_each,
            patience=settings.patience,
            progress=self.progress,
            seed=settings.seed,
        )
        told = asdict(done)
        return {name: told[name] for name in told if name not in ("beta", "worse", "level", "means")}

    def _in_use(self, weights: Path) -> None:
        """The embedded model, as it comes and as trained, in the engine that they run in."""
        if self.given.open_lm is None or self.settings.base != EMBEDDED:
            return
        self._evaluate(AS_IT_COMES, self.given.open_lm(EMBEDDED))
        path = self.work / "in-use" / self.out.name
        self._write(path, weights, {}, "")
        self._evaluate(IN_USE, self.given.open_lm(f"rewriter:{path}"))

    def _kept(self, weights: Path) -> Trained:
        found = {name: compared(arms, self.parts[name]) for name, arms in self.arms.items()}
        dev, test = found["dev"], found.get("test")
        card, name = self._card(found), self.out.name
        logs = {stage: read_lines(self.work / stage / f"{stage}.jsonl") for stage in (WARMUP, REINFORCE)}
        curve = [{"stage": stage, **line} for stage, lines in logs.items() for line in lines]
        self._write(self.out, weights, card, rewriter_card(name, card, dev, test), curve)
        report = self.work / REPORT
        dev_questions = self.given.splits.dev
        page = rewriter_html(name, card, dev, test, dev_questions, warmup=logs[WARMUP], reinforcement=logs[REINFORCE])
        write_file(report, page)
        return Trained(self.out, card, dev, test, report)

    def _card(self, found: Mapping[str, Compared]) -> dict[str, Any]:
        settings, reports = self.settings, self.reports
        before, after = self.checks.get(WARMED_UP, self.checks[UNTRAINED]), self.checks[TRAINED]
        said = warnings(before, after)
        flat = reports.get(REINFORCE, {}).get("flat")
        if flat:
            said.append(f"in {flat} of {reports[REINFORCE]['steps']} steps all advantages were 0: nothing learnt")
        if REINFORCE in settings.stages and self.recipe != settings.recipe:
            of = settings.technique
            said.append(f"there were no pairs of {of}, so the length penalty had no target and was left out")
        said += [note for report in reports.values() for note in report.get("notes", ())]
        arm = IN_USE if any(one.name == IN_USE for one in found["dev"].arms) else TRAINED
        standings = {name: standing(one, settings.metric, arm) for name, one in found.items()}
        card: dict[str, Any] = as_plain(
            {
                "created": today(),
                "technique": settings.technique,
                "techniques": self.techniques,
                "knobs": settings.knobs,
                "base": self.described.name,
                "recipe": self.recipe,
                "metric": settings.metric,
                "collection": self.given.collection,
                "fingerprint": self.given.retriever.fingerprint,
                "data": data_facts(self.given.splits),
                "settings": {k: v for k, v in asdict(settings).items() if k not in TOLD_APART},
                "stages": reports,
                "standing": {n: {**asdict(one), "warning": one.warning} for n, one in standings.items()},
                "guards": {"before": before, "after": after, "warnings": said},
                **{name: one.to_json() for name, one in found.items()},
            }
        )
        return card

    def _write(
        self, path: Path, weights: Path, card: Mapping[str, Any], readme: str, curve: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        limits = self.settings.limits
        write_rewriter(
            path,
            weights,
            base=self.described,
            techniques=self.techniques,
            recipe=self.settings.recipe.name if REINFORCE in self.settings.stages else "warm-up",
            created=today(),
            card=card,
            readme=readme,
            curve=curve,
            **({} if limits is None else {"max_chars": limits.max_chars, "max_items": limits.max_items}),
        )
