"""A real MariaDB for the tests, from the system's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from signal import SIGKILL, SIGTERM
from types import TracebackType
from typing import Self

import pymysql

from semel.embedded.process import LOOPBACK, ServerProcess, check_port_free, free_port, listening

REASON = "mariadbd is not installed (Debian: apt-get install mariadb-server)"


def program(name: str) -> str | None:
    """Where a program of MariaDB's is; /usr/sbin is not on every user's path."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class MariaDB:
    """A server with its data in ``directory``; it dies with this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.data = directory / "data"
        self.port = free_port()
        self._process = ServerProcess("MariaDB", directory, directory / "mariadb.log")

    def url(self, database: str) -> str:
        return f"jdbc:mariadb://{LOOPBACK}:{self.port}/{database}?user=root"

    def start(self) -> Self:
        check_port_free("MariaDB", self.port)
        user = ["--user=root"] if os.geteuid() == 0 else []
        if not self.data.exists():
            subprocess.run(
                [
                    str(program("mariadb-install-db")),
                    *("--no-defaults", f"--datadir={self.data}", "--skip-test-db", *user),
                    "--auth-root-authentication-method=normal",
                ],
                check=True,
                capture_output=True,
                stdin=subprocess.DEVNULL,
            )
        self._process.launch(
            [
                str(program("mariadbd")),
                *("--no-defaults", f"--datadir={self.data}", *user),
                *(f"--bind-address={LOOPBACK}", f"--port={self.port}", "--skip-name-resolve"),
                f"--socket={self.directory / 'sock'}",
                f"--pid-file={self.directory / 'mariadbd.pid'}",
                "--innodb-buffer-pool-size=64M",
            ],
            detached=False,
            death_signal=SIGKILL,
            user="",
        )
        self._process.await_ready(self._answers, 60)
        return self

    def _answers(self) -> bool:
        if not listening(self.port):
            return False
        try:
            self.execute("SELECT 1")
        except pymysql.err.OperationalError:
            return False
        return True

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[object, ...]]:
        """Run statements as the administrator; returns the last one's rows."""
        with (
            pymysql.connect(
                host=LOOPBACK, port=self.port, user="root", database=database, autocommit=True
            ) as connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def stop(self) -> None:
        self._process.stop(SIGTERM, 60)

    def kill(self) -> None:
        self._process.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
