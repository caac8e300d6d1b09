"""A PostgreSQL server of one's own, from the binaries of a Debian package, for as long as the tests run."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

BINARIES = Path("/usr/lib/postgresql")
USER = "postgres"
_STARTS_WITHIN = 30.0


def missing() -> str | None:
    """Why there can be no server here, or None."""
    if not list(BINARIES.glob("*/bin/postgres")):
        return f"no PostgreSQL under {BINARIES}"
    if os.geteuid() == 0 and USER not in {entry.pw_name for entry in pwd.getpwall()}:
        return f"PostgreSQL does not run as root, and there is no user {USER}"
    return None


class PostgresServer:
    """Listens on 127.0.0.1 and on a socket in its folder; lets in whoever comes, except the user ``locked``."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="querywright-postgres-"))
        self._bin = max(BINARIES.glob("*/bin"), key=lambda path: float(path.parent.name))
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER, USER)
            self._as = {"user": USER, "group": USER, "extra_groups": []}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._names = 0
        try:
            self._run("initdb", "-D", f"{self.folder}/data", "-A", "trust", "-U", USER, "-E", "UTF8", "-N")
            hba = self.folder / "data" / "pg_hba.conf"
            hba.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{hba.read_text()}")
            self.start()
            self.psql("CREATE ROLE locked LOGIN PASSWORD 'right'")
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return self.url_of(USER)

    def url_of(self, user: str, database: str = USER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        self._names += 1
        self.psql(f"CREATE DATABASE study_{self._names}")
        return self.url_of(USER, f"study_{self._names}")

    def psql(self, sql: str) -> str:
        command = ["-h", str(self.folder), "-p", str(self.port), "-U", USER, "-d", USER, "-Atc", sql]
        return self._run("psql", *command).strip()

    def start(self) -> None:
        command = [str(self._bin / "postgres"), "-D", f"{self.folder}/data", "-k", str(self.folder), "-F"]
        command += ["-c", "listen_addresses=127.0.0.1", "-p", str(self.port), "-c", "max_connections=60"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._as)
        deadline = time.monotonic() + _STARTS_WITHIN
        while True:
            try:
                self.psql("SELECT 1")
                return
            except RuntimeError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text()[-2000:]) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """End the server, and every connection to it, at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(20)
            self._process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._bin / program), *arguments], capture_output=True, text=True, cwd="/", check=False, **self._as
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr[-1000:]}")
        return done.stdout
