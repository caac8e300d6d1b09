"""The teacher that is no LM: for questions that are alike, the idea that retrieves best in the mean."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dspy

from querywright.data.splits import data_hash
from querywright.data.types import Passage, Question
from querywright.optimize.evaluate import Progress
from querywright.optimize.rewriter.collect import CANDIDATES_FILE, EVIDENCE, CollectSettings, collect_written
from querywright.optimize.rewriter.evidence import best_ideas, group_of, ideas
from querywright.optimize.rewriter.keeping import read_lines, write_json
from querywright.optimize.rewriter.phrasings import frame_of, phrasings
from querywright.optimize.rewriter.rewards import RetrievalGain, Reward
from querywright.optimize.rewriter.scripts import script_of
from querywright.optimize.rewriter.types import Pair
from querywright.programs.base import Technique
from querywright.programs.rag import RAG
from querywright.retrieval.held import HeldPassages
from querywright.retrieval.replay import searched_by

TRIED, CHOSEN = "ideas", "chosen.json"
"""Folder of what was tried, in that of what is kept, and the file that says what was chosen for which questions."""


def collect_evidence(
    program: RAG | Technique,
    questions: Sequence[Question],
    settings: CollectSettings,
    folder: Path,
    *,
    facts: Mapping[str, Any],
    reward: Reward,
    reader_lm: dspy.LM | None = None,
    progress: Progress | None = None,
) -> list[Pair]:
    """Rewrites of what the labelled evidence knows; of each question the one that is best for questions like it.

    Every idea is tried for every question and scored as a rewrite of an LM is. What is chosen for a group of questions
    is learnt from all of them, so that a rule is learnt and not what was lucky; where the question alone is best, that
    it is to be left alone.

    Args:
        program: What is trained.
        questions: Train questions, with labelled evidence.
        settings: How; ``candidates``, ``temperature``, ``seed`` and ``ties`` do not matter.
        folder: Where files are kept; made when it is missing.
        facts: What else the rewrites depend on, as plain data.
        reward: From ``make_reward``.
        reader_lm: What the reader asks, where the reward needs one.
        progress: Called as questions are done.

    Raises:
        InputError: It is not known how the technique's LM would say a query, or the folder holds something else.
    """
    technique = program if isinstance(program, Technique) else program.technique
    texts = script_of(technique)
    retriever = searched_by(technique.retriever)
    signature: Any = technique.predictors()[0].signature
    seen = "options" in signature.input_fields

    def passage(id: str) -> Passage | None:
        return retriever.get([id])[0] if isinstance(retriever, HeldPassages) and id in retriever else None

    def title(id: str) -> str:
        held = passage(id)
        return "" if held is None else held.title

    wordings = phrasings(questions, title, passage, reward.found, progress) if isinstance(reward, RetrievalGain) else {}

    def wording(question: Question) -> str:
        frame = frame_of(question, title)
        return "" if frame is None else wordings.get(frame.asked, "")

    tried = {one.id: ideas(one, title, options=seen, wording=wording(one)) for one in questions}
    groups = {id: group_of(each) for id, each in tried.items()}
    kinds = list(dict.fromkeys(kind for each in tried.values() for kind in each))

    def write(question: Question, kind: str) -> list[str] | None:
        return texts(question, tried[question.id][kind]) if kind in tried[question.id] else None

    shared: dict[str, Any] = {"reward": reward, "reader_lm": reader_lm, "progress": progress, "source": EVIDENCE}
    every = [partial(write, kind=kind) for kind in kinds]
    found = {**facts, "ideas": kinds}
    collect_written(program, questions, every, settings, folder / TRIED, facts=found, **shared)
    lines = {line["question"]: line for line in read_lines(folder / TRIED / CANDIDATES_FILE)[1:]}
    rewards = [_by_kind(lines[data_hash([one])]["rewards"], kinds) for one in questions]
    best = best_ideas([groups[one.id] for one in questions], rewards)
    chosen = {one.id: best.get(groups[one.id], "question") for one in questions}
    told = {**facts, "chosen": best}
    write_json(folder / TRIED / CHOSEN, {"questions": dict(Counter(groups.values())), "ideas": best})
    writers = [lambda question: write(question, chosen[question.id])]
    return collect_written(program, questions, writers, settings, folder, facts=told, every=True, **shared)


def _by_kind(rewards: Sequence[float | None], kinds: Sequence[str]) -> dict[str, float]:
    """The rewards that are known, by what was tried."""
    return {kind: math.nan if value is None else value for kind, value in zip(kinds, rewards, strict=True)}
