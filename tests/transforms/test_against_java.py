"""The same records through Kafka Connect's own classes and through semel: the same results."""

from __future__ import annotations

import base64
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.converters.json.columns import JSON
from semel.converters.json.converter import JsonConverter
from semel.core.records import members
from semel.spark import jars
from semel.transforms import chain_of
from semel.transforms.base import Batch
from semel_lab.jars import CONNECT as CONNECT_JARS
from tests.processes import run_java
from tests.transforms.records import KAFKA, STAMP, batch

pytestmark = [pytest.mark.integration, pytest.mark.long]

ROWS = 200
"""Random records of each case."""
CONNECT = "org.apache.kafka.connect.data."
DEEP = {
    "type": "struct",
    "optional": True,
    "fields": [{"type": "string", "optional": True, "field": "z"}],
}
INSIDE = {
    "type": "struct",
    "optional": True,
    "fields": [
        {"type": "int32", "optional": True, "field": "x"},
        {"type": "string", "optional": True, "field": "y"},
        {**DEEP, "field": "deep"},
    ],
}
TYPES: dict[str, dict[str, Any]] = {
    **{n: {"type": n} for n in ("int8", "int16", "int32", "int64", "float", "double")},
    **{n: {"type": n} for n in ("boolean", "string", "bytes")},
    "number": {"type": "string"},
    "when": {"type": "string"},
    "dec": {
        "type": "bytes",
        "name": f"{CONNECT}Decimal",
        "version": 1,
        "parameters": {"scale": "2"},
    },
    "date": {"type": "int32", "name": f"{CONNECT}Date", "version": 1},
    "time": {"type": "int32", "name": f"{CONNECT}Time", "version": 1},
    "ts": {"type": "int64", "name": f"{CONNECT}Timestamp", "version": 1},
    "arr": {"type": "array", "items": {"type": "int32", "optional": True}},
    "st": INSIDE,
}
SCHEMA = {
    "type": "struct",
    "name": "row",
    "optional": True,
    "fields": [{**kind, "field": name, "optional": True} for name, kind in TYPES.items()],
}
KEY_SCHEMA = {
    "type": "struct",
    "optional": True,
    "fields": [{"type": "int32", "optional": False, "field": "k"}],
}

Value = Callable[[random.Random], Any]


def whole(bits: int) -> Value:
    def made(r: random.Random) -> int:
        most = 1 << (bits - 1)
        return r.choice([0, 1, -1, most - 1, -most, r.randrange(-most, most)])

    return made


def fraction(r: random.Random) -> float:
    return r.choice(
        [0.0, -1.5, 1e7, 12345678.0, 0.001, 0.0625, 300.25, r.randrange(-9999, 9999) / 8]
    )


def text(r: random.Random) -> str:
    return r.choice(["", "x", "true", "TRUE", "ä€", "12", " 7 ", "+5", "1e3", "soon", "a,b"])


def number(r: random.Random) -> str:
    return r.choice(
        ["0", "-7", "127", "128", "40000", "2147483648", "9" * 19, "1.5", "-2e3", "7f", "NaN"]
    )


def when(r: random.Random) -> str:
    stamp = datetime.fromtimestamp(r.randrange(-(10**9), 4 * 10**9), UTC)
    return r.choice(
        [
            stamp.strftime("%Y-%m-%d %H:%M:%S"),
            stamp.strftime("%Y-%m-%d"),
            "soon",
            "2024-13-45 25:61:61",
        ]
    )


def decimal(r: random.Random) -> str:
    unscaled = r.randrange(-(10**9), 10**9)
    return base64.b64encode(unscaled.to_bytes(8, "big", signed=True)).decode()


MAKE: dict[str, Value] = {
    **{f"int{bits}": whole(bits) for bits in (8, 16, 32, 64)},
    "float": fraction,
    "double": fraction,
    "boolean": lambda r: r.random() < 0.5,
    "string": text,
    "bytes": lambda r: base64.b64encode(r.randbytes(r.randrange(4))).decode(),
    "number": number,
    "when": when,
    "dec": decimal,
    "date": lambda r: r.randrange(-20_000, 40_000),
    "time": lambda r: r.randrange(86_400_000),
    "ts": lambda r: r.choice([0, 86_400_000, 1, -1, r.randrange(-(10**12), 4 * 10**12)]),
    "arr": lambda r: [r.randrange(9) for _ in range(r.randrange(3))],
    "st": lambda r: {
        "x": maybe(r, r.randrange(9)),
        "y": maybe(r, text(r)),
        "deep": maybe(r, {"z": maybe(r, text(r))}),
    },
}
PLAIN: dict[str, Value] = {
    **{n: MAKE[n] for n in ("int64", "double", "boolean", "string", "number", "when", "arr", "st")},
    "ts": lambda r: r.randrange(-(10**12), 4 * 10**12),
}


