"""What the driver knows about a server is read once, and again when it may be outdated."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from adbc_driver_manager import Error

from semel.databases.postgresql import driver
from semel.databases.postgresql.connection import Connection, bounded
from semel_lab.embedded import Postgres

pytestmark = pytest.mark.integration


@pytest.fixture
def url(database: str) -> str:
    """As a connection completes it."""
    return bounded(database, 60)


def told(url: str, query: str) -> Any:
    """The type of a query's only column, as a new session has it."""
    connection = Connection(url, 60_000)
    with connection.transaction(reading=True):
        found = connection.query(query)
    connection.close()
    return found.schema.field(0).type


def run(url: str, statements: str) -> None:
    with driver.connect(url) as session, session.cursor() as cursor:
        cursor.executemany(statements, None)


def test_sessions_share_what_was_read_though_tables_come_and_go(url: str) -> None:
    before = driver.shared(url)
    run(url, "CREATE TABLE a (id bigint, note text); CREATE TEMPORARY TABLE b (id bigint)")
    assert told(url, "SELECT note FROM a") == "string"
    assert driver.shared(url) is before


def test_a_type_that_was_created_since_is_known_to_the_next_session(url: str) -> None:
    before = driver.shared(url)
    assert told(url, "SELECT 'x'::text") == "string"
    run(url, "CREATE TYPE mood AS ENUM ('fine'); CREATE TABLE moods (mood mood)")
    assert told(url, "SELECT mood FROM moods") == "string"
    assert driver.shared(url) is not before


def test_a_composite_type_that_was_altered_since_is_known_to_the_next_session(url: str) -> None:
    run(url, "CREATE TYPE place AS (x int); CREATE TABLE places (place place)")
    assert told(url, "SELECT place FROM places").num_fields == 1
    run(url, "ALTER TYPE place ADD ATTRIBUTE y int")
    assert told(url, "SELECT place FROM places").num_fields == 2


def test_types_are_read_again_after_a_while(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = driver.shared(url)
    assert driver.shared(url) is before
    monkeypatch.setattr(driver, "LASTS", 0.0)
    assert driver.shared(url) is not before


def test_another_database_of_the_same_name_is_read_anew(url: str, postgres: Postgres) -> None:
    """One that was restored, say: its types have other numbers."""
    run(url, "CREATE TYPE mood AS ENUM ('fine'); CREATE TABLE moods (mood mood)")
    assert told(url, "SELECT mood FROM moods") == "string"
    name = url.rpartition("/")[2].partition("?")[0]
    postgres.drop_database(name)
    postgres.create_database(name)
    run(url, "CREATE TYPE mood AS ENUM ('fine'); CREATE TABLE moods (mood mood)")
    assert told(url, "SELECT mood FROM moods") == "string"


def test_a_server_that_does_not_answer_leaves_nothing_behind(url: str) -> None:
    gone = url.replace("/test_", "/gone_")
    for _ in range(2):
        with pytest.raises(Error, match="does not exist"):
            driver.connect(gone)
    assert gone not in driver._kept


def test_only_the_last_ones_used_are_kept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_MOST", 1)
    first = driver.shared(url)
    session = first.connect()
    driver.shared(f"{url}&application_name=another")
    with session.cursor() as cursor:  # an open session keeps its own
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
    session.close()
    assert driver.shared(url) is not first


def test_connectors_of_one_url_share_what_the_driver_has_read(url: str) -> None:
    before = {*driver._kept}
    names = ("one", "a\\'b")
    for name in names:
        connection = Connection(f"{url}&application_name={quote(name)}", 60_000)
        with connection.transaction(reading=True):
            (shown,) = connection.query("SHOW application_name").column(0).to_pylist()
            assert shown == name
        connection.close()
    assert {*driver._kept} - before == {url}
