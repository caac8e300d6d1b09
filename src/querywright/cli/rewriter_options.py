"""What the commands of ``querywright rewriter`` that train or collect share: options, and what is made of them."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from querywright.cli.show import note
from querywright.cli.workspace import Workspace

if TYPE_CHECKING:
    from querywright.optimize.rewriter.collect import Teacher
    from querywright.optimize.rewriter.recipes import Recipe

SearchedOption = Annotated[str, typer.Option("--collection", metavar="NAME", help="The collection that is searched.")]
RewritesOption = Annotated[str, typer.Option("--technique", metavar="NAME", help="Whose rewrites are learnt.")]
BaseOption = Annotated[
    str, typer.Option("--base", metavar="NAME", help="embedded, a folder, or a model of the Hugging Face hub.")
]
RecipeOption = Annotated[str, typer.Option("--recipe", metavar="NAME", help="ours, seed or paper.")]
MeasureOption = Annotated[str, typer.Option("--metric", metavar="NAME", help="What retrieval is measured by.")]
TeacherOption = Annotated[
    str | None,
    typer.Option(
        "--teacher",
        metavar="NAME",
        help="The LM whose rewrites are collected, or evidence: no LM, the names that the evidence of a question is "
        "about, or for qb_rag what was asked of a passage. Default: the base itself where that is embedded.",
        show_default=False,
    ),
]
TeacherApiBaseOption = Annotated[
    str | None,
    typer.Option("--teacher-api-base", metavar="URL", help="Address of the teacher's server.", show_default=False),
]
TeacherKeyOption = Annotated[
    str | None,
    typer.Option(
        "--teacher-api-key-env", metavar="NAME", help="Variable that holds the teacher's key.", show_default=False
    ),
]
CandidatesOption = Annotated[int, typer.Option("--candidates", metavar="N", min=1, help="Rewrites a question.")]
TiesOption = Annotated[
    bool, typer.Option("--ties", help="Also learn a best rewrite that finds as much as the question, and not more.")
]
SizesOption = Annotated[
    str | None,
    typer.Option(
        "--sizes",
        metavar="N,N,N",
        help="Questions in train,dev,test. Default: 30 %, 30 %, 40 % of all.",
        show_default=False,
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the split and of all draws.")]
WorkOption = Annotated[
    Path | None,
    typer.Option(
        "--work",
        metavar="FOLDER",
        help="Where the work is kept, and taken up again. Default: in the working folder, named as --out.",
        show_default=False,
    ),
]


def recipe_with(name: str, changes: Mapping[str, Any]) -> Recipe:
    """The recipe of that name.

    Args:
        name: The recipe's.
        changes: Values that were given; None for those that were not.
    """
    from querywright.optimize.rewriter.recipes import recipe_named

    return replace(recipe_named(name), **{key: value for key, value in changes.items() if value is not None})


def deep_enough(technique: str, metric: str, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs; where no number of passages was given, as many as the metric and those of the card look at."""
    from querywright.metrics.dspy_metrics import metric_named
    from querywright.optimize.rewriter.evaluation import DEEPEST
    from querywright.programs import technique_class

    metric_named(metric)
    depth = int(metric.partition("@")[2] or 0)
    default = next((one.default for one in technique_class(technique).KNOBS if one.name == "max_passages"), None)
    return dict(knobs) if default is None else {"max_passages": max(depth, default, DEEPEST), **knobs}


def teacher_named(
    workspace: Workspace, name: str | None, api_base: str | None, api_key_env: str | None, max_calls: int | None
) -> Teacher | None:
    """The teacher, an LM with a limit of calls of its own; None where none is named."""
    from querywright.optimize.rewriter.collect import EVIDENCE

    if name is None:
        return None
    if name == EVIDENCE:
        return EVIDENCE
    return workspace.another_lm(name, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)


def work_folder(home: Path | None, work: Path | None, name: str) -> Path:
    """The working folder of a training or collection.

    Args:
        home: Where it is by default.
        work: The one that was named.
        name: Of what is made.
    """
    from querywright.home import home as working_folder

    return work or working_folder(home) / "rewriters" / name


@contextlib.contextmanager
def resumable(work: Path, what: str) -> Iterator[None]:
    """Say how to go on when it is ended.

    Args:
        work: The working folder.
        what: What is in it.
    """
    try:
        yield
    except KeyboardInterrupt:
        note(f"{what} is in {work}; to go on: {shlex.join(sys.argv)}")
        raise
