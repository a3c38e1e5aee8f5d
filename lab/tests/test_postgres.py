"""The embedded PostgreSQL: it starts, recovers what was committed, and ends with its owner."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from adbc_driver_manager import Error
from adbc_driver_postgresql import dbapi

from semel.core.errors import ServiceError
from semel_lab.embedded import Postgres
from tests.conftest import wait_ended, wait_gone

pytestmark = pytest.mark.integration


def run(url: str, *statements: str) -> list[Any]:
    """Runs statements in one transaction; the rows of the last one if it is a SELECT."""
    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        rows = cursor.fetchall() if statements[-1].startswith("SELECT") else []
        connection.commit()
    return rows


def test_database_is_new_and_empty_for_each_test(database: str) -> None:
    assert run(database, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    run(database, "CREATE TABLE t (id bigint)")


def test_database_is_dropped_though_a_connection_is_open(postgres: Postgres) -> None:
    url = postgres.create_database("dropped")
    connection = dbapi.connect(url)
    postgres.drop_database("dropped")
    with pytest.raises(Error):
        dbapi.connect(url)
    connection.close()


def test_wrong_password_is_refused(postgres: Postgres) -> None:
    with pytest.raises(Error, match="password authentication failed"):
        dbapi.connect(postgres.url.replace(":semel@", ":wrong@"))


def test_urls_agree(postgres: Postgres) -> None:
    assert postgres.url == f"postgresql://semel:semel@127.0.0.1:{postgres.port}/semel"
    assert postgres.jdbc_url == f"jdbc:postgresql://127.0.0.1:{postgres.port}/semel"


@pytest.mark.long
def test_committed_rows_survive_kill_and_restart_on_the_same_port(
    own_postgres: Callable[[], Postgres],
) -> None:
    postgres = own_postgres()
    durable = "SELECT current_setting('fsync'), current_setting('synchronous_commit')"
    assert run(postgres.url, durable) == [("on", "on")]
    url, first = postgres.url, postgres.pid
    run(url, "CREATE TABLE t (id bigint)", "INSERT INTO t VALUES (1)")
    open_transaction = dbapi.connect(url)
    with open_transaction.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (2)")

        postgres.kill()
        assert postgres.pid is None
        postgres.start()
    open_transaction.close()
    assert postgres.url == url
    assert postgres.pid != first
    assert run(url, "SELECT id FROM t") == [(1,)]

    postgres.restart()
    assert run(url, "SELECT id FROM t") == [(1,)]


@pytest.mark.long
def test_nothing_of_the_server_runs_after_kill(own_postgres: Callable[[], Postgres]) -> None:
    postgres = own_postgres()
    connection = dbapi.connect(postgres.url)
    assert postgres.pid is not None
    family = psutil.Process(postgres.pid).children(recursive=True)
    assert len(family) > 3
    postgres.kill()
    connection.close()
    assert all(wait_gone(process.pid, timeout=0.1) for process in family)


@pytest.mark.long
def test_other_password_than_the_first_is_named(own_postgres: Callable[[], Postgres]) -> None:
    postgres = own_postgres()
    postgres.stop()
    with pytest.raises(ServiceError, match="set up with another password"):
        Postgres(postgres.directory, password="other").start()
    assert postgres.pid is None


@pytest.mark.long
def test_password_may_hold_any_character(tmp_path: Path) -> None:
    with Postgres(tmp_path, password="a b'@/:%?ü") as postgres:
        assert run(postgres.url, "SELECT current_user") == [("semel",)]


@pytest.mark.long
def test_directory_may_be_too_deep_for_a_socket(tmp_path: Path) -> None:
    with Postgres(tmp_path / ("deep" * 20) / ("er" * 20)) as postgres:
        assert run(postgres.url, "SELECT 1") == [(1,)]


def test_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    postgres = Postgres(tmp_path)
    thread = threading.Thread(target=postgres.start)
    thread.start()
    wait_ended(thread)
    try:
        assert run(postgres.url, "SELECT 1") == [(1,)]
    finally:
        postgres.kill()


@pytest.mark.long
def test_server_and_backends_are_gone_when_their_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from semel_lab.embedded import Postgres\n"
        "p = Postgres(Path(sys.argv[1])).start()\n"
        "print(p.pid, p.url, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, url = parent.stdout.readline().split()
        run(url, "CREATE TABLE t (id bigint)", "INSERT INTO t VALUES (1)")
        with dbapi.connect(url):
            family = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children(recursive=True)]
            parent.send_signal(signal.SIGKILL)
            assert all(wait_gone(process.pid) for process in family)
    with Postgres(tmp_path) as postgres:
        assert run(postgres.url, "SELECT id FROM t") == [(1,)]


def test_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServiceError, match=rf"PostgreSQL cannot listen on 127\.0\.0\.1:{port}"):
            Postgres(tmp_path, port=port).start()


def test_failed_start_shows_the_end_of_the_log(own_postgres: Callable[[], Postgres]) -> None:
    postgres = own_postgres()
    postgres.stop()
    (postgres.data / "postgresql.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(ServiceError, match=r"(?s)postgres\.log.*no_such_setting"):
        postgres.start()
