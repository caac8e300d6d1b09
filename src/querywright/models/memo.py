"""LM steps that were asked before in this process: a trial that changes only numbers asks for none of them again."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import threading
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from querywright.models.adapter import PromptAdapter
from querywright.models.cached import is_stored_only
from querywright.models.engine import LMEngine
from querywright.models.late import LateSignature, is_plain, signature_text
from querywright.models.recent import Recent
from querywright.models.usage import Cost, Ledger, metered

MOST_STEPS = 200_000
"""Steps that a memo remembers beside a store: about 250 MB of usual answers."""

_OVERRIDES = frozenset({"demos", "prediction", "new_signature"})
"""Inputs by which DSPy lets one call differ; such a call is asked and not remembered."""
_MORE_THAN_TEXT = ("logprobs", "top_logprobs", "tools")

_states: weakref.WeakKeyDictionary[Any, tuple[object, bytes]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What came of a step.

    Args:
        values: The values of each field, one a completion; None for an answer that could not be read.
        error: What was raised for such an answer.
        again: What the step costs when it is taken from the memo.
    """

    values: Mapping[str, list[Any]] | None
    error: AdapterParseError | None
    again: Cost

    def taken(self, ledger: Ledger) -> dspy.Prediction:
        """A copy of the answer, its cost entered.

        Raises:
            AdapterParseError: The answer could not be read.
        """
        ledger.add(self.again)
        if self.error is not None:
            raise _fresh(self.error)
        made: dspy.Prediction = dspy.Prediction.from_completions(_copied(self.values))
        return made


class Memo:
    """Outcomes of LM steps, in memory; safe for threads and event loops.

    A step is what a predictor was asked: the model and how it is sampled, the adapter, signature, instructions,
    demonstrations and inputs. Equal steps at the same time are asked once. An answer that could not be read is
    remembered like any other; an exception is not, and neither is what is a new draw each time.

    Args:
        most: Outcomes that are remembered, those used lately, where the answers are in a store as well; one that could
            not be read, which a store does not take, is beyond that number. Default: all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._known: Recent[bytes, _Outcome] = Recent(most)
        self._unread: dict[bytes, _Outcome] = {}
        self._under_way: dict[bytes, Future[_Outcome | None]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known) + len(self._unread)

    def find(self, key: bytes) -> _Outcome | Future[_Outcome | None] | None:
        """What is known, or who is asking; None when the caller is to ask, and to call ``end``."""
        known = self._look(key)
        if known is not None or is_stored_only():  # who may not ask cannot do so for others
            return known
        with self._lock:
            known = self._look(key)
            if known is not None:
                return known
            other = self._under_way.get(key)
            if other is None:
                self._under_way[key] = Future()
            return other

    def end(self, key: bytes, outcome: _Outcome | None = None, error: Exception | None = None) -> None:
        """Tell what came of asking: an outcome, an error that those who wait have as well, or nothing."""
        with self._lock:
            if outcome is not None and self._look(key) is None:
                if outcome.error is None:
                    self._known.update({key: outcome})
                else:
                    self._unread[key] = outcome
            waited = None if is_stored_only() else self._under_way.pop(key, None)
        if waited is not None and error is not None:
            waited.set_exception(error)
        elif waited is not None:
            waited.set_result(outcome)

    def _look(self, key: bytes) -> _Outcome | None:
        return self._known.get(key) or self._unread.get(key)


_memo: ContextVar[Memo | None] = ContextVar("querywright_memo", default=None)


@contextlib.contextmanager
def remembering(memo: Memo) -> Iterator[Memo]:
    """Inside the ``with`` block, in this thread and contexts copied from it, LM steps are taken from a memo.

    Nothing is while DSPy keeps a trace, which an optimizer reads, and only under ``PromptAdapter`` and with LMs
    made by ``resolve_lm``. A step that is taken is entered in the LM's ledger as calls saved.

    Args:
        memo: What is known, and takes what is learnt.
    """
    token = _memo.set(memo)
    try:
        yield memo
    finally:
        _memo.reset(token)


def ask(predictor: dspy.Predict, inputs: Mapping[str, Any]) -> dspy.Prediction:
    """Call a predictor, or take from the memo what it gave before.

    Args:
        predictor: What is asked.
        inputs: Its inputs; ``signature`` (which may be a ``LateSignature``), ``config`` and ``lm`` are DSPy's own.

    Raises:
        AdapterParseError: The answer could not be read.
    """
    place = _place(predictor, inputs)
    if place is None:
        made: dspy.Prediction = predictor(**_given(inputs))
        return made
    memo, key, ledger = place
    while True:
        found = memo.find(key)
        if isinstance(found, Future):
            found = found.result()
            if found is None:  # whoever asked was interrupted
                continue
        if found is not None:
            return found.taken(ledger)
        with _learning(memo, key) as answers:
            answers.append(predictor(**_given(inputs)))
        return answers[0]


async def ask_async(predictor: dspy.Predict, inputs: Mapping[str, Any]) -> dspy.Prediction:
    """``ask`` in an event loop."""
    place = _place(predictor, inputs)
    if place is None:
        made: dspy.Prediction = await predictor.acall(**_given(inputs))
        return made
    memo, key, ledger = place
    while True:
        found = memo.find(key)
        if isinstance(found, Future):
            found = await asyncio.shield(asyncio.wrap_future(found))  # who gives up waiting does not stop the others
            if found is None:
                continue
        if found is not None:
            return found.taken(ledger)
        with _learning(memo, key) as answers:
            answers.append(await predictor.acall(**_given(inputs)))
        return answers[0]


@contextlib.contextmanager
def _learning(memo: Memo, key: bytes) -> Iterator[list[dspy.Prediction]]:
    """Takes an answer, and tells the memo and all who wait for it what came of asking."""
    answers: list[dspy.Prediction] = []
    with metered() as meter:
        try:
            yield answers
        except AdapterParseError as error:
            memo.end(key, _Outcome(None, _fresh(error), meter.total.when_repeated))
            raise
        except BaseException as error:
            memo.end(key, error=error if isinstance(error, Exception) else None)
            raise
        completions: Any = answers[0].completions
        values = _copied(dict(completions.items()))
        memo.end(key, _Outcome(values, None, meter.total.when_repeated))


def _given(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs as DSPy takes them."""
    signature = inputs.get("signature")
    return {**inputs, "signature": signature.made()} if isinstance(signature, LateSignature) else dict(inputs)


