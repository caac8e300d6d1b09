"""``querywright judge``: label passages, measure a judge's agreement with people, and improve a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from querywright.cli import options as opt
from querywright.cli.checks import check_file
from querywright.cli.show import emit, note, progress, say, show_facts, show_table
from querywright.data.judged import JudgedCase, read_judged
from querywright.data.labels import PassageLabel, check_form, read_labels, write_labels
from querywright.errors import DataError
from querywright.files import writing
from querywright.workspace import Workspace

if TYPE_CHECKING:
    from querywright.metrics.agreement import Figure
    from querywright.metrics.calibration import Calibration
    from querywright.metrics.judge import Judge
    from querywright.optimize.judging import CompiledJudge

OutPath = Annotated[Path, Parameter(name="--out", metavar="PATH")]

judge_app = opt.make_app("judge", "Label passages, and measure and improve judges.")


@Parameter(name="*", group="Data")
@dataclass(frozen=True)
class CaseOptions:
    """Cases labeled by people.

    Args:
        source: Cases labeled by people: a file with the columns question, passage, and label, or a folder with
            corpus.jsonl and questions.jsonl (whose field judged maps passage IDs to labels).
        limit: Keep only the first N questions.
        per_question: Keep at most K cases per question, always the same cases (chosen by a hash). Default: all.
        column: Read a field from a column with a different name, such as text=contents. Repeatable.
        seed: Seed for the split and the resampling.
    """

    source: Annotated[str, Parameter(name="--data", metavar="CASES")]
    limit: opt.Count | None = None
    per_question: Annotated[opt.Count, Parameter(metavar="K")] | None = None
    column: opt.Columns = ()
    seed: opt.Integer = 0

    def read(self, named: str, per_question: int | None = None) -> tuple[Judge, list[JudgedCase]]:
        """Return the judge and the cases. If no case has a correct answer, return the judge that does not need one."""
        from querywright.arms import pairs
        from querywright.optimize.judge_files import resolve_judge

        judge, data = resolve_judge(named).judge, self.source
        columns = pairs(self.column, "--column")
        judged = read_judged(
            data, judge.spellings(), needs=judge.needs(), columns=columns, limit=self.limit, per_question=per_question
        )
        bare = sum(one.case.question.answer is None for one in judged) if "right_answer" in judge.needs() else 0
        if bare and bare == len(judged) and named == judge.NAME and judge.OTHER:
            note(f"no case in {data} has a correct answer, so the judge is {judge.OTHER.NAME!r}")
            return judge.OTHER(), judged
        if bare:
            other = f", or use the judge {judge.OTHER.NAME!r}" if judge.OTHER else ""
            raise DataError(
                f"{data}: cases without a correct answer: {bare} of {len(judged)}. The judge {named!r} needs correct "
                f"answers; add the missing answers{other}"
            )
        return judge, judged


@judge_app.command(name="list")
def list_judges(*, as_json: opt.Json = False) -> None:
    """List the judges with their inputs and their labels.

    Example: querywright judge list
    """
    from querywright.metrics.judges import JUDGES

    rows: list[dict[str, Any]] = [
        {
            "judge": name,
            "metric": judge.METRIC,
            "about": (judge.__doc__ or "").partition("\n")[0],
            "reads": list(judge.inputs()),
            "labels": list(judge.SCALE),
            "grades": {str(grade): label for grade, label in judge.GRADES.items()},
        }
        for name, judge in JUDGES.items()
    ]
    about = ("about", "reads", "labels", "metric")
    emit(as_json, rows, lambda: show_facts({row["judge"]: {key: row[key] for key in about} for row in rows}))


@judge_app.command(name="label")
def label_command(
    arm: opt.Arms = ("plain",),
    /,
    *,
    data: opt.DataOptions,
    save_to: opt.OutFile,
    depth: opt.Count = 5,
    judge: opt.Name = "usefulness",
    judging: opt.JudgeLM = opt.JudgeLM(),
    search: opt.Searching = opt.Searching(),
    work: opt.Work = opt.Work(),
) -> None:
    """Label the passages that arms find.

    The top passages from every arm are pooled and judged, and the labels are written to a file for people to correct. A
    label that you change counts as a person's label. Pass the file to other commands with --labels. If you run the
    command again, only passages without a label are added and judged, and labels follow edited passages.

    Example: querywright judge label plain hcqr --data questions.jsonl --collection mine --out labels.jsonl

    Args:
        arm: One or more arms: techniques (NAME, NAME@ENGINE to choose the engine, or NAME:KNOB=VALUE,...),
            artifact folders, and your programs (FILE.py:NAME).
            Default: plain.
        save_to: File for the labels: .jsonl or .csv. Labels in an existing file are kept.
        depth: Number of passages to take from each arm for each question, 1 to 50.
        judge: A usefulness judge, the path of a saved judge, or none, so that people assign all labels.
    """
    from querywright.api import label

    check_file(save_to, "--out")
    check_form(save_to)

    def labels() -> dict[tuple[str, str], PassageLabel]:
        """Return the labels that are in the file now."""
        full = save_to.is_file() and save_to.stat().st_size
        return {one.key: one for one in read_labels(save_to)} if full else {}

    earlier, workspace = labels(), work.open()
    with progress("searching") as update:
        found = label(
            arm, data.source, **search.given(work.lm, needed=True), reading=data.given, depth=depth,
            engine=search.engine or "dense", labels=save_to if earlier else None, lm=workspace,
            judge=None if judge == "none" else judge, judge_lm=judging.open(workspace, work.lm),
            threads=work.run.threads, max_failures=work.run.max_failures, progress=update, tell=note,
        )  # fmt: skip
    saved_since = {key: one for key, one in labels().items() if one != earlier.get(key)}
    found = replace(found, labels=tuple({**{one.key: one for one in found.labels}, **saved_since}.values()))
    with writing(
        f"the labels {save_to.name!r}", "the judge's answers are cached, so rerunning the command costs nothing"
    ):
        write_labels(save_to, found.labels)

    def shown() -> None:
        by = dict.fromkeys(by for counts in found.counts.values() for by in counts)
        rows = [
            {"label": label, **{name: str(counts.get(name, 0)) for name in by}}
            for label, counts in found.counts.items()
        ]
        questions = len({one.question_id for one in found.labels})
        title = f"passages: {len(found.labels)} ({found.added} added, {found.asked} judged); questions: {questions}"
        show_table(title, rows, notes=found.notes)
        say(workspace.cost_line())
        say(f"labels: {save_to}; correct the 'label' column, then pass the file with --labels {save_to.name}")

    data_of = {name: getattr(found, name) for name in ("added", "asked", "unreadable", "failed")}
    made = {"passages": len(found.labels), **data_of, "labels": found.counts, "file": str(save_to)}
    emit(work.output.as_json, made, shown)


@judge_app.command(name="calibrate")
def calibrate_command(
    judge: opt.JudgeName = "usefulness",
    /,
    *,
    cases: CaseOptions,
    save_to: OutPath | None = None,
    work: opt.Work = opt.Work(),
) -> None:
    """Measure how well a judge agrees with people.

    Grades from 1 to 4 are read as in LiveQA: for usefulness, 4 is ENTAILED, 3 is USEFUL, and 1 and 2 are NOT_USEFUL;
    for answerability, 4 is complete, 3 is partial, and 1 and 2 are none. If no case has a correct answer, usefulness is
    judged without correct answers. Intervals come from resampling questions. If cases name the systems that found a
    passage or wrote an answer (arms), the judge's ranking of the systems is compared with people's ranking (Kendall's
    tau), because tuning relies on this ranking. If a second person labeled cases (second_label), the agreement between
    the two people is shown next to the judge's.

    Example: querywright judge calibrate usefulness --data liveqa-med --per-question 8

    Args:
        judge: A judge (querywright judge list), or the path of a saved judge.
        save_to: Save the judge and its calibration here, for evaluate --judge.
    """
    from querywright.optimize.judge_files import judge_file, save_judge
    from querywright.optimize.judging import calibrate

    if save_to is not None:
        check_file(judge_file(save_to), "--out", parents=True)
    held, judged = cases.read(judge, cases.per_question)
    workspace = work.open()
    with progress("judging") as update:
        found = calibrate(held, judged, lm=workspace.lm, **work.run.at(workspace), seed=cases.seed, progress=update)
    file = None if save_to is None else save_judge(save_to, held, found)
    emit(work.output.as_json, found.to_json(), lambda: _show_calibration(cases.source, found, workspace, file))


@judge_app.command(name="compile")
def compile_judge_command(
    judge: opt.JudgeName = "usefulness",
    /,
    *,
    cases: CaseOptions,
    save_to: OutPath,
    work: opt.Work = opt.Work(),
) -> None:
    """Improve a judge with demonstrations.

    Demonstrations are added only if they improve the judge's agreement with people. They come from one quarter of the
    questions, are chosen on a second quarter, and are measured on the other half. --per-question limits the
    cases that are judged, but not the cases that the demonstrations come from.

    Example: querywright judge compile usefulness --data liveqa-med --out judges/mine --per-question 8

    Args:
        judge: A judge (querywright judge list), or the path of a saved judge.
        save_to: Where to save the judge: a folder, or a .json file.
    """
    from querywright.optimize.judge_files import judge_file, save_judge
    from querywright.optimize.judging import compile_judge

    check_file(judge_file(save_to), "--out", parents=True)
    taught, judged = cases.read(judge)
    workspace = work.open()
    with progress("judging") as update:
        made = compile_judge(
            taught, judged, lm=workspace.lm, per_question=cases.per_question, **work.run.at(workspace), seed=cases.seed,
            progress=update,
        )  # fmt: skip
    file = save_judge(save_to, made.judge, made.after)
    found = {
        "chosen": made.chosen,
        "dev": dict(made.dev),
        "before": made.before.to_json(),
        "after": made.after.to_json(),
        "differences": {name: asdict(figure) for name, figure in made.differences.items()},
        "n": made.n,
    }
    emit(work.output.as_json, found, lambda: _show_compiled(made, workspace, file))


def _show_calibration(data: str, found: Calibration, workspace: Workspace, file: Path | None) -> None:
    from querywright.metrics.agreement import shown

    rows = [
        {"people": label, **{f"judge: {other}": str(count) for other, count in zip(found.labels, row, strict=True)}}
        for label, row in zip(found.labels, found.table, strict=True)
    ]
    left = (
        f"{found.unreadable} unreadable, {found.failed} failed" if found.unreadable or found.failed else "all readable"
    )
    show_table(f"{Path(data).name}: {found.n} judgments on {found.questions} questions, {left}", rows)
    between = {"second person": found.between_people} if found.between_people else {}
    _show_figures("agreement with people, with 95% interval", {"value": found.figures, **between})
    if found.graded:
        _show_figures("scores for whole answers, with 95% interval", {"value": found.graded})
    if found.order is not None:
        arms = [
            {"arm": arm, "people": f"{people:.2f}", "judge": f"{judge:.2f}"}
            for arm, (people, judge) in sorted(found.arms.items(), key=lambda one: -one[1][0])
        ]
        said = f"Kendall's tau between the two rankings of {len(arms)} arms: {shown(found.order)}"
        show_table("mean score per arm", arms, notes=[f"{said}; {found.order.reason}".rstrip("; ")])
    _show_end(found, workspace, file)


def _show_compiled(made: CompiledJudge, workspace: Workspace, file: Path) -> None:
    from querywright.metrics.agreement import shown

    for name, kappa in made.dev.items():
        say(f"dev, {name}: kappa {'undefined' if kappa != kappa else f'{kappa:.2f}'}")
    say(f"chosen on dev: {made.chosen}")
    figures = {"before": made.before.figures, "after": made.after.figures, "difference": made.differences}
    _show_figures(f"the other half of the questions ({made.n} cases), judged before and after", figures)
    gain = made.differences["kappa"]
    said = "no difference shown between the judge before and after compiling"
    if gain.low > 0:
        said = "with the demonstrations, the judge agrees better with people"
    elif gain.high < 0:
        said = "with the demonstrations, the judge agrees less with people; use the judge without demonstrations"
    say(f"{said}: difference in kappa {shown(gain)}")
    _show_end(made.after, workspace, file)


def _show_figures(title: str, sets: Mapping[str, Mapping[str, Figure]]) -> None:
    from querywright.metrics.agreement import FIGURES, shown

    called = {name: title for name, title in FIGURES.items() if all(name in one for one in sets.values())}
    rows = [
        {"figure": title, **{head: shown(one[name]) for head, one in sets.items()}} for name, title in called.items()
    ]
    reasons: Sequence[str] = [
        f"{title}: {one[name].reason}" for name, title in called.items() for one in sets.values() if one[name].reason
    ]
    show_table(title, rows, notes=list(dict.fromkeys(reasons)))


def _show_end(found: Calibration, workspace: Workspace, file: Path | None) -> None:
    say(found.sentence())
    say(workspace.cost_line())
    if file is not None:
        say(f"judge: {file}")
