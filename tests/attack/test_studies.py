"""Journals and collections that were cut or changed: taken up where they can be, else refused."""

from __future__ import annotations

import random
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError, QuerywrightError
from querywright.optimize.study.storage import open_storage, plain_failures
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.index import build_collection

pytestmark = pytest.mark.slow

Hashed = runpy.run_path(str(Path(__file__).parents[1] / "retrieval" / "conftest.py"))["Hashed"]
damage = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("test_store.py")))).damage

TORN = "a torn journal costs at most the record that was being written"
GARBLED = "a damaged journal is taken up or refused in words"
WHOLE = "a damaged collection is refused or finds what it found"


def study_in(opened):
    return optuna.create_study(storage=opened.trials, study_name="s", direction="maximize", load_if_exists=True)


def trials(folder: Path) -> list[float | None]:
    with plain_failures(), open_storage("journal", folder, "s") as opened:
        return [one.value for one in study_in(opened).get_trials(states=[optuna.trial.TrialState.COMPLETE])]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A journal with eight trials that are told."""
    folder = tmp_path_factory.mktemp("journal")
    with open_storage("journal", folder, "s") as opened:
        study = study_in(opened)
        for number in range(8):
            trial = study.ask()
            trial.suggest_float("x", 0, 1)
            study.tell(trial, float(number))
    return folder


def test_a_journal_cut_at_every_byte_of_its_end_goes_on(written, tmp_path, times, attack):
    whole, out = (written / "journal.log").read_bytes(), tmp_path / "cut"
    lines = whole.splitlines(keepends=True)
    shutil.copytree(written, out)
    ends = range(len(whole) - sum(map(len, lines[-3:])), len(whole) + 1)
    for end in random.Random(12).sample(ends, min(len(ends), times(60))):
        (out / "journal.log").write_bytes(whole[:end])
        try:
            with open_storage("journal", out, "s") as opened:
                study = study_in(opened)
                study.tell(study.ask(), 99.0)
            found = trials(out)
            held = found[:7] == [float(n) for n in range(7)] and found[-1] == 99.0
        except Exception as error:  # noqa: BLE001
            held, found = False, repr(error)
        attack.tried(TORN, held, (end - len(whole), found))


def test_journals_with_changed_bytes(written, tmp_path, times, attack):
    for turn in range(times(40)):
        out, chance = tmp_path / str(turn), random.Random(turn)
        shutil.copytree(written, out)
        data = bytearray((out / "journal.log").read_bytes())
        for _ in range(chance.choice([1, 4, 40])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        (out / "journal.log").write_bytes(data)
        try:
            held, found = len(trials(out)) <= 8, ""
        except QuerywrightError as error:
            held, found = True, error
        except Exception as error:  # noqa: BLE001
            held, found = False, repr(error)
        attack.tried(GARBLED, held, (turn, found))
        shutil.rmtree(out)


def test_collections_with_changed_files(tmp_path, times, attack):
    passages = [Passage(f"p{n:03}", f"text {n}") for n in range(300)]
    build_collection("books", passages, embedder=Hashed(), home=tmp_path / "home")
    files = [one for one in sorted((tmp_path / "home" / "collections").rglob("*")) if one.is_file()]
    files = [one for one in files if one.stat().st_size]
    asked = [one.content for one in passages[::20]]

    def search(home: Path) -> list[str]:
        found = ChromaRetriever("books", embedder=Hashed(), home=home).search(asked, 1)
        return [hits[0].passage.content for hits in found]

    for turn in range(times(30)):
        home, chance = tmp_path / str(turn), random.Random(turn)
        shutil.copytree(tmp_path / "home", home)
        file = home / files[turn % len(files)].relative_to(tmp_path / "home")
        how = "gone" if turn % 7 == 6 else "changed"
        if how == "gone":
            file.unlink()
        elif turn % 5 == 4:
            file.write_bytes(b"")
        elif file.stat().st_size > 4096:
            damage(file, chance)
        else:
            file.write_bytes(bytes(byte ^ 1 << chance.randrange(8) for byte in file.read_bytes()))
        case = turn, file.name, how
        try:
            attack.tried(WHOLE, search(home) == asked, case)
        except CollectionError as error:
            attack.tried(WHOLE, "books" in str(error), (*case, error))
            again = build_collection("books", passages, embedder=Hashed(), home=home, prune=True)
            attack.tried("a refused collection is there again after one command", again.count == 300, case)
        except Exception as error:  # noqa: BLE001
            attack.tried(WHOLE, False, (*case, repr(error)))
        shutil.rmtree(home, ignore_errors=True)
