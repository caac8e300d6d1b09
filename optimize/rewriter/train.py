"""A whole training: rewrites are collected, the model is warmed up on the best and reinforced, and what it became kept.

Everything stands in one working folder, and each stage is done once: a training that was ended, whichever way, goes on
where it was, to the result of one that was not.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import dspy

from querywright.models.hf import EMBEDDED, load_base
from querywright.models.openmp import limit_spinning
from querywright.models.rewriter_bases import RewriterBase, save_weights
from querywright.models.rewriters import ADAPTER, ADAPTER_CONFIG, write_rewriter
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation, Progress, evaluate, metrics_by_name
from querywright.optimize.results import today
from querywright.optimize.rewriter.checkpoints import load_tensors, save_tensors
from querywright.optimize.rewriter.collect import EVIDENCE, collect, collect_from_study, teacher_name
from querywright.optimize.rewriter.collecting import collected_as, programs_of
from querywright.optimize.rewriter.episodes import run_episodes
from querywright.optimize.rewriter.evaluation import (
    AS_IT_COMES,
    IN_USE,
    TEACHER,
    TRAINED,
    UNTRAINED,
    WARMED_UP,
    Measured,
    compared,
    evaluation_of,
    kept,
    standing,
    without_rewriting,
)
from querywright.optimize.rewriter.given import Given, Trained, facts_of, measured_by, split_pairs
from querywright.optimize.rewriter.guards import Guards, guards, warnings
from querywright.optimize.rewriter.keeping import finite_all, only_one, read_json, read_lines, write_json, write_whole
from querywright.optimize.rewriter.policy import HFPolicy
from querywright.optimize.rewriter.reinforce import reinforce
from querywright.optimize.rewriter.report import rewriter_card, rewriter_html
from querywright.optimize.rewriter.rewards import Reward, make_reward
from querywright.optimize.rewriter.rollouts import Sampling, roll_out
from querywright.optimize.rewriter.settings import (
    COLLECT,
    REINFORCE,
    WARMUP,
    TrainSettings,
    check_enough,
    check_training,
    claim,
    data_facts,
)
from querywright.optimize.rewriter.study_arms import study_arms
from querywright.optimize.rewriter.types import Pair
from querywright.optimize.rewriter.warmup import warm_up

REPORT = "report.html"
TOLD_APART = ("technique", "knobs", "base", "recipe", "metric", "device")
"""Settings that stand by themselves in the card, or are of the machine."""


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
        InputError: Something given is wrong or too little, or the working folder is another training's.
        TrainingError: The loss is no number, or all rewards are alike.
        OSError: A file cannot be written; what was kept is whole, and the same training goes on from there.
    """
    check_training(
        settings,
        given.splits,
        pairs=given.pairs,
        writes=given.teacher is not None or given.study is not None,
        reader=given.reader is not None and given.reader_lm is not None,
        by_evidence=given.teacher == EVIDENCE,
        collection=given.collection,
    )
    check_enough(settings, given.pairs)
    if given.study is not None and COLLECT in settings.stages:
        with study_arms(given.study, settings.technique, home=given.home) as arms:
            arms.met(given.splits.train)
    limit_spinning()  # torch is loaded before llama.cpp here
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(work):
        facts = facts_of(settings, given)
        claim(work, facts)
        return _Training(settings, given, RewriterBase(**facts["base"]), out, work, progress).go()


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
        self.settings, self.given, self.out, self.work, self.progress = settings, given, out, work, progress
        self.parts = {name: part for name, part in (("dev", given.splits.dev), ("test", given.splits.test)) if part}
        programs = programs_of(settings, given)
        self.finds, self.program, self.reader_lm = programs.finds, programs.program, programs.reader_lm
        self.limits = programs.limits
        self.threads = settings.collect.threads
        self.run = partial(run_episodes, self.finds, settings=self.limits, threads=self.threads)
        self.metrics = metrics_by_name(measured_by(settings.metric, given.splits.dev))
        self.described = described
        self.base = load_base(settings.base, revision=described.digest if described.kind == "hub" else None)
        self.policy = HFPolicy(
            *self.base, lora=settings.lora, device=settings.device, dtype=settings.dtype, seed=settings.seed
        )
        self.recipe = settings.recipe
        self.techniques = [settings.technique]
        self.reports: dict[str, Any] = {}
        self.arms: dict[str, list[Evaluation]] = {name: [] for name in self.parts}
        self.guards: dict[str, Guards] = {}

    def go(self) -> Trained:
        self._created()
        for name, part in self.parts.items():
            room = self.finds.technique.max_passages
            self.arms[name].append(without_rewriting(part, self.given.retriever, self.metrics, room))
        self._teacher()
        self._measure(UNTRAINED)
        pairs = self._collected()
        own = [pair for pair in pairs if pair.technique == self.settings.technique]
        if not own:  # there is no length to aim at
            self.recipe = replace(self.recipe, length_penalty=0.0)
        if WARMUP in self.settings.stages:
            self.techniques = sorted({*self.techniques, *(pair.technique for pair in pairs)})
            self._stage(WARMUP, partial(self._warmed_up, pairs))
            if REINFORCE in self.settings.stages:
                self._measure(WARMED_UP)
        if REINFORCE in self.settings.stages:
            self._stage(REINFORCE, partial(self._reinforced, own))
        self._measure(TRAINED)
        weights = self._weights()
        self._in_use(weights)
        return self._kept(weights)

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)

    def _measure(self, arm: str) -> None:
        """Answer dev and test greedily; once, whatever happens to the process."""
        sampling = Sampling(room=self.settings.recipe.room)

        def work(name: str) -> Measured:
            rollouts = roll_out(self.policy, self.run, self.parts[name], sampling)
            ended = [[one.ended for one in rollout.completions] for rollout in rollouts]
            episodes = [rollout.episode for rollout in rollouts]
            return Measured(evaluation_of(arm, episodes, self.metrics), guards(episodes, ended).to_json())

        for place, name in enumerate(self.parts, 1):
            file = self.work / f"measured-{name}-{arm.replace(' ', '-')}.json"
            found = kept(file, arm, partial(work, name))
            self.arms[name].append(found.evaluation)
            if name == "dev":
                self.guards[arm] = Guards.from_json(found.guards)
            self._tell(f"measuring: {arm}", place, len(self.parts))

    def _teacher(self) -> None:
        teacher = self.given.teacher
        if teacher is None or isinstance(teacher, str) or COLLECT not in self.settings.stages:
            return  # the evidence of a question is known in training alone, so this teacher answers nothing
        opened = self.given.open_lm if self.settings.base == EMBEDDED else None
        if opened is not None and teacher.model == opened(EMBEDDED).model:
            return  # it is the arm AS_IT_COMES
        self._meet(TEACHER, teacher)

    def _meet(self, arm: str, lm: dspy.LM) -> None:
        for name, part in self.parts.items():
            found = evaluate(
                self.finds, part, lm=lm, name=arm, metrics=self.metrics, threads=self.threads, progress=self.progress
            )
            self.arms[name].append(found)

    def _stage(self, name: str, work: Callable[[], Mapping[str, Any]]) -> None:
        """Do a stage once; its weights and what it did are kept when it is done."""
        file, weights = self.work / f"{name}.json", self.work / f"{name}.safetensors"
        known = read_json(file)
        if known is None:
            known = finite_all(work())
            save_tensors(weights, self.policy.parameters())
            write_json(file, known)
        else:
            self.policy.set_parameters(load_tensors(weights))
        self.reports[name] = known

    def _collected(self) -> list[Pair]:
        """What is learnt from: pairs that were given, those of a study, and those that a teacher writes now."""
        given, found = self.given, list(self.given.pairs)
        if COLLECT not in self.settings.stages:
            return found
        settings = collected_as(self.settings, self.limits)
        shared: dict[str, Any] = {"reward": self._reward(()), "reader_lm": self.reader_lm, "progress": self.progress}
        report: dict[str, Any] = {"questions": len(given.splits.train)}
        if given.study is not None:
            folder, train = self.work / "from-study", given.splits.train
            told = collect_from_study(
                given.study, self.program, settings, folder, questions=train, home=given.home, **shared
            )
            found += told.pairs
            report |= {
                "arms of the study": told.arms,
                "not kept there": told.missing,
                "from the study": len(told.pairs),
            }
        if given.teacher is not None:
            folder = self.work / COLLECT
            told_now = collect(self.program, given.splits.train, given.teacher, settings, folder, **shared)
            found += told_now
            report |= {"teacher": teacher_name(given.teacher), "collected": len(told_now)}
        self.reports[COLLECT] = report
        write_json(self.work / f"{COLLECT}.json", report)
        return found

    def _reward(self, pairs: Sequence[Pair]) -> Reward:
        recipe, target = self.recipe, None
        if recipe.length_penalty and pairs:
            target = statistics.median(len(self.policy.taught(one.messages, one.text).tokens) for one in pairs)
        elif recipe.length_penalty:
            recipe = replace(recipe, length_penalty=0.0)
        return make_reward(
            recipe, self.program, metric=self.settings.metric, lm=self.reader_lm, target=target, threads=self.threads
        )

    def _warmed_up(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        learnt, looked_at = split_pairs(pairs, self.settings.seed)
        settings = replace(self.settings.warmup, seed=self.settings.seed)
        done = asdict(warm_up(self.policy, learnt, looked_at, settings, self.work / WARMUP, self.progress))
        sources = Counter(f"{pair.technique}, {pair.data}" if pair.data else pair.technique for pair in pairs)
        return done | {"given": dict(sorted(sources.items()))}

    def _reinforced(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        given, settings = self.given, self.settings
        done = reinforce(
            self.policy,
            given.splits.train,
            given.splits.dev,
            run=partial(run_episodes, self.program, lm=self.reader_lm, settings=self.limits, threads=self.threads),
            reward=self._reward(pairs),
            recipe=self.recipe,
            settings=replace(settings.reinforce, seed=settings.seed),
            folder=self.work / REINFORCE,
            progress=self.progress,
        )
        return asdict(done)

    def _weights(self) -> Path:
        """The weights as ``write_rewriter`` takes them."""
        folder = self.work / "weights"
        folder.mkdir(exist_ok=True)
        if self.settings.lora is None:
            save_weights(self.base, folder, name=self.settings.base)
            return folder
        config, tensors = self.policy.adapter()
        self.base.tokenizer.save_pretrained(folder)
        save_tensors(folder / ADAPTER, tensors)
        write_json(folder / ADAPTER_CONFIG, config)
        return folder

    def _in_use(self, weights: Path) -> None:
        """The embedded model, as it comes and as trained, in the engine that they run in."""
        if self.given.open_lm is None or self.settings.base != EMBEDDED:
            return
        self._meet(AS_IT_COMES, self.given.open_lm(EMBEDDED))
        path = self.work / "in-use" / self.out.name
        self._write(path, weights, {}, "")
        self._meet(IN_USE, self.given.open_lm(f"rewriter:{path}"))

    def _kept(self, weights: Path) -> Trained:
        found = {name: compared(arms) for name, arms in self.arms.items()}
        dev, test = found["dev"], found.get("test")
        card = self._card(found)
        name = self.out.name
        curve = [{"stage": stage, **_timeless(line)} for stage in (WARMUP, REINFORCE) for line in self._log(stage)]
        self._write(self.out, weights, card, rewriter_card(name, card, dev, test), curve)
        steps = self._log(REINFORCE)
        text = rewriter_html(
            name, card, dev, test, self.given.splits.dev, warmup=self._log(WARMUP), reinforcement=steps
        )
        report = self.work / REPORT
        write_whole(report, text)
        return Trained(self.out, card, dev, test, report)

    def _log(self, stage: str) -> list[dict[str, Any]]:
        return read_lines(self.work / stage / f"{stage}.jsonl")

    def _card(self, found: Mapping[str, Compared]) -> dict[str, Any]:
        before, after = self.guards.get(WARMED_UP, self.guards[UNTRAINED]), self.guards[TRAINED]
        said = warnings(before, after)
        flat = self.reports.get(REINFORCE, {}).get("flat")
        if flat:
            said.append(f"in {flat} of {self.reports[REINFORCE]['steps']} steps all advantages were 0: nothing learnt")
        if REINFORCE in self.settings.stages and self.recipe != self.settings.recipe:
            of = self.settings.technique
            said.append(f"there were no pairs of {of}, so the length penalty had no target and was left out")
        said += [note for report in self.reports.values() for note in report.get("notes", ())]
        arm = IN_USE if any(one.name == IN_USE for one in found["dev"].arms) else TRAINED
        standings = {name: standing(one, self.settings.metric, arm) for name, one in found.items()}
        card: dict[str, Any] = finite_all(
            {
                "created": self._created(),
                "technique": self.settings.technique,
                "techniques": self.techniques,
                "knobs": dict(self.settings.knobs),
                "base": self.described.name,
                "recipe": self.recipe.to_json(),
                "metric": self.settings.metric,
                "collection": self.given.collection,
                "fingerprint": self.given.retriever.fingerprint,
                "data": data_facts(self.given.splits),
                "settings": {k: v for k, v in self.settings.to_json().items() if k not in TOLD_APART},
                "stages": self.reports,
                "standing": {n: {**asdict(one), "warning": one.warning} for n, one in standings.items()},
                "guards": {"before": before.to_json(), "after": after.to_json(), "warnings": said},
                **{name: _timeless(one.to_json()) for name, one in found.items()},
            }
        )
        return card

    def _created(self) -> str:
        """The day on which it was begun, so that a run that was taken up again writes what an undisturbed one does."""
        file = self.work / "begun.json"
        if read_json(file) is None:
            write_json(file, today())
        return str(read_json(file))

    def _write(
        self, path: Path, weights: Path, card: Mapping[str, Any], readme: str, curve: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        limits = {}
        if self.limits is not None:
            limits = {"max_chars": self.limits.max_chars, "max_items": self.limits.max_items}
        write_rewriter(
            path,
            weights,
            base=self.described,
            techniques=self.techniques,
            recipe=self.settings.recipe.name if REINFORCE in self.settings.stages else "warm-up",
            created=self._created(),
            card=card,
            readme=readme,
            curve=curve,
            **limits,
        )


def _timeless(data: Any) -> Any:
    """Data without how long things took, so that the same training writes the same bytes."""
    if isinstance(data, Mapping):
        return {key: _timeless(value) for key, value in data.items() if key not in ("seconds", "latency")}
    return [_timeless(one) for one in data] if isinstance(data, (list, tuple)) else data
