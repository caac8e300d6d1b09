"""What a training is given, and the folder that belongs to one training alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from querywright.data.splits import Splits, asked_of, data_hash
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.metrics.dspy_metrics import metric_named, needs
from querywright.optimize.rewriter.collect import CollectSettings
from querywright.optimize.rewriter.keeping import finite_all, read_json, write_json
from querywright.optimize.rewriter.lora import LoraSettings
from querywright.optimize.rewriter.policy import check_dtype
from querywright.optimize.rewriter.recipes import OURS, Recipe
from querywright.optimize.rewriter.reinforce import ReinforceSettings
from querywright.optimize.rewriter.scripts import script_of
from querywright.optimize.rewriter.types import Pair
from querywright.optimize.rewriter.warmup import WarmupSettings
from querywright.programs import TECHNIQUES, technique_class
from querywright.programs.qb_rag import QBRAG

COLLECT, WARMUP, REINFORCE = "collect", "warmup", "reinforce"
STAGES = (COLLECT, WARMUP, REINFORCE)
RUN = "run.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How a rewriter is trained.

    Args:
        technique: Whose predictors the rewriter answers.
        knobs: Values of its knobs that differ from their defaults.
        base: ``embedded``, a folder, or a name of the hub.
        stages: Of ``collect``, ``warmup`` and ``reinforce``, in this order; each may be left out.
        recipe: Of the reinforcement.
        metric: What retrieval is measured by; the recipe ``ours`` rewards it, and chooses by it on dev.
        seed: Of all that is drawn.
        collect: Of the collection.
        warmup: Of the warm-up.
        reinforce: Of the reinforcement.
        lora: Of the adapter; None trains all weights.
        device: Such as ``cpu`` or ``cuda:0``, or several that share a batch; ``auto`` takes a GPU where there is one.
        dtype: ``auto``, ``float32`` or ``bfloat16``.
    """

    technique: str
    knobs: Mapping[str, Any] = field(default_factory=dict)
    base: str = "embedded"
    stages: tuple[str, ...] = STAGES
    recipe: Recipe = OURS
    metric: str = "ndcg@10"
    seed: int = 0
    collect: CollectSettings = field(default_factory=CollectSettings)
    warmup: WarmupSettings = field(default_factory=WarmupSettings)
    reinforce: ReinforceSettings = field(default_factory=ReinforceSettings)
    lora: LoraSettings | None = field(default_factory=LoraSettings)
    device: str = "auto"
    dtype: str = "auto"

    def to_json(self) -> dict[str, Any]:
        """The settings as a JSON object."""
        made: dict[str, Any] = finite_all(asdict(self))
        return made


def check_stages(stages: Sequence[str]) -> tuple[str, ...]:
    """The stages, in their order.

    Raises:
        InputError: One is unknown or stands twice, or there is none.
    """
    for one in stages:
        if one not in STAGES:
            raise InputError(f"unknown stage {one!r}; the stages are: {', '.join(STAGES)}")
    if not stages or len(set(stages)) != len(stages):
        raise InputError(f"--stages takes each stage once, such as {','.join(STAGES)}, but got {','.join(stages)!r}")
    return tuple(one for one in STAGES if one in stages)


def check_training(
    settings: TrainSettings,
    splits: Splits,
    *,
    pairs: Sequence[Pair],
    writes: bool,
    reader: bool,
    by_evidence: bool = False,
    collection: str = "",
) -> None:
    """Refuse what cannot be trained, before anything is asked or loaded.

    Args:
        settings: How it is trained.
        splits: Train, dev and test questions.
        pairs: Those that are given.
        writes: Whether there is a teacher or a study to collect from.
        reader: Whether a reader is given.
        by_evidence: Whether the teacher is the labelled evidence, which teaches some techniques alone.
        collection: Whose questions the splits are; pairs of other collections are told from them by their text.

    Raises:
        InputError: A value is wrong, or the data cannot carry the training; the message says what is missing.
    """
    check_stages(settings.stages)
    _check_rewrites(settings, by_evidence=by_evidence and COLLECT in settings.stages)
    for name, part in splits._asdict().items():
        if not part and name != "test":
            raise InputError(f"there is no {name} question: 1 more is needed; give more questions or other --sizes")
    check_dtype(settings.dtype)
    _check_measured(settings.metric, "dev", splits.dev)
    if COLLECT in settings.stages and not writes:
        raise InputError(
            f"there is nothing to collect rewrites from for the base {settings.base!r}: give --teacher NAME or "
            "--from-study FOLDER, or leave the stage collect out (--stages)"
        )
    if WARMUP in settings.stages and COLLECT not in settings.stages and not pairs:
        raise InputError("the warm-up learns from collected rewrites: add the stage collect, or give --pairs FILE")
    for name in sorted({pair.technique for pair in pairs} - set(TECHNIQUES)):
        raise InputError(
            f"there are pairs of {name!r} in --pairs, which is no technique; the techniques are: "
            f"{', '.join(TECHNIQUES)}"
        )
    leaking = len(_leaking(pairs, splits, collection))
    if leaking:
        raise InputError(
            f"{leaking} of the {len(pairs)} pairs of --pairs are of dev or test questions, which must not be learnt "
            "from: give the --seed and --sizes that the pairs were collected with, or other pairs"
        )
    if REINFORCE in settings.stages or COLLECT in settings.stages:
        _check_rewarded(settings, "train", splits.train, reader=reader)
    if REINFORCE in settings.stages:
        _check_rewarded(settings, "dev", splits.dev, reader=reader)


