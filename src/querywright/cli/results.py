"""What ``querywright compare`` leaves behind: files, a table on the terminal, or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli.prepare import Prepared
from querywright.cli.references import References
from querywright.cli.show import note, print_json, say, show_table

if TYPE_CHECKING:
    from querywright.data.types import Passage
    from querywright.optimize.comparison import Compared
    from querywright.optimize.decisions import Decisions
    from querywright.optimize.diagnosis import Diagnosis

RIGHT = ("accuracy", "exact_match")
"""Metrics that say which answers are right; the first that every arm has is taken."""
ROWS, SUMMARY, REPORT = "results.parquet", "comparison.json", "report.html"


@dataclass(frozen=True, slots=True)
class Results:
    """A comparison and what follows from it.

    Args:
        ready: What was asked.
        compared: What came of it.
        facts: What was compared and how, by name.
        source: The questions, as they were named.
        diagnosis: Where answers are lost; None where no answer is read or nothing is labelled.
        decisions: What the passages of each arm did to the decisions; empty for the same reasons.
    """

    ready: Prepared
    compared: Compared
    facts: Mapping[str, str]
    source: str
    diagnosis: Diagnosis | None
    decisions: tuple[Decisions, ...]

    @classmethod
    def of(
        cls,
        ready: Prepared,
        compared: Compared,
        references: References,
        *,
        data: str,
        collection: str | None,
    ) -> Results:
        """Everything that follows from a comparison."""
        from querywright.optimize.decisions import decisions
        from querywright.optimize.diagnosis import diagnose

        facts = _facts(ready, data, collection)
        metric = next((name for name in RIGHT if all(name in one.metrics for one in compared.arms)), None)
        held = _held(ready)
        searching = [one for one in compared.arms if one.name in held]
        if metric is None or not searching or not any(question.evidence for question in ready.questions):
            if ready.plan.reader is not None and searching and metric is None:
                ready.plan.notes.append(f"no diagnosis, which needs {' or '.join(RIGHT)} among the metrics")
            return cls(ready, compared, facts, data, None, ())
        results = {one.name: one for one in (*compared.arms, *compared.references)}
        closed_book = {arm: results[name] for arm, name in references.closed_book.items()}
        diagnosis = diagnose(
            searching,
            ready.questions,
            held,
            metric=metric,
            closed_book=closed_book,
            oracle={arm: results[name] for arm, name in references.oracle.items()},
        )
        baseline = compared.arm(compared.baseline)
        decided = decisions(searching, ready.questions, baseline=baseline, closed_book=closed_book, metric=metric)
        return cls(ready, compared, facts, data, diagnosis, decided)

    def summary(self) -> dict[str, Any]:
        """Everything but single questions, as a JSON object."""
        return {
            **self.compared.to_json(),
            "diagnosis": None if self.diagnosis is None else self.diagnosis.to_json(),
            "decisions": [one.to_json() for one in self.decisions],
            "notes": self.notes(),
        }

    def notes(self) -> list[str]:
        """What is said below the table."""
        tried = dict.fromkeys(name for one in self.compared.arms for row in one.rows for name in row.scores)
        unscored = [name for name in tried if not any(name in one.metrics for one in self.compared.arms)]
        return self.ready.lines(unscored)

    def write(self, folder: Path) -> None:
        """Write results question by question, the summary and the report."""
        from querywright.optimize.html import report_html
        from querywright.optimize.rows_table import write_rows
        from querywright.retrieval.collection import write_whole

        write_rows(folder / ROWS, [*self.compared.arms, *self.compared.references], self.ready.questions)
        summary = json.dumps(self.summary(), ensure_ascii=False, indent=2, allow_nan=False)
        write_whole(folder / SUMMARY, summary.encode("utf-8", "replace") + b"\n")
        html = report_html(
            self.compared,
            self.ready.questions,
            self._passages(),
            title=f"{Path(self.source).name}: {len(self.ready.questions)} questions",
            facts=self.facts,
            notes=self.notes(),
            diagnosis=self.diagnosis,
            decisions=self.decisions,
        )
        write_whole(folder / REPORT, html.encode("utf-8", "replace"))

    def show(self, folder: Path, *, as_json: bool) -> None:
        """Print tables and verdicts, or JSON."""
        from querywright.optimize.decisions import decision_rows
        from querywright.optimize.diagnosis import MEANING, lost_rows
        from querywright.optimize.report import table_rows

        files = {name: str(folder / name) for name in (ROWS, SUMMARY, REPORT)}
        if as_json:
            print_json({**self.summary(), "files": files})
            return
        compared = self.compared
        show_table(
            f"{self.source}: {len(self.ready.questions)} questions, held against {compared.baseline}",
            table_rows([*compared.arms, *compared.references]),
            notes=["; ".join(self.notes()), *(one.sentence for one in compared.comparisons)],
            breaks=("LM calls / question",),
        )
        if self.diagnosis is not None:
            rows = lost_rows(self.diagnosis)
            meanings = [f"{stage}: {meaning}" for stage, meaning in MEANING.items() if stage in rows[0]]
            show_table("Where answers are lost", rows, notes=meanings)
        if self.decisions:
            show_table("What the passages did to the decisions", decision_rows(self.decisions))
        say(self.ready.workspace.cost_line())
        note(f"report: {files[REPORT]}; every question: {files[ROWS]}")

    def _passages(self) -> Mapping[str, Passage]:
        """The passages that some arm gave its reader, and the labelled ones."""
        arms = (*self.compared.arms, *self.compared.references)
        wanted = {key for one in arms for row in one.rows for key in row.passages}
        wanted |= {key for question in self.ready.questions for key in question.evidence}
        return {
            passage.id: passage
            for retriever in dict.fromkeys(self.ready.searched.values())
            for passage in retriever.passages()
            if passage.id in wanted
        }


def _held(ready: Prepared) -> dict[str, set[str]]:
    """By arm the ids of what it searches."""
    searched = ready.searched
    ids = {one: {passage.id for passage in one.passages()} for one in dict.fromkeys(searched.values())}
    return {name: ids[retriever] for name, retriever in searched.items()}


def _facts(ready: Prepared, data: str, collection: str | None) -> dict[str, str]:
    from querywright import __version__

    retriever = ready.retriever
    facts = {
        "Questions": f"{len(ready.questions)} of {Path(data).name}",
        "LM": str(ready.workspace.lm.model),
        "Reader": ready.plan.reader or "none",
    }
    if ready.rewriters:
        facts["Rewriter"] = ", ".join(ready.rewriters)
    if collection is not None and ready.retrievers:
        facts["Collection"] = f"{collection}, {retriever.count} passages"
        facts["Engines"] = ", ".join(ready.retrievers)
    return {**facts, "querywright": __version__}
