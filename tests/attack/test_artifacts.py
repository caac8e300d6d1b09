"""Artifacts that were changed, cut or written by a process that was killed: whole, or refused."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# What the tests of artifacts stand on: a small collection, a program over it, an embedder without a model.
for name in ("optimize/conftest.py", "optimize/artifacts/conftest.py"):
    made = runpy.run_path(str(Path(__file__).parents[1] / name))
    wanted = {"make_world", "make_lm", "write", "place", "artifact", "built", "saved", "word_model"}
    globals().update({key: made[key] for key in wanted & made.keys()})

REFUSED = "an artifact with a changed byte is rejected, and none of it runs"
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
outcomes, kinds = Counter(), ("flip", "replace", "insert", "delete", "cut")
files = sorted(path for path in folder.iterdir())
sys.addaudithook(watch)
for turn in range(changes):
    file, kind = files[turn % len(files)], kinds[turn // len(files) % len(kinds)]
    whole = file.read_bytes()
    place = chance.randrange(len(whole))
    head, old, tail = whole[:place], whole[place], whole[place + 1:]
    other = chance.choice([byte for byte in range(256) if byte != old])
    made = {"flip": bytes([old ^ 1 << chance.randrange(8)]), "replace": bytes([other]),
            "insert": bytes([chance.randrange(256), old]), "delete": b"", "cut": b""}[kind]
    file.write_bytes(head + made + (b"" if kind == "cut" else tail))
    try:
        read_artifact(folder)
        outcomes["read"] += 1
        print("READ", file.name, kind, place)
    except ArtifactError as error:
        assert file.name in str(error), (file.name, error)
        outcomes[file.name, kind] += 1
    file.write_bytes(whole)
read_artifact(folder)
print(sum(outcomes.values()), len(outcomes), outcomes["read"], sorted(events), len(written - set(map(str, files))))
"""


def test_changed_artifacts(artifact, times, attack):
    count = 20 * times(20)
    done = subprocess.run([sys.executable, "-c", TAMPERED, str(artifact), str(count)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *read, told = done.stdout.splitlines()
    # Every change, of four files in five ways; no event, and no other file was opened to write.
    assert told == f"{count} {4 * 5 + bool(read)} {len(read)} [] 0"
    for turn in range(count):
        attack.tried(REFUSED, turn >= len(read), read[turn : turn + 1])
