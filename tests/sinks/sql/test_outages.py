"""A MariaDB or MySQL that is silent, read-only or busy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from semel.core.errors import Unavailable
from semel.databases.login import Login, Timeouts
from semel.databases.mysql import Mysql
from semel_lab.embedded.mariadb import MariaDB
from semel_lab.embedded.process import LOOPBACK, free_port
from semel_lab.embedded.proxy import Proxy
from tests import databases
from tests.engine.harness import wait_until

HOLDERS = (
    "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()"
)


@pytest.fixture
def url(mariadb: MariaDB) -> Iterator[str]:
    yield mariadb.create_database("outages")
    mariadb.drop_database("outages")


def session(url: str, timeout: float) -> Mysql:
    return Mysql(Login(url), "c", Timeouts(answer=int(timeout * 1000)))


def test_the_locks_of_a_silent_session_are_released(url: str) -> None:
    databases.query(url, "CREATE TABLE t (id bigint)")
    with Proxy.before(url) as proxy, closing(session(proxy.url(url), 1.0)) as mine:
        left = pytest.raises(
            Unavailable, match=r"has not answered for .*semel dropped the connection"
        )
        with left, mine.transaction():
            mine.execute("INSERT INTO t VALUES (1)")
            proxy.silence()
            mine.execute("SELECT 1")
        wait_until(lambda: not databases.query(url, HOLDERS))
        with mine.transaction():
            assert mine.query("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 0}]


def test_a_statement_that_the_server_works_on_is_waited_for(url: str) -> None:
    with closing(session(url, 60.0)) as mine, mine.transaction():
        mine.query("SELECT 1")  # it also takes a while to connect
        mine._watchdog._timeout = 0.5
        assert mine.query("SELECT SLEEP(2) AS slept").to_pylist() == [{"slept": 0}]


def test_a_session_that_is_refused_as_read_only_is_replaced(url: str) -> None:
    with closing(session(url, 60.0)) as mine:
        databases.query(url, "CREATE TABLE t (id bigint)")
        with mine.transaction():
            mine.execute("INSERT INTO t VALUES (1)")
        mine.execute("SET SESSION TRANSACTION READ ONLY")
        with pytest.raises(Unavailable, match="1792"), mine.transaction():
            mine.execute("INSERT INTO t VALUES (2)")
        with mine.transaction():
            mine.execute("INSERT INTO t VALUES (2)")


def test_a_server_that_is_away_behind_a_proxy_is_waited_for() -> None:
    """The proxy accepts the connection and ends it."""
    url = f"jdbc:mariadb://{LOOPBACK}:3306/db?user=u&password=p"
    with Proxy(LOOPBACK, free_port()) as proxy, closing(session(proxy.url(url), 60.0)) as mine:
        left = pytest.raises(Unavailable, match="connections are closed as soon as they open")
        with left, mine.transaction():
            pass