def maybe(r: random.Random, value: Any) -> Any:
    return None if r.random() < 0.2 else value


@dataclass(frozen=True)
class Case:
    """A chain, and whether its records have schemas."""

    chain: Sequence[tuple[str, Mapping[str, str]]]
    schemas: bool

    def __str__(self) -> str:
        stages = "+".join(f"{name}({','.join(c.values())})" for name, c in self.chain)
        return f"{stages}-{'schema' if self.schemas else 'plain'}"

    def asked(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        stages = [{"type": KAFKA + name, "config": dict(config)} for name, config in self.chain]
        return {"chain": stages, "schemas": self.schemas, "records": records}

    def config(self) -> dict[str, str]:
        names = [f"t{n}" for n in range(len(self.chain))]
        found = {"transforms": ",".join(names)}
        for name, (kind, config) in zip(names, self.chain, strict=True):
            found[f"transforms.{name}.type"] = KAFKA + kind
            found |= {f"transforms.{name}.{k}": v for k, v in config.items()}
        return found


def cases() -> Iterator[Case]:
    both = (True, False)
    alike: list[Sequence[tuple[str, Mapping[str, str]]]] = [
        [
            (
                "InsertField$Value",
                {"topic.field": "T", "partition.field": "P!", "offset.field": "O?"},
            )
        ],
        [
            (
                "InsertField$Value",
                {"timestamp.field": "At", "static.field": "S", "static.value": "v"},
            )
        ],
        [("InsertField$Key", {"static.field": "S", "static.value": "v"})],
        [("InsertField$Value", {"topic.field": "string"})],
        [("ReplaceField$Value", {"exclude": "string,arr,gone"})],
        [("ReplaceField$Value", {"include": "string,double", "renames": "string:s,gone:x"})],
        [("ReplaceField$Value", {"renames": "int64:double,double:int64"})],
        [("ReplaceField$Key", {"renames": "k:key"})],
        [("ExtractField$Key", {"field": "k"})],
        [("ExtractField$Value", {"field": "gone"})],
        [("ExtractField$Value", {"field": "st.deep.z", "field.syntax.version": "V2"})],
        [("ExtractField$Value", {"field": "st.gone", "field.syntax.version": "V2"})],
        [("ExtractField$Value", {"field": "st"}), ("ExtractField$Value", {"field": "y"})],
        [("ValueToKey", {"fields": "string,int64"})],
        [("ValueToKey", {"fields": "string"}), ("ExtractField$Key", {"field": "string"})],
        [("ValueToKey", {"fields": "gone"})],
        [("HoistField$Value", {"field": "h"})],
        [("HoistField$Value", {"field": "h"}), ("Flatten$Value", {"delimiter": "_"})],
        [("Flatten$Value", {})],
        [
            ("Flatten$Value", {"delimiter": "_"}),
            ("ReplaceField$Value", {"include": "st_deep_z,st_x"}),
        ],
        [("MaskField$Value", {"fields": "string,double,boolean,int64,arr,gone"})],
        [("MaskField$Value", {"fields": "string,double,int64", "replacement": "42"})],
        [("MaskField$Value", {"fields": "string,int64", "replacement": "x"})],
        [("MaskField$Value", {"fields": "boolean", "replacement": "42"})],
        [("MaskField$Value", {"fields": "st"})],
        [("RegexRouter", {"regex": "(or)d(.*)", "replacement": "$2-$1"})],
        [("RegexRouter", {"regex": "x", "replacement": "y"})],
        [
            (
                "TimestampRouter",
                {"topic.format": "${timestamp}.${topic}", "timestamp.format": "yyyy-MM"},
            )
        ],
        [("TimestampRouter", {"timestamp.format": "YYYY-MM-dd YY"})],
        [("SetSchemaMetadata$Value", {"schema.name": "n", "schema.version": "3"})],
        [("DropHeaders", {"headers": "a,c"})],
        [("InsertHeader", {"header": "n", "value.literal": "text"})],
        [("HeaderFrom$Value", {"fields": "string,int64", "headers": "s,i", "operation": "copy"})],
        [("HeaderFrom$Value", {"fields": "string,double", "headers": "s,d", "operation": "move"})],
        [("Filter", {})],
    ]
    for chain, schemas in itertools.product(alike, both):
        yield Case(chain, schemas)
    # In a map without schema, which of two fields of a name stays is left to chance.
    yield Case([("ReplaceField$Value", {"renames": "string:s,double:number"})], schemas=True)
    targets = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")
    for field in TYPES:
        yield Case([("ExtractField$Value", {"field": field})], schemas=True)
        for target in targets:
            yield Case([("Cast$Value", {"spec": f"{field}:{target}"})], schemas=True)
    for field, target in itertools.product(
        ("int64", "double", "boolean", "string", "number", "arr", "st", "gone"), targets
    ):
        yield Case([("Cast$Value", {"spec": f"{field}:{target}"})], schemas=False)
    for field, target in itertools.product(("int64", "double", "number"), targets):
        whole_value = [("ExtractField$Value", {"field": field}), ("Cast$Value", {"spec": target})]
        yield Case(whole_value, schemas=True)
        yield Case(whole_value, schemas=False)
    formats = ("yyyy-MM-dd HH:mm:ss", "EEE, d MMM yyyy hh:mm:ss.SSS a Z", "yyyyDDD'T'kk:m XXX")
    for target in ("string", "unix", "Date", "Time", "Timestamp"):
        for field, pattern in itertools.product(
            ("when", "ts", "date", "time", "int32", "gone"), formats[:1]
        ):
            config = {"field": field, "target.type": target, "format": pattern}
            yield Case([("TimestampConverter$Value", config)], schemas=True)
            if field in ("when", "ts", "gone"):
                yield Case([("TimestampConverter$Value", config)], schemas=False)
        for pattern in formats[1:]:
            first = {"field": "ts", "target.type": "string", "format": pattern}
            back = {"field": "ts", "target.type": target, "format": pattern}
            yield Case(
                [("TimestampConverter$Value", first), ("TimestampConverter$Value", back)],
                schemas=True,
            )
        for precision in ("seconds", "milliseconds", "microseconds", "nanoseconds"):
            config = {
                "field": "int64",
                "target.type": target,
                "unix.precision": precision,
                "format": "yyyy",
            }
            if target in ("unix", "string"):
                yield Case([("TimestampConverter$Value", config)], schemas=False)
        config = {"field": "double", "target.type": target, "format": "yyyy"}
        yield Case([("TimestampConverter$Value", config)], schemas=False)


CASES = list(cases())


def given(case: Case, seed: int) -> list[dict[str, Any]]:
    """Random records, as Kafka has them."""
    r = random.Random(seed)
    found = []
    for offset in range(ROWS):
        make = MAKE if case.schemas else PLAIN
        row = maybe(r, {name: maybe(r, value(r)) for name, value in make.items()})
        key: Any = maybe(r, {"k": r.randrange(9)})
        if case.schemas:
            row = row and {"schema": SCHEMA, "payload": row}
            key = key and {"schema": KEY_SCHEMA, "payload": key}
        found.append(
            {
                "topic": "orders",
                "partition": 3,
                "offset": 10 + offset,
                "timestamp": STAMP + offset * 10**9,
                "key": None if key is None else json.dumps(key),
                "value": None if row is None else json.dumps(row),
                "headers": [[r.choice("abc"), str(n)] for n in range(r.randrange(3))],
            }
        )
    return found


def answers(asked: Sequence[Mapping[str, Any]], *sets: jars.JarSet) -> list[Any]:
    """What Java makes of cases, with the classes of these jars."""
    program, given = Path(__file__).with_name("Reference.java"), "\n".join(map(json.dumps, asked))
    lines = run_java(program, given, *sets, flags=["-Duser.timezone=UTC"])
    return [json.loads(line) for line in lines if line.startswith("[{")]


@pytest.fixture(scope="module")
def java() -> list[Any]:
    """What Java makes of all cases."""
    return answers([c.asked(given(c, n)) for n, c in enumerate(CASES)], CONNECT_JARS)


def decoded(case: Case, records: Sequence[Mapping[str, Any]]) -> Batch:
    sides = []
    for side in ("key", "value"):
        converter = JsonConverter(schemas_enable=case.schemas)
        converter.keep_text()
        texts = [r[side] and r[side].encode() for r in records]
        made = converter.decode(pa.array(texts, pa.binary()))
        assert not made.failures
        sides.append(made.values)
    return batch(
        sides[1],
        sides[0],
        has_schema=case.schemas,
        headers=[[(k, v.encode()) for k, v in r["headers"]] for r in records],
        timestamps=[r["timestamp"] for r in records],
    )


@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(c) for c in CASES])
def test_results_are_those_of_the_java_classes(number: int, java: list[Any]) -> None:
    case = CASES[number]
    records = given(case, number)
    outcome = chain_of(case.config()).apply(decoded(case, records))
    made = outcome.batch
    refused = {r.index: r for r in outcome.refused}
    left = {int(row): at for at, row in enumerate(made.rows)}
    keys, values = shown(made.keys.array), shown(made.values.array)
    for row, wanted in enumerate(java[number]):
        where = (row, records[row], wanted)
        if "exception" in wanted:
            assert row in refused, where
            assert refused[row].exception == wanted["exception"], where
            message = refused[row].message.partition(": ")[2]
            assert said(message) == said(wanted["message"]), where
            continue
        assert row not in refused, (refused.get(row), *where)
        assert (row not in left) == wanted.get("dropped", False), where
        if row not in left:
            continue
        at = left[row]
        assert made.topics[at].as_py() == wanted["topic"], where
        assert same(keys[at], wanted["key"]), (keys[at], *where)
        assert same(values[at], wanted["value"]), (values[at], *where)
        headers = [
            [h["key"], None if h["value"] is None else h["value"].decode()]
            for h in made.headers[at].as_py()
        ]
        assert headers == wanted["headers"], where
        if wanted["type"] is not None and wanted["value"] is not None:
            assert fits(made.values.array.type, wanted["type"]), (made.values.array.type, *where)
        if made.values.name:
            assert [made.values.name, str(made.values.version)] == wanted["schema"] or wanted[
                "value"
            ] is None


