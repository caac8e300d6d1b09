"""A study's storage: one study for all workers, whatever kind it is, and no password in any message."""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import subprocess
import sys
import time
import traceback
import warnings

import optuna
import pytest
import sqlalchemy

from querywright.errors import InputError, QuerywrightError
from querywright.optimize.quiet import quiet_optuna
from querywright.optimize.study.postgres import PostgresServer
from querywright.optimize.study.spec import BudgetSpec
from querywright.optimize.study.storage import open_storage, with_plain_failures

WORKER = """
import sys
from pathlib import Path
from querywright.optimize.study.storage import open_storage
print("ready", flush=True)
sys.stdin.readline()
with open_storage(sys.argv[1], Path(sys.argv[2]), "s") as storage:
    study = storage.study(["maximize", "minimize"])
    for _ in range(int(sys.argv[3])):
        with storage.claims.wait("ask", 30):
            trial = study.ask()
        trial.suggest_float("x", 0, 1)
        trial.set_user_attr("rows", [{"id": "q", "scores": {"a": 0.5}}])
        study.tell(trial, [0.5, 1.0])
"""


def test_a_study_is_there_when_it_is_opened_again(open_study):
    first = open_study()
    trial = first.study(["maximize"]).ask()
    trial.suggest_int("n", 1, 3)
    first.study(["maximize"]).tell(trial, 0.25)
    first.set_attribute("prompts", {"mipro": [1, 2]})
    first.close()

    again = open_study()
    (trial,) = again.study(["maximize"], create=False).trials
    assert (trial.number, trial.value, list(trial.params)) == (0, 0.25, ["n"])
    assert again.attribute("prompts") == {"mipro": [1, 2]}
    assert again.attribute("other", 7) == 7


def test_a_study_begun_for_other_objectives_is_refused(open_study):
    open_study().study(["maximize"])
    with pytest.raises(InputError, match=r"begun for maximize .*not for maximize, minimize"):
        open_study().study(["maximize", "minimize"])
    with pytest.raises(InputError, match="begun for maximize"):
        open_study().study(["minimize"], create=False)


def test_a_study_that_is_not_there_is_not_made_by_looking(open_study):
    storage = open_study()
    for look in (
        lambda: storage.study(["maximize"], create=False),
        lambda: storage.attribute("a"),
        lambda: storage.set_attribute("a", 1),
    ):
        with pytest.raises(InputError, match=r"no study 's' in this storage; run it first"):
            look()


def test_studies_of_several_names_do_not_meet(open_study):
    open_study("one").study(["maximize"]).add_trial(optuna.trial.create_trial(value=1.0))
    other = open_study("two")
    assert other.study(["minimize"]).trials == []
    with other.claims.wait("x", 1):
        pass


def test_processes_that_begin_together_share_one_study(storage_text, tmp_path, open_study):
    command = [sys.executable, "-c", WORKER, storage_text, str(tmp_path / "study"), "6"]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0

    trials = open_study().study(["maximize", "minimize"]).trials
    assert [trial.number for trial in trials] == list(range(18))
    assert {trial.state.name for trial in trials} == {"COMPLETE"}


def test_a_trial_of_a_dead_worker_goes_on_under_its_number(open_study):
    study = open_study().study(["maximize"])
    began = study.ask()
    assert began.suggest_categorical("technique", ["a", "b"]) in {"a", "b"}

    other = open_study().study(["maximize"])
    (left,) = other.trials
    trial = optuna.trial.Trial(other, left._trial_id)
    assert trial.suggest_categorical("technique", ["a", "b"]) == began.params["technique"]
    other.tell(trial, 1.0)
    assert [(t.number, t.value) for t in study.trials] == [(0, 1.0)]


def test_looking_at_a_study_again_and_again_opens_nothing_more(open_study):
    storage = open_study()
    storage.study(["maximize"]).ask()
    seen = []
    for _ in range(20):
        assert storage.account(BudgetSpec()).spent.calls == 0
        assert [trial.number for trial in storage.study(["maximize"], create=False).trials] == [0]
        seen.append(len(os.listdir("/proc/self/fd")))
    assert seen[-1] == seen[0]


def test_a_database_that_fails_is_said_in_plain_words_and_without_the_error_it_came_from(postgres, tmp_path):
    def fails(url):
        engine = sqlalchemy.create_engine(url, hide_parameters=True)
        try:
            with engine.connect() as connection:
                connection.execute(sqlalchemy.text("SELECT * FROM nothing_there"))
        finally:
            engine.dispose()

    url = postgres.url_of("postgres:hunter2-secret").replace("postgresql:", "postgresql+psycopg:")
    for given, said in ((url, "the PostgreSQL storage cannot be used"), ("sqlite://", "study.sqlite of the study")):
        with pytest.raises(QuerywrightError, match=said) as caught:
            with_plain_failures(fails)(given)
        shown = "".join(traceback.format_exception(caught.value))
        assert "hunter2" not in shown
        assert "127.0.0.1" not in shown
        assert caught.value.__context__ is None


def test_optuna_is_quiet_while_it_is_open_and_as_before_afterwards(open_study, capfd):
    before = optuna.logging.get_verbosity()
    with open_study() as storage:
        storage.study(["maximize"])
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


def test_only_the_warning_of_experimental_samplers_is_quiet():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with quiet_optuna():
            optuna.samplers.TPESampler(group=True, multivariate=True)
            warnings.warn("other", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in seen] == ["other"]