def check_enough(settings: TrainSettings, pairs: Sequence[Pair]) -> None:
    """Refuse a warm-up on pairs that are given alone and too few, before a model is loaded for it.

    Args:
        settings: How it is trained.
        pairs: Those that are given.

    Raises:
        InputError: There are too few; the message says how many more are needed.
    """
    least = settings.warmup.least + 1  # and one that the epoch is chosen by
    if WARMUP in settings.stages and COLLECT not in settings.stages and len(pairs) < least:
        raise InputError(
            f"the warm-up needs {least} pairs or more, but --pairs has {len(pairs)}: {least - len(pairs)} more needed; "
            "collect from more questions, or with more candidates a question"
        )


def check_collecting(
    settings: TrainSettings, train: Sequence[Question], *, reader: bool, by_evidence: bool = False
) -> None:
    """Refuse what no rewrites can be collected for, before anything is asked or loaded.

    Args:
        settings: Of the training that they are collected for.
        train: Its train questions.
        reader: Whether a reader is given.
        by_evidence: Whether the teacher is the labelled evidence, which teaches some techniques alone.

    Raises:
        InputError: A value is wrong, or the questions are too few or not labelled.
    """
    asked = settings.technique == QBRAG.NAME  # of passages: nothing is rewritten there, or rewarded
    if not asked:
        _check_rewrites(settings, by_evidence=by_evidence)
    if not train:
        raise InputError("there is no train question: 1 more is needed; give more questions or other --sizes")
    if not asked:
        _check_rewarded(settings, "train", train, reader=reader)


def _check_rewrites(settings: TrainSettings, *, by_evidence: bool) -> None:
    technique = technique_class(settings.technique)(None, **settings.knobs)
    if not technique.predictors():
        raise InputError(
            f"{settings.technique} writes nothing with an LM, so there is nothing to train; take a technique that "
            "rewrites, such as rrr, multi_query or hcqr"
        )
    metric_named(settings.metric)
    if "reader" in needs(settings.metric):
        raise InputError(
            f"{settings.metric} needs a reader; a rewriter is measured by what it retrieves, such as ndcg@10"
        )
    if by_evidence:
        script_of(technique)


def _check_rewarded(settings: TrainSettings, part: str, questions: Sequence[Question], *, reader: bool) -> None:
    """Raise where the recipe could reward nothing of the questions of a part."""
    recipe = settings.recipe
    if not recipe.needs_reader:
        _check_measured(settings.metric, part, questions)
        return
    if not reader:
        raise InputError(f"the recipe {recipe.name} rewards answers and needs a reader; give --reader and --lm")
    if not any(one.answers for one in questions):
        raise InputError(
            f"the recipe {recipe.name} rewards answers, but none of the {len(questions)} {part} questions has a right "
            "one to hold them against; give them, or take --recipe ours"
        )


def _check_measured(metric: str, part: str, questions: Sequence[Question]) -> None:
    """Raise where the metric could be worked out for none of the questions of a part."""
    wanted = needs(metric)
    if "evidence" in wanted and not any(one.evidence for one in questions):
        raise InputError(
            f"{metric} needs labelled evidence, but none of the {len(questions)} {part} questions has any; label "
            "them, or take --metric hit"
        )
    if "answer" in wanted and not any(one.answers for one in questions):
        raise InputError(
            f"{metric} needs right answers, but none of the {len(questions)} {part} questions has one; give them, or "
            "label evidence and take --metric ndcg@10"
        )


def _leaking(pairs: Sequence[Pair], splits: Splits, collection: str) -> list[Pair]:
    """The pairs of dev and test questions: by id within the collection, by text and options also across collections.

    What is asked in train as well is the splits' own affair: it is learnt from whether or not pairs are given.
    """
    held_out = [*splits.dev, *splits.test]
    ids = {question.id for question in held_out}
    asked = {asked_of(question) for question in held_out} - {asked_of(question) for question in splits.train}

    def same(pair: Pair) -> bool:
        return pair.data in ("", collection) and pair.technique != QBRAG.NAME and pair.question in ids

    return [pair for pair in pairs if same(pair) or asked & set(pair.asked.split())]


def claim(folder: Path, facts: Mapping[str, Any]) -> None:
    """Make the folder this training's own, or see that it is.

    Args:
        folder: The working folder.
        facts: All that its results depend on.

    Raises:
        InputError: It belongs to a training that differs, or holds something else; the message names the difference.
    """
    known = read_json(folder / RUN)
    if known is None:
        others = [one.name for one in folder.iterdir() if one.name != "training.lock" and not one.name.startswith(".")]
        if others:
            raise InputError(
                f"{folder.name!r} holds {others[0]!r} and no training; give another working folder (--work)"
            )
        write_json(folder / RUN, facts)
        return
    old, new = _flat(known), _flat(finite_all(facts))
    differ = [
        f"{name} is {old.get(name)!r} there and {new.get(name)!r} here"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    if differ:
        raise InputError(
            f"{folder.name!r} belongs to another training: {'; '.join(differ[:5])}"
            f"{f'; and {len(differ) - 5} more' if len(differ) > 5 else ''}. Give another folder (--work or --out), or "
            "delete this one"
        )


def data_facts(splits: Splits) -> dict[str, dict[str, Any]]:
    """How many questions there are, and their hashes, by part."""
    return {name: {"n": len(part), "sha256": data_hash(part)} for name, part in splits._asdict().items() if part}


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(data, Mapping) and data:
        return {k: v for name, value in data.items() for k, v in _flat(value, f"{prefix}{name}.").items()}
    return {prefix.rstrip("."): data}