def said(message: str) -> str:
    """The message up to a schema or a class that the JVM describes."""
    return message.partition("Schema{")[0].partition(" class ")[0].partition("Schema ")[0]


def shown(array: pa.Array) -> list[Any]:
    """Values as the Java program shows them."""
    if array.type == JSON:
        return [None if v is None else of_json(json.loads(v)) for v in array.storage.to_pylist()]
    if pa.types.is_struct(array.type):
        parts = [(f.name, shown(a)) for f, a, _ in members(array)]
        valid = array.is_valid().to_pylist()
        return [
            {"fields": {n: p[i] for n, p in parts}} if there else None
            for i, there in enumerate(valid)
        ]
    if pa.types.is_list(array.type):
        return [None if v is None else {"items": v} for v in array.to_pylist()]
    if pa.types.is_floating(array.type):
        return [None if v is None else {"float": v} for v in array.to_pylist()]
    return [plain(v) for v in array.to_pylist()]


def of_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {"fields": {k: of_json(v) for k, v in value.items()}}
    if isinstance(value, list):
        return {"items": [of_json(v) for v in value]}
    return {"float": value} if isinstance(value, float) else value


def plain(value: Any) -> Any:
    match value:
        case datetime():
            return {
                "date": round((value - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
            }
        case date():
            return {"date": (value - date(1970, 1, 1)).days * 86_400_000}
        case time():
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            return {"date": seconds * 1000 + value.microsecond // 1000}
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
        case Decimal():
            return {"decimal": str(value)}
    return value


def same(ours: Any, javas: Any) -> bool:
    """A field that is null here may be missing there: a column is there for all records."""
    if isinstance(ours, dict) and isinstance(javas, dict) and ours.keys() == javas.keys():
        (kind,) = ours
        if kind == "fields":
            one, other = ours[kind], javas[kind]
            return all(same(one.get(n), other.get(n)) for n in {*one, *other})
        if kind == "float":
            found, wanted = float(ours[kind]), float(javas[kind])
            return (
                found == wanted
                or (math.isnan(found) and math.isnan(wanted))
                or float(pa.scalar(wanted, pa.float32()).as_py()) == found
            )
        if kind == "decimal":
            return Decimal(ours[kind]) == Decimal(javas[kind])
    return bool(ours == javas) and type(ours) is type(javas)


_NAMES: Mapping[str, pa.DataType] = {
    "INT8": pa.int8(),
    "INT16": pa.int16(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "FLOAT32": pa.float32(),
    "FLOAT64": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "STRING": pa.string(),
    "BYTES": pa.binary(),
    f"INT32:{CONNECT}Date": pa.date32(),
    f"INT32:{CONNECT}Time": pa.time32("ms"),
    f"INT64:{CONNECT}Timestamp": pa.timestamp("ms", "UTC"),
}


def fits(ours: pa.DataType, javas: Any) -> bool:
    """Whether an Arrow type is what stands for a type of Kafka Connect's."""
    if isinstance(javas, dict):
        if ours == JSON:
            return True
        names = {f.name: f.type for f in ours}
        return names.keys() == javas.keys() and all(fits(names[n], javas[n]) for n in names)
    if javas == "ARRAY":
        return bool(pa.types.is_list(ours))
    if javas == f"BYTES:{CONNECT}Decimal":
        return bool(pa.types.is_decimal(ours))
    return ours == _NAMES[javas]
