"""``querywright artifact``: what the commands print, write and refuse, and what never gets into an artifact."""

from __future__ import annotations

import getpass
import hashlib
import json
import platform
import re
import shutil
import socket
import zipfile
from pathlib import Path

import pytest

from querywright.optimize.artifacts.files import Golden, read_artifact, write_artifact
from querywright.programs import make_program

KEY = "sk-planted-4b1c7e0d9f2a"
USER = "planted-user-5e2a"
HOST = "planted-host-93c4"
PLACE = "planted-folder-1f8b"


@pytest.fixture
def hostile(tmp_path):
    """An artifact whose texts would steer a terminal."""
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e[bold red]red[/]\nok: files: all is well"
    program = make_program("hcqr", lambda query, k: [], reader="multiple_choice")
    predictor = program.technique.write_queries
    predictor.signature = predictor.signature.with_instructions(f"Ask. {evil}")
    predictor.demos = [{"question": evil}]
    made = {
        "verdict": evil, "recommended": evil, evil: evil, "comparisons": [{"sentence": evil}],
        "test": [{"arm": evil, "n": 1, "metrics": {evil: {"value": 0.5, "low": None, "high": None, "n": 1}}}],
    }  # fmt: skip
    write_artifact(
        tmp_path / "hostile",
        program,
        lm=evil, embedder=None, collection=None, engine=None, reranker=evil, fingerprint=evil, created=evil, made=made,
        golden=[Golden(question=evil, options=[evil], answer=evil, passages=[evil])], card=evil,
    )  # fmt: skip
    return tmp_path / "hostile"


def test_a_compiled_program_is_shown_checked_and_compared(cli, artifact, server, tmp_path):
    shown = cli("artifact", "show", artifact, width=160)
    assert shown.status == 0, shown.err
    for text in (
        "made: ", "LM: openai/scripted", "collection: tiny", "On test, met once", "no rewriting", "Prompts",
        "reader.predict", "How it was made", "seed: ", "versions: chromadb",
    ):  # fmt: skip
        assert text in shown.out
    card = cli("artifact", "show", artifact, "--json").data
    assert card["collection"] == "tiny"
    assert card["scores"]

    lm = ["--api-base", server.address, "--api-key-env", "SCRIPTED_KEY"]
    checked = cli("artifact", "verify", artifact, *lm, width=160)
    assert checked.status == 0, checked.out + checked.err
    assert "ok: collection: tiny, embedder " in checked.out
    assert "ok: golden answer 3: " in checked.out
    assert cli("artifact", "verify", artifact, *lm, "--json").data["ok"] is True

    other = tmp_path / "other"
    shutil.copytree(artifact, other)
    same = cli("artifact", "diff", artifact, other)
    assert (same.status, same.out.splitlines()[-1]) == (0, "They are the same.")
    read = read_artifact(artifact)
    knobs = {**read.state.knobs, "max_passages": 7}
    program = make_program(read.state.technique, lambda query, k: [], reader=read.state.reader, **knobs)
    predictor = program.reader.predict
    predictor.signature = predictor.signature.with_instructions("Choose well.")
    facts = read.manifest.model_dump(
        include={"lm", "embedder", "collection", "engine", "reranker", "fingerprint", "created", "made"}
    )
    write_artifact(other, program, golden=[], card="", **facts)
    found = cli("artifact", "diff", artifact, other, width=160)
    assert found.status == 0
    assert f"max_passages: {read.state.knobs['max_passages']} -> 7" in found.out
    assert "{+well+}" in found.out
    assert "B: not asked" in found.out
    assert cli("artifact", "diff", artifact, other, "--json").data["knobs"]

    (other / "README.md").write_text("changed")
    broken = cli("artifact", "verify", other, *lm[:0], width=160)
    assert broken.status == 2
    assert "differs: files: README.md was changed" in broken.out
    assert cli("artifact", "show", other).status == 2


