"""A real PostgreSQL of the tests' own, in a temporary directory and not as root, who may not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg

from tests.support.ports import ReservedPort
from tests.support.programs import program
from tests.support.waiting import PATIENCE_S, wait_until

PASSWORD: Final = "S3kret/@:?#ü"

STRANGER: Final = "stranger"
"""A user of whom a password is asked, and whom nobody has made."""

_SETTINGS: Final = {
    "fsync": "off",  # a process that is killed loses nothing by it
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "log_min_messages": "fatal",
    "autovacuum": "off",
    "max_wal_size": "64MB",
}

# To check a password takes milliseconds, and connections are made by the hundred.
_WHO_IS_LET_IN: Final = f"""
host all {STRANGER} 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""


class PostgresServer:
    """One PostgreSQL with its databases; it is started when it is made.

    Leaves the test out where PostgreSQL is not installed; fails instead where that is required.
    """

    def __init__(self) -> None:
        self._programs = Path(program("initdb", "postgresql")).resolve().parent
        self._as_user = _as_nobody() if os.geteuid() == 0 else []
        self.directory = Path(tempfile.mkdtemp(prefix="gradwatch-postgres-"))
        if self._as_user:
            shutil.chown(self.directory, "nobody", "nogroup")
        self._port = ReservedPort()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)
        self._initialise()
        self.start()

    def _initialise(self) -> None:
        secret = self.directory / "password"
        secret.write_text(PASSWORD, "utf-8")
        self._run(
            *("initdb", "--pgdata", self._data, "--username=gradwatch", f"--pwfile={secret}"),
            *("--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"),
        )
        (self._data / "pg_hba.conf").write_text(_WHO_IS_LET_IN)

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _command(self, name: str, *arguments: str | Path) -> list[str | Path]:
        return [*self._as_user, self._programs / name, *arguments]

    def _run(self, name: str, *arguments: str | Path) -> None:
        subprocess.run(
            self._command(name, *arguments), check=True, capture_output=True, cwd=self.directory
        )

    def kill(self) -> None:
        """End it at once, as a power failure does; `start` brings it back with what it had."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(PATIENCE_S)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        chosen = _SETTINGS | {"port": str(self._port.number)}
        options = [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("postgres", "-D", self._data, *options),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
            )
        wait_until(self._answers, "PostgreSQL answers")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "log.txt").read_text("utf-8")
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database, with user and password."""
        secret = quote(PASSWORD, safe="")
        return f"postgresql://gradwatch:{secret}@127.0.0.1:{self._port.number}/{database}"

    def make_database(self) -> str:
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, sql: str, values: Sequence[Any] = (), url: str | None = None) -> list[Any]:
        """Run statements in a database as its superuser; return the rows of the last one."""
        with psycopg.connect(url or self.url(), autocommit=True) as connection:
            cursor = connection.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """Stop it and remove all of it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(PATIENCE_S)
        self._port.close()
        shutil.rmtree(self.directory)


def _as_nobody() -> list[str | Path]:
    # Whoever kills the tests ends it too.
    who = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    return ["setpriv", *who, "--pdeathsig=INT"]