def _place(predictor: dspy.Predict, inputs: Mapping[str, Any]) -> tuple[Memo, bytes, Ledger] | None:
    """The memo, the key of a step in it, and where its cost is entered; None for a step that is not remembered."""
    memo, settings = _memo.get(), dspy.settings
    if memo is None or settings.trace is not None or type(predictor) is not dspy.Predict or predictor.fields:
        return None
    lm, adapter = inputs.get("lm") or predictor.lm or settings.lm, settings.adapter
    engine = getattr(lm, "engine", None)
    if not isinstance(engine, LMEngine) or type(adapter) is not PromptAdapter or settings.send_stream is not None:
        return None
    sampling = {**lm.kwargs, **predictor.config, **(inputs.get("config") or {})}
    several = (sampling.get("n") or sampling.get("num_generations") or 1) > 1
    is_draw = engine.cached.is_draw(sampling.get("temperature"), sampling.get("seed"))
    if several or is_draw or any(sampling.get(name) is not None for name in _MORE_THAN_TEXT):
        return None
    texts = {name: value for name, value in inputs.items() if name not in {"signature", "config", "lm"}}
    demos = _demos(predictor)
    if demos is None or not _OVERRIDES.isdisjoint(texts) or not is_plain(sampling) or not is_plain(texts):
        return None
    signature = signature_text(inputs.get("signature") or predictor.signature)
    asked = repr((engine.identity, lm.model, adapter.grammar, sorted(sampling.items()), texts))
    said = f"{len(signature)} {signature}{asked}".encode("utf-8", "surrogatepass")
    return memo, hashlib.blake2b(said, digest_size=20, key=demos).digest(), engine.ledger


def _demos(predictor: dspy.Predict) -> bytes | None:
    """A digest of the demonstrations, made again when they were changed; None where they are not all plain data."""
    if not predictor.demos:
        return b""
    stores = [demo._store if isinstance(demo, dspy.Example) else demo for demo in predictor.demos]
    if not all(map(is_plain, stores)):
        return None
    state = [_frozen(store) for store in stores]
    known = _states.get(predictor)
    if known is None or known[0] != state:  # the texts are the same objects, so this looks at none of them
        digest = hashlib.blake2b(repr(state).encode("utf-8", "surrogatepass"), digest_size=32).digest()
        known = _states[predictor] = state, digest
    return known[1]


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _frozen(one)) for key, one in value.items())
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _copied(value: Any) -> Any:
    """A value of an answer that shares nothing that can be changed."""
    if type(value) is list:
        return [_copied(one) for one in value]
    if type(value) is dict:
        return {key: _copied(one) for key, one in value.items()}
    return value if is_plain(value) else copy.deepcopy(value)


def _fresh(error: AdapterParseError) -> AdapterParseError:
    """The error as it was before it was raised: without the frames that it came through."""
    fresh = AdapterParseError.__new__(AdapterParseError)
    fresh.__dict__.update(error.__dict__)
    fresh.parsed_result = _copied(error.parsed_result)
    fresh.args = error.args
    return fresh
