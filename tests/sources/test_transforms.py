"""Transforms of a source connector."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from semel.core.errors import BadRecord
from semel.core.records import ConnectRecords
from semel.driver.planning import plan_source
from semel.kafka.messages import timestamps
from semel.sources.base import UnreadRecord, source_records
from semel.tasks.source.encoder import SkipLog, SourceChain

KAFKA = "org.apache.kafka.connect.transforms."
RAW = {
    "name": "lines",
    "connector.class": "FileStreamSource",
    "file": "test.txt",
    "topic": "lines",
    "bootstrap.servers": "localhost:1",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}
READ = source_records("lines", pa.array([{"id": n, "place": "ab"[n % 2]} for n in range(4)]))


def applied(records: ConnectRecords, **stages: dict[str, str]) -> list[ConnectRecords]:
    config = {"transforms": ",".join(stages)}
    for name, options in stages.items():
        config |= {f"transforms.{name}.{k}": v for k, v in options.items()}
    return SourceChain(plan_source({**RAW, **config}).connector).applied(records, [])


def test_a_key_is_made_of_the_value_and_the_topic_renamed() -> None:
    (made,) = applied(
        READ,
        key={"type": f"{KAFKA}ValueToKey", "fields": "id"},
        id={"type": f"{KAFKA}ExtractField$Key", "field": "id"},
        route={"type": f"{KAFKA}RegexRouter", "regex": "(.*)", "replacement": "x.$1"},
    )
    assert (made.topic, made.keys.to_pylist()) == ("x.lines", [0, 1, 2, 3])


def test_a_field_chooses_the_topic() -> None:
    event = {"before": None, "source": {"lsn": 1}, "op": "c"}
    rows: list[dict[str, Any]] = [{**event, "after": row} for row in READ.values.to_pylist()]
    made = applied(
        source_records("t", pa.array(rows)),
        unwrap={"type": "io.debezium.transforms.ExtractNewRecordState", "route.by.field": "place"},
    )
    assert {r.topic: [v["id"] for v in r.values.to_pylist()] for r in made} == {
        "a": [0, 2],
        "b": [1, 3],
    }


def test_a_field_becomes_the_time_of_the_message() -> None:
    (made,) = applied(
        READ,
        time={
            "type": "io.aiven.kafka.connect.transforms.ExtractTimestamp$Value",
            "field.name": "id",
        },
        day={"type": f"{KAFKA}InsertField$Value", "timestamp.field": "at"},
    )
    assert timestamps(made.origin) == [0, 1, 2, 3]
    assert made.values.field("at").cast(pa.int64()).to_pylist() == [0, 1, 2, 3]


def test_what_only_records_of_a_sink_have_is_refused() -> None:
    with pytest.raises(BadRecord, match="Only SinkRecord supported"):
        applied(READ, at={"type": f"{KAFKA}InsertField$Value", "offset.field": "o"})
    with pytest.raises(BadRecord, match="Timestamp missing on record"):
        applied(READ, day={"type": f"{KAFKA}TimestampRouter"})
    (made,) = applied(READ, at={"type": f"{KAFKA}InsertField$Value", "partition.field": "p"})
    assert made.values.field("p").null_count == 4


def test_filter_drops_records() -> None:
    assert applied(READ, drop={"type": f"{KAFKA}Filter"}) == []


def test_what_the_source_cannot_read_stops_the_connector_or_is_named_once_for_each_place() -> None:
    unread = [
        UnreadRecord("t", f"the row with id={n}: no time", f"column {n % 2}") for n in range(4)
    ]
    with pytest.raises(BadRecord, match=r"topic t: the row with id=0: no time, or set errors\.tol"):
        SourceChain(plan_source(RAW).connector).unread(unread)
    for log, told in (("false", ["id=0", "id=1"]), ("true", ["id=0", "id=1", "id=2", "id=3"])):
        tolerant = {"errors.tolerance": "all", "errors.log.enable": log}
        connector = plan_source({**RAW, **tolerant}).connector
        lines = [*SkipLog(connector).lines(SourceChain(connector).unread(unread))]
        assert [n for n in told if any(n in line for line in lines)] == told
        assert len(lines) == len(told)
