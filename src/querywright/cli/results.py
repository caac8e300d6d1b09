"""What ``querywright compare`` leaves behind: files, a table on the terminal, or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli.prepare import Prepared
from querywright.cli.show import note, print_json, say, show_table

if TYPE_CHECKING:
    from querywright.optimize.comparison import Compared

ROWS, SUMMARY, REPORT = "results.parquet", "comparison.json", "report.html"


@dataclass(frozen=True, slots=True)
class Results:
    """A comparison and what it was made with.

    Args:
        ready: What was asked.
        compared: What came of it.
        facts: What was compared and how, by name.
        source: The questions, as they were named.
    """

    ready: Prepared
    compared: Compared
    facts: Mapping[str, str]
    source: str

    @classmethod
    def of(cls, ready: Prepared, compared: Compared, *, data: str, collection: str | None) -> Results:
        """Everything that follows from a comparison."""
        from querywright.optimize.comparison import RIGHT

        read = any(metric in one.metrics for one in compared.arms for metric in RIGHT)
        if ready.plan.reader is not None and ready.searched and compared.diagnosis is None and not read:
            ready.plan.notes.append(f"no diagnosis, which needs {' or '.join(RIGHT)} among the metrics")
        return cls(ready, compared, _facts(ready, data, collection), data)

    def summary(self) -> dict[str, Any]:
        """Everything but single questions, as a JSON object."""
        return {**self.compared.to_json(), "notes": self.notes()}

    def notes(self) -> list[str]:
        """What is said below the table."""
        tried = dict.fromkeys(name for one in self.compared.arms for row in one.rows for name in row.scores)
        unscored = [name for name in tried if not any(name in one.metrics for one in self.compared.arms)]
        return self.ready.lines(unscored)

    def write(self, folder: Path) -> None:
        """Write results question by question, the summary and the report."""
        from querywright.files import write_file
        from querywright.optimize.tables import question_rows, write_table

        folder.mkdir(parents=True, exist_ok=True)
        summary = json.dumps(self.summary(), ensure_ascii=False, indent=2, allow_nan=False)
        write_file(folder / SUMMARY, summary.encode("utf-8", "replace") + b"\n")
        arms = [*self.compared.arms, *self.compared.references]
        write_table(folder / ROWS, question_rows(arms, self.ready.questions))
        title = f"{Path(self.source).name}: {len(self.ready.questions)} questions"
        self.compared.report(folder / REPORT, title=title, facts=self.facts, notes=self.notes())

    def show(self, folder: Path, *, as_json: bool) -> None:
        """Print tables and verdicts, or JSON."""
        from querywright.optimize.decisions import decision_rows
        from querywright.optimize.diagnosis import MEANING, lost_rows
        from querywright.optimize.tables import table_rows

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
        if compared.diagnosis is not None:
            rows = lost_rows(compared.diagnosis)
            meanings = [f"{stage}: {meaning}" for stage, meaning in MEANING.items() if stage in rows[0]]
            show_table("Where answers are lost", rows, notes=meanings)
        if compared.decisions:
            show_table("What the passages did to the decisions", decision_rows(compared.decisions))
        say(self.ready.workspace.cost_line())
        note(f"report: {files[REPORT]}; every question: {files[ROWS]}")


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
