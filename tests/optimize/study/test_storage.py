"""A study's storage: one study for all workers, whatever kind it is, and no password in any message."""

from __future__ import annotations

import logging
import socket
import traceback

import optuna
import pytest
import sqlalchemy

from querywright.errors import InputError, QuerywrightError
from querywright.optimize.study.engine import _workers_beside
from querywright.optimize.study.storage import open_storage, plain_failures


def study_in(storage):
    return optuna.create_study(
        storage=storage.trials, study_name=storage.name, direction="maximize", load_if_exists=True
    )


def test_a_study_is_there_when_it_is_opened_again_and_is_not_made_by_looking(open_study):
    first = open_study()
    for look in (first.records, lambda: first.attribute("a"), lambda: first.set_attribute("a", 1)):
        with pytest.raises(InputError, match=r"does not contain a study named 's'; run the study first"):
            look()
    study = study_in(first)
    done, left = study.ask(), study.ask()
    study.tell(done, 0.25)
    technique = left.suggest_categorical("technique", ["a", "b"])
    first.set_attribute("facts", {"dev": [1, 2]})
    again = open_study()
    other = study_in(again)
    trial = optuna.trial.Trial(other, other.trials[1]._trial_id)  # of a worker that died
    assert trial.suggest_categorical("technique", ["a", "b"]) == technique
    other.tell(trial, 1.0)
    assert [(one.number, one.value) for one in study.trials] == [(0, 0.25), (1, 1.0)]
    assert (again.attribute("facts"), again.attribute("other", 7)) == ({"dev": [1, 2]}, 7)
    assert study_in(open_study("other")).trials == []


def test_half_a_record_that_a_killed_process_left_is_cut_and_other_damage_is_said(tmp_path):
    def opened():
        return open_storage("journal", tmp_path, "s")

    with opened() as storage:
        study_in(storage).ask()
    journal = tmp_path / "journal.log"
    assert journal.stat().st_mode & 0o777 == 0o600
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "worker')
    with opened() as storage:
        study_in(storage).ask()
        assert [one.number for one in study_in(storage).trials] == [0, 1]
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"no record\n", *lines[1:]]))
    with pytest.raises(InputError, match=r"cannot read a record in journal.log"):
        opened()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mysql://u:canary@h/d", "unsupported storage mysql://; use journal"),
        ("postgresql+psycopg2://u:canary@h/d", r"unsupported storage postgresql\+psycopg2://.* driver is psycopg"),
        ("sqlite:///study.db", "use journal "),
        ("u:canary@h://d", "unsupported storage; use journal"),
        ("jurnal", "unsupported storage 'jurnal'"),
        ("postgresql://u:canary@h:port/d", "cannot parse the PostgreSQL URL"),
        ("postgresql://u:canary@h/d?nothing=1", "Percent-encode special characters in the password"),
    ],
)
def test_other_storages_are_refused_without_repeating_a_password(tmp_path, text, said):
    with pytest.raises(InputError, match=said) as caught:
        open_storage(text, tmp_path / "study", "s")
    assert "canary" not in "".join(traceback.format_exception(caught.value))


def test_a_server_that_is_not_there_is_not_waited_for_and_not_named(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"postgresql://user:canary@127.0.0.1:{silent.getsockname()[1]}/d"
        with pytest.raises(QuerywrightError, match="no server is listening") as refused:
            open_storage(url, tmp_path, "s")
    said = "".join(traceback.format_exception(refused.value)) + caplog.text
    assert "canary" not in said
    assert "127.0.0.1" not in said


def test_a_database_that_fails_is_said_in_plain_words(postgres, tmp_path):
    url = postgres.url_of("postgres:hunter2-secret").replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(url, hide_parameters=True)
    said = "cannot use the PostgreSQL storage"
    with pytest.raises(QuerywrightError, match=said) as caught, plain_failures(), engine.connect() as connection:
        connection.execute(sqlalchemy.text("SELECT * FROM nothing_there"))
    engine.dispose()
    shown = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in shown
    assert "127.0.0.1" not in shown
    locked = f"postgres://locked:canary@127.0.0.1:{postgres.port}/postgres"
    with pytest.raises(QuerywrightError, match="rejected the user or password") as caught:
        open_storage(locked, tmp_path, "s")
    assert "canary" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.slow
def test_a_worker_that_ends_early_is_told_of_with_its_last_words(tmp_path, caplog):
    with _workers_beside(1, tmp_path, "journal", None):
        pass
    assert "a worker exited early with status 2: error: " in caplog.text
    assert "does not contain a study" in caplog.text


def test_a_damaged_last_record_of_a_journal_is_refused_in_words_once_another_follows(tmp_path):
    with open_storage("journal", tmp_path, "s") as opened:
        study_in(opened).ask()
    journal = tmp_path / "journal.log"
    journal.write_bytes(journal.read_bytes()[:-3] + b"?}\n")

    def used():
        with open_storage("journal", tmp_path, "s") as opened:
            study_in(opened).ask()
            study_in(opened).get_trials()

    with pytest.raises(InputError, match=r"cannot read a record in journal\.log"):
        used()
