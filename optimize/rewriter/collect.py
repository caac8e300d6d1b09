"""Rewrites to learn from: several a question by any LM, or those of a recorded study, scored by what they are worth.

What is learnt is always the prompt that the trained model will be given and an answer that it could write: rewrites of
another LM, or made with other prompts, are put into that form, searched again in it, and scored so.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import dspy

from querywright.data.splits import asked_of, data_hash
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.metrics.dspy_metrics import METRICS
from querywright.models.cached import stored_only
from querywright.models.embedded import EmbeddedSettings
from querywright.models.engine_errors import NotStoredError
from querywright.optimize.dspy_context import asking
from querywright.optimize.evaluate import Progress, finite
from querywright.optimize.failures import failure_kind
from querywright.optimize.pool import bounded_map
from querywright.optimize.rewriter.canonical import has_empty_list, json_text
from querywright.optimize.rewriter.episodes import REWRITER_LIMITS, run_episodes
from querywright.optimize.rewriter.keeping import add_line
from querywright.optimize.rewriter.pairs import open_lines, pair_json, pair_of, write_pairs
from querywright.optimize.rewriter.ranges import check_least
from querywright.optimize.rewriter.rewards import Reward
from querywright.optimize.rewriter.types import Episode, Pair, Scored, Turn
from querywright.programs.base import Technique
from querywright.programs.rag import RAG
from querywright.retrieval.engines import opened

CANDIDATES_FILE = "collected.jsonl"
PAIRS_FILE = "pairs.jsonl"
_REVISION = 2  # raised when prompts or what is written for a question change, so that older ones are not gone on with
_AT_A_TIME = 16
"""Questions between two writings; what a kill can cost."""

Writer = Callable[[Question], "list[str] | None"]
"""What is written for a question, a text a turn, each as ``json_text`` gives it; None where there is nothing."""


EVIDENCE: Literal["evidence"] = "evidence"
Teacher: TypeAlias = dspy.LM | Literal["evidence"]
"""Who rewrites."""


def teacher_name(teacher: Teacher) -> str:
    """What a teacher is called."""
    return teacher if isinstance(teacher, str) else teacher.model


@dataclass(frozen=True, slots=True)
class CollectSettings:
    """How rewrites are collected.

    Args:
        candidates: Rewrites a question, 1 or more; the first is greedy, the others are sampled. Default 4.
        temperature: Of the sampled ones, more than 0. Default 0.8.
        seed: Of the sampled ones. Default 0.
        ties: Whether the best rewrite is also kept where it finds as much as the plain question, and that is
            something. Default False: only where it finds more.
        least: Pairs that answers must give by exact match; with fewer, token F1 of .5 is enough. Default 500.
        limits: What the LM that the rewriter will run in can write; None: anything. Default: a rewriter's.
        threads: Questions under way at a time. Default 4.
    """

    candidates: int = 4
    temperature: float = 0.8
    seed: int = 0
    ties: bool = False
    least: int = 500
    limits: EmbeddedSettings | None = REWRITER_LIMITS
    threads: int = 4

    def __post_init__(self) -> None:
        check_least(self, {"candidates": 1, "threads": 1, "seed": 0, "least": 0})
        if not 0 < self.temperature < math.inf:
            raise InputError(
                f"temperature must be more than 0, but got {self.temperature}; equal rewrites teach nothing"
            )


def collect(
    program: RAG | Technique,
    questions: Sequence[Question],
    teacher: Teacher,
    settings: CollectSettings,
    folder: Path,
    *,
    reward: Reward,
    reader_lm: dspy.LM | None = None,
    progress: Progress | None = None,
    facts: Mapping[str, Any] | None = None,
) -> list[Pair]:
    """Have a teacher rewrite questions several times and keep the best where it is good enough.

    For a reward by what is found, a question's best rewrite is kept where it beats the plain question; for one that
    reads answers, where the answer is right, or has a token F1 of .5 where right ones are too few. Every question is
    written down as it is done (``collected.jsonl``), so that the same call goes on where an earlier one was stopped.

    Args:
        program: What is trained: a technique, and a reader where the reward needs one. Its own prompts are learnt.
        questions: Train questions.
        teacher: The LM that rewrites, which may be the model itself; or ``evidence``, which is no LM
            (``collect_evidence``).
        settings: How.
        folder: Where files are kept; made when it is missing.
        reward: From ``make_reward``.
        reader_lm: What the reader asks, where the reward needs one.
        progress: Called as questions are done.
        facts: What else the rewrites depend on, as plain data. Default None: nothing.

    Returns:
        The pairs that are also in ``pairs.jsonl``, in the questions' order.

    Raises:
        InputError: The folder holds what was collected with other settings, or something is missing.
        QuerywrightError: An LM is out of reach, or its calls are used up; nothing is lost.
    """
    shared: dict[str, Any] = {
        "settings": settings,
        "folder": folder,
        "facts": facts or {},
        "reward": reward,
        "reader_lm": reader_lm,
        "progress": progress,
    }
    if isinstance(teacher, str):
        from querywright.optimize.rewriter.teaching import collect_evidence

        return collect_evidence(program, questions, **shared)
    writers = [_writer(program, _sampling(teacher, settings, number)) for number in range(settings.candidates)]
    return collect_written(program, questions, writers, source=teacher.model, **shared)


def collect_written(
    program: RAG | Technique,
    questions: Sequence[Question],
    writers: Sequence[Writer],
    settings: CollectSettings,
    folder: Path,
    *,
    source: str,
    facts: Mapping[str, Any],
    reward: Reward,
    reader_lm: dspy.LM | None = None,
    progress: Progress | None = None,
    every: bool = False,
) -> list[Pair]:
    """Keep the best of what writers of any kind write for each question, as ``collect`` does.

    Args:
        program: What is trained.
        questions: Train questions.
        writers: Each gives one rewrite of a question; called by several threads at a time. What one writes must
            depend on the question, the settings and the facts alone, for it is written down once.
        settings: How; ``candidates``, ``temperature`` and ``seed`` are the writers' affair.
        folder: Where files are kept; made when it is missing.
        source: Who writes; it stands in the pairs.
        facts: What else the rewrites depend on, as plain data; a folder with other facts is refused.
        reward: From ``make_reward``.
        reader_lm: What the reader asks, where the reward needs one.
        progress: Called as questions are done.
        every: Whether the best of each question is kept, whatever it finds. Default False: where it is good enough.

    Returns:
        The pairs that are also in ``pairs.jsonl``, in the questions' order.

    Raises:
        InputError: The folder holds what was collected with other settings, or there is no writer.
    """
    if not writers:
        raise InputError("there is nobody to write rewrites; give one writer or more")
    work = _Collection(program, settings, reward, reader_lm, source, every)
    return work.go(questions, writers, folder, facts, progress)[0]


@dataclass(frozen=True, slots=True)
class FromStudy:
    """What a study gave.

    Args:
        pairs: Those that are also in ``pairs.jsonl``.
        arms: Arms of the technique that were looked at.
        missing: Answers to questions, over all arms, that were not kept whole and are left out.
    """

    pairs: list[Pair]
    arms: int
    missing: int


def collect_from_study(
    study: Path,
    program: RAG | Technique,
    settings: CollectSettings,
    folder: Path,
    *,
    reward: Reward,
    questions: Sequence[Question] | None = None,
    home: Path | None = None,
    storage: str | None = None,
    reader_lm: dspy.LM | None = None,
    progress: Progress | None = None,
) -> FromStudy:
    """Take the rewrites that a study's LM wrote, from the answers that were kept; the LM is not asked.

    Every arm of the program's technique that the study tried is run again on the questions, with its prompts and
    demonstrations. What it wrote is scored in the program's own prompts, like the rewrites of ``collect``.

    Args:
        study: The study's folder.
        program: What is trained.
        settings: How; ``candidates``, ``temperature`` and ``seed`` are the study's.
        folder: Where files are kept.
        reward: From ``make_reward``.
        questions: Which of the study's questions. Default: its train and dev questions.
        home: The working folder, which has the collection and the answers.
        storage: The study's, where it is not the one in its file.
        reader_lm: What the reader asks, where the reward needs one.
        progress: Called as questions are done.

    Raises:
        InputError: There is no such study, it tried no arm of the technique, or it met none of the questions.
    """
    from querywright.optimize.rewriter.study_arms import study_arms

    technique = program if isinstance(program, Technique) else program.technique
    with study_arms(study, technique.NAME, home=home, storage=storage) as arms:
        chosen = arms.questions if questions is None else arms.met(questions)

        def kept(write: Writer) -> Writer:
            def writes(question: Question) -> list[str] | None:
                try:
                    with stored_only():
                        return write(question)
                except NotStoredError:
                    return None

            return writes

        writers = [kept(_writer(arm, arms.lm)) for arm in arms.programs]
        work = _Collection(program, settings, reward, reader_lm, f"study:{arms.name}")
        pairs, missing = work.go(chosen, writers, folder, {"arms": arms.keys}, progress)
        return FromStudy(pairs, len(writers), missing)


@dataclass(frozen=True, slots=True)
class _Collection:
    """Rewrites on their way to pairs."""

    program: RAG | Technique
    settings: CollectSettings
    reward: Reward
    reader_lm: dspy.LM | None
    source: str
    every: bool = False

    def go(
        self,
        questions: Sequence[Question],
        writers: Sequence[Writer],
        folder: Path,
        facts: Mapping[str, Any],
        progress: Progress | None,
    ) -> tuple[list[Pair], int]:
        """The pairs, and how many answers were missing."""
        technique = self._technique
        head = {
            **facts,
            "revision": _REVISION,
            "source": self.source,
            **asdict(self.settings),
            "threads": None,
            "technique": technique.NAME,
            "knobs": dict(technique.knobs.items()),
            "reward": self.reward.name,
            "metric": getattr(self.reward, "metric", None),
        }
        file = folder / CANDIDATES_FILE
        done = {line["question"]: line for line in open_lines(file, head)}
        keys = [(question, data_hash([question])) for question in questions]
        left = [question for question, key in keys if key not in done]
        for start in range(0, len(left), _AT_A_TIME):
            batch = left[start : start + _AT_A_TIME]
            for line in self._batch(batch, writers):
                add_line(file, line)
                done[line["question"]] = line
            if progress is not None:
                progress("collect", len(questions) - len(left) + start + len(batch), len(questions))
        lines = [done[key] for key in dict.fromkeys(key for _, key in keys)]
        pairs = self._kept(lines)
        write_pairs(folder / PAIRS_FILE, pairs)
        return pairs, sum(line.get("missing", 0) for line in lines)

    @property
    def _technique(self) -> Technique:
        return self.program if isinstance(self.program, Technique) else self.program.technique

    @property
    def _data(self) -> str:
        return opened(self._technique.retriever).collection or ""

    def _batch(self, questions: Sequence[Question], writers: Sequence[Writer]) -> list[dict[str, Any]]:
        """Each question's line."""
        places = [(question, write) for question in questions for write in writers]
        found: list[Any] = bounded_map(lambda one: one[1](one[0]), places, threads=self.settings.threads)
        for one in found:
            if isinstance(one, Exception) and failure_kind(one) is None:
                raise one
        texts = [None if isinstance(one, Exception) else one for one in found]
        written = [place for place, one in enumerate(texts) if one is not None]
        episodes = self._episodes([places[place][0] for place in written], [texts[place] or [] for place in written])
        scored = dict(zip(written, zip(episodes, self.reward.score(episodes), strict=True), strict=True))
        plains = self.reward.score([Episode(question, (), (), None) for question in questions])
        each = len(writers)
        return [
            self._line(question, plain.plain, [scored.get(place * each + number) for number in range(each)])
            | {"missing": found[place * each : (place + 1) * each].count(None)}
            for place, (question, plain) in enumerate(zip(questions, plains, strict=True))
        ]

    def _episodes(self, questions: Sequence[Question], texts: Sequence[Sequence[str]]) -> list[Episode]:
        def answer(turns: Sequence[Turn]) -> list[str]:
            return [texts[turn.place][turn.number] if turn.number < len(texts[turn.place]) else "" for turn in turns]

        program = self.program if self.reward.needs_reader else self._technique
        return run_episodes(
            program,
            questions,
            answer,
            lm=self.reader_lm if self.reward.needs_reader else None,
            settings=self.settings.limits,
            threads=self.settings.threads,
        )

    def _line(
        self, question: Question, plain: float, scored: Sequence[tuple[Episode, Scored] | None]
    ) -> dict[str, Any]:
        known = [one for one in scored if one is not None and not math.isnan(one[1].reward)]
        best = max(known, key=lambda one: self._worth(*one), default=None)
        rewards = [None if one is None else finite(one[1].reward) for one in scored]
        line: dict[str, Any] = {"question": data_hash([question]), "plain": finite(plain), "rewards": rewards}
        if best is not None:
            episode, score = best
            line |= {"value": score.value, "reward": score.reward, "pairs": list(map(pair_json, self._pairs(*best)))}
            if self.reward.needs_reader:
                right, f1 = self._answered(episode)
                line |= {"right": finite(right), "f1": finite(f1)}
        return line

    def _worth(self, episode: Episode, score: Scored) -> tuple[float, ...]:
        """What is chosen by: where answers are read, a right one comes first, then the token F1 of a wrong one."""
        if not self.reward.needs_reader:
            return (score.reward,)
        right, f1 = self._answered(episode)
        return (2.0 if right == 1.0 else 0.0 if math.isnan(f1) else f1, score.reward)

    def _answered(self, episode: Episode) -> tuple[float, float]:
        example = episode.question.to_example()
        return METRICS["accuracy"](example, episode.prediction), METRICS["token_f1"](example, episode.prediction)

    def _pairs(self, episode: Episode, score: Scored) -> Iterable[Pair]:
        for turn, text in zip(episode.turns, episode.read, strict=True):
            # The grammar of the embedded LM has no empty list, so none can be learnt.
            if text is not None and not (self.settings.limits is not None and has_empty_list(text)):
                yield Pair(
                    question=episode.question.id,
                    technique=self._technique.NAME,
                    number=turn.number,
                    messages=turn.messages,
                    text=text,
                    reward=score.reward,
                    source=self.source,
                    data=self._data,
                    asked=asked_of(episode.question),
                )

    def _kept(self, lines: Sequence[Mapping[str, Any]]) -> list[Pair]:
        """The pairs of the questions whose best rewrite is good enough."""
        scored = [line for line in lines if line.get("pairs")]
        if self.every:
            kept = scored
        elif self.reward.needs_reader:
            kept = [line for line in scored if line["right"] == 1.0]
            if sum(len(line["pairs"]) for line in kept) < self.settings.least:
                kept = [line for line in scored if line["right"] == 1.0 or (line["f1"] or 0.0) >= 0.5]
        else:
            kept = [line for line in scored if self._beats(line)]
        return [pair_of(pair) for line in kept for pair in line["pairs"]]

    def _beats(self, line: Mapping[str, Any]) -> bool:
        if line["plain"] is None:
            return False
        if self.settings.ties and line["value"] == line["plain"] > 0:
            return bool(line["reward"] >= 0)
        return bool(line["value"] > line["plain"] and line["reward"] > 0)


def _sampling(lm: dspy.LM, settings: CollectSettings, number: int) -> dspy.LM:
    """The LM for one of several rewrites; a seed makes it another draw than the others, and the same one tomorrow."""
    if number == 0:
        return lm
    sampling: dict[str, Any] = {"temperature": settings.temperature}
    if "seed" in getattr(lm, "supported_params", ()):
        sampling["seed"] = settings.seed * 1000 + number
    return lm.copy(**sampling)


def _writer(program: RAG | Technique, lm: dspy.LM) -> Writer:
    """Runs a technique with an LM, and gives what the LM wrote."""
    mine = copy.deepcopy(program)
    technique = mine if isinstance(mine, Technique) else mine.technique
    for predictor in technique.predictors():
        predictor.lm = lm

    def write(question: Question) -> list[str]:
        with asking(lm):
            if isinstance(mine, Technique):
                made = technique(question=question.question, options=list(question.options))
            else:
                with mine.choosing():
                    made = technique(question=question.question, options=list(question.options))
        steps = [step for step in made.steps if step.kind == "lm"]
        return ["" if step.made is None else json_text(step.made) for step in steps]

    return write
