"""A whole training: collect rewrites, warm the model up on the best, reinforce it, and write the rewriter.

An interrupted training resumes with the same call: the LM's answers are in the cache, the pairs in a file of the
working folder, and the warm-up and the reinforcement continue from their last checkpoints.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from querywright.data.splits import Splits, data_hash
from querywright.errors import InputError
from querywright.files import locked, write_file
from querywright.models.hf import EMBEDDED, load_base
from querywright.models.rewriters import RewriterBase, describe_base, write_rewriter
from querywright.optimize.comparison import Comparison
from querywright.optimize.evaluate import Evaluation, Progress, evaluate
from querywright.optimize.judging import judged_metrics
from querywright.optimize.results import NO_REWRITING, today
from querywright.optimize.rewriter.checkpoints import as_plain, read_lines
from querywright.optimize.rewriter.collect import collect
from querywright.optimize.rewriter.episodes import roll_out, run_episodes, seed_of
from querywright.optimize.rewriter.evaluation import (
    IN_USE,
    METRICS,
    TRAINED,
    UNTRAINED,
    compared,
    evaluation_of,
    guards_of,
    rewriter_card,
    standing,
    warnings,
)
from querywright.optimize.rewriter.pairs import Pair, read_pairs, write_pairs
from querywright.optimize.rewriter.policy import HFPolicy
from querywright.optimize.rewriter.reinforce import reinforce
from querywright.optimize.rewriter.rewards import Reward
from querywright.optimize.rewriter.settings import (
    COLLECT,
    REINFORCE,
    WARMUP,
    Given,
    TrainSettings,
    check_training,
    teacher_name,
)
from querywright.optimize.rewriter.warmup import warm_up
from querywright.programs import make_program

RUN, PAIRS, LOCK = "run.json", "pairs.jsonl", "training.lock"
DEV_PAIRS = 0.1
"""Share of the questions whose pairs choose the epoch of the warm-up."""
_OF_THE_CARD = ("technique", "knobs", "base", "metric", "device", "threads")
"""Settings that the card has elsewhere, or that belong to the machine."""


class Trained(NamedTuple):
    """Result of a training: the rewriter's folder, the content of its ``card.json``, and its arms on dev and on test
    (None if there are no test questions).
    """

    folder: Path
    card: Mapping[str, Any]
    dev: Comparison
    test: Comparison | None


def train(settings: TrainSettings, given: Given, *, out: Path, work: Path, progress: Progress | None = None) -> Trained:
    """Train a rewriter.

    Args:
        settings: Settings.
        given: Inputs.
        out: Folder of the rewriter.
        work: Working folder; made if it is missing, resumed if it is there.
        progress: Called with the name of the work, how much is done, and how much there is.

    Raises:
        InputError: An input is wrong or too small, or the working folder is another training's or in use.
        TrainingError: The loss is not finite, or all rewards are alike.
        OSError: A file cannot be written; the same training resumes from its last checkpoint.
    """
    check_training(settings, given)
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    busy = InputError(
        f"another process trains in {work.name!r}; wait until it has ended, or give another folder (--work)"
    )
    with locked(work / LOCK, busy):
        return _Training(settings, given, _claimed(work, settings, given), out, work, progress).run()


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
        self.techniques = [settings.technique]
        self.parts = {name: part for name, part in (("dev", given.splits.dev), ("test", given.splits.test)) if part}
        self.program = given.program(settings)
        self.episodes = partial(run_episodes, self.program, settings=settings.limits, threads=settings.threads)
        labelled = any(question.evidence for question in given.splits.dev)
        self.metrics = judged_metrics(list(dict.fromkeys([settings.metric, *(METRICS if labelled else ())])))
        base = load_base(settings.base, revision=described.digest if described.kind == "hub" else None)
        self.policy = HFPolicy(base, rank=settings.rank, device=settings.device, seed=settings.seed)
        self.reports: dict[str, Any] = {}
        self.arms: dict[str, list[Evaluation]] = {name: [] for name in self.parts}
        self.guards: dict[str, dict[str, float]] = {}

    def run(self) -> Trained:
        settings, given = self.settings, self.given
        plain = make_program("plain", given.retriever, max_passages=self.program.technique.max_passages)
        self._evaluate(NO_REWRITING, dspy.LM("none", cache=False), plain)
        self._measure(UNTRAINED)
        pairs = self._collected()
        if WARMUP in settings.stages:
            self.techniques = sorted({*self.techniques, *(pair.technique for pair in pairs)})
            self.reports[WARMUP] = self._warmed_up(pairs)
        if REINFORCE in settings.stages:
            done = reinforce(
                self.policy,
                given.splits.train,
                given.splits.dev,
                self.work / REINFORCE,
                settings,
                run=self.episodes,
                reward=Reward(self.program, settings.metric),
                progress=self.progress,
            )
            self.reports[REINFORCE] = asdict(done)
        self._measure(TRAINED)
        weights = self.work / "weights"
        self.policy.save(weights)
        if given.open_lm is not None and settings.base == EMBEDDED:  # llama.cpp runs it with other numbers
            path = self.work / "in-use" / self.out.name
            self._write(path, weights, {}, "")
            self._evaluate(IN_USE, given.open_lm(f"rewriter:{path}"), self.program)
        return self._kept(weights)

    def _measure(self, arm: str) -> None:
        """Answer dev and test greedily with the policy."""
        for place, (name, part) in enumerate(self.parts.items(), 1):
            episodes = roll_out(self.policy, self.episodes, part, room=self.settings.room)
            self.arms[name].append(evaluation_of(arm, episodes, self.metrics))
            if name == "dev":
                self.guards[arm] = guards_of(episodes)
            if self.progress is not None:
                self.progress(f"measuring: {arm}", place, len(self.parts))

    def _evaluate(self, arm: str, lm: dspy.LM, program: Any) -> None:
        """Answer dev and test with an LM."""
        given: dict[str, Any] = {"metrics": self.metrics, "threads": self.settings.threads, "progress": self.progress}
        for name, part in self.parts.items():
            self.arms[name].append(evaluate(program, part, lm=lm, name=arm, **given))

    def _collected(self) -> list[Pair]:
        """Return the pairs that were given, and those that the teacher writes now or wrote before."""
        given, settings, file = self.given, self.settings, self.work / PAIRS
        if COLLECT not in settings.stages:
            return list(given.pairs)
        if not file.exists():
            write_pairs(file, collect(settings, given, progress=self.progress).pairs)
        found = read_pairs(file)
        report = {"questions": len(given.splits.train), "teacher": teacher_name(given.teacher), "collected": len(found)}
        self.reports[COLLECT] = report
        return [*given.pairs, *found]

    def _warmed_up(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        split = split_pairs(pairs, self.settings.seed)
        done = warm_up(self.policy, *split, self.work / WARMUP, self.settings, progress=self.progress)
        sources = Counter(f"{pair.technique}, {pair.data}" if pair.data else pair.technique for pair in pairs)
        return asdict(done) | {"given": dict(sorted(sources.items()))}

    def _kept(self, weights: Path) -> Trained:
        found = {name: compared(measured, self.parts[name]) for name, measured in self.arms.items()}
        card = self._card(found)
        curve = [
            {"stage": stage, **line}
            for stage in (WARMUP, REINFORCE)
            for line in read_lines(self.work / stage / f"{stage}.jsonl")
        ]
        self._write(self.out, weights, card, rewriter_card(self.out.name, card, found), curve)
        return Trained(self.out, card, found["dev"], found.get("test"))

    def _card(self, found: Mapping[str, Comparison]) -> dict[str, Any]:
        settings, reports = self.settings, self.reports
        before, after = self.guards[UNTRAINED], self.guards[TRAINED]
        said = warnings(before, after)
        flat = reports.get(REINFORCE, {}).get("flat")
        if flat:
            said.append(f"{flat} of {reports[REINFORCE]['steps']} steps of the reinforcement taught nothing")
        said += [note for report in reports.values() for note in report.get("notes", ())]
        arm = IN_USE if any(one.name == IN_USE for one in found["dev"].arms) else TRAINED
        card: dict[str, Any] = as_plain(
            {
                "created": today(),
                "technique": settings.technique,
                "techniques": self.techniques,
                "knobs": settings.knobs,
                "base": self.described.name,
                "metric": settings.metric,
                "collection": self.given.collection,
                "fingerprint": self.given.retriever.fingerprint,
                "data": data_facts(self.given.splits),
                "settings": {k: v for k, v in asdict(settings).items() if k not in _OF_THE_CARD},
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
            recipe=REINFORCE if REINFORCE in self.settings.stages else "warm-up",
            created=today(),
            card=card,
            readme=readme,
            curve=curve,
            **({} if limits is None else {"max_chars": limits.max_chars, "max_items": limits.max_items}),
        )


def split_pairs(pairs: Sequence[Pair], seed: int) -> tuple[list[Pair], list[Pair]]:
    """Return pairs to learn from, and pairs of other questions to choose the epoch by."""
    keys = sorted({pair.key for pair in pairs}, key=lambda key: (seed_of(seed, "pairs", key[0]), key))
    chosen = set(keys[: max(1, round(DEV_PAIRS * len(keys)))] if len(keys) > 1 else ())
    return [one for one in pairs if one.key not in chosen], [one for one in pairs if one.key in chosen]


def data_facts(splits: Splits) -> dict[str, dict[str, Any]]:
    """Return the number of questions and their hash, by part."""
    return {name: {"n": len(part), "sha256": data_hash(part)} for name, part in splits._asdict().items() if part}


def _claimed(folder: Path, settings: TrainSettings, given: Given) -> RewriterBase:
    """Note in the folder what is trained there and return the base; raise if the folder is another training's."""
    base = describe_base(settings.base)
    facts = asdict(settings) | {
        "base": base,
        "device": None,
        "threads": None,
        "data": data_facts(given.splits),
        "collection": given.collection,
        "fingerprint": given.retriever.fingerprint,
        "teacher": teacher_name(given.teacher),
        "pairs": hashlib.sha256(json.dumps(as_plain(list(given.pairs))).encode()).hexdigest(),
    }
    file, new = folder / RUN, as_plain(facts)
    old = json.loads(file.read_bytes()) if file.exists() else None
    if old is None and any(one.name != LOCK for one in folder.iterdir()):
        raise InputError(f"{folder.name!r} holds files of something else; give another folder (--work or --out)")
    differ = [] if old is None else [name for name in new if old.get(name) != new[name]]
    if differ:
        raise InputError(
            f"{folder.name!r} belongs to another training ({', '.join(differ)} differ); give another folder (--work or "
            "--out), or delete this one"
        )
    write_file(file, json.dumps(new, indent=1) + "\n")
    return base
