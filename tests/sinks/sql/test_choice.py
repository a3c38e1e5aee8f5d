"""Which sink a JDBC sink's class means."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.core.errors import ConfigError, ServiceError
from semel.driver.planning import plan
from semel.sinks import jdbc, sink_class
from semel.sinks.postgresql import PostgresSink
from semel.sinks.sql.duckdb import DuckdbSink
from semel.sinks.sql.mysql import MysqlSink
from semel.sinks.sql.sqlite import SqliteSink
from semel.sinks.sql.sqlserver import SqlServerSink


@pytest.mark.parametrize("name", jdbc.CLASSES)
def test_the_url_of_a_jdbc_sink_chooses_the_database(name: str) -> None:
    chosen = {
        "jdbc:mysql://h/d": MysqlSink,
        "jdbc:mariadb://h/d": MysqlSink,
        "jdbc:sqlserver://h;databaseName=d": SqlServerSink,
        "jdbc:sqlite:x.db": SqliteSink,
        " jdbc:duckdb:x.db": DuckdbSink,
        "jdbc:postgresql://h/d": PostgresSink,
    }
    for url, sink in chosen.items():
        assert sink_class(name, {"connection.url": url}) is sink
    assert sink_class(name) is PostgresSink
    for url in ("jdbc:oracle:thin:@h", "jdbc:db2://h;password=secret"):
        with pytest.raises(
            ConfigError, match=r"write to this database. The URL .* jdbc:mariadb:"
        ) as error:
            sink_class(name, {"connection.url": url})
        assert f"connection.url=jdbc:{url.split(':')[1]}..." in str(error.value)
        assert "secret" not in str(error.value)
    for url in ("jdbc:postgresql//h/d?password=secret", "jdbc:foo;password=secret"):
        with pytest.raises(ConfigError) as error:
            sink_class(name, {"connection.url": url})
        assert "secret" not in str(error.value)


@pytest.mark.parametrize("name", jdbc.CLASSES)
def test_only_debeziums_sink_takes_change_events(name: str) -> None:
    where = {"connection.url": "jdbc:sqlite:x.db", "bootstrap.servers": "localhost:1"}
    planned = plan({"name": "x", "connector.class": name, "topics": "t", **where})
    planned.close()
    assert planned.sink.capabilities.takes_change_events == (name == jdbc.DEBEZIUM)


def test_a_name_of_ours_is_not_overruled_by_the_url() -> None:
    assert sink_class("sqlite", {"connection.url": "jdbc:mysql://h/d"}) is SqliteSink


@pytest.mark.parametrize("system", ["sqlite", "duckdb"])
def test_a_directory_in_the_files_place_is_reported(system: str, tmp_path: Path) -> None:
    raw = {
        "name": "x",
        "topics": "t",
        "bootstrap.servers": "h:1",
        "connector.class": system,
        "connection.url": f"jdbc:{system}:{tmp_path}",
    }
    with pytest.raises(ConfigError, match=f"connection.url: {tmp_path} is a directory"):
        plan(raw).sink.entries()


@pytest.mark.parametrize(
    ("url", "longest", "unit"),
    [("postgresql://h/d", "t" * 61 + "ä", "bytes"), ("mysql://h/d", "t" * 64, "characters")],
)
def test_a_table_that_the_database_would_call_otherwise_is_refused(
    url: str, longest: str, unit: str
) -> None:
    """PostgreSQL would cut it: two topics could share a table."""
    base = {
        "name": "x",
        "topics": "t",
        "bootstrap.servers": "h:1",
        "connector.class": jdbc.CLASSES[0],
        "connection.url": f"jdbc:{url}",
    }
    assert plan({**base, "table.name.format": longest}).sink
    with pytest.raises(
        ConfigError, match=rf"topic t is longer than the \d+ {unit}.* a shorter one"
    ):
        plan({**base, "table.name.format": longest + "x"})


_URLS = (
    "sqlite:x.db",
    "duckdb:x.db",
    "mysql://h/d",
    "sqlserver://h;databaseName=d;encrypt=false",
    "postgresql://h/d",
)


@pytest.mark.parametrize("url", _URLS)
def test_rows_dead_letters_and_the_ledger_are_kept_apart(url: str) -> None:
    """As plans say, before there is a table of the wrong form."""
    base = {
        "name": "x",
        "topics": "a,orders",
        "bootstrap.servers": "h:1",
        "connector.class": jdbc.CLASSES[0],
        "connection.url": f"jdbc:{url}",
        "errors.tolerance": "all",
        "value.converter": "JsonConverter",
    }
    assert plan({**base, "errors.deadletterqueue.table": "bad"}).warnings == []
    wrong = {
        "errors.deadletterqueue.table=orders": {"errors.deadletterqueue.table": "orders"},
        "topic a goes to table semel_offsets": {"topics.to.tables.mapping": "a:semel_offsets"},
        "topic a goes to table semel_stage": {"topics.to.tables.mapping": "a:semel_stage"},
        "table=semel_holes is a table of the ledger": {
            "errors.deadletterqueue.table": "semel_holes"
        },
        "table=a.b.c is not table or schema.table": {"errors.deadletterqueue.table": "a.b.c"},
    }
    for message, keys in wrong.items():
        with pytest.raises(ConfigError, match=message):
            plan({**base, **keys})


def test_a_file_that_cannot_be_made_is_named() -> None:
    raw = {
        "name": "x",
        "topics": "orders",
        "bootstrap.servers": "h:1",
        "connector.class": "sqlite",
        "connection.url": "jdbc:sqlite:/proc/none.db",
    }
    sink = plan(raw).sink
    with pytest.raises(ServiceError, match=r"Let this user write to /proc, or name another file"):
        sink.prepare(["orders"])
