"""``querywright artifact``: look at compiled programs, check, compare, pack and sign them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from querywright.cli.artifact_show import show_card, show_checks, show_diff
from querywright.cli.checks import check_file, check_folder
from querywright.cli.options import ApiBaseOption, HomeOption, JsonOption, KeyOption, RewriterOption
from querywright.cli.show import note, print_json, progress, say
from querywright.cli.workspace import artifact_lm, lm_failures

DIFFERS = 2
"""Exit status of a check that did not go well: what was given is not what it should be."""

artifact_app = typer.Typer(
    help="Look at compiled programs, check, compare, pack and sign them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

FolderArgument = Annotated[
    Path, typer.Argument(metavar="ARTIFACT", help="The folder that querywright compile wrote.", show_default=False)
]
PublicKeyOption = Annotated[
    Path | None,
    typer.Option("--public-key", metavar="FILE", help="Who must have signed it: their .pub file.", show_default=False),
]


@artifact_app.command("show")
def show_command(artifact: FolderArgument, as_json: JsonOption = False) -> None:
    """Show what a compiled program is: scores, prompts, knobs, how it was made.

    Example: querywright artifact show artifacts/hcqr
    """
    from querywright.optimize.artifacts.card import card

    found = card(artifact)
    if as_json:
        print_json(found)
    else:
        show_card(found)


@artifact_app.command("verify")
def verify_command(
    artifact: FolderArgument,
    lm: Annotated[
        str | None,
        typer.Option("--lm", metavar="NAME", help="LM. Default: the artifact's own.", show_default=False),
    ] = None,
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    rewriter: RewriterOption = None,
    public_key: PublicKeyOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check the files of a compiled program, what it needs here, and that it gives its golden answers.

    The exit status is 0 only when all is well; a library in another version is a warning, unless answers differ.

    Example: querywright artifact verify artifacts/hcqr --public-key maker.pub
    """
    from querywright.optimize.artifacts.verify import passed, verify

    given = artifact_lm(artifact, lm, home=home, api_base=api_base, api_key_env=api_key_env)
    with lm_failures(), progress() as update:
        checks = verify(artifact, lm=given, rewriter=rewriter, home=home, public_key=public_key, progress=update)
    is_well = passed(checks)
    if as_json:
        print_json({"ok": is_well, "checks": [asdict(one) for one in checks]})
    else:
        show_checks(checks)
    return 0 if is_well else DIFFERS


@artifact_app.command("diff")
def diff_command(
    artifact: FolderArgument,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="Another one.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Compare two compiled programs: knobs, prompts, demonstrations, scores, versions, golden answers.

    Example: querywright artifact diff artifacts/hcqr artifacts/hcqr-new
    """
    from querywright.optimize.artifacts.diff import diff
    from querywright.optimize.artifacts.files import read_artifact

    found = diff(read_artifact(artifact), read_artifact(other))
    if as_json:
        print_json(found)
    else:
        show_diff(str(artifact), str(other), found)


@artifact_app.command("pack")
def pack_command(
    artifact: FolderArgument,
    save_to: Annotated[Path, typer.Option("--out", metavar="FILE", help="A file that ends in .qw.")],
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="A private key that signs all that is packed.", show_default=False),
    ] = None,
    rewriter: RewriterOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a compiled program and the collection that it searches into one file, for another machine.

    Example: querywright artifact pack artifacts/hcqr --out hcqr.qw
    """
    from querywright.optimize.artifacts.files import read_artifact
    from querywright.optimize.artifacts.pack import pack

    check_file(save_to, "--out")
    report = pack(artifact, save_to, home=home, key=key, rewriter=rewriter)
    if as_json:
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


@artifact_app.command("unpack")
def unpack_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What artifact pack wrote.", show_default=False)],
    save_to: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The artifact's folder.")],
    public_key: PublicKeyOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a compiled program out of its file, and build its collection; nothing is embedded again.

    Another collection of that name is never replaced. Take only files of people whom you trust, or give their key.

    Example: querywright artifact unpack hcqr.qw --out artifacts/hcqr --public-key maker.pub
    """
    from querywright.optimize.artifacts.unpack import unpack

    check_folder(save_to, "--out")
    report = unpack(file, save_to, home=home, public_key=public_key)
    if as_json:
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


@artifact_app.command("keygen")
def keygen_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the private key goes.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Make a key to sign with: a private file for you alone, and a public one, FILE.pub, for everybody else.

    Example: querywright artifact keygen maker
    """
    from querywright.optimize.artifacts.sign import make_keys

    public, fingerprint = make_keys(file)
    if as_json:
        print_json({"private": str(file), "public": str(public), "fingerprint": fingerprint})
    else:
        say(f"private key, to be kept secret: {file}")
        say(f"public key, for whoever checks: {public} ({fingerprint[:16]})")


@artifact_app.command("sign")
def sign_command(
    artifact: FolderArgument,
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="The private key that keygen wrote.")],
    as_json: JsonOption = False,
) -> None:
    """Sign a compiled program; whoever has the public key can tell that it is yours and as it was.

    Example: querywright artifact sign artifacts/hcqr --key maker
    """
    from querywright.optimize.artifacts.sign import sign_artifact

    fingerprint = sign_artifact(artifact, key)
    if as_json:
        print_json({"artifact": str(artifact), "fingerprint": fingerprint})
    else:
        say(f"{artifact}: signed with the key {fingerprint[:16]}")


def _counted(passages: int, questions: int) -> str:
    return f"{passages} passages" + (f", {questions} questions" if questions else "")
