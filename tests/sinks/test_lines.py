"""What becomes of values for a sink of lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from semel import sinks
from semel.config import ConnectorConfig, read
from semel.core.records import OFFSET
from semel.sinks.flatten import lines
from semel.tasks.pipeline import ConvertedRecords, Pipeline
from semel.tasks.transform import Transform
from tests.polled import polled

PLAIN = {"value.converter": "JsonConverter", "value.converter.schemas.enable": "false"}
WITH_SCHEMAS = {"value.converter": "JsonConverter"}
TRANSFORMS = "org.apache.kafka.connect.transforms."
STRUCT = {
    "type": "struct",
    "fields": [
        {"field": "id", "type": "int64"},
        {"field": "note", "type": "string", "optional": True},
    ],
}


def converted(
    values: Sequence[bytes | None], transform: Transform | None = None, **keys: str
) -> ConvertedRecords:
    """What reaches the sink of records with these values."""
    raw = {"name": "c", "topics": "t", "bootstrap.servers": "nowhere:9092", "file": "lines"}
    connector = read(ConnectorConfig, {**raw, "connector.class": "FileStreamSink", **keys})
    made = sinks.create(connector)
    pipeline = Pipeline(connector, made, target=made.schema, transform=transform)
    return pipeline.convert("t", polled(values, headers=[None] * len(values)))


def written(values: Sequence[bytes | None], **keys: str) -> list[str]:
    """The lines of those values that are not null."""
    found = converted(values, **keys)
    assert not found.failed
    lines = {
        offset: _text(value)
        for part in found.parts
        for offset, value in zip(
            *(part.rows[n].to_pylist() for n in (OFFSET, "value")), strict=True
        )
    }
    return [lines[offset] for offset in sorted(lines)]


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def envelope(schema: Any, payload: Any) -> bytes:
    described = {"type": schema, "optional": True} if isinstance(schema, str) else schema
    return json.dumps({"schema": described, "payload": payload}).encode()


def transform(name: str, **keys: str) -> dict[str, str]:
    given = {f"transforms.a.{k.replace('_', '.')}": v for k, v in keys.items()}
    return {"transforms": "a", "transforms.a.type": f"{TRANSFORMS}{name}$Value", **given}


@pytest.mark.parametrize(
    ("schema", "payloads", "expected"),
    [
        ("string", ["foo", 'say "ü"\\'], ["foo", 'say "ü"\\']),
        ("int32", [1, -2], ["1", "-2"]),
        ("double", [1.0, 1e10, 1e-5], ["1.0", "1.0E10", "1.0E-5"]),
        ("float", [1.1], ["1.1"]),
        ("boolean", [True, False], ["true", "false"]),
        ("bytes", ["YWJj"], ["abc"]),
        (STRUCT, [{"id": 1, "note": "ü"}], ['{"id": 1, "note": "\\u00fc"}']),
        ({"type": "array", "items": {"type": "int32"}}, [[1, 2]], ["[1, 2]"]),
        (
            {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp", "version": 1},
            [1_700_000_000_123],
            ["Tue Nov 14 22:13:20 UTC 2023"],
        ),
    ],
)
def test_a_value_in_an_envelope_is_written_without_its_schema(
    schema: Any, payloads: list[Any], expected: list[str]
) -> None:
    assert written([envelope(schema, p) for p in payloads], **WITH_SCHEMAS) == expected


def test_each_spelling_of_an_envelope_is_read() -> None:
    other = {"type": "struct", "fields": [{"field": "payload", "type": "string"}]}
    spread = json.dumps({"schema": other, "payload": {"payload": "x"}}, indent=1)
    turned = json.dumps({"payload": {"id": 3}, "schema": STRUCT})
    values = [envelope(STRUCT, {"id": 1}), spread.encode(), turned.encode(), None]
    values += [envelope(other, {"payload": "y"}), envelope(STRUCT, {"id": 4})]
    found = [json.loads(line) for line in written(values, **WITH_SCHEMAS)]
    assert found == [{"id": 1}, {"payload": "x"}, {"id": 3}, {"payload": "y"}, {"id": 4}]


def test_plain_json_is_written_as_it_is_except_for_strings_and_fractions() -> None:
    values = [b'"foo"', rb'"a\"b\u00e4"', b"1", b"1.50", b"1e10", b" true", b"[1, 2.50]"]
    values += [b'{"a":  2.50}', b"12345678901234567890123"]
    expected = ["foo", 'a"bä', "1", "1.5", "1.0E10", "true", "[1, 2.50]"]
    expected += ['{"a":  2.50}', "12345678901234567890123"]
    assert written(values, **PLAIN) == expected


def test_null_is_a_tombstone_and_bad_json_fails_its_record() -> None:
    found = converted([b'"a"', b"null", None, b"bad"], **PLAIN)
    assert found.records.tombstones is not None
    assert found.records.tombstones.num_rows == 2
    assert [(f.index, f.stage) for f in found.failed] == [(3, "VALUE_CONVERTER")]


@pytest.mark.parametrize(
    ("converter", "value", "expected"),
    [
        ("LongConverter", (5).to_bytes(8, "big"), "5"),
        ("BooleanConverter", b"\1", "true"),
        ("StringConverter", "ü".encode(), "ü"),
        ("ByteArrayConverter", b"as it is", "as it is"),
    ],
)
def test_primitives_of_other_converters_are_written_as_java_writes_them(
    converter: str, value: bytes, expected: str
) -> None:
    assert written([value], **{"value.converter": converter}) == [expected]


@pytest.mark.parametrize(
    ("given", "converter", "value", "expected"),
    [
        (transform("HoistField", field="line"), PLAIN, b'{"id": 1}', '{"line":{"id":1}}'),
        (transform("HoistField", field="value"), PLAIN, b'"foo"', '{"value":"foo"}'),
        (
            transform("HoistField", field="line"),
            WITH_SCHEMAS,
            envelope("string", "foo"),
            '{"line":"foo"}',
        ),
        (transform("InsertField", offset_field="at"), PLAIN, b'{"id": 1}', '{"id":1,"at":0}'),
        (transform("ExtractField", field="id"), PLAIN, b'{"id": "x"}', "x"),
        (transform("ExtractField", field="id"), PLAIN, b'{"id": 1.50}', "1.5"),
        (transform("ExtractField", field="id"), PLAIN, b'{"id": {"a": 1}}', '{"a":1}'),
    ],
)
def test_what_a_transform_makes_is_written(
    given: dict[str, str], converter: dict[str, str], value: bytes, expected: str
) -> None:
    assert written([value], **given, **converter) == [expected]


def test_a_python_transform_may_make_the_lines() -> None:
    def text(batch: pa.RecordBatch) -> pa.RecordBatch:
        line = pa.array([f"record {n}" for n in batch.column("id").to_pylist()])
        names = [n for n in batch.schema.names if n.startswith("__connect_")]
        kept = batch.select(names)
        return pa.RecordBatch.from_arrays([line, *kept.columns], ["value", *names])

    found = converted([b'{"id": 1}'], text, **PLAIN)
    assert found.records.rows.column("value").to_pylist() == ["record 1"]


def test_other_types_are_written_as_java_writes_them() -> None:
    moment = datetime(1970, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    cases: list[tuple[pa.Array, str]] = [
        (pa.array([Decimal("1.50")], pa.decimal128(9, 2)), "1.50"),
        (pa.array([moment], pa.timestamp("us", "UTC")), "Fri Jan 02 03:04:05 UTC 1970"),
        (pa.array([1], pa.date32()), "Fri Jan 02 00:00:00 UTC 1970"),
        (pa.array([1000], pa.time32("ms")), "Thu Jan 01 00:00:01 UTC 1970"),
        (pa.array(["on"]).dictionary_encode(), "on"),
        (pa.array([{"a": Decimal("1.50"), "b": None}]), '{"a":1.50,"b":null}'),
    ]
    assert [lines(values).to_pylist() for values, _ in cases] == [[text] for _, text in cases]
