"""Stores with random bytes changed, pages zeroed or the end cut off: what they cost is computed again, and no more."""

from __future__ import annotations

import hashlib
import random
import shutil
from pathlib import Path

import pytest

from querywright.models.budget import Budget
from querywright.models.engine_errors import LMStoreError
from querywright.models.store import FILE_NAME, Store

pytestmark = pytest.mark.slow

PAGE = 4096
WAYS = ["bytes", "bytes", "head", "page", "pages", "zeroed", "cut"]
KIND = {"lm": 60, "vector:words": 120}
RIGHT, GOES_ON, KEPT = (
    "a damaged store gives the right value or computes it again",
    "a damaged store ends no run",
    "a damaged store keeps what is computed later",
)


def entry(kind: str, number: int) -> tuple[str, bytes]:
    """A key and its value, told by its number."""
    key = hashlib.sha256(f"{kind} {number}".encode()).hexdigest()
    chance = random.Random(key)
    return key, chance.randbytes(1536 if kind != "lm" else chance.choice([40, 900, 5000]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, as a run leaves it."""
    folder = tmp_path_factory.mktemp("whole")
    store = Store(folder / FILE_NAME)
    for kind, count in KIND.items():
        store.put_many(kind, dict(entry(kind, number) for number in range(count)))
    Budget(store, "run", calls=1000).reserve()
    store.close()
    return folder


def damage(path: Path, chance: random.Random) -> str:
    """Damages a file in one of the ways in which files are damaged; says how."""
    data, how = (
        bytearray(path.read_bytes()),
        chance.choice(WAYS),
    )
    pages = len(data) // PAGE
    if how == "bytes":
        for _ in range(chance.choice([1, 4, 40, 400])):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif how in ("head", "page"):  # of the file, or of a page, where its structure is
        start = 0 if how == "head" else chance.randrange(pages) * PAGE
        for _ in range(chance.choice([1, 4])):
            data[start + chance.randrange(100)] = chance.randrange(256)
    elif how == "pages":
        one, other = (chance.randrange(pages) * PAGE for _ in range(2))
        data[one : one + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[one : one + PAGE]
    elif how == "zeroed":
        for _ in range(chance.choice([1, 3])):
            start = chance.randrange(pages) * PAGE
            data[start : start + PAGE] = bytes(PAGE)
    else:
        del data[chance.randrange(len(data)) :]
    path.write_bytes(data)
    return how


def run(folder: Path) -> tuple[int, int]:
    """What a run asks of a store, twice: how many values were wrong, and how many were computed."""
    store, wrong, computed = Store(folder / FILE_NAME), 0, []
    try:
        budget = Budget(store, "run", calls=1000)
        for kind, count in KIND.items():
            values = dict(entry(kind, number) for number in range(count + 3))
            for key, value in values.items():
                wrong += store.get_or_compute(kind, key, lambda value=value: computed.append(1) or value) != value
            found = store.get_many(kind, [*values])
            wrong += any(values.get(key) != value for key, value in found.items())
            wrong += not set(store.values(kind)) <= set(values.values())
        budget.reserve()
        budget.check()
    finally:
        store.close()
    return wrong, len(computed)


def test_a_damaged_store_costs_its_damage_alone(whole, tmp_path, times, attack):
    for turn in range(times(60)):
        folder, outcomes = tmp_path / "store", []
        shutil.copytree(whole, folder)
        case = turn, damage(folder / FILE_NAME, random.Random(turn))
        try:
            while len(outcomes) < 3:
                try:
                    outcomes.append(run(folder))
                except LMStoreError as error:  # the count of what was spent is gone, which is said, and once
                    attack.tried(GOES_ON, "run again" in str(error) and not outcomes, (*case, error))
                    outcomes.append((0, 0))
        except Exception as error:  # noqa: BLE001
            attack.tried(GOES_ON, False, (*case, repr(error)))
        else:
            attack.tried(GOES_ON, True)
            attack.tried(RIGHT, not any(wrong for wrong, _ in outcomes), (*case, outcomes))
            attack.tried(KEPT, not outcomes[-1][1], (*case, outcomes))
        shutil.rmtree(folder)
