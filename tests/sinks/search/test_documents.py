"""Columns as the lines of bulk requests, without a server."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core.records import absence
from semel.sinks.jsontext import documents, text
from semel.sinks.search.indices import properties, told
from semel.sinks.search.writing import deletes, requests, upserts


def written(values: pa.Array) -> list[Any]:
    """What a JSON reader makes of it."""
    return [json.loads(t, parse_float=Decimal) for t in text(values).to_pylist()]


def test_scalars() -> None:
    assert text(pa.array([2**63 - 1, None])).to_pylist() == ["9223372036854775807", "null"]
    assert text(pa.array([Decimal("12345678901234567890.10")])).to_pylist() == [
        "12345678901234567890.10"
    ]
    assert written(pa.array([0.5, float("nan"), float("inf"), None])) == [0.5, None, None, None]
    assert written(pa.array([True, False, None])) == [True, False, None]
    assert written(pa.array([b"\x00\xff", None])) == [base64.b64encode(b"\x00\xff").decode(), None]
    assert written(pa.array([None, None])) == [None, None]
    assert written(pa.array(["a", "a", None]).dictionary_encode()) == ["a", "a", None]


def test_times_are_iso_8601() -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)
    assert written(pa.array([at, None], pa.timestamp("us", "UTC"))) == [
        "2026-01-02T03:04:05.678901Z",
        None,
    ]
    assert written(pa.array([at], pa.timestamp("us", "America/New_York"))) == [
        "2026-01-02T03:04:05.678901Z"
    ]
    assert written(pa.array([dt.datetime(2026, 1, 2)], pa.timestamp("ms"))) == [
        "2026-01-02T00:00:00.000"
    ]
    assert written(pa.array([dt.date(2026, 1, 2)])) == ["2026-01-02"]
    assert written(pa.array([dt.time(3, 4, 5)], pa.time32("ms"))) == ["03:04:05.000"]


def test_extension_types() -> None:
    one = uuid.uuid4()
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([one.bytes, None], pa.binary(16)))
    assert written(ids) == [str(one), None]
    kept = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":\n 1e2}', None]))
    assert text(kept).to_pylist() == ['{"a":  1e2}', "null"]


def test_nested_values() -> None:
    people = pa.array(
        [
            {"name": 'x"y', "born": [dt.date(2000, 1, 1), None], "tags": [("k", 1), ("l", None)]},
            None,
            {"name": None, "born": None, "tags": []},
            {"name": "z", "born": [], "tags": None},
        ],
        pa.struct(
            [
                ("name", pa.string()),
                ("born", pa.list_(pa.date32())),
                ("tags", pa.map_(pa.string(), pa.int64())),
            ]
        ),
    )
    expected = [
        {"name": 'x"y', "born": ["2000-01-01", None], "tags": {"k": 1, "l": None}},
        None,
        {"name": None, "born": None, "tags": {}},
        {"name": "z", "born": [], "tags": None},
    ]
    assert written(people) == expected
    assert written(people.slice(2)) == expected[2:]
    assert written(pa.array([people.to_pylist()], pa.list_(people.type))) == [expected]
    assert written(pa.array([[1, 2], None], pa.list_(pa.int8(), 2))) == [[1, 2], None]
    assert written(pa.array([[(1, "a")]], pa.map_(pa.int32(), pa.string()))) == [{"1": "a"}]


VALUES = st.fixed_dictionaries(
    {'n"é\n': st.integers(-(2**63), 2**63 - 1) | st.none(), "t": st.lists(st.text()) | st.none()}
)


@given(st.lists(VALUES))
def test_any_text_fits_on_one_line(rows: list[dict[str, Any]]) -> None:
    kind = pa.schema([('n"é\n', pa.int64()), ("t", pa.list_(pa.string()))])
    table = pa.Table.from_pylist(rows, kind)
    columns = {n: table.column(n).combine_chunks() for n in kind.names}
    found = documents(columns, len(rows)).to_pylist()
    assert [json.loads(t) for t in found] == rows
    assert not any("\n" in t for t in found)


def test_lines() -> None:
    ids, versions = pa.array(['"a"', '"b"']), pa.array([7, 8])
    lines = upserts(ids, versions, pa.array(["{}", '{"x":1}'])).to_pylist()
    assert [json.loads(line) for line in lines[1].splitlines()] == [
        {"index": {"_id": "b", "version_type": "external", "version": 8}},
        {"x": 1},
    ]
    (line, _) = deletes(ids, versions).to_pylist()
    assert json.loads(line)["delete"] == {"_id": "a", "version_type": "external", "version": 7}
    assert upserts(None, None, pa.array(["{}"])).to_pylist() == ['{"index":{}}\n{}\n']


def test_requests_are_bounded_by_rows_and_bytes() -> None:
    lines = pa.array(["x" * n + "\n" for n in (3, 3, 3, 50, 3, 3)])
    assert [rows.start for rows, _ in requests(lines, 2, 1000)] == [0, 2, 4]
    assert [rows.start for rows, _ in requests(lines, 100, 8)] == [0, 2, 3, 4]
    assert (
        b"".join(body for _, body in requests(lines, 100, 8)) == "".join(lines.to_pylist()).encode()
    )
    found = [body for _, body in requests(lines.slice(2, 3), 1, 1000)]
    assert found == [t.encode() for t in lines.to_pylist()[2:5]]
    assert not list(requests(lines.slice(0, 0), 1, 1))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.int8(), {"type": "byte"}),
        (pa.int64(), {"type": "long"}),
        (pa.decimal128(9, 2), {"type": "double"}),
        (pa.timestamp("us", "UTC"), {"type": "date"}),
        (pa.binary(), {"type": "binary"}),
        (pa.list_(pa.bool_()), {"type": "boolean"}),
        (pa.struct([("a", pa.int32())]), {"properties": {"a": {"type": "integer"}}}),
        (pa.uuid(), {"type": "keyword"}),
        (pa.map_(pa.string(), pa.int32()), {"type": "object"}),
    ],
)
def test_mapping(kind: pa.DataType, expected: dict[str, Any]) -> None:
    assert properties([pa.field("f", kind)]) == {"f": expected}


def test_types_that_say_nothing_are_left_to_the_server() -> None:
    assert properties([pa.field("f", pa.null()), pa.field("g", pa.json_())]) == {}


def test_a_document_lacks_the_fields_that_its_record_lacks() -> None:
    inner = pa.StructArray.from_arrays(
        [pa.array([1, None, None]), pa.nulls(3), pa.array([False, True, None])],
        ["x", "y", absence("x")],
    )
    columns = {"a": pa.array([None, "é", None]), "s": inner, "n": pa.nulls(3)}
    absent = {"a": pa.array([True, False, False]), "n": pa.array([True, True, True])}
    assert documents(columns, 3, absent).to_pylist() == [
        '{"s":{"x":1,"y":null}}',
        '{"a":"é","s":{"y":null}}',
        '{"a":null,"s":{"x":null,"y":null}}',
    ]


def test_a_field_that_has_only_been_null_has_no_mapping_yet() -> None:
    inner = pa.StructArray.from_arrays([pa.array([1, 2]), pa.nulls(2, pa.string())], ["x", "y"])
    assert told(inner) == pa.struct([("x", pa.int64()), ("y", pa.null())])
    fields = [pa.field("a", told(pa.nulls(2, pa.string()))), pa.field("to", told(inner))]
    assert properties(fields) == {"to": {"properties": {"x": {"type": "long"}}}}


def test_texts_that_are_all_times_are_mapped_as_dates_if_the_server_reads_them() -> None:
    for texts, kind in [
        (["2024-01-01", None, "2024-01-01T10:20:30.5+01:00"], "date"),
        (["2024-01-01", "soon"], "text"),
        (["2024-13-01"], "text"),
        (["2024-01-01 10:20"], "text"),
    ]:
        (found,) = properties([pa.field("at", told(pa.array(texts)))]).values()
        assert found["type"] == kind