SQLITE = """
import sys, time
from pathlib import Path
from querywright.optimize.study.storage import open_storage
with open_storage("sqlite", Path(sys.argv[1]), "s") as storage:
    storage.study(["maximize"]).ask()
    print("open", flush=True)
    time.sleep(60)
"""


def test_sqlite_is_for_one_process_and_a_second_is_told_what_to_do(tmp_path):
    folder = tmp_path / "a {b} %41 ?c=d #e"
    process = subprocess.Popen([sys.executable, "-c", SQLITE, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "open\n"
    began = time.monotonic()
    with pytest.raises(InputError, match=r"serves one process.*--storage journal"):
        open_storage("sqlite", folder, "s")
    assert time.monotonic() - began < 2

    process.kill()
    process.communicate()
    with open_storage("sqlite", folder, "s") as storage:
        assert len(storage.study(["maximize"]).trials) == 1
    assert (folder / "study.sqlite").stat().st_size


def test_a_damaged_sqlite_file_is_refused(tmp_path):
    (tmp_path / "study.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(QuerywrightError, match=r"study\.sqlite of the study cannot be used"):
        open_storage("sqlite", tmp_path, "s")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mysql://u:canary@h/d", r"'mysql://\.\.\.': only PostgreSQL"),
        ("postgresql+psycopg2://u:canary@h/d", r"'postgresql\+psycopg2://\.\.\.': the driver is psycopg"),
        ("sqlite:///study.db", r"'sqlite://\.\.\.': .* write sqlite"),
        ("redis://:canary@h", "claims and account"),
        ("postgresql:/u:canary@h/d", r"'\.\.\.'"),
        ("u:canary@h://d", "'...'"),
        ("jurnal", r"'jurnal': .*give journal"),
        ("", "give journal"),
    ],
)
def test_other_storages_are_refused_without_repeating_a_password(tmp_path, text, said):
    with pytest.raises(InputError, match=said) as caught:
        open_storage(text, tmp_path / "study", "s")
    assert "canary" not in str(caught.value)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:canary@h:port/d", "postgresql://u:canary@h/d?nothing=1", "postgresql://u:canary@h/d?port=a%zz"],
)
def test_a_url_that_is_none_is_refused_without_repeating_it(tmp_path, url):
    with pytest.raises(QuerywrightError, match=r"URL of the (PostgreSQL )?storage") as caught:
        open_storage(url, tmp_path, "s")
    assert "canary" not in everything_said(caught.value)


def test_a_missing_driver_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InputError, match=r'pip install "querywright\[postgres\]"'):
        open_storage("postgresql://u:canary@h/d", tmp_path, "s")


def test_a_server_that_is_not_there_or_does_not_answer_is_not_waited_for(tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        url = f"postgresql://user:canary@127.0.0.1:{port}/d"
        with pytest.raises(QuerywrightError, match="nothing listens there") as refused:
            open_storage(url, tmp_path, "s")
        silent.listen()
        began = time.monotonic()
        with pytest.raises(QuerywrightError, match="does not answer") as unanswered:
            open_storage(url, tmp_path, "s")
    assert time.monotonic() - began < 10
    for caught in (refused, unanswered):
        said = everything_said(caught.value)
        assert "canary" not in said
        assert "127.0.0.1" not in str(caught.value)


def test_a_wrong_password_is_said_and_not_shown(postgres, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    url = f"postgresql://locked:canary@127.0.0.1:{postgres.port}/postgres"
    with pytest.raises(QuerywrightError, match="refuses the user or the password") as caught:
        open_storage(url, tmp_path, "s")
    assert "canary" not in everything_said(caught.value) + caplog.text
    assert "locked" not in str(caught.value)


def test_the_password_of_an_open_storage_is_nowhere_to_be_read(postgres, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    database = postgres.new_database().rpartition("/")[2]
    postgres.psql(f"GRANT ALL ON DATABASE {database} TO locked; ALTER DATABASE {database} OWNER TO locked")
    postgres.psql("ALTER ROLE locked PASSWORD 'ca@n{a}ry'")
    url = f"postgres://locked:ca%40n%7Ba%7Dry@127.0.0.1:{postgres.port}/{database}"
    with open_storage(url, tmp_path / "study", "s") as storage:
        study = storage.study(["maximize"])
        study.tell(study.ask(), 1.0)
        shown = f"{storage!r} {study!r} {storage._trials._backend.engine!r} {caplog.text}"
    assert "ca@n" not in shown
    assert "ca%40" not in shown
    kept = [path.read_bytes() for path in (tmp_path / "study").rglob("*") if path.is_file()]
    assert not any(b"ca@n" in data or b"ca%40" in data for data in kept)


def everything_said(error: BaseException) -> str:
    """The error, its notes and every error that it came from."""
    return "".join(traceback.format_exception(error)) + repr(error.__cause__) + repr(error.__context__)


def test_tables_of_another_version_are_refused(postgres, tmp_path):
    with open_storage("sqlite", tmp_path, "s"):
        pass
    with sqlite3.connect(tmp_path / "study.sqlite") as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v99'")
    connection.close()
    url = postgres.new_database()
    with open_storage(url, tmp_path, "s"):
        pass
    with PostgresServer(url).connect() as other:
        other.execute("UPDATE alembic_version SET version_num = 'v99'")
    for text in ("sqlite", url):
        with pytest.raises(InputError, match="another version of Optuna"):
            open_storage(text, tmp_path, "s")
