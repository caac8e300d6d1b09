"""What somebody else may do to an artifact: all of it is refused, none of it runs."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from querywright.data.types import Passage
from querywright.errors import ArtifactError
from querywright.models.embedder import resolve_embedder
from querywright.models.store import open_store
from querywright.optimize.artifacts.load import load
from querywright.retrieval.index import build_collection

CHANGES = 320

TAMPERED = """
import os, random, sys
from collections import Counter
from pathlib import Path
from querywright.errors import ArtifactError
from querywright.optimize.artifacts.files import read_artifact
from querywright.optimize.program_state import program_from

folder, changes = Path(sys.argv[1]), int(sys.argv[2])
program_from(read_artifact(folder).state)  # what is imported late is imported now
WATCH = {"pickle", "marshal", "exec", "compile", "import", "socket", "subprocess", "os.system", "ctypes"}
events, written = set(), set()

def watch(event, args):
    if event.split(".")[0] in WATCH or event in WATCH:
        events.add(event)
    elif event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        written.add(os.fspath(args[0]))

chance = random.Random(20)
outcomes, kinds = Counter(), ("flip", "replace", "insert", "delete")
files = sorted(path for path in folder.iterdir())
sys.addaudithook(watch)
for turn in range(changes):
    file, kind = files[turn % len(files)], kinds[turn // len(files) % len(kinds)]
    whole = file.read_bytes()
    place = chance.randrange(len(whole))
    head, old, tail = whole[:place], whole[place], whole[place + 1:]
    other = chance.choice([byte for byte in range(256) if byte != old])
    made = {"flip": bytes([old ^ 1 << chance.randrange(8)]), "replace": bytes([other]),
            "insert": bytes([chance.randrange(256), old]), "delete": b""}[kind]
    file.write_bytes(head + made + tail)
    try:
        read_artifact(folder)
        outcomes["read"] += 1
        print("READ", file.name, kind, place)
    except ArtifactError:
        outcomes[file.name, kind] += 1
    file.write_bytes(whole)
read_artifact(folder)
print(sum(outcomes.values()), len(outcomes), outcomes["read"], sorted(events), len(written - set(map(str, files))))
"""


def test_every_changed_byte_of_every_file_is_refused_and_nothing_of_it_runs(own):
    done = subprocess.run(
        [sys.executable, "-c", TAMPERED, str(own), str(CHANGES)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    # Every change, of four files in four ways, and none that was read; no event, and no other file was opened to write.
    assert done.stdout.splitlines() == [f"{CHANGES} {4 * 4} 0 [] 0"]


@pytest.mark.parametrize("changed", [0, -1, 1000])
def test_nothing_is_opened_or_asked_for_an_artifact_that_was_changed(changed, own, saved, make_lm, make_engine):
    data = bytearray((own / "program.json").read_bytes())
    data[changed] ^= 1
    (own / "program.json").write_bytes(data)
    engine = make_engine()
    with pytest.raises(ArtifactError, match=r"program\.json was changed"):
        load(own, lm=make_lm(engine), home=own / "no-home")
    assert engine.asked == []
    assert not (own / "no-home").exists()


@pytest.mark.parametrize("name", ["../cards", "/etc/cards", "cards/../../x", "..", "a\x00b", "C:\\cards", "-rf"])
def test_a_manifest_cannot_name_a_place_outside(name, own, saved, place, write, make_lm):
    write(place / "x", collection=name, engine="dense", embedder="st:words", lm="scripted/model")
    with pytest.raises(ArtifactError, match="cannot be a collection's name"):
        load(place / "x", lm=make_lm(), home=place / "home")
    assert not (place / "home").exists() or not any((place / "home").iterdir())


def test_a_swapped_collection_is_refused(own, saved, word_model, tmp_path, make_lm, make_engine, world):
    home, engine = tmp_path / "home", make_engine()
    embedder = resolve_embedder("words", store=open_store(home))
    swapped = [*world.deciding.values(), *world.others[:-1], Passage("other-29", "Whatever is asked, it is wrong.")]
    build_collection("cards", swapped, embedder=embedder, home=home)
    with pytest.raises(ArtifactError, match="'cards' is not the one the program was compiled on"):
        load(own, lm=make_lm(engine), home=home)
    assert engine.asked == []
    open_store(home).close()


def test_a_collection_whose_passages_were_edited_in_place_is_refused(own, saved, tmp_path, make_lm):
    home = tmp_path / "home"
    shutil.copytree(saved[0] / "collections", home / "collections")
    shutil.copy(saved[0] / "store.sqlite", home)
    passages = next((home / "collections" / "cards").glob("generation-*/passages.jsonl"))
    passages.write_text(passages.read_text().replace("Decides 7.", "Decides 8.", 1))
    with pytest.raises(Exception, match=r"passages\.jsonl of the collection 'cards' is damaged") as error:
        load(own, lm=make_lm(), home=home)
    assert type(error.value).__name__ == "CollectionError"
    open_store(home).close()
