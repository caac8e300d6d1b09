"""``querywright judge``: hold a judge against people, and improve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from querywright.cli.checks import check_file
from querywright.cli.options import (
    Count,
    Integer,
    Json,
    LimitedLM,
    Name,
    Output,
    RunOptions,
    make_app,
)
from querywright.cli.show import note, print_json, progress, say, show_table
from querywright.workspace import lm_failures

if TYPE_CHECKING:
    from querywright.data.judged import Judged
    from querywright.metrics.agreement import Figure
    from querywright.metrics.calibration import Calibration
    from querywright.metrics.judge import Judge
    from querywright.optimize.judge_compile import CompiledJudge
    from querywright.optimize.judge_files import SavedJudge

OutPath = Annotated[Path, Parameter(name="--out", metavar="PATH")]


@Parameter(name="*", group="Data")
@dataclass(frozen=True, slots=True)
class CaseOptions:
    """The judge, and the cases that people labelled.

    Args:
        judge: A judge (querywright judge list), or a saved one's path.
        limit: Keep the first N questions.
        per_question: Keep at most K cases of each question, always the same ones, chosen by a hash. Default: all.
        column: The data's name of a column, such as text=contents. Repeatable.
        seed: Of the split and the resampling.
    """

    judge: Name = "usefulness"
    limit: Count | None = None
    per_question: Annotated[Count, Parameter(metavar="K")] | None = None
    column: Annotated[tuple[str, ...], Parameter(metavar="OURS=THEIRS", show_default=False)] = ()
    seed: Integer = 0


judge_app = make_app("judge", "Hold a judge against people, and improve it.")


@judge_app.command(name="list")
def list_judges(*, as_json: Json = False) -> None:
    """List the judges with what they read and the labels they give.

    Example: querywright judge list
    """
    from querywright.metrics.judges import JUDGES

    rows = [
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
    if as_json:
        print_json(rows)
        return
    for row in rows:
        say(str(row["judge"]), style="bold")
        say(str(row["about"]), indent=2)
        say(f"reads {', '.join(row['reads'])}; labels {', '.join(row['labels'])}; metric {row['metric']}", indent=2)


@judge_app.command(name="calibrate")
def calibrate_command(
    data: str,
    /,
    *,
    save_to: OutPath | None = None,
    cases: CaseOptions = CaseOptions(),
    lm: LimitedLM = LimitedLM(),
    run: RunOptions = RunOptions(),
    output: Output = Output(),
) -> None:
    """Say how far a judge agrees with people.

    Grades from 1 to 4 are read as LiveQA gives them: for usefulness 4 is ENTAILED, 3 USEFUL, 1 and 2 NOT_USEFUL; for
    answerability 4 is complete, 3 partial, 1 and 2 none. Where no right answer is given, usefulness is judged without.
    Intervals come from resampling questions.

    Example: querywright judge calibrate liveqa-med --per-question 8

    Args:
        data: Cases labelled by people: a file with question, passage and label, or a folder with corpus.jsonl and
            questions.jsonl (judged: label by passage id).
        save_to: Save judge and calibration here, for evaluate --judge.
    """
    from querywright.optimize.judge_files import judge_file, save_judge
    from querywright.optimize.judging import calibrate

    if save_to is not None:
        check_file(judge_file(save_to), "--out", parents=True)
    chosen, judged = _prepared(data, cases, cases.per_question)
    workspace = lm.open(output.home)
    with progress() as update, lm_failures():
        found = calibrate(chosen, judged, lm=workspace.lm, **run.given, seed=cases.seed, progress=update)
    file = None if save_to is None else save_judge(save_to, chosen, found)
    if output.as_json:
        print_json(found.to_json())
        return
    _show_counts(data, found)
    _show_figures("agreement with people, 95 % interval", found.figures)
    say(found.sentence())
    say(workspace.cost_line())
    if file is not None:
        say(f"judge: {file}")


@judge_app.command(name="compile")
def compile_judge_command(
    data: str,
    /,
    *,
    save_to: OutPath,
    cases: CaseOptions = CaseOptions(),
    lm: LimitedLM = LimitedLM(),
    run: RunOptions = RunOptions(),
    output: Output = Output(),
) -> None:
    """Give a judge demonstrations labelled by people, if they bring it nearer to people.

    They are taken from a quarter of the questions and chosen on another; the other half says what they are worth.
    With --per-question fewer cases are judged; demonstrations are taken from all.

    Example: querywright judge compile liveqa-med --out judges/mine --per-question 8

    Args:
        data: Cases labelled by people: a file with question, passage and label, or a folder with corpus.jsonl and
            questions.jsonl (judged: label by passage id).
        save_to: Where the judge is saved: a folder, or a file .json.
    """
    from querywright.optimize.judge_compile import compile_judge
    from querywright.optimize.judge_files import judge_file, save_judge

    check_file(judge_file(save_to), "--out", parents=True)
    chosen, judged = _prepared(data, cases, None)
    workspace = lm.open(output.home)
    with progress() as update, lm_failures():
        made = compile_judge(
            chosen,
            judged,
            lm=workspace.lm,
            per_question=cases.per_question,
            **run.given,
            seed=cases.seed,
            progress=update,
        )
    file = save_judge(save_to, made.judge, made.after)
    if output.as_json:
        print_json(_compiled_json(made))
        return
    _show_compiled(made)
    say(workspace.cost_line())
    say(f"judge: {file}")


def resolve_judge(name: str) -> SavedJudge:
    """The judge of a name, or one that was saved at a path."""
    from querywright.errors import InputError
    from querywright.metrics.judges import JUDGES, make_judge
    from querywright.optimize.judge_files import SavedJudge, judge_file, load_judge

    if name in JUDGES:
        return SavedJudge(make_judge(name))
    if not judge_file(Path(name)).is_file():
        raise InputError(f"unknown judge {name!r}; it is the path of a saved judge, or one of: {', '.join(JUDGES)}")
    return load_judge(Path(name))


def _prepared(data: str, cases: CaseOptions, per_question: int | None) -> tuple[Judge, list[Judged]]:
    """The judge and the cases; the judge that does without the right answer where it is not known."""
    from querywright.data.judged import read_judged
    from querywright.errors import DataError
    from querywright.metrics.judges import make_judge
    from querywright.named import pairs

    name = cases.judge
    judge = resolve_judge(name).judge
    judged = read_judged(
        data,
        judge.spellings(),
        needs=judge.needs(),
        columns=pairs(cases.column, "--column"),
        limit=cases.limit,
        per_question=per_question,
    )
    bare = sum(one.case.question.answer is None for one in judged) if "right_answer" in judge.needs() else 0
    if bare and bare == len(judged) and name == judge.NAME and judge.OTHER:
        note(f"no right answers in {data}: judged by {judge.OTHER}")
        return make_judge(judge.OTHER), judged
    if bare:
        raise DataError(
            f"{data}: {bare} of {len(judged)} cases have no right answer to show to the judge {name}; give them, or "
            f"use --judge {judge.OTHER}"
        )
    return judge, judged


def _show_counts(data: str, found: Calibration) -> None:
    rows = [
        {"people": label, **{f"judge: {other}": str(count) for other, count in zip(found.labels, row, strict=True)}}
        for label, row in zip(found.labels, found.table, strict=True)
    ]
    left = f"{found.unreadable} unreadable, {found.failed} failed" if found.unreadable or found.failed else "all read"
    show_table(f"{Path(data).name}: {found.n} judgements of {found.questions} questions, {left}", rows)


def _show_figures(title: str, *sets: Mapping[str, Figure], heads: Sequence[str] = ("value",)) -> None:
    from querywright.metrics.agreement import FIGURES, shown

    reasons: dict[str, None] = {}
    rows = []
    for name, called in FIGURES.items():
        rows.append({"figure": called, **{head: shown(one[name]) for head, one in zip(heads, sets, strict=True)}})
        reasons |= {f"{called}: {one[name].reason}": None for one in sets if one[name].reason}
    show_table(title, rows, notes=list(reasons))


def _show_compiled(made: CompiledJudge) -> None:
    from querywright.metrics.agreement import shown

    for name, kappa in made.dev.items():
        say(f"dev, {name}: kappa {'undefined' if kappa != kappa else f'{kappa:.2f}'}")
    say(f"chosen on dev: {made.chosen}")
    _show_figures(
        f"the other half, {made.n} cases judged both times",
        made.before.figures,
        made.after.figures,
        made.differences,
        heads=("before", "after", "difference"),
    )
    gain = made.differences["kappa"]
    if gain.low > 0:
        said = "the demonstrations bring the judge nearer to people"
    elif gain.high < 0:
        said = "the demonstrations take the judge away from people; use it as it was"
    else:
        said = "no difference shown between the judge before and after"
    say(f"{said}: difference in kappa {shown(gain)}")
    say(made.after.sentence())


def _compiled_json(made: CompiledJudge) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "chosen": made.chosen,
        "dev": dict(made.dev),
        "before": made.before.to_json(),
        "after": made.after.to_json(),
        "differences": {name: asdict(figure) for name, figure in made.differences.items()},
        "n": made.n,
    }
