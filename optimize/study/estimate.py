"""What a study takes at most, before anything is asked: programs are run dry, their prompts answered with filler."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from dspy import lm15

from querywright.data.splits import Splits
from querywright.data.types import Passage, Question
from querywright.metrics.judges import JUDGED
from querywright.models.embedder import Vectors
from querywright.models.lm import engine_of
from querywright.models.response_parsing import text_response
from querywright.optimize.optimizers import OPTIMIZERS
from querywright.optimize.rewriter.episodes import Messages, Turn, first_prompt, run_episodes
from querywright.optimize.search.outcome import FRONT
from querywright.optimize.search.space import Space, TechniqueSpace, largest, predictors_of, reads_for
from querywright.optimize.search.spec import PLAIN
from querywright.optimize.study.finish import GOLDEN
from querywright.optimize.study.spec import StudySpec
from querywright.programs import RAG, make_program, technique_class
from querywright.programs.base import MAX_PASSAGES
from querywright.retrieval.types import Hit

CHARACTERS_A_TOKEN = 4
ANSWER_TOKENS = 1000
"""Of an answer, where the LM has no limit."""

QUESTIONS = 3
"""Dev questions whose prompts are rendered."""

TEST_ARMS = 6
"""Programs evaluated on test: the baseline, the best, it untuned and with its untuned reader, and two references."""

_MADE_UP = (Passage("made-up", "filler " * 85),)


def estimate(
    spec: StudySpec, space: Space, splits: Splits, lm: Any, *, writers: Sequence[Any] = (), passages: Sequence[Passage]
) -> dict[str, Any]:
    """What a study that was checked takes at most, trials times questions times calls a question; nothing is asked.

    Passages are some of the collection, as prompts show them.

    Returns:
        ``calls``, ``tokens`` and ``dollars`` (None where no price is known) in all; the ``stages``, each with these and
        a ``name``; and the ``assumptions``, in sentences.
    """
    cap = int(lm.kwargs.get("max_tokens") or lm.kwargs.get("max_completion_tokens") or ANSWER_TOKENS)
    reader, asked = space.reader, splits.dev[:QUESTIONS]
    seen = {one.name: _dry_run(one, asked, passages or _MADE_UP, reader) for one in space.techniques}
    each = math.ceil(max(longest for _, longest in seen.values()) / CHARACTERS_A_TOKEN) + cap
    prices = [_price(one, each, cap) for one in (lm, *writers)]
    price = None if None in prices else max(filter(None, prices), default=0.0)

    def taken(calls: int) -> dict[str, Any]:
        dollars = 0.0 if not calls else None if price is None else calls * price
        return {"calls": calls, "tokens": calls * each, "dollars": dollars}

    counted = _counted(spec, space, splits, {name: calls for name, (calls, _) in seen.items()})
    stages = [{"name": name, **taken(calls)} for name, calls in counted.items()]
    assumed = [
        "an upper bound: every trial asks as much as the costliest technique with its largest values, and nothing is "
        "stored; a prompt that was answered is not asked again, so most studies take far less",
        "no call is tried a second time and no unreadable answer asked for once more; both come on top",
        f"every call has {each} tokens, those of the longest prompt of {len(asked)} dev questions "
        f"({CHARACTERS_A_TOKEN} characters each) and of the longest answer that is allowed ({cap})",
    ]
    assumed += ["judges ask another LM, and are counted at the price of the LM"] if spec.judge_lm else []
    if writers:
        named = " and ".join(one.model for one in writers)
        assumed.append(f"each call is as dear as the dearest: {named} write, {lm.model} reads")
    return {**taken(sum(counted.values())), "stages": stages, "assumptions": assumed}


def _counted(spec: StudySpec, space: Space, splits: Splits, asks: dict[str, int]) -> dict[str, int]:
    """The calls of each stage, from those of each technique for a question."""
    n_train, n_dev, n_test = map(len, splits)
    last, dear, reader = len(spec.last_prompts), max(asks, key=asks.__getitem__), space.reader is not None
    front = FRONT if len(spec.objectives) > 1 else 0

    def making(variant: str, technique: str, reads: bool) -> int:
        """Calls that a prompt of a technique takes, whichever LM writes for it."""
        prompt = spec.prompt_of(variant)
        if prompt is None or prompt.optimizer is None:
            return 0
        tuned = [key for key in predictors_of(spec, technique) if key.partition(".")[0] in prompt.parts]
        runs = asks[technique] + (reads or reads_for(prompt))
        return OPTIMIZERS[prompt.optimizer].most_calls(n_train, len(tuned), prompt.arguments, calls_per_run=runs)

    def all_of(one: TechniqueSpace, variants: Sequence[str]) -> int:
        return max(1, len(one.writers)) * sum(making(name, one.name, spec.reads) for name in variants)

    prompts = sum(all_of(one, one.early) for one in space.techniques)
    prompts += sum(sorted((all_of(one, one.late) for one in space.techniques), reverse=True)[: spec.survivors])
    prompts += sum(making(name, dear, True) for name in spec.last_prompts)
    a_trial = asks[dear] + spec.reads
    readings = (1 + last) * n_dev if last else 0
    further = (2 * spec.reader_check + (2 + front) * min(GOLDEN, n_dev)) * reader
    counted = {"trials, on dev": space.trials * n_dev * a_trial + readings, "prompts": prompts}
    judges = {JUDGED[name] for one in spec.aims for name in one.metrics if name in JUDGED}
    if judges:
        shown = int(str(spec.fixed.get("max_passages", MAX_PASSAGES.high)))
        each = sum(shown if "passage" in judge.needs() else 1 for judge in judges)
        counted["judges"] = each * (space.trials * n_dev + (TEST_ARMS + front) * n_test + spec.reader_check * 2)
    return counted | {"test": (TEST_ARMS + front) * n_test * (asks[dear] + reader) + further}


def _price(lm: Any, each: int, cap: int) -> float | None:
    """US dollars of a call of so many tokens; None where the price is not known."""
    inner = engine_of(lm).inner
    price = getattr(inner, "price", None)
    if price is None:
        return 0.0 if hasattr(inner, "answers_identity") else None
    request = lm15.Request(model=lm.model.partition("/")[2], messages=(lm15.Message.user("-"),))
    found: float | None = price(request, text_response("-", "stop", lm.model, each - cap, cap))
    return found


def _dry_run(
    space: TechniqueSpace, asked: Sequence[Question], shown: Sequence[Passage], reader: str | None
) -> tuple[int, int]:
    """LM calls of a technique for a question and its longest prompt, with default knobs and with the largest."""
    name: str = space.name
    starts: list[dict[str, Any]] = [dict(space.given)]
    starts.append({**space.given, **{key: largest(domain) for key, domain in space.domains.items()}})
    if technique_class(name).ENGINE is not None and not technique_class(name).LM_STAGES:
        # It makes no calls, and its passages are read like those of the baseline.
        name, starts = PLAIN, [{"max_passages": space.given["max_passages"]}]
    calls, prompts = 0, list[Messages]()
    for values in starts:
        program = make_program(name, _DryRetriever(shown), reader=reader, **values)
        for one in run_episodes(RAG(program.technique, None), asked, _filled, limits=None):
            calls = max(calls, len(one.turns))
            prompts += [turn.messages for turn in one.turns]
            if program.reader is not None:
                read: Any = program.reader
                found = {"passages": one.prediction.passages, "findings": one.prediction.findings}
                prompts.append(first_prompt(partial(read, **one.question.inputs, **found)))
    return calls, max((sum(len(text) + 1 for _, text in one) for one in prompts), default=0)


class _DryRetriever:
    """Finds as many passages as it is asked for."""

    fingerprint = "dry"

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[self._hit(query, rank) for rank in range(1, k + 1)] for query in queries]

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.ones((len(texts), 2), dtype=np.float32)

    def search_vectors(self, vectors: Any, k: int) -> list[list[Hit]]:
        return self.search([f"vector {place}" for place in range(len(vectors))], k)

    def _hit(self, query: str, rank: int) -> Hit:
        # Others for every query; the title has a mark, for equal texts are shown once.
        mark = hashlib.sha256(f"{query}\n{rank}".encode()).hexdigest()
        one = self._passages[int(mark[:8], 16) % len(self._passages)]
        return Hit(Passage(mark[:16], one.text, f"{one.title} {mark[:6]}".strip()), 0.0, rank)


def _filled(turn: Turn) -> str:
    """Return filler in the requested form; no two answers are the same."""
    fields = {} if turn.schema is None else turn.schema["properties"]
    return json.dumps({name: _filler(one, f"{name} {turn.place} {turn.number}") for name, one in fields.items()})


def _filler(schema: Any, mark: str) -> Any:
    """A value of a JSON schema: a dozen words where it is a text."""
    if "enum" in schema or "const" in schema:
        return schema.get("enum", [schema.get("const")])[0]
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items", {})
        count = 1 if items.get("type") == "integer" else schema.get("minItems", 16)
        return [_filler(items, f"{mark} {place}") for place in range(count)]
    if kind in {"integer", "number"}:
        return schema.get("minimum", 1)
    return kind == "boolean" or " ".join([mark, *["filler"] * (12 - len(mark.split()))])
