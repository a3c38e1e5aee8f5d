"""PostgreSQL sessions that can no longer write, and servers that cannot be reached."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from semel.core.errors import TransientError, Unavailable
from semel.core.ledger import Outcome, TopicPartition, firsts
from semel.core.records import Commit
from semel.databases.login import Login
from semel.databases.postgresql.connection import Connection
from semel.databases.postgresql.url import libpq_uri
from semel_lab.embedded import Postgres
from semel_lab.embedded.proxy import Proxy
from tests.engine.harness import wait_until
from tests.sinks.target import Target, advance, records

TP = TopicPartition("t", 0)
ONE = Commit([records([{"id": 1}])])
READ_ONLY = "ALTER DATABASE {} SET default_transaction_read_only = {}"


def test_a_session_that_began_read_only_is_left_for_one_that_can_write(target: Target) -> None:
    target.execute("CREATE TABLE t (id bigint)")
    sink = target.sink()
    sink.prepare(["t"])
    sink.start(firsts({TP: 0}))
    sink.close()
    database = urlsplit(target.url).path[1:]
    target.execute(READ_ONLY.format(database, "on"))
    with pytest.raises(Unavailable, match="read-only transaction"):
        sink.commit([advance(0, 1)], ONE)
    target.execute(READ_ONLY.format(database, "off"))
    assert sink.commit([advance(0, 1)], ONE) is Outcome.APPLIED


def test_a_server_that_cannot_be_reached_is_unavailable(target: Target) -> None:
    with Proxy.before(target.url) as proxy:
        sink = target.sink(**{"connection.url": proxy.url(target.url)})
        assert sink.entries() == []
        proxy.refuse()
        with pytest.raises(TransientError):
            sink.entries()  # the session is lost
        with pytest.raises(Unavailable, match="cannot connect to PostgreSQL at"):
            sink.entries()
        proxy.accept()
        assert sink.entries() == []


@pytest.mark.long
def test_of_several_hosts_the_one_that_can_write_is_taken(
    own_postgres: Callable[[], Postgres], target: Target
) -> None:
    standby = own_postgres()
    standby.create_database(urlsplit(target.url).path[1:])
    Target(standby.url).execute("ALTER SYSTEM SET default_transaction_read_only = on")
    standby.restart()
    here, there = urlsplit(target.url), urlsplit(standby.url)
    login, _, host = here.netloc.rpartition("@")
    both = f"postgresql://{login}@{there.netloc.rpartition('@')[2]},{host}{here.path}?{here.query}"
    target.execute("CREATE TABLE t (id bigint)")
    sink = target.sink(**{"connection.url": both})
    sink.prepare(["t"])
    sink.start(firsts({TP: 0}))
    assert sink.commit([advance(0, 1)], ONE) is Outcome.APPLIED


def test_a_url_of_several_hosts_may_choose_among_them() -> None:
    assert "target_session_attrs=any" in libpq_uri(
        Login("jdbc:postgresql://a,b/d?targetServerType=any"), "me"
    )


# Silence


@pytest.mark.long
def test_the_locks_of_a_silent_session_are_released(target: Target) -> None:
    target.execute("CREATE TABLE t (id bigint)", "INSERT INTO t VALUES (1)")
    with Proxy.before(target.url) as proxy:
        uri = libpq_uri(Login(proxy.url(target.url)), "silent")
        connection = Connection(uri, 600_000, timeout_ms=60_000)
        left = pytest.raises(
            Unavailable, match=r"has not answered for .*semel dropped the connection"
        )
        with left, connection.transaction():
            connection.execute("SELECT * FROM t FOR UPDATE")
            connection._watchdog._timeout = 1.0
            proxy.silence()
            connection.execute("SELECT 1")
        holders = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'silent'"
        wait_until(lambda: not target.query(holders))
        with connection.transaction():
            assert connection.execute("UPDATE t SET id = 2") == 1
        connection.close()


def test_a_statement_that_the_server_works_on_is_waited_for(target: Target) -> None:
    uri = libpq_uri(Login(target.url), "slow")
    connection = Connection(uri, 600_000, timeout_ms=500)
    with connection.transaction():
        assert connection.execute("SELECT pg_sleep(1.5)") >= -1
    connection.close()


def test_a_copy_that_moves_bytes_is_waited_for(target: Target) -> None:
    target.execute("CREATE TABLE t (text text)")
    rows = pa.table({"text": ["x" * 100_000] * 100})
    with Proxy.before(target.url) as proxy:
        uri = libpq_uri(Login(proxy.url(target.url)), "slow")
        connection = Connection(uri, 600_000, timeout_ms=1000)
        with connection.transaction():
            connection.execute("SELECT 1")
            proxy.delay = 0.02  # for each of 150 chunks
            connection.copy("t", rows, "public")
            proxy.delay = 0.0
        connection.close()
    assert target.values("SELECT count(*) FROM t") == [100]
