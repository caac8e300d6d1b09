"""Use a custom program as a technique: a ``dspy.Module`` or a function that returns passages or an answer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import dspy

from querywright.data.types import History
from querywright.errors import TechniqueError
from querywright.programs.base import MAX_PASSAGES, Technique, record_search
from querywright.programs.selection import SELECT
from querywright.retrieval.callable import CallableRetriever
from querywright.retrieval.types import Query

RESULTS = (
    "a program must return an answer (a string), a list of passages in the form that a retriever returns, or a "
    "prediction with an answer, passages, or both"
)


class CustomProgram(Technique):
    """Runs a custom program to get passages, an answer, or both.

    ``technique_from`` creates the subclass for a program. If the program returns no answer, the reader answers from the
    program's first ``max_passages`` passages. A prediction may call its passages ``context``, as in DSPy's tutorials.
    """

    TITLE = "Custom program"
    PAPER = "-"
    LM_STAGES = 1
    SEARCHES = "its own"
    SHOWS_OPTIONS = True  # a program that takes options gets them, so it has no knob ``sees_options``
    KNOBS = (MAX_PASSAGES,)
    PROGRAM: ClassVar[Any]
    INPUTS: ClassVar[tuple[str, ...]]
    """The inputs that the program takes: ``question`` and, optionally, ``options`` and ``history``."""

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.program = _copied(self.PROGRAM)

    @property
    def uses_options(self) -> bool:
        """Whether the LM sees the options when it selects passages; whether the program uses them is not known."""
        return bool(self.knobs.get(SELECT.name, False))

    def __deepcopy__(self, memo: dict[int, Any]) -> CustomProgram:
        memo[id(self.program)] = _copied(self.program)
        return super().__deepcopy__(memo)

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Run the program."""
        given = {"question": question, "options": options, "history": history}
        answer, items = self._read(self.program(**{name: given[name] for name in self.INPUTS}))

        def found(query: str) -> Any:
            return items

        found.__module__, found.__qualname__ = type(self).__module__, type(self).__qualname__
        (hits,) = CallableRetriever(found).search([question], self.limit)
        record_search([question], [hits], {"queries": [question]})
        return dspy.Prediction(passages=[hit.passage for hit in hits], queries=[Query(question)], answer=answer)

    def _read(self, made: Any) -> tuple[str | None, Any]:
        """Return the answer, if there is one, and the passages."""
        if isinstance(made, str):
            return made, []
        if isinstance(made, list | tuple):
            return None, made
        fields = made if isinstance(made, Mapping | dspy.Prediction) else {}
        answer, items = fields.get("answer"), fields.get("passages", fields.get("context"))
        if answer is None and items is None:
            raise TechniqueError(f"{self.NAME} returned {made!r:.80}; {RESULTS}")
        return None if answer is None else str(answer), [items] if isinstance(items, str) else items or []


def technique_from(program: Any, name: str | None = None) -> type[Technique]:
    """Return a technique that runs a custom program; return a ``Technique`` class unchanged.

    Args:
        program: A ``dspy.Module`` or a function that takes ``question`` and, optionally, ``options`` and ``history``;
            or a class or function that creates such a program when called without arguments.
        name: The name of the technique. Default: the program's name.

    Raises:
        TechniqueError: The program cannot be created without arguments, or does not accept ``question``.
    """
    if isinstance(program, type) and issubclass(program, Technique):
        return program
    if not callable(program):
        raise TechniqueError(f"a program must be a dspy.Module or a function, but got {program!r:.80}")
    name = name or str(getattr(program, "__name__", type(program).__name__))
    named = program if hasattr(program, "__qualname__") else type(program)
    place = {"__module__": named.__module__, "__qualname__": named.__qualname__}
    if isinstance(program, type) or is_maker(program):
        try:
            program = program()
        except TypeError as error:
            raise TechniqueError(
                f"cannot create {name} without arguments ({error}); pass a function without arguments that creates it"
            ) from error
    asked = staticmethod(program) if inspect.isroutine(program) else program
    return type(name, (CustomProgram,), {"NAME": name, "PROGRAM": asked, "INPUTS": _inputs(program, name), **place})


def is_maker(program: Any) -> bool:
    """Return whether a program is a function without arguments, which is called to make the program."""
    return inspect.isroutine(program) and not inspect.signature(program).parameters


def _inputs(program: Any, name: str) -> tuple[str, ...]:
    """Return the inputs that a program takes; a module with ``**kwargs`` takes the inputs in its signatures."""
    if not callable(program):
        raise TechniqueError(f"{name} must create a dspy.Module or a function, but created {program!r:.80}")
    is_module = isinstance(program, dspy.Module)
    forward: Any = getattr(type(program), "forward", None) if is_module else program
    parameters = dict(inspect.signature(forward).parameters) if callable(forward) else {}
    if is_module:
        parameters.pop("self", None)
    taken = set(parameters)
    if is_module and any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        signatures: list[Any] = [predictor.signature for predictor in program.predictors()]
        taken |= {field for signature in signatures for field in signature.input_fields}
    if "question" not in taken:
        raise TechniqueError(
            f"{name} accepts {', '.join(sorted(taken)) or 'no arguments'}, but a program must accept question=; "
            "options= and history= are optional"
        )
    return tuple(one for one in ("question", "options", "history") if one in taken)


def _copied(program: Any) -> Any:
    return program.deepcopy() if isinstance(program, dspy.Module) else program
