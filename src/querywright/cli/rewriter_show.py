"""What the commands of ``querywright rewriter`` show: a training under way, and what came of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli.options import Json
from querywright.cli.show import note, print_json, say, show_table

if TYPE_CHECKING:
    from querywright.optimize.rewriter.train import Trained

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 40
"""Columns of a drawn curve."""

Update = Callable[[str, int, int], None]


def _curve(values: Sequence[float]) -> str:
    """Values as a line of bars, the least the lowest; more than fit are averaged."""
    if not values:
        return ""
    size = -(-len(values) // WIDTH)
    means = [sum(part) / len(part) for part in (values[n : n + size] for n in range(0, len(values), size))]
    low, high = min(means), max(means)
    spread = (high - low) or 1.0
    return "".join(BARS[round((value - low) / spread * (len(BARS) - 1))] for value in means)


def watched(update: Update, work: Path) -> Update:
    """Progress that also tells each look at dev, with the curve of the rewards up to then.

    Args:
        update: Shows the progress.
        work: The working folder of the training.
    """
    said = -1

    def both(what: str, done: int, total: int) -> None:
        nonlocal said
        update(what, done, total)
        if what != "reinforce":
            return
        lines = _log(work)
        looks = [line for line in lines if line["kind"] == "dev"]
        if looks and looks[-1]["step"] > said:
            said = looks[-1]["step"]
            note(_told(lines, looks[-1]))

    return both


def show_command(path: Path, /, *, as_json: Json = False) -> None:
    """Show what a rewriter is and what it is worth, or how far a training has come.

    Example: querywright rewriter show artifacts/mine

    Args:
        path: A rewriter's folder, or the working folder of a training.
    """
    from querywright.models.rewriters import read_rewriter
    from querywright.optimize.rewriter.settings import RUN

    if (path / RUN).is_file():
        found = _progress_of(path)
        if as_json:
            print_json(found)
        else:
            show_table(f"training in {path.name}", [{"what": k, "value": str(v)} for k, v in found.items()])
        return
    rewriter = read_rewriter(path)
    if as_json:
        print_json({"name": rewriter.name, "identity": rewriter.identity, "form": rewriter.form, **rewriter.card})
        return
    facts = {
        "identity": rewriter.identity,
        "base": f"{rewriter.base.name} ({rewriter.base.digest})",
        "form": rewriter.form,
        "techniques": ", ".join(rewriter.techniques),
        "recipe": rewriter.recipe,
        "created": rewriter.created,
    }
    show_table(rewriter.name, [{"what": name, "value": value} for name, value in facts.items()])
    say((rewriter.path / "README.md").read_text(encoding="utf-8"))


def _progress_of(work: Path) -> dict[str, Any]:
    """How far a training has come, by what is known of it."""
    from querywright.optimize.rewriter.checkpoints import read_json
    from querywright.optimize.rewriter.settings import RUN, STAGES

    facts = read_json(work / RUN)
    found: dict[str, Any] = {
        "technique": facts["technique"],
        "base": facts["base"]["name"],
        "recipe": facts["recipe"]["name"],
        "metric": facts["metric"],
    }
    for stage in STAGES:
        if stage in facts["stages"]:
            done = read_json(work / f"{stage}.json")
            begun = (work / stage).is_dir()
            found[stage] = "done" if done is not None else "begun" if begun else "not begun"
    lines = _log(work)
    steps = [line for line in lines if line["kind"] == "step"]
    looks = [line for line in lines if line["kind"] == "dev"]
    if steps:
        found["steps"] = f"{steps[-1]['step']} of {facts['recipe']['steps']}"
        found["reward"] = _curve([line["reward"] for line in steps if line["reward"] is not None])
        found["KL"] = steps[-1]["kl"]
    if looks:
        found["dev"] = " ".join(f"{line['value']:.3f}" for line in looks[-8:])
        found["dev, as written"] = looks[-1]["plain"]
    return found


def show_trained(trained: Trained) -> None:
    """The tables and verdicts of a training.

    Args:
        trained: What it made.
    """
    from querywright.optimize.tables import table_rows

    card: Mapping[str, Any] = trained.card
    for name, found in (("dev", trained.dev), ("test", trained.test)):
        if found is None:
            continue
        standing = card["standing"][name]
        show_table(
            f"{name}, {len(found.arms[0].rows)} questions",
            table_rows(found.arms),
            notes=[one.sentence for one in found.comparisons if one.metric == card["metric"]],
            breaks=("LM calls / question",),
        )
        if standing["warning"]:
            say(f"{name}: {standing['warning']}", style="bold red" if standing["verdict"] == "worse" else "bold")
    for one in card["guards"]["warnings"]:
        say(f"guard: {one}", style="bold")


def _log(work: Path) -> list[dict[str, Any]]:
    from querywright.optimize.rewriter.checkpoints import read_lines
    from querywright.optimize.rewriter.reinforce import LOG

    return read_lines(work / "reinforce" / LOG)


def _told(lines: Sequence[Mapping[str, Any]], look: Mapping[str, Any]) -> str:
    steps = [line for line in lines if line["kind"] == "step"]
    rewards = [line["reward"] for line in steps if line["reward"] is not None]
    kl = f", KL {steps[-1]['kl']:.3f}" if steps else ""
    plain = "" if look["plain"] is None else f" (as written {look['plain']:.3f})"
    return f"step {look['step']}: dev {look['value']:.3f}{plain}{kl}, reward {_curve(rewards)}"
