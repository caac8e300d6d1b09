"""A whole training: rewrites are collected, the model is warmed up on the best and reinforced, and what it became kept.

A training that was ended, whichever way, goes on with the same call: LMs' answers are in the store, the pairs in a file
of the working folder, and the warm-up and the reinforcement go on from their last checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from querywright.data.splits import Splits, data_hash
from querywright.errors import InputError
from querywright.files import locked, write_file
from querywright.models.hf import EMBEDDED, load_base
from querywright.models.rewriters import RewriterBase, describe_base, write_rewriter
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation, Progress, evaluate
from querywright.optimize.judging import judged_metrics
from querywright.optimize.results import NO_REWRITING, today
from querywright.optimize.rewriter import evaluation as arms
from querywright.optimize.rewriter.checkpoints import as_plain, read_json, read_lines, write_json
from querywright.optimize.rewriter.collect import collect
from querywright.optimize.rewriter.episodes import roll_out, run_episodes, seed_of
from querywright.optimize.rewriter.evaluation import METRICS, compared, evaluation_of, guards_of, standing, warnings
from querywright.optimize.rewriter.pairs import Pair, read_pairs, write_pairs
from querywright.optimize.rewriter.policy import HFPolicy
from querywright.optimize.rewriter.reinforce import reinforce
from querywright.optimize.rewriter.report import rewriter_card, rewriter_html
from querywright.optimize.rewriter.rewards import Reward
from querywright.optimize.rewriter.settings import (
    COLLECT,
    EVIDENCE,
    REINFORCE,
    RUN,
    WARMUP,
    Given,
    TrainSettings,
    check_training,
    teacher_name,
)
from querywright.optimize.rewriter.warmup import warm_up
from querywright.programs import make_program

REPORT, PAIRS, LOCK = "report.html", "pairs.jsonl", "training.lock"
DEV_PAIRS = 0.1
"""Share of the questions whose pairs the warm-up is measured by."""
TOLD_APART = ("technique", "knobs", "base", "recipe", "metric", "device")
"""Settings that stand by themselves in the card, or are of the machine."""


class Trained(NamedTuple):
    """What a training made: the folder of the rewriter, the content of its ``card.json``, arms on dev and on test (None
    where there are no test questions), and the HTML page.
    """

    folder: Path
    card: Mapping[str, Any]
    dev: Compared
    test: Compared | None
    report: Path


def train(settings: TrainSettings, given: Given, *, out: Path, work: Path, progress: Progress | None = None) -> Trained:
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
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    busy = InputError(
        f"another process trains in {work.name!r}; wait until it has ended, or give another folder (--work)"
    )
    with locked(work / LOCK, busy):
        return _Training(settings, given, _claimed(work, settings, given), out, work, progress).go()


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
        self.finds = given.program(settings, reads=False)
        labelled = any(question.evidence for question in given.splits.dev)
        self.metrics = judged_metrics(list(dict.fromkeys([settings.metric, *(METRICS if labelled else ())])))
        base = load_base(settings.base, revision=described.digest if described.kind == "hub" else None)
        given_to: dict[str, Any] = {"device": settings.device, "dtype": settings.dtype, "seed": settings.seed}
        self.policy = HFPolicy(base, rank=settings.rank, **given_to)
        self.reports: dict[str, Any] = {}
        self.arms: dict[str, list[Evaluation]] = {name: [] for name in self.parts}
        self.guards: dict[str, dict[str, float]] = {}

    def go(self) -> Trained:
        settings, given = self.settings, self.given
        stages, opened = settings.stages, given.open_lm if settings.base == EMBEDDED else None
        plain = make_program("plain", given.retriever, max_passages=self.finds.technique.max_passages)
        self._evaluate(NO_REWRITING, dspy.LM("none", cache=False), plain)
        # The evidence of a question is known in training alone, so that teacher answers nothing; and the embedded model
        # as its own teacher is the arm AS_IT_COMES.
        teacher = None if given.teacher == EVIDENCE or COLLECT not in stages else given.teacher
        if teacher is not None and (opened is None or teacher.model != opened(EMBEDDED).model):
            self._evaluate(arms.TEACHER, teacher)
        self._measure(arms.UNTRAINED)
        pairs = self._collected()
        own = [pair for pair in pairs if pair.technique == settings.technique]
        if not own:  # there is no length to aim at
            self.recipe = replace(self.recipe, length_penalty=0.0)
        if WARMUP in stages:
            self.techniques = sorted({*self.techniques, *(pair.technique for pair in pairs)})
            self._done(WARMUP, self._warmed_up(pairs))
            if REINFORCE in stages:
                self._measure(arms.WARMED_UP)
        if REINFORCE in stages:
            self._done(REINFORCE, self._reinforced(own))
        self._measure(arms.TRAINED)
        weights = self.work / "weights"
        self.policy.save(weights)
        if opened is not None:  # the embedded model, as it comes and as trained, in the engine that they run in
            path = self.work / "in-use" / self.out.name
            self._write(path, weights, {}, "")
            self._evaluate(arms.AS_IT_COMES, opened(EMBEDDED))
            self._evaluate(arms.IN_USE, opened(f"rewriter:{path}"))
        return self._kept(weights)

    def _measure(self, arm: str) -> None:
        """Answer dev and test greedily with the policy."""
        run = partial(run_episodes, self.finds, settings=self.settings.limits, threads=self.settings.threads)
        for place, (name, part) in enumerate(self.parts.items(), 1):
            episodes = roll_out(self.policy, run, part, self.recipe)
            self.arms[name].append(evaluation_of(arm, episodes, self.metrics))
            if name == "dev":
                self.guards[arm] = guards_of(episodes)
            if self.progress is not None:
                self.progress(f"measuring: {arm}", place, len(self.parts))

    def _evaluate(self, arm: str, lm: dspy.LM, program: Any = None) -> None:
        """Answer dev and test with an LM."""
        given: dict[str, Any] = {"metrics": self.metrics, "threads": self.settings.threads, "progress": self.progress}
        for name, part in self.parts.items():
            self.arms[name].append(evaluate(program or self.finds, part, lm=lm, name=arm, **given))

    def _done(self, stage: str, report: Mapping[str, Any]) -> None:
        self.reports[stage] = report
        write_json(self.work / f"{stage}.json", report)

    def _collected(self) -> list[Pair]:
        """What is learnt from: pairs that were given, and those that a teacher writes now."""
        given, settings, file = self.given, self.settings, self.work / PAIRS
        if COLLECT not in settings.stages:
            return list(given.pairs)
        if file.exists():
            self.reports[COLLECT] = read_json(self.work / f"{COLLECT}.json")
            return [*given.pairs, *read_pairs(file)]
        found = collect(settings, given, progress=self.progress).pairs
        told = {"questions": len(given.splits.train), "teacher": teacher_name(given.teacher), "collected": len(found)}
        self._done(COLLECT, told)
        write_pairs(file, found)
        return [*given.pairs, *found]

    def _warmed_up(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        split = split_pairs(pairs, self.settings.seed)
        done = warm_up(self.policy, *split, self.work / WARMUP, self.settings, progress=self.progress)
        sources = Counter(f"{pair.technique}, {pair.data}" if pair.data else pair.technique for pair in pairs)
        return asdict(done) | {"given": dict(sorted(sources.items()))}

    def _reinforced(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        given, settings = self.given, replace(self.settings, recipe=self.recipe)
        target: float | None = None
        if self.recipe.length_penalty:
            target = statistics.median(len(self.policy.taught(one.messages, one.text).tokens) for one in pairs)
        program, lm = given.program(settings), given.reader_lm if self.recipe.needs_reader else None
        shared: dict[str, Any] = {"lm": lm, "threads": settings.threads}
        done = reinforce(
            self.policy,
            given.splits.train,
            given.splits.dev,
            self.work / REINFORCE,
            settings,
            run=partial(run_episodes, program, settings=settings.limits, **shared),
            reward=Reward(self.recipe, program, metric=settings.metric, target=target, **shared),
            progress=self.progress,
        )
        return asdict(done)

    def _kept(self, weights: Path) -> Trained:
        found = {name: compared(measured, self.parts[name]) for name, measured in self.arms.items()}
        card, name = self._card(found), self.out.name
        logs = {stage: read_lines(self.work / stage / f"{stage}.jsonl") for stage in (WARMUP, REINFORCE)}
        curve = [{"stage": stage, **line} for stage, lines in logs.items() for line in lines]
        self._write(self.out, weights, card, rewriter_card(name, card, found), curve)
        report = self.work / REPORT
        write_file(report, rewriter_html(name, card, found, logs))
        return Trained(self.out, card, found["dev"], found.get("test"), report)

    def _card(self, found: Mapping[str, Compared]) -> dict[str, Any]:
        settings, reports = self.settings, self.reports
        before, after = self.guards.get(arms.WARMED_UP, self.guards[arms.UNTRAINED]), self.guards[arms.TRAINED]
        said = warnings(before, after)
        flat = reports.get(REINFORCE, {}).get("flat")
        if flat:
            said.append(f"in {flat} of {reports[REINFORCE]['steps']} steps all advantages were 0: nothing learnt")
        if REINFORCE in settings.stages and self.recipe != settings.recipe:
            of = settings.technique
            said.append(f"there were no pairs of {of}, so the length penalty had no target and was left out")
        said += [note for report in reports.values() for note in report.get("notes", ())]
        arm = arms.IN_USE if any(one.name == arms.IN_USE for one in found["dev"].arms) else arms.TRAINED
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
                "standing": {name: standing(one, settings.metric, arm) for name, one in found.items()},
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


def split_pairs(pairs: Sequence[Pair], seed: int) -> tuple[list[Pair], list[Pair]]:
    """Pairs to learn from, and pairs to choose the epoch by, of other questions; the seed says of which."""
    keys = sorted({pair.key for pair in pairs}, key=lambda key: (seed_of(seed, "pairs", key[0]), key))
    chosen = set(keys[: max(1, round(DEV_PAIRS * len(keys)))] if len(keys) > 1 else ())
    return [one for one in pairs if one.key not in chosen], [one for one in pairs if one.key in chosen]


def data_facts(splits: Splits) -> dict[str, dict[str, Any]]:
    """How many questions there are, and their hashes, by part."""
    return {name: {"n": len(part), "sha256": data_hash(part)} for name, part in splits._asdict().items() if part}


def _claimed(folder: Path, settings: TrainSettings, given: Given) -> RewriterBase:
    """The base, once it is noted in the folder what is trained there; InputError where that is another training."""
    base = describe_base(settings.base)
    facts = asdict(settings) | {
        "base": base,
        "device": None,
        "threads": None,
        "data": data_facts(given.splits),
        "collection": given.collection,
        "fingerprint": given.retriever.fingerprint,
        "teacher": teacher_name(given.teacher),
        "reader": given.reader,
        "reader_lm": None if given.reader_lm is None else given.reader_lm.model,
        "pairs": hashlib.sha256(json.dumps(as_plain(list(given.pairs))).encode()).hexdigest(),
    }
    old, new = read_json(folder / RUN), as_plain(facts)
    if old is None and any(one.name != LOCK for one in folder.iterdir()):
        raise InputError(f"{folder.name!r} holds files of something else; give another folder (--work or --out)")
    differ = [] if old is None else [name for name in new if old.get(name) != new[name]]
    if differ:
        raise InputError(
            f"{folder.name!r} belongs to another training ({', '.join(differ)} differ); give another folder (--work or "
            "--out), or delete this one"
        )
    write_json(folder / RUN, facts)
    return base
