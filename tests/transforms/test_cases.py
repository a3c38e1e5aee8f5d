"""What the unit tests of Kafka Connect 4.3 and Debezium 3.5 give to their transforms, and what
those make of it.

``cases.jsonl`` holds schemas, then cases that name them by their number. In values, ``{"$long":
"1"}`` is a Java ``Long``, and so on. A case has the record that results (none if it was dropped),
whether a predicate holds, or the exception.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semel.converters.json.columns import JSON
from semel.converters.json.converter import JsonConverter
from semel.core.errors import ConfigError
from semel.core.records import HEADERS_TYPE, OFFSET, PARTITION, TIMESTAMP, TIMESTAMP_TYPE, TOPIC
from semel.transforms import chain_of
from semel.transforms.base import Batch, Contents

LINES = [json.loads(line) for line in (Path(__file__).parent / "cases.jsonl").open()]
SCHEMAS = [line["schema"] for line in LINES if "schema" in line]
CASES = [line for line in LINES if "test" in line]

_CLASS = "the message names another class of Java"
_INT64 = "numbers of expanded JSON are int64, whatever their size"
KNOWN = {
    "MaskFieldTest.testWithSchemaUnsupportedReplacementType-2": _CLASS,
    "MaskFieldTest.testReplacementTypeMismatch-19": "a BigInteger is a number like others",
    "MaskFieldTest.testSchemalessUnsupportedReplacementType-36": "another field is refused first",
    "MaskFieldTest.testSchemalessUnsupportedReplacementType-38": _CLASS,
    "MaskFieldTest.testSchemalessUnsupportedReplacementType-39": _CLASS,
    "FlattenTest.topLevelMapRequired-325": "a number of JSON is a Long",
    "ExtractNewRecordStateTest.testAddHeadersForNonEnvelopeRecord-336": "a required field is null",
    "EventRouterTest.canExpandJsonPayloadIfConfigured-435": _INT64,
    "EventRouterTest.canExpandJsonArrayWithFirstElementNull-448": _INT64,
    "EventRouterTest.canExpandJsonWithNestedArraysWhereFirstArrayIsEmpty-458": "items are optional",
}
"""What differs, and why."""
CONNECT = "org.apache.kafka.connect.data."
DAY = 86_400_000


def unwrapped(value: Any) -> tuple[str, Any]:
    """The Java type of a value, if it is marked, and the value."""
    if isinstance(value, dict) and len(value) == 1:
        ((mark, inside),) = value.items()
        if mark.startswith("$"):
            return mark[1:], inside
    return "", value


def plain(value: Any) -> Any:
    """A value without schema in Python."""
    kind, inside = unwrapped(value)
    match kind:
        case "integer" | "long" | "short" | "byte":
            return int(inside)
        case "float" | "double":
            return float(inside)
        case "decimal":
            return Decimal(inside)
        case "bytes":
            return base64.b64decode(inside)
        case "date":
            return datetime.fromtimestamp(inside / 1000, UTC)
        case "object":
            return int(inside.removeprefix("java.math.BigInteger:"))
    if isinstance(inside, dict):  # a struct or a map
        return {name: plain(v) for name, v in inside.items()}
    return [plain(v) for v in inside] if isinstance(inside, list) else inside


def payload(schema: dict[str, Any], value: Any) -> Any:
    """A value with a schema, as Kafka Connect's JsonConverter writes it."""
    kind, inside = unwrapped(value)
    name = schema.get("name")
    match kind:
        case "struct":
            return {f["field"]: payload(f, inside[f["field"]]) for f in schema["fields"]}
        case "decimal":
            number = int(Decimal(inside).scaleb(int(schema["parameters"]["scale"])))
            size = (number.bit_length() + 8) // 8
            return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()
        case "bytes":
            return inside
        case "date":
            return {f"{CONNECT}Date": inside // DAY, f"{CONNECT}Time": inside % DAY}.get(
                name, inside
            )
        case "odd":
            return [[key, payload(schema["values"], v)] for key, v in inside.items()]
    if isinstance(inside, list):
        return [payload(schema["items"], v) for v in inside]
    if schema["type"] == "map" and inside is not None:
        return {key: payload(schema["values"], v) for key, v in inside.items()}
    return plain(value)


def written(schema: dict[str, Any], value: Any = None, *, given: bool = False) -> dict[str, Any]:
    """A schema as semel writes it. ``given`` is of a record: what is null in spite of it must be
    optional to get through a converter."""
    made = {
        **schema,
        "type": {"float32": "float", "float64": "double"}.get(schema["type"], schema["type"]),
    }
    if "default" in made:
        made["default"] = payload(schema, made["default"])
    inside = unwrapped(value)[1]
    if given and value is None and "default" not in made:
        made["optional"] = True
    if "fields" in made:
        values = inside if isinstance(inside, dict) else {}
        made["fields"] = [
            {
                **written(f, values.get(f["field"]), given=given and bool(values)),
                "field": f["field"],
            }
            for f in schema["fields"]
        ]
    for part in ("items", "keys", "values"):
        if part in made:
            made[part] = written(made[part])
    return made


