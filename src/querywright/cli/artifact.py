"""``querywright artifact``: look at compiled programs, check, compare and pack them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from querywright.cli.artifact_show import show_card, show_checks, show_diff
from querywright.cli.checks import check_file, check_folder
from querywright.cli.options import Digest, Folder, Json, OutFile, OutFolder, Output, OwnLM, make_app
from querywright.cli.show import note, print_json, progress, say
from querywright.workspace import lm_failures

DIFFERS = 2
"""Exit status of a check that did not go well: what was given is not what it should be."""

artifact_app = make_app("artifact", "Look at compiled programs, check, compare and pack them.")


@artifact_app.command(name="show")
def show_command(artifact: Path, /, *, as_json: Json = False) -> None:
    """Show what a compiled program is: scores, prompts, knobs, how it was made.

    Example: querywright artifact show artifacts/hcqr

    Args:
        artifact: The folder that querywright compile wrote.
    """
    from querywright.optimize.artifacts.card import card

    found = card(artifact)
    if as_json:
        print_json(found)
    else:
        show_card(found)


@artifact_app.command(name="verify")
def verify_command(
    artifact: Path,
    /,
    *,
    rewriter: Folder | None = None,
    digest: Digest | None = None,
    lm: OwnLM = OwnLM(),
    output: Output = Output(),
) -> int:
    """Check the files of a compiled program, what it needs here, and that it gives its golden answers.

    The exit status is 0 only when all is well; a library in another version is a warning, unless answers differ.

    Example: querywright artifact verify artifacts/hcqr --digest sha256:...

    Args:
        artifact: The folder that querywright compile wrote.
        rewriter: A trained rewriter, in place of the artifact's own.
        digest: Refuse anything else; this is the SHA-256 of its manifest, as artifact show prints it.
    """
    from querywright.optimize.artifacts.verify import passed, verify

    given = lm.open(artifact, output.home)
    with lm_failures(), progress() as update:
        checks = verify(artifact, lm=given, rewriter=rewriter, home=output.home, digest=digest, progress=update)
    is_well = passed(checks)
    if output.as_json:
        print_json({"ok": is_well, "checks": [asdict(one) for one in checks]})
    else:
        show_checks(checks)
    return 0 if is_well else DIFFERS


@artifact_app.command(name="diff")
def diff_command(artifact: Path, other: Path, /, *, as_json: Json = False) -> None:
    """Compare two compiled programs: knobs, prompts, demonstrations, scores, versions, golden answers.

    Example: querywright artifact diff artifacts/hcqr artifacts/hcqr-new

    Args:
        artifact: The folder that querywright compile wrote.
        other: Another one.
    """
    from querywright.optimize.artifacts.diff import diff
    from querywright.optimize.artifacts.files import read_artifact

    found = diff(read_artifact(artifact), read_artifact(other))
    if as_json:
        print_json(found)
    else:
        show_diff(str(artifact), str(other), found)


@artifact_app.command(name="pack")
def pack_command(
    artifact: Path,
    /,
    *,
    save_to: OutFile,
    rewriter: Folder | None = None,
    output: Output = Output(),
) -> None:
    """Put a compiled program and the collection that it searches into one file, for another machine.

    Example: querywright artifact pack artifacts/hcqr --out hcqr.qw

    Args:
        artifact: The folder that querywright compile wrote.
        save_to: A file that ends in .qw.
        rewriter: The artifact's rewriter, where it is not in the working folder.
    """
    from querywright.optimize.artifacts.files import read_artifact
    from querywright.optimize.artifacts.pack import pack

    check_file(save_to, "--out")
    report = pack(artifact, save_to, home=output.home, rewriter=rewriter)
    if output.as_json:
        print_json(asdict(report))
        return
    held = (
        "no collection"
        if report.collection is None
        else f"the collection {report.collection} ({_counted(report.passages, report.questions)})"
    )
    held += f" and the rewriter {report.rewriter}" if report.rewriter else ""
    say(f"{save_to}: {artifact.name} and {held}; {report.size} bytes, {report.digest}")
    if report.rewriter is None and read_artifact(artifact).manifest.rewriter is not None:
        note("its rewriter is too large to be packed; take its folder along, for --rewriter")
    say(f"on another machine: querywright artifact unpack {save_to.name} --out {artifact.resolve().name}")


@artifact_app.command(name="unpack")
def unpack_command(
    file: Path, /, *, save_to: OutFolder, digest: Digest | None = None, output: Output = Output()
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
    if output.as_json:
        print_json(asdict(report))
        return
    say(f"{save_to}: the artifact")
    if report.collection is not None:
        state = "built" if report.built else "there already"
        say(f"collection {report.collection}: {_counted(report.passages, report.questions)}, {state}")
    if report.rewriter is not None:
        say(f"rewriter {report.rewriter}: in the working folder")


def _counted(passages: int, questions: int) -> str:
    return f"{passages} passages" + (f", {questions} questions" if questions else "")
