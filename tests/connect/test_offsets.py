"""Offsets that a connector cannot use are refused, as the request says them."""

from __future__ import annotations

from typing import Any

import pytest

from semel.core.errors import ConfigError
from semel.driver.offsets import Facts
from semel.driver.planning import plan, plan_source

FILE = {"connector.class": "FileStreamSource", "file": "/x", "topic": "t"}
TABLES = {
    "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
    "connection.url": "jdbc:sqlite:/x",
    "mode": "incrementing",
    "incrementing.column.name": "id",
    "topic.prefix": "t",
}
QUERY = {**TABLES, "query": "SELECT 1 AS id"}
TABLE = {"protocol": "1", "table": "t"}


SINK = {
    "name": "c",
    "bootstrap.servers": "nowhere:1",
    "connector.class": "FileStreamSink",
    "topics": "t",
    "file": "/x",
}


def of(partition: Any, offset: Any) -> list[dict[str, Any]]:
    where = {"kafka_topic": "t", "kafka_partition": partition}
    return [{"partition": where, "offset": {"kafka_offset": offset}}]


def checked(entries: Any) -> list[tuple[Facts, Facts | None]]:
    return list(plan(SINK).offsets.checked(entries))


def test_numbers_are_read_as_java_reads_them() -> None:
    for zero, five in ((0, 5), ("0", "+5"), ("-0", "٥")):
        where = {"kafka_topic": "t", "kafka_partition": 0}
        assert checked(of(zero, five)) == [(where, {"kafka_offset": 5})]


@pytest.mark.parametrize(
    "number", [-1, "-1", "1_0", " 5", "0x10", "5L", "1e3", "1.0", 1.0, True, ""]
)
def test_what_is_no_partition_or_offset_is_refused(number: object) -> None:
    for entries in (of(number, 5), of(0, number)):
        with pytest.raises(ConfigError, match=r"negative|need to be integers"):
            checked(entries)


@pytest.mark.parametrize(
    ("config", "partition", "offset"),
    [
        (FILE, {"filename": None}, {"position": 1}),
        (FILE, {"filename": 5}, {"position": 1}),
        (FILE, {}, {"position": 1}),
        (FILE, {"filename": "/x"}, {"position": -1}),
        (FILE, {"filename": "/x"}, {"position": "1"}),
        (TABLES, {"protocol": "1", "table": 5}, {"incrementing": 1}),
        (TABLES, {"query": "query"}, {"incrementing": 1}),
        (TABLES, TABLE, {"timestamp": 1}),
        (QUERY, TABLE, {"incrementing": 1}),
    ],
)
def test_a_source_refuses_what_it_cannot_read_on_from(
    config: dict[str, str], partition: dict[str, Any], offset: dict[str, Any]
) -> None:
    planned = plan_source({"name": "c", "bootstrap.servers": "nowhere:1", **config})
    with pytest.raises(ConfigError, match=r"source (partition|offset)"):
        planned.source.check_offset(partition, offset)
