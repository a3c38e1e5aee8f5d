"""Filters see the fields of every record, whatever the sink takes of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import sinks
from semel.config import ConnectorConfig, read
from semel.tasks.pipeline import Pipeline
from tests.polled import polled

CONDITION = {
    "transforms.f.type": "io.confluent.connect.transforms.Filter$Value",
    "transforms.f.filter.condition": "$[?(@.day == '2024-01-02')]",
    "transforms.f.filter.type": "include",
}
PATTERN = {
    "transforms.f.type": "com.github.jcustenborder.kafka.connect.transform.common."
    "PatternFilter$Value",
    "transforms.f.fields": "day",
    "transforms.f.pattern": "2024-01-0[13]",
}


def left(sink: Mapping[str, str], given: Mapping[str, str]) -> list[dict[str, Any]]:
    """What reaches the sink of three records."""
    raw = {"name": "c", "topics": "t", "bootstrap.servers": "nowhere:9092", "transforms": "f"}
    raw |= {"value.converter": "JsonConverter", "value.converter.schemas.enable": "false"}
    connector = read(ConnectorConfig, {**raw, **sink, **given})
    made = sinks.create(connector)
    texts = [json.dumps({"n": n, "day": f"2024-01-0{n}"}).encode() for n in (1, 2, 3)]
    records = polled(texts, [b"a", b"b", b"c"], headers=[None] * 3)
    try:
        found = Pipeline(connector, made, target=made.schema).convert("t", records)
    finally:
        made.close()
    assert (found.failed, found.filtered) == ([], 2)
    rows: list[dict[str, Any]] = found.records.rows.to_pylist()
    return rows


@pytest.mark.parametrize("given", [CONDITION, PATTERN], ids=["condition", "pattern"])
@pytest.mark.parametrize("sink", ["kafka", "FileStreamSink"])
def test_values_are_filtered_by_their_fields_and_stay_as_they_are(
    sink: str, given: dict[str, str], tmp_path: Path
) -> None:
    keys = {"file": str(tmp_path / "lines"), "topic.rename.format": "${topic}.copy"}
    (row,) = left({"connector.class": sink, **keys}, given)
    assert row["value"] in ('{"n": 2, "day": "2024-01-02"}', b'{"n": 2, "day": "2024-01-02"}')
    if sink == "kafka":
        assert row["__connect_key"] == b"b"


@pytest.mark.parametrize("given", [CONDITION, PATTERN], ids=["condition", "pattern"])
def test_a_field_that_the_table_lacks_filters_as_the_text_that_it_is(
    given: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "database"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE t (n INTEGER)")
    (row,) = left({"connector.class": "sqlite", "connection.url": f"jdbc:sqlite:{file}"}, given)
    assert row["n"] == 2
