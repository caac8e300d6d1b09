"""A loaded program as part of a larger DSPy program, whose optimizers see and tune it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dspy

from querywright.adapters.common import GivenProgram, opened
from querywright.models.adapter import PromptAdapter
from querywright.optimize.artifacts.files import ArtifactManifest
from querywright.optimize.artifacts.loaded import LoadedProgram
from querywright.optimize.artifacts.save import save_program
from querywright.optimize.optimizer_run import demonstrations
from querywright.optimize.report import render
from querywright.optimize.results import today

if TYPE_CHECKING:
    from querywright.data.types import Question


class ProgramModule(dspy.Module):
    """A program inside another; ``as_module`` makes it.

    Its predictors and knobs are parameters of the program around it, named ``program.technique...`` and
    ``program.reader...``. An optimizer that resets what it tunes takes away demonstrations and keeps instructions and
    knobs. Copies share LM and retriever.

    Args:
        loaded: The loaded program, whose LM it asks.
    """

    def __init__(self, loaded: LoadedProgram) -> None:
        super().__init__()
        self.program = copy.deepcopy(loaded.program)
        # Out of sight of DSPy, and the same in every copy.
        self._origin: Callable[[], LoadedProgram] = lambda: loaded

    @property
    def origin(self) -> LoadedProgram:
        """The loaded program that it began as, which it leaves as it is."""
        return self._origin()

    def forward(self, **asked: Any) -> dspy.Prediction:
        """Answer a question.

        Args:
            asked: ``question``, and ``options`` and ``history`` if the program takes them.
        """
        with self._settings():
            return self.program(**asked)

    async def aforward(self, **asked: Any) -> dspy.Prediction:
        """``forward`` in an event loop."""
        with self._settings():
            return await self.program.acall(**asked)

    def _settings(self) -> Any:
        """The DSPy settings of a call: those around it, its trace included, but our adapter and our LM."""
        return dspy.context(adapter=PromptAdapter(), lm=self.origin.lm)


def as_module(program: GivenProgram, *, frozen: bool = False) -> ProgramModule:
    """Return a program as a module for a larger one.

    Args:
        program: The path of an artifact, or a loaded program; it stays as it is.
        frozen: Whether optimizers of the larger program leave it as it is. Default False.
    """
    module = ProgramModule(opened(program))
    module._compiled = frozen
    return module


def save_module(
    path: str | Path,
    module: ProgramModule,
    *,
    asked: Sequence[Question] = (),
    threads: int = 4,
) -> ArtifactManifest:
    """Write a module that was tuned inside a larger program as an artifact of its own.

    Args:
        path: The artifact's folder.
        module: As the optimizer left it.
        asked: Golden questions, asked now and replayed by ``querywright.load(path, verify=True)``. Default none.
        threads: Questions under way at a time.

    Raises:
        ArtifactError: It cannot be written.
    """
    lm = module.origin.lm
    program = copy.deepcopy(module.program)
    for _, predictor in program.named_predictors():
        # An optimizer also shows whole training examples, with fields that a predictor does not have.
        predictor.demos = demonstrations(predictor, predictor.demos)
    origin = module.origin.manifest
    card = render(
        "program.md",
        name=Path(path).resolve().name,
        program=program,
        made=f", tuned inside a larger DSPy program on {today()} for the LM `{lm.model}`. It began as the artifact "
        f"{origin.id}.",
        **dict.fromkeys(("sentence", "said", "tested", "sentences"), ()),
    )
    made = {"tuned_in": "a larger DSPy program", "began_as": origin.digest}
    return save_program(path, program, lm=lm, asked=asked, threads=threads, made=made, card=card)
