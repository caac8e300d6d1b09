"""Golden questions, asked again: whether a program gives what it gave when it was saved."""

from __future__ import annotations

from querywright.optimize.artifacts.compatibility import Check
from querywright.optimize.artifacts.files import Golden
from querywright.optimize.artifacts.loaded import LoadedProgram

GOLDEN = "golden answer"
"""Begins the name of a check of one."""


def golden_check(loaded: LoadedProgram, number: int, golden: Golden) -> Check:
    """Ask a golden question, and compare passages and answer with those that were saved.

    Args:
        loaded: The program.
        number: The question's, from 1.
        golden: The question and what came of it then.

    Raises:
        QuerywrightError: The question cannot be asked.
        LMError: The LM failed.
        AdapterParseError: Its answer could not be read.
    """
    name = f"{GOLDEN} {number}"
    prediction = loaded(golden.question, golden.options or None)
    passages = [passage.id for passage in prediction.passages]
    differing = []
    if passages != golden.passages:
        differing.append(f"it now finds {passages}, but found {golden.passages} when it was saved")
    if prediction.answer != golden.answer:
        differing.append(f"it now answers {prediction.answer!r}, but answered {golden.answer!r} when it was saved")
    if not differing:
        return Check(name, "ok", f"{len(passages)} passages and the answer, as they were")
    return Check(
        name, "differs", "; ".join(differing),
        f"ask the LM that it was compiled for, with the same settings ({loaded.lm.model} was asked), search what it "
        "searched, or compile again",
    )  # fmt: skip