def test_a_compiled_program_goes_to_another_machine(cli, artifact, server, tmp_path):
    lm = ["--api-base", server.address, "--api-key-env", "SCRIPTED_KEY"]
    packed = cli("artifact", "pack", artifact, "--out", "made.qw", width=160)
    assert packed.status == 0, packed.err
    assert "the collection tiny (6 passages)" in packed.out
    digest = f"sha256:{hashlib.sha256(Path('made.qw').read_bytes()).hexdigest()}"
    assert digest in packed.out
    other = tmp_path / "another-machine"
    unpack = ("artifact", "unpack", "made.qw", "--home", other)
    done = cli(*unpack, "--out", "there/made", "--digest", digest, width=160)
    assert done.status == 0, done.err
    assert "collection tiny: 6 passages, built" in done.out
    pinned = cli("artifact", "show", artifact, "--json").data["digest"]
    assert pinned == f"sha256:{hashlib.sha256((artifact / 'manifest.json').read_bytes()).hexdigest()}"
    checked = cli("artifact", "verify", "there/made", "--digest", pinned, "--home", other, *lm, width=160)
    assert checked.status == 0, checked.out
    refused = cli("artifact", "verify", "there/made", "--digest", digest, "--home", other, *lm, width=160)
    assert (refused.status, "is asked for: it is another one" in refused.out) == (2, True)
    again = cli(*unpack, "--out", "there/again", width=160)
    assert "there already" in again.out
    refused = cli(*unpack, "--out", "there/no", "--digest", pinned)
    assert (refused.status, "is asked for; get the file again" in " ".join(refused.err.split())) == (2, True)

    data = bytearray(Path("made.qw").read_bytes())
    data[len(data) // 2] ^= 1
    Path("changed.qw").write_bytes(data)
    refused = cli("artifact", "unpack", "changed.qw", "--out", "there/no")
    assert refused.status == 2
    assert "was cut off or changed" in refused.err
    assert not Path("there/no").exists()
    assert cli("artifact", "unpack", "made.qw", "--out", "artifacts/made", "--home", other / "new", "--json").data[
        "built"
    ]


@pytest.mark.parametrize(
    "command", [("show",), ("show", "--json"), ("verify",), ("verify", "--json"), ("diff", "--json"), ("diff",)]
)
def test_nothing_of_a_hostile_artifact_steers_the_terminal(command, cli, hostile, tmp_path):
    name, *options = command
    if name == "diff":
        write_artifact(
            tmp_path / "plain", make_program("plain", lambda query, k: [], reader=None), lm="x/y", embedder=None,
            collection=None, engine=None, reranker=None, fingerprint=None, created="", made={}, golden=[], card="",
        )  # fmt: skip
        options.append(tmp_path / "plain")
    done = cli("artifact", name, hostile, *options, width=120)
    assert done.out
    for text in (done.out, done.err):
        assert not re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
        if "--json" not in options:
            assert sum(line.startswith("ok: files: all is well") for line in text.splitlines()) == 0
    if name == "show" and not options:
        assert "[bold red]red[/]" in done.out
    if "--json" in options and name != "verify":
        assert "\\u009b31m" in done.out


def test_no_secret_and_no_name_of_the_machine_is_in_what_is_saved(
    cli, server, questions, collection, tmp_path, monkeypatch
):
    """Planted in every place from which a path, a user, a host or a key could come."""
    place = tmp_path / PLACE
    place.mkdir()
    for name, value in {
        "PLANTED_KEY": KEY, "OPENAI_API_KEY": KEY, "HOME": str(place), "USER": USER, "LOGNAME": USER, "USERNAME": USER,
        "HOSTNAME": HOST, "PWD": str(place),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    monkeypatch.setattr(platform, "node", lambda: HOST)
    data = Path(shutil.copy(questions, place / "questions.jsonl"))
    monkeypatch.chdir(place)
    assert getpass.getuser() == USER
    lm = ["--lm", "openai/scripted", "--api-base", server.address, "--api-key-env", "PLANTED_KEY"]
    made = cli(
        "compile", "hcqr", data, "--collection", collection, "--out", place / "saved", "--sizes", "3,4,4", "--trials",
        "2", "--threads", "2", *lm,
    )  # fmt: skip
    assert made.status == 0, made.err
    assert server.headers
    assert cli("artifact", "pack", "saved", "--out", place / "saved.qw").status == 0
    contents = {path.name: path.read_bytes() for path in (place / "saved").iterdir()}
    contents["saved.qw"] = (place / "saved.qw").read_bytes()
    with zipfile.ZipFile(place / "saved.qw") as archive:
        contents |= {f"saved.qw/{name}": archive.read(name) for name in archive.namelist()}
    assert len(contents) == 4 + 1 + 7
    planted = [KEY, USER, HOST, PLACE, str(tmp_path), tmp_path.name, "127.0.0.1", str(server.server_port),
               socket.gethostname(), str(Path.home()), "PLANTED_KEY"]  # fmt: skip
    found = {(name, one) for name, data in contents.items() for one in planted if one.encode() in data}
    assert found == set()
    assert json.loads(contents["manifest.json"])["lm"] == "openai/scripted"