def contents(schema: int | None, value: Any) -> Contents:
    if value is None:
        return Contents(pa.nulls(1), schema is not None)
    if schema is not None:
        whole = {
            "schema": written(SCHEMAS[schema], value, given=True),
            "payload": payload(SCHEMAS[schema], value),
        }
        # Records of these tests have not come through a converter, which would replace nulls.
        converter = JsonConverter(replace_nulls=False)
        decoded = converter.decode(pa.array([json.dumps(whole).encode()]))
        assert not decoded.failures
        return Contents(decoded.values, True, decoded.facts)
    try:
        text = json.dumps(plain(value))
    except TypeError:  # Java's objects that JSON does not have
        return Contents(pa.array([plain(value)]), False)
    converter = JsonConverter(schemas_enable=False)
    converter.keep_text()
    return Contents(converter.decode(pa.array([text.encode()])).values, False)


def batch(record: dict[str, Any]) -> Batch:
    topic = record.get("topic", "")
    times = pa.array([record.get("timestamp")], pa.int64()).cast(TIMESTAMP_TYPE)
    origin = {
        TOPIC: pa.array([topic], pa.string()),
        PARTITION: pa.array([record.get("partition")], pa.int32()),
        TIMESTAMP: times,
    }
    if "offset" in record:
        origin[OFFSET] = pa.array([record["offset"]], pa.int64())
    headers = [
        {"key": name, "value": None if text is None else text.encode()}
        for name, text in record.get("headers", [])
    ]
    return Batch(
        pa.table(origin),
        contents(record.get("keySchema"), record.get("key")),
        contents(record.get("valueSchema"), record.get("value")),
        pa.array([topic], pa.string()),
        np.arange(1),
        pa.array([headers], HEADERS_TYPE),
    )


def shown(found: Contents, schema: int | None) -> Any:
    """Keys or values as they are written: with a schema in an envelope."""
    array = found.array
    if array.null_count:
        return None
    if schema is not None:
        assert found.has_schema
        text = JsonConverter().describing(found.facts).encode(array)[0].as_py()
        return json.loads(text)
    if array.type == JSON:
        return json.loads(array.storage[0].as_py())
    writer = JsonConverter(schemas_enable=False, numeric=True)
    text = writer.encode(_in_milliseconds(array))[0].as_py()
    return json.loads(text)


def _in_milliseconds(array: pa.Array) -> pa.Array:
    """Dates as Java's Date has them."""
    if pa.types.is_date(array.type):
        return array.cast(TIMESTAMP_TYPE)
    if pa.types.is_struct(array.type) and len(array.type):
        inside = [_in_milliseconds(each) for each in array.flatten()]
        return pa.StructArray.from_arrays(inside, names=[f.name for f in array.type])
    return array


def _moment(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.timestamp() * 1000


def expected(schema: int | None, value: Any) -> Any:
    if value is None:
        return None
    if schema is None:
        return json.loads(json.dumps(plain(value), default=_moment))
    whole = written(SCHEMAS[schema])
    return {"schema": whole, "payload": payload(SCHEMAS[schema], value)}


def configuration(case: dict[str, Any]) -> dict[str, str]:
    kind = case["type"]
    whole = (
        "org.apache.kafka.connect.transforms." if is_kafkas(kind) else "io.debezium.transforms."
    ) + kind
    prefix, made = "transforms.t.", {"transforms": "t"}
    if kind.startswith("predicates."):
        made |= {"transforms.t.type": "Filter", "transforms.t.predicate": "p", "predicates": "p"}
        prefix = "predicates.p."
    return (
        made | {f"{prefix}type": whole} | {prefix + n: v for n, v in case.get("config", {}).items()}
    )


def is_kafkas(kind: str) -> bool:
    return kind not in ("ExtractNewRecordState", "ByLogicalTableRouter", "outbox.EventRouter")


def cases() -> Iterator[Any]:
    for number, case in enumerate(CASES):
        name = f"{case['test']}-{number}"
        marks = [pytest.mark.xfail(reason=KNOWN[name], strict=True)] if name in KNOWN else []
        yield pytest.param(case, id=name, marks=marks)


@pytest.mark.parametrize("case", cases())
def test_makes_of_a_record_what_the_peers_make_of_it(case: dict[str, Any]) -> None:
    if "given" not in case:
        with pytest.raises(ConfigError):
            chain_of(configuration(case))
        return
    try:
        chain = chain_of(configuration(case))
    except ConfigError:  # refused earlier
        assert "refused" in case
        return
    outcome = chain.apply(batch(case["given"]))
    if "refused" in case:
        (refusal,) = outcome.refused
        assert [refusal.exception, refusal.message.removeprefix("transforms.t: ")] == case[
            "refused"
        ]
        return
    assert not outcome.refused
    if "holds" in case:
        assert (len(outcome.batch) == 0) is case["holds"]
        return
    made, found = case["made"], outcome.batch
    assert len(found) == (made is not None)
    if made is None:
        return
    assert found.topics[0].as_py() == made.get("topic", "")
    assert found.partitions[0].as_py() == made.get("partition")
    assert found.timestamps.cast(pa.int64())[0].as_py() == made.get("timestamp")
    for name in ("key", "value"):
        schema = made.get(f"{name}Schema")
        assert shown(found.contents(name == "key"), schema) == expected(schema, made.get(name))
    headers = [[h["key"], h["value"] and h["value"].decode()] for h in found.headers[0].as_py()]
    assert headers == [[name, text] for name, text in made.get("headers", [])]
