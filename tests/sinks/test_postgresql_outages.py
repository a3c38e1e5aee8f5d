"""PostgreSQL sessions that can no longer write, and servers that cannot be reached."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from semel.embedded import Postgres
from semel.embedded.proxy import Proxy
from semel.errors import TransientError, Unavailable
from semel.ledger import Outcome, TopicPartition
from semel.records import Commit
from semel.sinks.postgresql.url import libpq_uri
from tests.sinks.target import Target, advance, records

TP = TopicPartition("t", 0)
ONE = Commit([records([{"id": 1}])])
READ_ONLY = "ALTER DATABASE {} SET default_transaction_read_only = {}"


def test_a_session_that_began_read_only_is_left_for_one_that_can_write(target: Target) -> None:
    target.execute("CREATE TABLE t (id bigint)")
    sink = target.sink()
    sink.prepare(["t"])
    sink.start({TP: 0})
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
    sink.start({TP: 0})
    assert sink.commit([advance(0, 1)], ONE) is Outcome.APPLIED


def test_who_names_several_hosts_may_still_say_which_he_wants() -> None:
    assert "target_session_attrs=any" in libpq_uri(
        "jdbc:postgresql://a,b/d?targetServerType=any", "", "", "me"
    )
