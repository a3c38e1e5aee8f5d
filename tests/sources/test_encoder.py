"""What a source has read as messages, column by column."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from semel.core.errors import BadRecord, Unavailable
from semel.core.records import HEADERS_TYPE, ConnectRecords
from semel.driver.planning import plan_source
from semel.kafka.messages import Messages
from semel.sources.base import source_records
from semel.tasks.source.encoder import Encoder, SkippedRecord

STRING = "org.apache.kafka.connect.storage.StringConverter"
LONGS = "org.apache.kafka.connect.converters.LongConverter"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
LOGGED = {
    "errors.tolerance": "all",
    "errors.log.enable": "true",
    "errors.log.include.messages": "true",
}


def encoded(
    records: ConnectRecords, keys: Mapping[str, str], skipped: list[SkippedRecord] | None = None
) -> Messages:
    raw = {
        "name": "lines",
        "connector.class": "FileStreamSource",
        "file": "test.txt",
        "topic": "lines",
        "bootstrap.servers": "localhost:1",
    }
    found = [] if skipped is None else skipped
    return Encoder(plan_source({**raw, **keys}).connector).messages(records, found)


def test_objects_become_json_and_a_null_a_tombstone() -> None:
    values = pa.array([{"id": 1, "name": "a"}, None])
    found = encoded(
        source_records("t", values, keys=pa.array(["k", "gone"])),
        {"value.converter.schemas.enable": "false"},
    )
    assert found.topic == "t"
    assert found.keys.to_pylist() == [b"k", b"gone"]
    assert found.values.to_pylist() == [b'{"id":1,"name":"a"}', None]


def test_headers_timestamps_and_partitions_go_with_their_records() -> None:
    records = source_records(
        "t",
        pa.array(["a", "b"]),
        headers=pa.array([[{"key": "h", "value": b"1"}], None], HEADERS_TYPE),
        timestamps=pa.array([1_000, None], pa.timestamp("us")),
        partitions=pa.array([3, None]),
    )
    found = encoded(records, {"value.converter": STRING})
    assert found.keys.to_pylist() == [None, None]
    assert found.values.to_pylist() == [b"a", b"b"]
    assert found.headers == [[("h", b"1")], []]
    assert found.timestamps == [1, 0]
    assert found.targets == [3, -1]


def test_what_is_not_given_is_left_to_the_producer() -> None:
    found = encoded(source_records("t", pa.array(["a"])), {"value.converter": STRING})
    assert (found.headers, found.timestamps, found.targets) == (None, None, None)


def test_a_converter_that_cannot_write_the_values_says_so() -> None:
    with pytest.raises(BadRecord, match="records for topic t: ByteArrayConverter writes bytes"):
        encoded(source_records("t", pa.array(["a"])), {"value.converter": BYTES})


def test_with_tolerance_what_cannot_be_written_is_skipped_and_the_rest_keeps_its_place() -> None:
    values = [b"a", b"\xff", b"c", None, b"\xfe", b"f"]
    records = source_records("t", pa.array(values), partitions=pa.array([*range(6)]))
    with pytest.raises(BadRecord, match="records for topic t: StringConverter writes UTF-8"):
        encoded(records, {"value.converter": STRING})
    skipped: list[SkippedRecord] = []
    found = encoded(records, {"value.converter": STRING, "errors.tolerance": "all"}, skipped)
    assert (found.values.to_pylist(), found.targets) == ([b"a", b"c", None, b"f"], [0, 2, 3, 5])
    assert len(skipped) == 2
    assert skipped[0].described().startswith("bad record for topic t (VALUE_CONVERTER)")


def test_with_tolerance_a_type_that_a_converter_does_not_write_leaves_only_nulls() -> None:
    keys = {"key.converter": BYTES, "value.converter": LONGS, **LOGGED}
    skipped: list[SkippedRecord] = []
    records = source_records("t", pa.array(["1", None, "3"]), keys=pa.array([b"a", b"b", b"c"]))
    found = encoded(records, keys, skipped)
    assert (found.keys.to_pylist(), found.values.to_pylist()) == ([b"b"], [None])
    assert [each.content for each in skipped] == ["'1'", "'3'"]
    records = source_records("t", pa.array([1, 2]), keys=pa.array(["a", "b"]))
    assert len(encoded(records, keys, skipped)) == 0
    assert [each.stage for each in skipped[2:]] == ["KEY_CONVERTER"] * 2


def test_a_skipped_record_may_hold_a_time_that_python_lacks() -> None:
    late = pa.array([253_402_300_800_000_000], pa.timestamp("us"))  # the year 10000
    records = source_records("t", pa.StructArray.from_arrays([late, pa.array([1])], ["at", "n"]))
    for logged in ("errors.log.enable", "errors.log.include.messages"):
        skipped: list[SkippedRecord] = []
        encoded(records, {"value.converter": LONGS, **LOGGED, logged: "false"}, skipped)
        assert [each.content for each in skipped] == [""]
    skipped = []
    encoded(records, {"value.converter": LONGS, **LOGGED}, skipped)
    assert "10000-01-01" in skipped[0].described()


def test_a_registry_that_is_away_is_no_bad_record() -> None:
    keys = {
        "errors.tolerance": "all",
        "value.converter": "io.confluent.connect.avro.AvroConverter",
        "value.converter.schema.registry.url": "http://localhost:1",
    }
    with pytest.raises(Unavailable, match="schema registry at http://localhost:1 cannot be reach"):
        encoded(source_records("t", pa.array(["a"])), keys)
