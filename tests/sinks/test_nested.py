"""Structs, maps and lists of them: from JSON to the columns of lakes and files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from semel.config import ConnectorConfig, read
from semel.converters.json.columns import JSON
from semel.converters.json.converter import JsonConverter
from semel.core.records import Commit, Records, RowsRejected
from semel.sinks.convert import convert, unfit_rows
from semel.sinks.files.config import FilesConfig
from semel.sinks.layout import layout
from semel.sinks.staging import StagingSink
from semel.tasks.pipeline import Pipeline
from tests.polled import polled
from tests.sinks.delta.conftest import Lake
from tests.sinks.files.conftest import Folder
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.target import advance

CONNECT = "org.apache.kafka.connect.data."
DEEP = pa.struct(
    [
        ("a", pa.int32()),
        ("l", pa.list_(pa.struct([("x", pa.string()), ("d", pa.decimal128(38, 10))]))),
        ("m", pa.map_(pa.string(), pa.struct([("t", pa.timestamp("ms"))]))),
    ]
)


def text(*values: Any) -> pa.ChunkedArray:
    texts = [v if isinstance(v, str | None) else json.dumps(v) for v in values]
    return pa.chunked_array([pa.ExtensionArray.from_storage(JSON, pa.array(texts, pa.string()))])


def test_json_is_read_as_what_the_column_is() -> None:
    exact = '{"x": "q", "d": 1234567890123456789.0123456789}'
    whole = f'{{"a": 1, "l": [{exact}, null], "m": {{"k": {{"t": "2024-01-01T00:00:00Z"}}}}}}'
    epoch = {"m": {"k": {"t": 1704067200000}, "n": None}}
    values = text(whole, None, "null", {"a": None}, epoch, "{\n}")
    found = convert(values, DEEP).to_pylist()
    at = found[0]["m"][0][1]["t"]
    assert at.isoformat() == "2024-01-01T00:00:00"
    number = Decimal("1234567890123456789.0123456789")
    nothing = {"a": None, "l": None, "m": None}
    assert found == [
        {"a": 1, "l": [{"x": "q", "d": number}, None], "m": [("k", {"t": at})]},
        None,
        None,
        nothing,
        nothing | {"m": [("k", {"t": at}), ("n", None)]},
        nothing,
    ]
    lists = convert(text("[[1, 2], null, []]", "[]"), pa.list_(pa.list_(pa.int16())))
    assert lists.to_pylist() == [[[1, 2], None, []], []]
    assert convert(text({"7": 1}), pa.map_(pa.int32(), pa.int8())).to_pylist() == [[(7, 1)]]


def test_values_that_are_something_else_are_found() -> None:
    good = {"a": 1}
    bad = [
        {"a": "x"},
        [1],
        5,
        {"z": 2},
        {"l": [{"x": "q", "y": 1}]},
        {"m": {"k": {"u": 1}}},
        {"m": []},
        {"l": {}},
        '{"m": {"k": null, "k": {}}}',
    ]
    values = text(*[v for pair in zip([good] * len(bad), bad, strict=True) for v in pair])
    found = dict(unfit_rows(values, DEEP))
    assert sorted(found) == list(range(1, 18, 2))
    assert found[1] == 'field a: "x" is not a whole number'
    assert found[3] == "[1] is an array, not an object"
    assert "holds a field z, which struct<a: int32" in found[7]
    assert "holds a field y, which" in found[9]
    assert "holds a field u, which" in found[11]
    required = pa.struct([pa.field("a", pa.int32(), nullable=False)])
    assert [row for row, _ in unfit_rows(text({"a": 1}, None, {}), required)] == [2]
    assert [row for row, _ in unfit_rows(text({"a": 1}), pa.int64())] == [0]


# Through a connector

DECIMAL = {"type": "bytes", "name": CONNECT + "Decimal", "parameters": {"scale": "2"}}
STRING = {"type": "string"}
FIELDS: list[dict[str, Any]] = [
    {"field": "id", "type": "int32"},
    {
        "field": "o",
        "type": "struct",
        "optional": True,
        "fields": [{"field": "a", "type": "int32"}, {"field": "d", **DECIMAL}],
    },
    {"field": "l", "type": "array", "optional": True, "items": {"type": "array", "items": DECIMAL}},
    {"field": "m", "type": "map", "optional": True, "keys": STRING, "values": DECIMAL},
    {"field": "e", "type": "struct", "optional": True, "fields": []},
]
PAYLOAD = {"id": 1, "o": {"a": 5, "d": "AJY="}, "l": [["AJY="]], "m": {"k": "AJY="}, "e": {}}
AMOUNT = Decimal("1.50")
READ = {"id": 1, "o": {"a": 5, "d": AMOUNT}, "l": [[AMOUNT]], "m": [("k", AMOUNT)], "e": "{}"}

PLAIN = {"value.converter.schemas.enable": "false"}
DECLARED = PLAIN | {
    "value.converter.schema": "o STRUCT<a: INT, at: TIMESTAMP>, l ARRAY<STRUCT<x: STRING>>, "
    "m MAP<STRING, DECIMAL(4, 2)>"
}


def enveloped(payload: Any, fields: Any = None) -> dict[str, Any]:
    return {"schema": {"type": "struct", "fields": fields or FIELDS}, "payload": payload}


def send(sink: StagingSink, config: Mapping[str, str], *values: Any, at: int = 0) -> None:
    """Records through converter and sink."""
    rows = len(values)
    raw = polled([json.dumps(v).encode() for v in values], offsets=range(at, at + rows))
    pipeline = Pipeline(read(ConnectorConfig, config), sink, target=sink.schema)
    converted = pipeline.convert("t", raw)
    assert not converted.failed
    sink.commit([advance(at, at + rows)], Commit([converted.records]))


def plainly(value: Any) -> Any:
    """Maps as lists of pairs."""
    return value | {"m": list(dict(value["m"]).items())} if value.get("m") else value


@pytest.fixture(params=["delta", "iceberg", "files"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "files":
        return Folder(f"{tmp_path}/files")
    return Lake(tmp_path) if request.param == "delta" else Warehouse(tmp_path)


def stored(place: Any) -> list[Any]:
    rows = place.read() if isinstance(place, Folder) else place.rows()
    return [plainly({k: v for k, v in row.items() if k != "partition"}) for row in rows]


def test_new_columns_are_what_the_envelope_says(place: Any) -> None:
    send(place.sink(), place.config(), enveloped(PAYLOAD))
    assert stored(place) == [READ]


def test_new_columns_are_what_is_declared(place: Any) -> None:
    value = {"o": {"a": 5, "at": "2024-01-01T00:00:00Z"}, "l": [{"x": "q"}], "m": {"k": 1.5}}
    send(place.sink(keys=DECLARED), place.config(keys=DECLARED), value)
    (row,) = stored(place)
    assert row["o"]["a"] == 5
    assert row["o"]["at"].year == 2024
    assert (row["l"], row["m"]) == ([{"x": "q"}], [("k", AMOUNT)])


def test_what_is_not_declared_stays_text(place: Any) -> None:
    send(place.sink(keys=PLAIN), place.config(keys=PLAIN), {"o": {"a": 5}})
    assert stored(place) == [{"o": '{"a":5}'}]


def test_existing_columns_are_filled_and_refuse_what_they_lack(place: Any) -> None:
    send(place.sink(keys=DECLARED), place.config(keys=DECLARED), {"o": {"a": 1}})
    sink, config = place.sink(keys=PLAIN), place.config(keys=PLAIN)
    send(sink, config, {"o": {"a": 2}}, {"o": {"at": 0}}, at=1)
    with pytest.raises(RowsRejected) as rejection:
        send(sink, config, {"o": {"a": 3}}, {"o": {"a": 3, "b": 4}}, at=3)
    (found,) = rejection.value.rejected
    assert (found.offset, "it holds a field b, which" in found.message) == (4, True)
    assert sorted(str(r["o"]["a"]) for r in stored(place)) == ["1", "2", "None"]


def test_a_table_of_structs_takes_plain_json_and_envelopes(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    kind = pa.struct([("d", pa.decimal128(10, 2)), ("a", pa.int64())])
    table = pa.table({"o": pa.array([{"d": AMOUNT, "a": 1}], kind)})
    write_deltalake(str(tmp_path / "t"), table)
    send(lake.sink(), lake.config(), enveloped({"o": PAYLOAD["o"]}, FIELDS[1:2]))
    send(lake.sink(keys=PLAIN), lake.config(keys=PLAIN), {"o": {"a": 9, "d": 2}}, at=1)
    found = [r["o"] for r in lake.rows()]
    numbers = [{"d": AMOUNT, "a": 1}, {"d": AMOUNT, "a": 5}, {"d": Decimal("2.00"), "a": 9}]
    assert sorted(found, key=lambda o: int(o["a"])) == numbers


def test_text_columns_take_nested_values_as_text(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write_deltalake(str(tmp_path / "t"), pa.table({"o": pa.array(["{}"])}))
    send(lake.sink(), lake.config(), enveloped({"o": PAYLOAD["o"]}, FIELDS[1:2]))
    assert {r["o"] for r in lake.rows()} == {"{}", '{"a":5,"d":"AJY="}'}


def test_schemas_that_differ_inside_are_united() -> None:
    narrow = [{"field": "o", "type": "struct", "fields": [{"field": "a", **DECIMAL}]}]
    wide = [{"field": "o", "type": "struct", "fields": [{"field": "b", **DECIMAL}]}]
    values = [enveloped({"o": {"a": "AJY="}}, narrow), enveloped({"o": {"b": "AJY="}}, wide)]
    encoded = pa.array([json.dumps(v).encode() for v in values])
    decoded = JsonConverter().decode(encoded)
    assert not decoded.failures
    columns = pa.Table.from_arrays(decoded.values.flatten(), schema=pa.schema(decoded.values.type))
    config = read(FilesConfig, {"connector.class": "files", "path": "x"})
    arranged = layout(config, {}, Records("t", columns), deletes=False)
    (field,) = arranged.fields()
    assert [f.name for f in field.type] == ["a", "b"]
    found = convert(arranged.columns["o"], field.type, arranged.nested["o"]).to_pylist()
    assert found == [{"a": AMOUNT, "b": None}, {"a": None, "b": AMOUNT}]


@pytest.mark.parametrize("inner", [{"type": "struct"}, {"type": "map", "values": 1}, {"type": "?"}])
def test_schemas_that_are_not_whole_leave_text(inner: dict[str, Any]) -> None:
    fields = [{"field": "o", "type": "struct", "fields": [{"field": "i", **inner}]}]
    encoded = pa.array([json.dumps(enveloped({"o": {"i": 1}}, fields)).encode()])
    assert JsonConverter().decode(encoded).values.type[0].metadata is None
