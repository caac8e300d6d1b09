"""``querywright compile``: tune a technique on labeled questions and save the winner."""

from __future__ import annotations

import re
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from querywright.cli import options as opt
from querywright.cli.checks import check_folder
from querywright.cli.show import emit, note, progress, say, show_scores, show_slices, show_table, show_verdicts
from querywright.cli.tracking import tracking
from querywright.errors import InputError, QuerywrightError
from querywright.workspace import Workspace

if TYPE_CHECKING:
    from querywright.api import Compilation
    from querywright.optimize.results import Candidate

SHOWN_ARMS = 8
Sizes = Annotated[str, Parameter(metavar="N,N,N"), opt.checked("cli.compile:split_sizes")]


def compile_command(
    technique: opt.Technique,
    /,
    *,
    data: opt.DataOptions,
    save_to: opt.OutFolder,
    replace: opt.Flag = False,
    sizes: Sizes | None = None,
    objective: opt.Names = ("auto",),
    teleprompter: opt.Name = "bootstrap_few_shot",
    argument: Annotated[tuple[str, ...], Parameter(metavar="NAME=VALUE", show_default=False)] = (),
    trials: opt.Count = 30,
    seed: opt.Integer = 0,
    max_passages: opt.Count | None = None,
    reader: opt.Reader = "auto",
    reader_check: opt.Whole = 0,
    allow_copies: opt.Flag = False,
    slice: opt.Slices = (),
    search: opt.Searching = opt.Searching(),
    judging: opt.Judges = opt.Judges(),
    lm: opt.LMOptions = opt.LMOptions(),
    run: opt.RunOptions = opt.RunOptions(),
    output: opt.Results = opt.Results(),
) -> None:
    """Tune a technique's prompts and knobs; save the best program.

    Prompts and knobs are tuned together on dev, and the best program is compared with the baseline once on test. If you
    set a knob to one value, the knob is fixed; if you pass a list of values (--knob top_k=3,5,10) or a range (--knob
    top_k=1..10), the knob is tuned.

    Example: querywright compile hcqr --data questions.jsonl --collection mine --out artifacts/mine

    Args:
        technique: A name from querywright techniques, or FILE.py:NAME.
        save_to: Folder for the artifact. To resume, run the same command again. The folder must not contain a different
            program.
        replace: Replace a different program in the folder.
        sizes: Number of questions in train,dev,test, such as 20,40,80; at most the number in each split. Default: all
            questions, split by a hash of their IDs: about 30%, 30%, and 40%.
        objective: decision_useful, accuracy, both, a metric such as recall@5 or judged_useful, or MODULE:FUNCTION;
            auto: judged_useful if --judge-lm is given, or the metric of --judge; else decision_useful if evidence is
            labeled, else accuracy. Repeatable, and may include costs (lm_calls, tokens, seconds, dollars); the best
            program is chosen by the first objective.
        teleprompter: Name of the DSPy optimizer; pass an unknown name to list all.
        argument: Argument for the teleprompter, such as num_trials=10. Repeatable.
        trials: Number of trials, not counting the baseline's. Each set of demonstrations is tried at least once.
        max_passages: Maximum number of passages that each program shows the reader. Default: 5.
        seed: Seed for the split, the demonstrations, and the search.
        reader_check: Number of questions to use only for closed book and oracle evidence, from the questions left over
            after --sizes.
        allow_copies: Also try prompts that copy training questions, answers, or passages. Default: leave these
            prompts out.
        slice: Also break the test results down by a question column, by 'options' (whether the question has options),
            or by 'known' (whether the LM answers the question correctly without passages). Repeatable.
    """
    from querywright.arms import pairs
    from querywright.optimize.optimizers import optimizer_named
    from querywright.optimize.results import CompileSettings

    arguments = optimizer_named(teleprompter).parse(pairs(argument, "--argument"))
    counts = split_sizes(sizes)
    judging.beside(lm)
    check_folder(save_to, "--out")
    workspace = lm.open(output.home, run.threads)
    compile_and_show(
        technique, data.source, save_to, output, replace=replace, lm=workspace,
        **search.given(lm, needed=True), engine=search.engine, max_passages=max_passages, reader=reader, sizes=counts,
        reader_check=reader_check, reading=data.given, slices=slice,
        judge=judging.judge, judge_lm=judging.open(workspace, lm),
        settings=CompileSettings(
            objective=objective, trials=trials, seed=seed, threads=run.threads, max_failures=run.max_failures,
            allow_copies=allow_copies, teleprompter=teleprompter, arguments=arguments,
        ),
    )  # fmt: skip


