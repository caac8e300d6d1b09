"""``querywright evaluate`` and ``querywright compare``: arms side by side on the same labelled questions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from querywright.cli import options as opt
from querywright.cli.checks import check_file, check_folder
from querywright.cli.show import emit, note, progress, say, show_scores, show_table, show_verdicts
from querywright.cli.tracking import tracking
from querywright.data.types import Label, Question
from querywright.errors import InputError
from querywright.files import private, write_file, writing

if TYPE_CHECKING:
    from querywright.metrics.guideline import Guidelines
    from querywright.optimize.comparison import Compared
    from querywright.optimize.evaluate import Progress
    from querywright.prepared import Prepared

ROWS, SUMMARY, REPORT = "results.parquet", "comparison.json", "report.html"
ELSEWHERE, UNSAID = "give another folder with --out, or remove this one", "as it comes"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Given:
    """The questions, how arms search and read, the models beside the LM, and the judges."""

    data: opt.DataOptions

    lm: opt.LMOptions = field(default_factory=opt.LMOptions)
    run: opt.RunOptions = field(default_factory=opt.RunOptions)
    arms: opt.ArmOptions = field(default_factory=opt.ArmOptions)
    judging: opt.Judging = field(default_factory=opt.Judging)
    deadline: opt.Deadline = None
    output: opt.Results = field(default_factory=opt.Results)


def evaluate_command(arm: opt.Arms = (), /, *, given: Given, rows: opt.File | None = None) -> None:
    """Evaluate arms on the same questions, each held against plain (else the first).

    Example: querywright evaluate plain hcqr --data questions.jsonl --collection textbooks --limit 40

    Args:
        arm: Techniques (NAME, NAME@ENGINE, NAME:KNOB=VALUE,...) and folders of artifacts. Default: closed_book, plain
            and, where there are options, hcqr.
        rows: Write every question's result here, JSON lines.
    """
    if rows is not None:
        check_file(rows, "--rows")
    _run([*map(_arm, arm)], given, rows)


def compare_command(
    arm: opt.Arms,
    /,
    *,
    given: Given,
    save_to: opt.OutFolder,
    baseline: Annotated[str, Parameter(metavar="ARM")] = "plain",
) -> None:
    """Evaluate arms beside a baseline, tell where answers are lost, and write every question's result and a report.

    Closed book and oracle evidence stand beside them where they can. A run that was ended goes on with the same
    command: its answers are in the store. Other arms, on the same questions and with the same options, join those that
    the folder holds.

    Example: querywright compare plain@bm25 hyde artifacts/mine --data questions.jsonl --collection mine --out results

    Args:
        arm: Techniques (NAME, NAME@ENGINE, NAME:KNOB=VALUE,...) and folders of artifacts.
        save_to: Where results and report are written.
        baseline: What every arm is held against; added if it is not named.
    """
    check_folder(save_to, "--out", SUMMARY, "folder of results")
    baseline, *named = map(_arm, (baseline, *arm))
    named = named if baseline in named else [baseline, *named]
    before = _made(save_to)
    there = before.pop("arms", ())
    _run([*there, *(one for one in named if one not in there)], given, save_to, baseline, before)


@dataclass(slots=True)
class Bench:
    """Arms and judges of one command, checked and open; guidelines are filled in before anything is compared."""

    given: Given
    ready: Prepared
    guidelines: Guidelines | None
    named: Sequence[str]
    logged: Callable[..., None]
    told: list[str]

    @classmethod
    def open(cls, named: Sequence[str], given: Given) -> Bench:
        """Check, read and open all that a command was given."""
        from querywright.metrics.guideline import GuidelineMetric, Guidelines
        from querywright.prepared import prepare

        arms, logged = given.arms, tracking(given.output.log)
        judging, lm, guidelines = given.judging, given.lm, None
        judging.beside(lm)
        if judging.guidelines is not None:
            check_file(judging.guidelines, "--guidelines")
            guidelines = Guidelines()
        told: list[str] = []

        def tell(line: str) -> None:
            note(line)
            told.append(line)

        ready = prepare(
            named, given.data.source,
            workspace=lambda asks: lm.open(given.output.home, given.run.threads, asks=asks),
            **arms.given(lm), engine=arms.engine, reader=arms.reader, max_passages=arms.max_passages,
            metrics=arms.metric, reading=given.data.given,
            judges=judging.judge, guidelines=guidelines, threads=given.run.threads, tell=tell,
            judge_lm=None if judging.judge_lm is None else lambda place: judging.open(place, lm),
        )  # fmt: skip
        if guidelines is not None and not any(isinstance(one, GuidelineMetric) for one in ready.metrics.values()):
            raise InputError("only the judge coverage holds answers against --guidelines; give --judge coverage too")
        return cls(given, ready, guidelines, named, logged, told)

    def keep(self, compared: Compared, kept: Path | None, baseline: str | None) -> None:
        """Print what the arms gave and keep it: the rows in a file or, beside a baseline, all in a folder."""
        notes, files = self.notes(compared, diagnosed=baseline is not None), {}
        if baseline is not None and kept is not None:
            files = self.write(kept, compared, [*self.told, *notes])
        found = {**compared.to_json(), "notes": [*self.told, *notes], "files": files}
        if baseline is None:
            found = {name: found[name] for name in ("arms", "comparisons", "notes")}
        emit(self.given.output.as_json, found, lambda: self.show(compared, notes))
        if files and not self.given.output.as_json:
            note(f"report: {files[REPORT]}; every question: {files[ROWS]}")
        elif baseline is None and kept is not None:
            _write_rows(kept, compared)
            note(f"every question's result: {kept}")
        name = Path(self.given.data.source).name if baseline is None or kept is None else kept.name
        self.logged(compared, name=name, params=self.facts(compared), kept=[files[SUMMARY]] if files else [])

    def compare(self, baseline: str | None, update: Progress) -> Compared:
        """Run the arms, beside a baseline with closed book and oracle evidence; guidelines are written first."""
        from querywright.optimize.comparison import compare

        ready = self.ready
        if self.guidelines is not None:
            self.guidelines.update(self._frozen(update))
        return compare(
            ready.programs, ready.questions, lm=ready.workspace.lm, baseline=baseline, references=baseline is not None,
            metrics=ready.metrics, **self.given.run.at(ready.workspace), deadline=self.given.deadline,
            progress=update,
        )  # fmt: skip

    def notes(self, compared: Compared, *, diagnosed: bool) -> list[str]:
        """What is said below a table of results."""
        from querywright.optimize.comparison import RIGHT
        from querywright.optimize.tables import pool_notes

        ready, lm, found = self.ready, self.ready.workspace.lm, compared.arms
        asked = f"LM {lm.model}; " if _asks(compared) else ""
        lines = [*compared.notes, f"{asked}mean in per cent with its 95 % interval"]
        if not asked and self.given.lm.lm is not None:
            lines.append(f"no arm asks an LM for these metrics: --lm {self.given.lm.lm} was not needed")
        for name, arms in ready.writers.items():
            lines.append(f"{', '.join(arms)}: written by {name}, read by {lm.model}")
        lines += [*ready.notes, *pool_notes(found, compared.questions)]
        read = any(metric in one.metrics for one in found for metric in RIGHT)
        if diagnosed and not read:
            lines.append(f"no diagnosis, which needs {' or '.join(RIGHT)} among the metrics")
        lines += [f"{name} is not scored: it needs {lacking}" for name, lacking in ready.lacks.items()]
        tried = dict.fromkeys(name for one in found for row in one.rows for name in row.scores)
        unscored = [name for name in tried if not any(name in one.metrics for one in found)]
        return [*lines, *(f"{name}: no question could be scored" for name in unscored if name not in ready.lacks)]

    def facts(self, compared: Compared) -> dict[str, str]:
        """What was compared and how, for the report."""
        from querywright import __version__

        ready, collection = self.ready, self.given.arms.searched.collection
        facts = {
            "Questions": f"{len(ready.questions)} of {Path(self.given.data.source).name}",
            **({"LM": str(ready.workspace.lm.model)} if _asks(compared) else {}),
            "Reader": ready.reader or "none",
        }
        if ready.writers:
            facts["Writer"] = "; ".join(f"{name} ({', '.join(arms)})" for name, arms in ready.writers.items())
        if collection is not None and ready.retrievers:
            facts["Collection"] = f"{collection}, {ready.retriever.count} passages"
            facts["Engines"] = ", ".join(ready.retrievers)
        return {**facts, "querywright": __version__}

    def write(self, folder: Path, compared: Compared, notes: Sequence[str]) -> dict[str, str]:
        """Write results question by question, the summary and the report; gives the paths."""
        from querywright.data.splits import data_hash
        from querywright.optimize.tables import question_rows, write_table

        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        named = dict(zip(self.ready.programs, self.named, strict=True))
        arms = [named[one.name] for one in compared.arms]
        options = {**opt.chosen(self.given), "baseline": named[compared.baseline]}
        made = {**options, "arms": arms, "questions": data_hash(self.ready.questions)}
        found = {**compared.to_json(), "notes": notes, "made": made}
        summary = json.dumps(found, ensure_ascii=False, indent=2, allow_nan=False)
        write_file(folder / SUMMARY, f"{summary}\n")
        write_table(folder / ROWS, question_rows([*compared.arms, *compared.references], compared.questions))
        title = f"{Path(self.given.data.source).name}: {len(compared.questions)} questions"
        command = opt.typed("compare", *arms, **options, out=str(folder))
        compared.report(folder / REPORT, title=title, facts=self.facts(compared), notes=notes, command=command)
        return {name: str(folder / name) for name in (ROWS, SUMMARY, REPORT)}

    def show(self, compared: Compared, notes: Sequence[str]) -> None:
        """Print scores and verdicts; where answers are lost, if closed book and oracle evidence tell it."""
        from querywright.optimize.diagnosis import DECIDED, MEANING, decision_rows, lost_rows

        title = f"{self.given.data.source}: {len(compared.questions)} questions"
        notes = [*compared.notes, "; ".join(one for one in notes if one not in compared.notes)]
        verbose = self.given.output.verbose
        show_scores(title, [*compared.arms, *compared.references], self.ready.workspace, verbose=verbose, notes=notes)
        show_verdicts(compared.comparisons, verbose=verbose)
        by = f", {compared.labelled_by}" if compared.labelled_by else ""
        if compared.references and compared.diagnosis is not None:
            rows = lost_rows(compared.diagnosis)
            meanings = [f"{stage}: {meaning}" for stage, meaning in MEANING.items() if stage in rows[0]]
            show_table(f"Where answers are lost{by}", rows, notes=meanings)
        if compared.references and compared.decisions:
            show_table(
                f"What the passages did to the decisions{by}", decision_rows(compared.decisions), notes=[DECIDED]
            )
        if cost := self.ready.workspace.cost_line():
            say(cost)

    def _frozen(self, progress: Progress) -> Guidelines:
        from querywright.metrics.guideline import GuidelineMetric, Guidelines
        from querywright.optimize.judging import freeze_guidelines

        file = self.given.judging.guidelines
        lm = next(one.lm for one in self.ready.metrics.values() if isinstance(one, GuidelineMetric))
        assert file is not None
        assert lm is not None
        frozen = Guidelines.load(file) if file.exists() else Guidelines()
        retriever = self.ready.retriever
        known: Mapping[str, Any] = {} if retriever is None else {one.id: one for one in retriever.passages()}
        sourced: list[tuple[Question, Sequence[Any]]] = []
        for question in self.ready.questions:
            found = [known[key] for key, label in question.evidence.items() if label is Label.ENTAILED and key in known]
            sourced += [(question, found)] if found else []
        if not sourced:
            raise InputError(
                "a guideline is written from the passages that are labelled ENTAILED, but no question has one in the "
                "collection; give such questions and --collection, or leave the judge coverage out"
            )
        frozen = freeze_guidelines(frozen, sourced, lm=lm, **self.given.run.at(self.ready.workspace), progress=progress)
        frozen.save(file)
        return Guidelines({question.id: frozen[question.id] for question, _ in sourced if question.id in frozen})


def _run(
    named: Sequence[str],
    given: Given,
    kept: Path | None,
    baseline: str | None = None,
    before: Mapping[str, Any] | None = None,
) -> None:
    """Open and run arms, print what they gave and keep it, beside a baseline in a folder, as what was there before."""
    from querywright.data.splits import data_hash

    folder = None if baseline is None else kept
    with progress("opening questions, collection and models") as update:
        bench = Bench.open(named, given)
        if folder is not None:
            questions = data_hash(bench.ready.questions)
            now = {**opt.chosen(given), "baseline": baseline, "questions": questions}
            _check_same(folder, before or {}, now)
        held = None if baseline is None else dict(zip(named, bench.ready.programs, strict=True))[baseline]
        compared = bench.compare(held, update)
    bench.keep(compared, kept, baseline)


def _asks(compared: Compared) -> bool:
    """Whether an arm asked the LM anything."""
    return any(one.cost.asked for one in compared.arms)


def _made(folder: Path) -> dict[str, Any]:
    """How the comparison that a folder holds was made: arms, questions and options; nothing where it holds none."""
    if not (folder / SUMMARY).is_file():
        return {}
    try:
        made: dict[str, Any] = json.loads((folder / SUMMARY).read_text("utf-8"))["made"]
        return {**made, "arms": [*made["arms"]], "questions": made["questions"]}
    except (ValueError, LookupError, TypeError):
        raise InputError(f"{folder.name!r} does not say how its comparison was made; {ELSEWHERE}") from None


def _check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise where the comparison that a folder holds was made with other options, or on other questions."""
    other = [name for name in {**before, **now} if before and before.get(name) != now.get(name)]
    told = [f"{name} {before.get(name, UNSAID)}, not {now.get(name, UNSAID)}" for name in other if name != "questions"]
    if other:
        how = f"made with other settings ({'; '.join(told)})" if told else "on other questions"
        raise InputError(f"{folder.name!r} holds a comparison {how}; {ELSEWHERE}")


def _arm(name: str) -> str:
    """An arm as it is named; the folder of an artifact in one spelling only."""
    from querywright.prepared import is_folder

    return os.path.normpath(name) if is_folder(name) else name


def _write_rows(path: Path, compared: Compared) -> None:
    stands = "the results above stand, and the same command asks nothing again"
    with (
        writing(f"{path.name!r}", stands, "--rows"),
        open(path, "w", encoding="utf-8", errors="replace", opener=private) as file,
    ):
        for one in compared.arms:
            for row in one.rows:
                file.write(json.dumps({"arm": one.name, **row.to_json()}, ensure_ascii=False) + "\n")
