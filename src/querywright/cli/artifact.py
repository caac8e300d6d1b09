"""``querywright artifact``: look at compiled programs, check, compare, pack and sign them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from querywright.cli.artifact_show import show_card, show_checks, show_diff
from querywright.cli.checks import check_file, check_folder
from querywright.cli.options import File, Folder, Json, OutFile, OutFolder, Output, OwnLM, make_app
from querywright.cli.show import note, print_json, progress, say
from querywright.cli.workspace import artifact_lm, lm_failures

DIFFERS = 2
"""Exit status of a check that did not go well: what was given is not what it should be."""

artifact_app = make_app("artifact", "Look at compiled programs, check, compare, pack and sign them.")


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
    public_key: File | None = None,
    lm: OwnLM = OwnLM(),
    output: Output = Output(),
) -> int:
    """Check the files of a compiled program, what it needs here, and that it gives its golden answers.

    The exit status is 0 only when all is well; a library in another version is a warning, unless answers differ.

    Example: querywright artifact verify artifacts/hcqr --public-key maker.pub

    Args:
        artifact: The folder that querywright compile wrote.
        rewriter: A trained rewriter, in place of the artifact's own.
        public_key: Who must have signed it: their .pub file.
    """
    from querywright.optimize.artifacts.verify import passed, verify

    given = artifact_lm(artifact, lm, output.home)
    with lm_failures(), progress() as update:
        checks = verify(artifact, lm=given, rewriter=rewriter, home=output.home, public_key=public_key, progress=update)
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
    key: File | None = None,
    rewriter: Folder | None = None,
    output: Output = Output(),
) -> None:
    """Put a compiled program and the collection that it searches into one file, for another machine.

    Example: querywright artifact pack artifacts/hcqr --out hcqr.qw

    Args:
        artifact: The folder that querywright compile wrote.
        save_to: A file that ends in .qw.
        key: A private key that signs all that is packed.
        rewriter: The artifact's rewriter, where it is not in the working folder.
    """
    from querywright.optimize.artifacts.files import read_artifact
    from querywright.optimize.artifacts.pack import pack

    check_file(save_to, "--out")
    report = pack(artifact, save_to, home=output.home, key=key, rewriter=rewriter)
    if output.as_json:
        print_json(asdict(report))
        return
    held = (
        "no collection"
        if report.collection is None
        else f"the collection {report.collection} ({_counted(report.passages, report.questions)})"
    )
    held += f" and the rewriter {report.rewriter}" if report.rewriter else ""
    say(f"{save_to}: {artifact.name} and {held}; {report.size} bytes{', signed' if report.signed else ''}")
    if report.rewriter is None and read_artifact(artifact).manifest.rewriter is not None:
        note("its rewriter is too large to be packed; take its folder along, for --rewriter")
    say(f"on another machine: querywright artifact unpack {save_to.name} --out {artifact.resolve().name}")


@artifact_app.command(name="unpack")
def unpack_command(
    file: Path, /, *, save_to: OutFolder, public_key: File | None = None, output: Output = Output()
) -> None:
    """Take a compiled program out of its file, and build its collection; nothing is embedded again.

    Another collection of that name is never replaced. Take only files of people whom you trust, or give their key.

    Example: querywright artifact unpack hcqr.qw --out artifacts/hcqr --public-key maker.pub

    Args:
        file: What artifact pack wrote.
        save_to: The artifact's folder.
        public_key: Who must have signed it: their .pub file.
    """
    from querywright.optimize.artifacts.unpack import unpack

    check_folder(save_to, "--out")
    report = unpack(file, save_to, home=output.home, public_key=public_key)
    if output.as_json:
        print_json(asdict(report))
        return
    say(f"{save_to}: the artifact")
    if report.collection is not None:
        state = "built" if report.built else "there already"
        say(f"collection {report.collection}: {_counted(report.passages, report.questions)}, {state}")
    if report.rewriter is not None:
        say(f"rewriter {report.rewriter}: in the working folder")
    if public_key is None:
        note("nobody vouches for it: no --public-key was given")


@artifact_app.command(name="keygen")
def keygen_command(file: Path, /, *, as_json: Json = False) -> None:
    """Make a key to sign with: a private file for you alone, and a public one, FILE.pub, for everybody else.

    Example: querywright artifact keygen maker

    Args:
        file: Where the private key goes.
    """
    from querywright.optimize.artifacts.sign import make_keys

    public, fingerprint = make_keys(file)
    if as_json:
        print_json({"private": str(file), "public": str(public), "fingerprint": fingerprint})
    else:
        say(f"private key, to be kept secret: {file}")
        say(f"public key, for whoever checks: {public} ({fingerprint[:16]})")


@artifact_app.command(name="sign")
def sign_command(artifact: Path, /, *, key: File, as_json: Json = False) -> None:
    """Sign a compiled program; whoever has the public key can tell that it is yours and as it was.

    Example: querywright artifact sign artifacts/hcqr --key maker

    Args:
        artifact: The folder that querywright compile wrote.
        key: The private key that keygen wrote.
    """
    from querywright.optimize.artifacts.sign import sign_artifact

    fingerprint = sign_artifact(artifact, key)
    if as_json:
        print_json({"artifact": str(artifact), "fingerprint": fingerprint})
    else:
        say(f"{artifact}: signed with the key {fingerprint[:16]}")


def _counted(passages: int, questions: int) -> str:
    return f"{passages} passages" + (f", {questions} questions" if questions else "")
