"""Use a loaded program inside a larger DSPy program, where optimizers can tune it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dspy

from querywright.adapters.common import ProgramSource, opened
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
    """A loaded program as a ``dspy.Module``; created by ``as_module``.

    Its predictors and knobs become parameters of the larger program, named ``program.technique...`` and
    ``program.reader...``. An optimizer that resets its student removes the demonstrations but keeps the instructions
    and knobs. Copies share the LM and the retriever.

    Args:
        loaded: The loaded program, whose LM the module calls.
    """

    def __init__(self, loaded: LoadedProgram) -> None:
        super().__init__()
        self.program = copy.deepcopy(loaded.program)
        # A function hides the program from DSPy, and every copy of the module shares the same program.
        self._origin: Callable[[], LoadedProgram] = lambda: loaded

    @property
    def origin(self) -> LoadedProgram:
        """The loaded program that this module was created from; tuning does not change it."""
        return self._origin()

    def forward(self, **inputs: Any) -> dspy.Prediction:
        """Answer a question.

        Args:
            inputs: ``question``, plus ``options`` and ``history`` if the program takes them.
        """
        with self._settings():
            return self.program(**inputs)

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        """Answer a question in an event loop; see ``forward``."""
        with self._settings():
            return await self.program.acall(**inputs)

    def _settings(self) -> Any:
        """Replace the adapter and the LM in the current DSPy settings, but keep other settings, such as the trace."""
        return dspy.context(adapter=PromptAdapter(), lm=self.origin.lm)


def as_module(program: ProgramSource, *, frozen: bool = False) -> ProgramModule:
    """Return a program as a module for a larger DSPy program.

    Args:
        program: Path of an artifact, or a loaded program. The module is a copy, so tuning does not change the program.
        frozen: Whether the larger program's optimizers skip the module. Default False.
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
    """Save a module that was tuned inside a larger program as an artifact.

    Args:
        path: Folder for the artifact.
        module: The tuned module.
        asked: Golden questions. The module answers them now, and ``querywright.load(path, verify=True)`` later compares
            the loaded program's answers with these. Default none.
        threads: Number of questions to answer in parallel. Default 4.

    Returns:
        The artifact's manifest.

    Raises:
        ArtifactError: The artifact cannot be written.
    """
    lm = module.origin.lm
    program = copy.deepcopy(module.program)
    for _, predictor in program.named_predictors():
        # An optimizer may add whole training examples as demonstrations, with fields that the predictor does not have.
        predictor.demos = demonstrations(predictor, predictor.demos)
    origin = module.origin.manifest
    card = render(
        "program.md",
        name=Path(path).resolve().name,
        program=program,
        made=f", tuned inside a larger DSPy program on {today()} for the LM `{lm.model}`, starting from the artifact "
        f"{origin.id}.",
        **dict.fromkeys(("sentence", "said", "tested", "sentences"), ()),
    )
    made = {"tuned_in": "a larger DSPy program", "began_as": origin.digest}
    return save_program(path, program, lm=lm, asked=asked, threads=threads, made=made, card=card)
