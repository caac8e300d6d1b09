"""A claim is one worker's at a time, and is free again when the worker is killed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from querywright.errors import QuerywrightError
from querywright.optimize.study.claims import ClaimLostError, FileClaims
from querywright.optimize.study.postgres import PostgresServer
from querywright.optimize.study.postgres_claims import PostgresClaims

HOLDER = """
import sys, time
from pathlib import Path
from querywright.optimize.study.storage import open_storage
with open_storage(sys.argv[1], Path(sys.argv[2]), "s") as storage:
    with storage.claims.take("trial-7"), storage.claims.take("other"):
        print("held", flush=True)
        time.sleep(60)
"""


def test_a_claim_is_one_holders_at_a_time(open_study):
    mine, other = open_study().claims, open_study().claims
    with mine.take("a/b: c") as claim:
        assert claim.name == "a/b: c"
        assert claim.held
        assert other.take("a/b: c") is None
        assert mine.take("a/b: c") is None  # not twice by the same worker either
        with other.take("b") as second:
            assert second.held
    assert not claim.held
    with pytest.raises(ClaimLostError, match="a/b: c"):
        claim.check()
    with other.take("a/b: c") as claim:
        claim.check()


def test_one_thread_at_a_time_is_inside(open_study):
    workers = [open_study().claims for _ in range(3)]
    inside, most = [], []

    def work(n):
        with workers[n % 3].wait("ask", 30):
            inside.append(n)
            most.append(len(inside))
            time.sleep(0.001)
            inside.remove(n)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(30)))
    assert most == [1] * 30


def test_waiting_ends_at_its_deadline(open_study):
    mine, other = open_study().claims, open_study().claims
    with mine.take("a"):
        began = time.monotonic()
        with pytest.raises(QuerywrightError, match=r"'a' for 0\.3 seconds"), other.wait("a", 0.3):
            pass
        assert 0.3 <= time.monotonic() - began < 3
    with other.wait("a", 0.3) as claim:
        assert claim.held


def test_a_killed_process_holds_nothing(storage_text, tmp_path, open_study):
    command = [sys.executable, "-c", HOLDER, storage_text, str(tmp_path / "study")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    claims = open_study().claims
    assert claims.take("trial-7") is None
    process.kill()
    process.communicate()
    began = time.monotonic()
    with claims.wait("trial-7", 10), claims.wait("other", 10):
        assert time.monotonic() - began < 5


def test_closing_gives_everything_back(open_study):
    storage = open_study()
    claim = storage.claims.take("a")
    storage.close()
    assert not claim.held
    claim.release()
    with open_study().claims.wait("a", 5):
        pass


def test_a_claim_whose_file_was_removed_is_lost(tmp_path):
    claims = FileClaims(tmp_path / "claims")
    claim = claims.take("a")
    shutil.rmtree(tmp_path / "claims")
    assert not claim.held
    with claims.take("a") as again:
        assert again.held
        assert not claim.held
    claims.close()


def test_names_of_any_length_and_kind_are_told_apart(open_study):
    claims = open_study().claims
    names = ["..", "../x", "x" * 5000, "x" * 5001, "ä", "ae", "%C3%A4", ""]
    taken = [claims.take(name) for name in names]
    assert all(taken)
    assert [claims.take(name) for name in names] == [None] * len(names)


def test_claims_are_lost_together_when_the_server_ends_the_session(postgres):
    server = PostgresServer(postgres.new_database())
    claims, other = PostgresClaims(server.connect, "s"), PostgresClaims(server.connect, "s")
    first, second = claims.take("a"), claims.take("b")
    assert second.held
    end_sessions(postgres)
    assert not first.held
    with pytest.raises(ClaimLostError, match="'b' is lost"):
        second.check()
    with other.take("a"):
        assert claims.take("a") is None  # by a new connection
    first.release()
    with claims.take("a") as again:
        assert again.held
        assert not first.held

        end_sessions(postgres)
        with pytest.raises(ClaimLostError, match="the claims to a;"):
            claims.take("c")
    with claims.take("c") as claim:
        assert claim.held
    claims.close()
    other.close()


def test_a_connection_that_changes_its_session_is_refused(postgres):
    """As behind a pooler, where the locks stay with another connection."""
    server = PostgresServer(postgres.new_database())
    claims = PostgresClaims(server.connect, "s")
    claim = claims.take("a")
    swapped, claims._connection = claims._connection, server.connect()
    assert not claim.held
    swapped.close()
    claims.close()


def test_a_server_that_is_gone_is_said(postgres):
    server = PostgresServer(postgres.new_database())
    claims = PostgresClaims(server.connect, "s")
    with claims.take("a"):
        pass
    postgres.stop()
    try:
        with pytest.raises(QuerywrightError, match="PostgreSQL storage cannot be used") as caught:
            claims.take("a")
        assert not isinstance(caught.value, ClaimLostError)
    finally:
        postgres.start()
    with claims.take("a") as claim:
        assert claim.held
    claims.close()


def end_sessions(postgres) -> None:
    postgres.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'querywright'")
    time.sleep(0.1)
