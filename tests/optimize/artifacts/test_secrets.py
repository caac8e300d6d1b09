"""What must never be in an artifact: planted where it could come from, and looked for in every file."""

from __future__ import annotations

import platform
import socket
import zipfile

import pytest

from querywright.models.embedder import resolve_embedder
from querywright.models.lm import resolve_lm
from querywright.models.store import open_store
from querywright.optimize.artifacts.pack import pack
from querywright.optimize.artifacts.save import save_compiled
from querywright.optimize.search import CompileSettings, compile_program
from querywright.retrieval.engines import open_retriever

PLANTED = {
    "key": "sk-planted-4b1c7e0d9f2a", "password": "planted-pass-77d1", "user": "planted-user-5e2a",
    "host": "planted-host-93c4", "folder": "planted-folder-1f8b", "address": "planted-address-2c6d.example",
    "header": "planted-header-8e0f",
}  # fmt: skip


@pytest.mark.parametrize("wins", ["rewriting", "plain"])
def test_nothing_planted_is_in_an_artifact_or_a_packed_file(
    wins, saved, make_world, make_engine, tmp_path, monkeypatch
):
    place = tmp_path / PLANTED["folder"]
    place.mkdir()
    for name in ("OPENAI_API_KEY", "PLANTED_TOKEN"):
        monkeypatch.setenv(name, PLANTED["key"])
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, PLANTED["user"])
    for name in ("HOME", "PWD", "TMPDIR"):
        monkeypatch.setenv(name, str(place))
    monkeypatch.setenv("HOSTNAME", PLANTED["host"])
    monkeypatch.setattr(socket, "gethostname", lambda: PLANTED["host"])
    monkeypatch.setattr(platform, "node", lambda: PLANTED["host"])
    monkeypatch.chdir(place)
    address = f"https://{PLANTED['user']}:{PLANTED['password']}@{PLANTED['address']}/v1?key={PLANTED['key']}"
    lm = resolve_lm("openai/scripted", api_base=address, api_key=PLANTED["key"])
    lm.engine.inner = make_engine()  # the LM of a user, answered by the script
    embedder = resolve_embedder("words", store=open_store(saved[0]))
    retriever = open_retriever("cards", embedder=embedder, home=saved[0])
    world = make_world(wins)
    compiled = compile_program(
        "hcqr",
        world.splits,
        retriever=retriever,
        lm=lm,
        knobs={"max_passages": 1},
        settings=CompileSettings(n_trials=3, demo_sizes=(1,), threads=1),
    )
    lm.kwargs.update(api_base=address, extra_headers={"x": PLANTED["header"]})
    save_compiled("saved", compiled, world.splits, lm=lm, threads=1)
    pack(place / "saved", place / "saved.qw", home=saved[0])
    contents = {path.name: path.read_bytes() for path in (*(place / "saved").iterdir(), place / "saved.qw")}
    with zipfile.ZipFile("saved.qw") as archive:
        contents |= {f"packed {name}": archive.read(name) for name in archive.namelist()}
    assert len(contents) == 4 + 1 + 7
    looked_for = {*PLANTED.values(), str(tmp_path), str(saved[0]), saved[0].parent.name, "/tmp/", "/home/", "api_base"}
    assert {(name, one) for name, data in contents.items() for one in looked_for if one.encode() in data} == set()
