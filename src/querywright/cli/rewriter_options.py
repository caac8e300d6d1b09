"""What the commands of ``querywright rewriter`` that train or collect share: options, and what is made of them."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from querywright.cli.checks import check_reader, knob_values
from querywright.cli.compile import Sizes
from querywright.cli.options import Count, Flag, Folder, Home, LimitedLM, LMOptions, Name, SearchOptions, Url, Whole
from querywright.cli.show import note
from querywright.cli.workspace import Workspace

if TYPE_CHECKING:
    from querywright.optimize.rewriter.collect import CollectSettings, Teacher
    from querywright.optimize.rewriter.recipes import Recipe


@Parameter(name="*", group="Rewrites")
@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """What is learnt, and from whom.

    Args:
        collection: The collection that is searched.
        technique: Whose rewrites are learnt.
        base: embedded, a folder, or a model of the Hugging Face hub.
        recipe: ours, seed or paper.
        metric: What retrieval is measured by.
        teacher: The LM whose rewrites are collected, or evidence: no LM, the names that the evidence of a question is
            about, or for qb_rag what was asked of a passage. Default: the base itself where that is embedded.
        teacher_api_base: Address of the teacher's server.
        teacher_api_key_env: Variable that holds the teacher's key.
        candidates: Rewrites a question.
        ties: Also learn a best rewrite that finds as much as the question, and not more.
        sizes: Questions in train,dev,test. Default: 30 %, 30 %, 40 % of all.
        seed: Of the split and of all draws.
        work: Where the work is kept, and taken up again. Default: in the working folder, named as --out.
        reader: auto, multiple_choice, short_answer, grounded or none.
    """

    collection: Name
    technique: Name = "rrr"
    base: Name = "embedded"
    recipe: Name = "ours"
    metric: Name = "ndcg@10"
    teacher: Name | None = None
    teacher_api_base: Url | None = None
    teacher_api_key_env: Name | None = None
    candidates: Count = 4
    ties: Flag = False
    sizes: Sizes | None = None
    seed: Whole = 0
    work: Folder | None = None
    reader: Name = "auto"

    def settings(self, search: SearchOptions, threads: int) -> dict[str, Any]:
        """What both a training and a collection are set to; everything is checked."""
        from querywright.optimize.rewriter.collect import CollectSettings

        check_reader(self.reader)
        collect: CollectSettings = CollectSettings(candidates=self.candidates, ties=self.ties, threads=threads)
        return {
            "technique": self.technique,
            "knobs": deep_enough(self.technique, self.metric, knob_values(self.technique, search.knobs)),
            "base": self.base,
            "metric": self.metric,
            "seed": self.seed,
            "collect": collect,
        }

    def opened_teacher(self, workspace: Workspace, name: str | None, lm: LimitedLM) -> Teacher | None:
        """The teacher of that name, an LM with a limit of calls of its own; None where none is named."""
        from querywright.optimize.rewriter.collect import EVIDENCE

        if name is None:
            return None
        if name == EVIDENCE:
            return EVIDENCE
        return workspace.another_lm(LMOptions(name, self.teacher_api_base, self.teacher_api_key_env), lm.max_calls)

    def work_folder(self, place: Home, name: str) -> Path:
        """The working folder of a training or collection.

        Args:
            place: Where it is by default.
            name: Of what is made.
        """
        from querywright.home import home as working_folder

        return self.work or working_folder(place.home) / "rewriters" / name


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
