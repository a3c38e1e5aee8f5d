"""Which sink a JDBC sink's class means."""

from __future__ import annotations

import pytest

from semel.sinks import jdbc, sink_class
from semel.sinks.postgresql import PostgresSink
from semel.sinks.sql.duckdb import DuckdbSink
from semel.sinks.sql.mysql import MysqlSink
from semel.sinks.sql.sqlite import SqliteSink


@pytest.mark.parametrize("name", jdbc.CLASSES)
def test_the_url_of_a_jdbc_sink_chooses_the_database(name: str) -> None:
    chosen = {
        "jdbc:mysql://h/d": MysqlSink,
        "jdbc:mariadb://h/d": MysqlSink,
        "jdbc:sqlite:x.db": SqliteSink,
        " jdbc:duckdb:x.db": DuckdbSink,
        "jdbc:postgresql://h/d": PostgresSink,
        "jdbc:oracle:thin:@h": PostgresSink,  # whose error says what is possible
    }
    for url, sink in chosen.items():
        assert sink_class(name, {"connection.url": url}) is sink
    assert sink_class(name) is PostgresSink


def test_a_name_of_ours_is_not_overruled_by_the_url() -> None:
    assert sink_class("sqlite", {"connection.url": "jdbc:mysql://h/d"}) is SqliteSink
