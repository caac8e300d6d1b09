"""What the commands of ``querywright rewriter`` that train or collect share: options, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from querywright.cli.compile import Sizes
from querywright.cli.options import Count, Flag, LimitedLM, LMOptions, Name, SearchOptions, Url, Whole
from querywright.workspace import Workspace

if TYPE_CHECKING:
    from querywright.data.splits import Splits
    from querywright.data.types import Question
    from querywright.optimize.rewriter.recipes import Recipe
    from querywright.optimize.rewriter.settings import Given, TrainSettings


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
    reader: Name = "auto"

    def settings(self, search: SearchOptions, threads: int, **training: Any) -> TrainSettings:
        """The settings of a training, or of the collection for one; everything is checked.

        Args:
            search: Knobs.
            threads: Questions under way at a time.
            training: What only a training is set to.
        """
        from querywright.named import check_reader, knob_values
        from querywright.optimize.rewriter.settings import TrainSettings

        check_reader(self.reader)
        return TrainSettings(
            technique=self.technique,
            knobs=_deep_enough(self.technique, self.metric, knob_values(self.technique, search.knobs)),
            base=self.base,
            metric=self.metric,
            seed=self.seed,
            candidates=self.candidates,
            ties=self.ties,
            threads=threads,
            **{"recipe": recipe_with(self.recipe, {}), **training},
        )

    def given(
        self,
        workspace: Workspace,
        asked: list[Question],
        splits: Splits,
        search: SearchOptions,
        lm: LimitedLM,
        *,
        teacher: str | None,
        **more: Any,
    ) -> Given:
        """What a training or a collection works with.

        Args:
            workspace: Opens collections and LMs.
            asked: All questions.
            splits: Their parts.
            search: Embedder and engine.
            lm: Its limit of calls is also the teacher's.
            teacher: Its name, or None for none.
            more: What only a training has.
        """
        from querywright.named import reader_for
        from querywright.optimize.rewriter.settings import EVIDENCE, Given
        from querywright.programs.qb_rag import QBRAG
        from querywright.retrieval.engines import check_engine

        engine: str = "dense" if search.engine is None else check_engine(search.engine)
        if self.technique != QBRAG.NAME:  # the questions of passages are written before there are any to search
            engine = search.engine_of(self.technique)
        opened: Any = teacher
        if teacher not in (None, EVIDENCE):
            named = LMOptions(str(teacher), self.teacher_api_base, self.teacher_api_key_env)
            opened = named.beside(workspace, lm.max_calls)
        reads = self.reader != "none" and recipe_with(self.recipe, {}).needs_reader
        read_by = reader_for(asked, self.reader) if reads else None
        return Given(
            splits,
            workspace.retriever(self.collection, search.embedder, engine),
            self.collection,
            teacher=opened,
            reader=read_by,
            reader_lm=workspace.lm if read_by else None,
            **more,
        )


def recipe_with(name: str, changes: Mapping[str, Any]) -> Recipe:
    """The recipe of that name.

    Args:
        name: The recipe's.
        changes: Values that were given; None for those that were not.
    """
    from querywright.optimize.rewriter.recipes import recipe_named

    return replace(recipe_named(name), **{key: value for key, value in changes.items() if value is not None})


def _deep_enough(technique: str, metric: str, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs; where no number of passages was given, as many as the metric and those of the card look at."""
    from querywright.metrics.dspy_metrics import metric_named
    from querywright.optimize.rewriter.evaluation import DEEPEST
    from querywright.programs import technique_class

    metric_named(metric)
    depth = int(metric.partition("@")[2] or 0)
    default = next((one.default for one in technique_class(technique).KNOBS if one.name == "max_passages"), None)
    return dict(knobs) if default is None else {"max_passages": max(depth, default, DEEPEST), **knobs}
