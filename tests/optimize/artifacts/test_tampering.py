"""What somebody else may do to an artifact: all of it is refused, none of it runs."""

from __future__ import annotations

import subprocess
import sys

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
