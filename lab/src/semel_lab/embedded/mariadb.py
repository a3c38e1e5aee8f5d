"""A real MariaDB in a directory, from the system's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from signal import SIGKILL
from typing import Any

from semel.core.errors import ServiceError
from semel_lab.embedded.process import LOOPBACK, listening
from semel_lab.embedded.server import Server

USER = "root"
DATABASE = "semel"
_SYSTEM = ("/usr/sbin", "/usr/local/sbin")
"""The directory of Debian's server, which is not on every user's path."""


class MariaDB(Server):
    """MariaDB, with the database ``semel`` and an administrator without a password."""

    name = "MariaDB"
    log_name = "mariadb.log"
    port_names = ("mariadb",)
    start_timeout = 300.0  # after a crash it recovers first
    stop_timeout = 60.0

    def __init__(self, directory: Path, port: int | None = None, *, detached: bool = False) -> None:
        super().__init__(directory, port, detached=detached)
        self.user = USER
        self.data = self.directory / "data"
        # A server that starts deletes all temporary tables there, even those of other servers.
        self._temporary = self.directory / "tmp"

    @property
    def jdbc_url(self) -> str:
        """The JDBC URL of the database, without the user."""
        return f"jdbc:mariadb://{LOOPBACK}:{self.port}/{DATABASE}"

    def database_url(self, database: str) -> str:
        """The JDBC URL of another database of this server, with the user."""
        return f"jdbc:mariadb://{LOOPBACK}:{self.port}/{database}?user={self.user}"

    def create_database(self, name: str) -> str:
        """Create a database if it does not exist. Return its URL."""
        self.execute(f"CREATE DATABASE IF NOT EXISTS {_quoted(name)}")
        return self.database_url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists."""
        self.execute(f"DROP DATABASE IF EXISTS {_quoted(name)}")

    def execute(self, *statements: str, database: str | None = None) -> list[Any]:
        """Run statements as the administrator. Return the rows of the last one.

        Raises:
            ServiceError: it does not answer, or refuses one.
        """
        pymysql = _driver()
        try:
            with (
                pymysql.connect(
                    host=LOOPBACK,
                    port=self.port,
                    user=self.user,
                    database=database,
                    autocommit=True,
                    connect_timeout=300,
                ) as connection,
                connection.cursor() as cursor,
            ):
                for statement in statements:
                    cursor.execute(statement)
                return list(cursor.fetchall())
        except pymysql.err.MySQLError as failure:
            raise ServiceError(f"{self.name} on port {self.port}: {failure}") from failure

    def _launch(self) -> None:
        _driver()
        server = program("mariadbd")
        self._check_ports()
        self._temporary.mkdir(parents=True, exist_ok=True)
        common = [f"--datadir={self.data}", f"--tmpdir={self._temporary}"]
        if os.geteuid() == 0:
            common.append(f"--user={USER}")
        if not (self.data / "mysql").exists():
            self._create_tables(common)
        self._process.launch(
            [
                server,
                *("--no-defaults", *common),
                *(f"--bind-address={LOOPBACK}", f"--port={self.port}", "--skip-name-resolve"),
                f"--socket={self.directory / 'sock'}",
                f"--pid-file={self.directory / 'mariadbd.pid'}",
                f"--secure-file-priv={self.directory}",  # its user may be root, without a password
                "--innodb-buffer-pool-size=64M",
            ],
            detached=self.detached,
            death_signal=SIGKILL,
        )

    def _create_tables(self, common: list[str]) -> None:
        install = program("mariadb-install-db")
        shutil.rmtree(self.data, ignore_errors=True)  # what an interrupted one left
        done = subprocess.run(
            [
                install,
                *("--no-defaults", "--skip-test-db", *common),
                "--auth-root-authentication-method=normal",
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            shutil.rmtree(self.data, ignore_errors=True)
            raise ServiceError(
                f"{self.name} cannot prepare {self.directory}: {done.stderr}{done.stdout}"
            )

    def _answers(self) -> bool:
        if not listening(self.port):
            return False
        try:
            self.execute("SELECT 1")
        except ServiceError:
            return False
        return True

    def _complete(self) -> None:
        self.create_database(DATABASE)


def installed() -> bool:
    """Whether MariaDB is installed."""
    return _program_path("mariadbd") is not None


def program(name: str) -> str:
    """The path of one of MariaDB's programs.

    Raises:
        ServiceError: it is not installed.
    """
    path = _program_path(name)
    if path is None:
        raise ServiceError(
            f"The embedded MariaDB needs the program {name}, which is not installed "
            "(Debian: apt-get install mariadb-server)"
        )
    return path


def _program_path(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM]))


def _driver() -> Any:
    try:
        import pymysql
    except ImportError as missing:
        raise ServiceError(
            f"The embedded MariaDB needs the package {missing.name}: pip install 'semel[mysql]'"
        ) from None
    return pymysql


def _quoted(identifier: str) -> str:
    return "`" + identifier.replace("`", "``") + "`"