def compile_and_show(
    technique: str, questions: Any, save_to: Path, output: opt.Results, *, replace: bool, **given: Any
) -> Workspace:
    """Compile, save, show, and log, and return the workspace; print the results even if saving fails."""
    from querywright.api import compile as compiled

    logged = tracking(output.log)
    failed: QuerywrightError | None = None
    with progress("opening collection and models") as update:
        tuned = compiled(technique, questions, out=None if replace else save_to, progress=update, tell=note, **given)
        try:
            tuned.save(save_to, replace=replace)
        except QuerywrightError as error:
            failed = error

    def shown() -> None:
        show_compiled(tuned, verbose=output.verbose)
        if failed is None:
            say(f"artifact: {save_to}")

    emit(output.as_json, {**tuned.to_json(), "artifact": None if failed else save_to.name}, shown)
    if failed is not None:
        raise failed
    logged(tuned, name=save_to.name, params={"lm": tuned.workspace.lm.model}, kept=[save_to])
    return tuned.workspace


def show_compiled(tuned: Compilation, *, verbose: bool = False) -> None:
    """Print the tables and verdicts of a compilation."""
    from querywright.data.types import Label
    from querywright.optimize.objectives import objective_named
    from querywright.optimize.results import BASELINE, UNTUNED
    from querywright.optimize.tables import pool_notes

    splits, workspace = tuned.splits, tuned.workspace
    objective = objective_named(tuned.settings.objectives[0])
    best = sorted(tuned.arms, key=lambda arm: -objective.value(arm.dev))[:SHOWN_ARMS]
    left_out = [len(arm.dev.rows) - len(objective.scores(arm.dev)) for arm in best]
    arms = [
        {
            "arm": arm.name,
            objective.name: _per_cent(objective.value(arm.dev))
            + (f" ({unscored} of {len(arm.dev.rows)} unscored)" if unscored else ""),
            "ENTAILED": _per_cent(arm.dev.label_share(Label.ENTAILED)),
            "prompts": arm.prompt,
            "knobs": _changed_knobs(tuned, arm),
        }
        for arm, unscored in zip(best, left_out, strict=True)
    ]
    notes = []
    if tuned.corrected is not None:
        dev, corrected = map(_per_cent, tuned.corrected)
        notes.append(
            f"the best of {len(tuned.arms)} arms scored {dev} on dev, where it was chosen; because of the winner's "
            f"curse, expect about {corrected} on new questions. The test results below show the actual score"
        )
    for why in dict.fromkeys(tuned.failed.values()):
        notes.append(f"left out ({why}): {', '.join(name for name, said in tuned.failed.items() if said == why)}")
    notes += pool_notes([changed(arm.dev, name=arm.name) for arm in best], splits.dev)
    notes += [f"could not create the prompts {name!r}: {why}" for name, why in tuned.nothing.items()]
    show_table(
        f"dev, {len(splits.dev)} questions, in percent: best {len(arms)} of {len(tuned.arms)} arms, with changed knobs",
        arms,
        notes=notes,
    )
    title = f"test, {len(splits.test)} questions, evaluated once"
    show_scores(title, tuned.test, workspace, verbose=verbose, notes=tuned.compared.below)
    show_verdicts(tuned.comparisons, verbose=verbose)
    show_slices(tuned.comparisons, tuned.slices)
    taught = tuned.recommended != BASELINE and tuned.compiled.prompt != UNTUNED
    say(
        f"recommended: {tuned.recommended} (chosen on dev); demonstrations for the technique: "
        f"{'yes' if taught else 'no'}, for the reader: {'yes' if tuned.reader_demos else 'no'}"
    )
    can_gain = tuned.verdict != "gain" and tuned.program.technique.LM_STAGES
    advice = "; a stronger LM may do better (--lm openai/...)" if can_gain else ""
    say(f"{tuned.sentence}{advice}", style="bold")
    stages = "; ".join(f"{stage} {cost.calls} ({cost.saved} cached)" for stage, cost in tuned.costs.items())
    for line in (f"LM calls by stage: {stages}" if verbose else "", workspace.cost_line()):
        if line:
            say(line)


def _per_cent(value: float) -> str:
    return "-" if value != value else f"{100 * value:.1f}"


def _changed_knobs(tuned: Compilation, arm: Candidate) -> str:
    """Return an arm's knobs that differ from their defaults, leaving out a passage budget that all arms share."""
    from querywright.optimize.results import BASELINE, PLAIN
    from querywright.programs import technique_class

    name = PLAIN if arm.name == BASELINE else tuned.technique
    defaults = {knob.name: knob.default for knob in technique_class(name).KNOBS}
    if len({one.knobs["max_passages"] for one in tuned.arms}) == 1:
        defaults["max_passages"] = arm.knobs["max_passages"]
    changed = (name for name, value in arm.knobs.items() if value != defaults[name])
    return " ".join(f"{name}={arm.knobs[name]}" for name in changed) or "-"


def split_sizes(text: str | None) -> tuple[int, int, int] | None:
    """Return the number of questions in train, dev, and test from ``--sizes``; None if it is not given."""
    if text is None:
        return None
    if not re.fullmatch(r"\s*[0-9]+\s*(,\s*[0-9]+\s*){2}", text):
        raise InputError(f"--sizes must be three positive integers, such as 20,40,80, but got {text!r}")
    train, dev, test = (int(part) for part in text.split(","))
    if min(train, dev, test) < 1:
        raise InputError(
            f"--sizes must be three positive integers, but got {text!r}; train, dev, and test each need questions"
        )
    return train, dev, test
