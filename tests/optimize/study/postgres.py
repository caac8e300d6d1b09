"""A PostgreSQL server of one's own, from the binaries of a Debian package, for as long as the tests run."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

BINARIES = Path("/usr/lib/postgresql")
USER = "postgres"


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
        options = f"-k {self.folder} -F -c listen_addresses=127.0.0.1 -p {self.port} -c max_connections=60"
        self._control("start", "-l", f"{self.folder}/log", "-o", options)

    def stop(self) -> None:
        """End the server, and every connection to it, at once."""
        self._control("stop", "-m", "immediate")

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # it does not run
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-w", *arguments)

    def _run(self, program: str, *arguments: str) -> str:
        with tempfile.TemporaryFile("w+") as said:  # a pipe would be held open by the server that pg_ctl leaves
            command = [str(self._bin / program), *arguments]
            done = subprocess.run(command, stdout=said, stderr=said, cwd="/", check=False, **self._as)
            said.seek(0)
            output = said.read()
        if done.returncode:
            raise RuntimeError(f"{program}: {output[-1000:]}")
        return output
