"""``querywright artifact``: look at compiled programs, check, compare and pack them.

What is printed of an artifact, which anybody may have made, cannot steer the terminal or pass for a line of ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from querywright.cli import options as opt
from querywright.cli.checks import check_file, check_folder
from querywright.cli.show import emit, note, one_line, progress, say, show_facts, show_table

Compiled = Annotated[Path, Parameter(help="The folder that querywright compile wrote.")]

DIFFERS = 2
"""Exit status of a check that did not go well: what was given is not what it should be."""

FACTS = {
    "technique": "technique", "reader": "reader", "lm": "LM", "collection": "collection", "engine": "engine",
    "embedder": "embedder", "reranker": "reranker", "writer": "writer", "fingerprint": "fingerprint",
    "created": "created", "digest": "digest",
}  # fmt: skip
MARKS = {"equal": ("", ""), "del": ("[-", "-]"), "ins": ("{+", "+}")}
STATE_STYLES = {"ok": "green", "warning": "yellow", "differs": "bold red", "not possible": "bold red"}

artifact_app = opt.make_app("artifact", "Look at compiled programs, check, compare and pack them.")


@artifact_app.command(name="show")
def show_command(artifact: Compiled, /, *, as_json: opt.Json = False) -> None:
    """Show what a compiled program is: scores, prompts, knobs, how it was made.

    Example: querywright artifact show artifacts/hcqr
    """
    from querywright.optimize.artifacts.card import card

    found = card(artifact)
    emit(as_json, found, lambda: _show_card(found))


@artifact_app.command(name="verify")
def verify_command(
    artifact: Compiled,
    /,
    *,
    writer: opt.WriterLM = opt.WriterLM(),
    digest: opt.Digest | None = None,
    lm: opt.LMOptions = opt.LMOptions(),
    output: opt.Output = opt.Output(),
) -> int:
    """Check the files of a compiled program, what it needs here, and that it gives its golden answers.

    The exit status is 0 only when all is well; a library in another version is a warning, unless answers differ.

    Example: querywright artifact verify artifacts/hcqr --digest sha256:...

    Args:
        digest: Refuse anything else; this is the SHA-256 of its manifest, as artifact show prints it.
    """
    from querywright.optimize.artifacts.verify import passed, verify

    asked = {"lm": lm.for_artifact(artifact, output.home), "writer_lm": writer.beside(lm)}
    with progress("reading the artifact") as update:
        checks = verify(artifact, **asked, home=output.home, digest=digest, progress=update)
    is_well = passed(checks)
    emit(output.as_json, {"ok": is_well, "checks": [asdict(one) for one in checks]}, lambda: _show_checks(checks))
    return 0 if is_well else DIFFERS


@artifact_app.command(name="diff")
def diff_command(artifact: Compiled, other: Path, /, *, as_json: opt.Json = False) -> None:
    """Compare two compiled programs: knobs, prompts, demonstrations, scores, versions, golden answers.

    Example: querywright artifact diff artifacts/hcqr artifacts/hcqr-new

    Args:
        other: Another one.
    """
    from querywright.optimize.artifacts.diff import diff
    from querywright.optimize.artifacts.files import read_artifact

    found = diff(read_artifact(artifact), read_artifact(other))
    emit(as_json, found, lambda: _show_diff(str(artifact), str(other), found))


@artifact_app.command(name="pack")
def pack_command(
    artifact: Compiled,
    /,
    *,
    save_to: opt.OutFile,
    writer_lm: opt.Folder | None = None,
    output: opt.Output = opt.Output(),
) -> None:
    """Put a compiled program and the collection that it searches into one file, for another machine.

    Example: querywright artifact pack artifacts/hcqr --out hcqr.qw

    Args:
        save_to: A file that ends in .qw.
        writer_lm: The artifact's rewriter, where it is not in the working folder.
    """
    from querywright.optimize.artifacts.files import read_artifact
    from querywright.optimize.artifacts.pack import pack

    check_file(save_to, "--out")
    report = pack(artifact, save_to, home=output.home, writer_lm=writer_lm)

    def shown() -> None:
        held = f"the collection {report.collection} ({_counted(report)})" if report.collection else "no collection"
        held += f" and the rewriter {report.writer}" if report.writer else ""
        say(f"{save_to}: {artifact.name} and {held}; {report.size} bytes, {report.digest}")
        writer = read_artifact(artifact).manifest.writer
        if report.writer is None and writer is not None and writer.checksum:
            note("its rewriter is too large to be packed; take its folder along, for --writer-lm")
        say(f"on another machine: querywright artifact unpack {save_to.name} --out {artifact.resolve().name}")

    emit(output.as_json, asdict(report), shown)


@artifact_app.command(name="unpack")
def unpack_command(
    file: Path, /, *, save_to: opt.OutFolder, digest: opt.Digest | None = None, output: opt.Output = opt.Output()
) -> None:
    """Take a compiled program out of its file, and build its collection; nothing is embedded again.

    Another collection of that name is never replaced. Take only files of people whom you trust, or give the
    digest that they told you.

    Example: querywright artifact unpack hcqr.qw --out artifacts/hcqr --digest sha256:...

    Args:
        file: What artifact pack wrote.
        save_to: The artifact's folder.
        digest: Refuse any other file; this is its SHA-256, as artifact pack prints it.
    """
    from querywright.optimize.artifacts.pack import unpack

    check_folder(save_to, "--out")
    report = unpack(file, save_to, home=output.home, digest=digest)

    def shown() -> None:
        say(f"{save_to}: the artifact")
        if report.collection is not None:
            say(f"collection {report.collection}: {_counted(report)}, {'built' if report.built else 'there already'}")
        if report.writer is not None:
            say(f"rewriter {report.writer}: in the working folder")

    emit(output.as_json, asdict(report), shown)


def _counted(report: Any) -> str:
    return f"{report.passages} passages" + (f", {report.questions} questions" if report.questions else "")


def _show_card(card: Mapping[str, Any]) -> None:
    title = one_line(f"{card['artifact']}: {card['title'] or card['technique']}")
    say(title + (f" ({one_line(card['source'])})" if card["source"] else ""), style="bold")
    if card["verdict"]:
        say(one_line(f"{card['verdict'].rstrip('.')}."))
    show_facts({name: card[key] for key, name in FACTS.items() if card[key] is not None}, indent=2)
    recommended = {card["recommended"]: " (recommended)"}
    _show_scores(
        (f"{one['arm']}{recommended.get(one['arm'], '')}", {"n": str(one["n"])}, one["metrics"])
        for one in card["scores"]
    )
    for sentence in card["comparisons"]:
        say(one_line(f"- {sentence}"))
    changed = {
        name: f"{_value(one['value'])} (default {_value(one['default'])})"
        for name, one in card["knobs_changed"].items()
    }
    prompts = {
        name: {"instructions": one["instructions"], "fields": one["fields"], "demonstration": one["demos"]}
        for name, one in card["prompts"].items()
    }
    versions = ", ".join(f"{name} {one}" for name, one in card["versions"].items())
    made = {name: _spent(value) if name == "cost" else value for name, value in card["made"].items()}
    show_facts({"Knobs that differ from their defaults": changed or {"none": "-"}})
    show_facts({"Prompts": prompts}, lines=True)
    show_facts({"How it was made": {**made, "versions": versions, "golden answers": len(card["golden"])}})


def _spent(cost: Any) -> Any:
    """Counters by stage, without those that are zero and stages that have no other."""
    if not isinstance(cost, Mapping):
        return cost
    told = {name: _spent(value) for name, value in cost.items()}
    return {name: value for name, value in told.items() if value not in (0, {})}


def _show_checks(checks: Sequence[Any]) -> None:
    for check in checks:
        say(one_line(f"{check.state}: {check.name}: {check.said}"), style=STATE_STYLES[check.state])
        if check.remedy and check.state != "ok":
            say(one_line(check.remedy), indent=4)


def _show_diff(one: str, other: str, found: Mapping[str, Any]) -> None:
    say(f"A: {one}   B: {other}", style="bold")
    if found["same"]:
        say("They are the same.")
        return
    titles = {"facts": "What they are", "knobs": "Knobs", "versions": "Versions"}
    facts = {
        title: {row["name"]: f"{_value(row['a'])} -> {_value(row['b'])}" for row in found[key]}
        for key, title in titles.items()
    }
    prompts = {
        row["predictor"]: "".join(text.join(MARKS[kind]) for kind, text in row["changes"]) for row in found["prompts"]
    }
    demonstrations = {
        row["predictor"]: {"in both": row["both"], "only in A": row["only_a"], "only in B": row["only_b"]}
        for row in found["demonstrations"]
    }
    texts = {"Prompts: [-only in A-] {+only in B+}": prompts, "Demonstrations": demonstrations}
    golden = [
        {
            "question": row["question"], "options": row["options"],
            **({"history": row["history"]} if "history" in row else {}),
            **{side.upper(): row[side] or "not asked" for side in ("a", "b")},
        }
        for row in found["golden"]
    ]  # fmt: skip
    show_facts({title: rows for title, rows in facts.items() if rows})
    show_facts({title: rows for title, rows in texts.items() if rows}, lines=True)
    if golden:
        show_facts({"Golden answers that differ": golden})
    _show_scores((f"{row['arm']}, {row['metric']}", {}, {"A": row["a"], "B": row["b"]}) for row in found["scores"])


def _value(value: Any) -> str:
    """A value of a manifest, JSON where it is no text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _show_scores(rows: Iterable[tuple[str, Mapping[str, str], Mapping[str, Any]]]) -> None:
    """A table of means on test: of each row its name, what else is said of it, and its scores."""
    told = list(rows)
    metrics = list(dict.fromkeys(name for _, _, scores in told for name in scores))
    table = [
        {"arm": one_line(name), **more, **{one_line(one): _percent(scores.get(one)) for one in metrics}}
        for name, more, scores in told
    ]
    if table:
        show_table("On test, met once; mean and 95 % interval", table)


def _percent(score: Mapping[str, Any] | None) -> str:
    from querywright.metrics.statistics import Mean
    from querywright.optimize.tables import percent

    if score is None:
        return "-"
    value, low, high = (math.nan if score[key] is None else score[key] for key in ("value", "low", "high"))
    return percent(Mean(value, low, high, score["n"], score["unscored"])) if math.isfinite(value) else "-"
