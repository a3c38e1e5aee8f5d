"""A real MariaDB for the tests, from the system's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from signal import SIGKILL

import pymysql

from semel.embedded.process import LOOPBACK, listening
from semel.embedded.server import Server

REASON = "mariadbd is not installed (Debian: apt-get install mariadb-server)"


def program(name: str) -> str | None:
    """Where a program of MariaDB's is; /usr/sbin is not on every user's path."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class MariaDB(Server):
    """A server with its data in ``directory``; it dies with this process."""

    name = "MariaDB"
    log_name = "mariadb.log"
    port_names = ("mariadb",)
    start_timeout = 60
    stop_timeout = 60

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.data = self.directory / "data"

    def url(self, database: str) -> str:
        return f"jdbc:mariadb://{LOOPBACK}:{self.port}/{database}?user=root"

    def _launch(self) -> None:
        self._check_ports()
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
