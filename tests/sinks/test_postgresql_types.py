"""Values arrive as they were, through COPY and through the staging table."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from typing import Any

import pyarrow as pa
import pytest

from tests.engine.harness import some
from tests.sinks.target import Target, put, records, refused

D = decimal.Decimal
UTC = dt.UTC
JSON = pa.json_()


def json_array(values: list[str | None]) -> pa.Array:
    return pa.ExtensionArray.from_storage(JSON, pa.array(values, pa.string()))


HALF = dt.datetime(2024, 1, 1, 0, 0, 0, 500_000)


def micro(*seconds: str) -> pa.Array:
    return pa.array([f"2024-01-01 00:00:{s}" for s in seconds]).cast(pa.timestamp("us"))


NS = pa.scalar(1_700_000_000_123_456_789, pa.int64())

# SQL type, values, the texts that PostgreSQL shows for them
CASES: dict[str, tuple[str, pa.Array, list[str | None]]] = {
    "smallint": ("smallint", pa.array([-32768, 32767]), ["-32768", "32767"]),
    "integer": ("integer", pa.array([-(2**31), 2**31 - 1]), ["-2147483648", "2147483647"]),
    "bigint": (
        "bigint",
        pa.array([-(2**63), 2**63 - 1]),
        ["-9223372036854775808", "9223372036854775807"],
    ),
    "bigint from uint64": ("bigint", pa.array([7], pa.uint64()), ["7"]),
    "bigint from whole floats": ("bigint", pa.array([7.0]), ["7"]),
    "bigint from text": ("bigint", pa.array(["7", " 8 "]), ["7", "8"]),
    "real": ("real", pa.array([1.5, -math.inf]), ["1.5", "-Infinity"]),
    "double": ("double precision", pa.array([0.1, math.nan]), ["0.1", "NaN"]),
    "double from integers": ("double precision", pa.array([3]), ["3"]),
    "numeric(p,s)": (
        "numeric(10,2)",
        pa.array([D("1.50"), D("-99999999.99")]),
        ["1.50", "-99999999.99"],
    ),
    "numeric(p,s) from integers": ("numeric(10,2)", pa.array([7, -8]), ["7.00", "-8.00"]),
    "numeric(p,s) from floats": ("numeric(10,2)", pa.array([0.3, 1e7]), ["0.30", "10000000.00"]),
    "numeric(p,s) from text": ("numeric(10,2)", pa.array(["1.5"]), ["1.50"]),
    "numeric(38,0)": ("numeric(38,0)", pa.array([D(10**37)]), [str(10**37)]),
    "numeric(50,2) beyond Arrow": (
        "numeric(50,2)",
        pa.array([D("1.5")], pa.decimal128(10, 1)),
        ["1.50"],
    ),
    "numeric(50,2) from floats": (
        "numeric(50,2)",
        pa.array([0.3, 1e20]),
        ["0.30", "1" + "0" * 20 + ".00"],
    ),
    "numeric(10,2)[] with a null, from floats": (
        "numeric(10,2)[]",
        pa.array([[0.3, None], None, []]),
        ["{0.30,NULL}", None, "{}"],
    ),
    "numeric(10,2)[][]": ("numeric(10,2)[]", pa.array([[[D("1.5")], [None]]]), ["{{1.50},{NULL}}"]),
    "timestamp(3) and the server's texts": (
        "timestamp(3)",
        pa.array(["Jan 2 2024 1:02:03.500", None, "infinity"]),
        ["2024-01-02 01:02:03.5", None, "infinity"],
    ),
    "numeric with negative scale": ("numeric(3,-2)", pa.array([1200]), ["1200"]),
    "numeric": (
        "numeric",
        pa.array([D("0.1"), D("12345678901234567890.123456789012345678")]),
        ["0.1", "12345678901234567890.123456789012345678"],
    ),
    "numeric keeps no zeros that were not there": (
        "numeric",
        pa.array([D("1.5"), D("10"), D(0)], pa.decimal128(38, 18)),
        ["1.5", "10", "0"],
    ),
    "numeric from integers": ("numeric", pa.array([10**18, -5, 0]), [str(10**18), "-5", "0"]),
    "numeric from uint64": ("numeric", pa.array([2**64 - 1], pa.uint64()), [str(2**64 - 1)]),
    "numeric from floats": (
        "numeric",
        pa.array([0.1, 1e30, -2.5e-7]),
        ["0.1", "1" + "0" * 30, "-0.00000025"],
    ),
    "numeric from text": ("numeric", pa.array(["1e2", str(10**60)]), ["100", str(10**60)]),
    "numeric from decimal256": (
        "numeric",
        pa.array([D(10**50)], pa.decimal256(60, 0)),
        [str(10**50)],
    ),
    "boolean": ("boolean", pa.array([True, False]), ["true", "false"]),
    "boolean from text": ("boolean", pa.array(["t", "off"]), ["true", "false"]),
    "text": (
        "text",
        pa.array(["", "Ä€😀 'quoted' \"x\" \\ \n"]),
        ["", "Ä€😀 'quoted' \"x\" \\ \n"],
    ),
    "text from numbers": ("text", pa.array([1, 2]), ["1", "2"]),
    "text from objects": ("text", pa.array([{"a": 1}]), ['{"a":1}']),
    "text from a dictionary": ("text", pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
    "text from large text": ("text", pa.array(["a"], pa.large_string()), ["a"]),
    "text from a view": ("text", pa.array(["a"], pa.string_view()), ["a"]),
    "varchar(n)": ("varchar(3)", pa.array(["abc", "ä€😀"]), ["abc", "ä€😀"]),
    "char(n)": ("char(3)", pa.array(["ab"]), ["ab"]),
    "bytea": ("bytea", pa.array([b"\x00\xff", b""]), ["\\x00ff", "\\x"]),
    "bytea from fixed size": ("bytea", pa.array([b"ab"], pa.binary(2)), ["\\x6162"]),
    "date": (
        "date",
        pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        ["0001-01-01", "9999-12-31"],
    ),
    "date from text": ("date", pa.array(["2024-02-29"]), ["2024-02-29"]),
    "time": ("time", pa.array([dt.time(23, 59, 59, 999999)]), ["23:59:59.999999"]),
    "time from milliseconds": ("time", pa.array([1], pa.time32("ms")), ["00:00:00.001"]),
    "timestamp": (
        "timestamp",
        pa.array([dt.datetime(1, 1, 1), dt.datetime(2024, 1, 1, 12, 30, 0, 123456)]),
        ["0001-01-01 00:00:00", "2024-01-01 12:30:00.123456"],
    ),
    "timestamp from a time with zone": (
        "timestamp",
        pa.array([dt.datetime(2024, 7, 1, 12, tzinfo=UTC)], pa.timestamp("ms", "Europe/Berlin")),
        ["2024-07-01 12:00:00"],
    ),
    "timestamp from nanoseconds": (
        "timestamp",
        pa.array([NS.as_py()], pa.timestamp("ns")),
        ["2023-11-14 22:13:20.123456"],
    ),
    "timestamp from a date": (
        "timestamp",
        pa.array([dt.date(2024, 1, 1)]),
        ["2024-01-01 00:00:00"],
    ),
    "timestamp from text": (
        "timestamp",
        pa.array(["2024-01-01 12:00", "Jan 5 2024"]),
        ["2024-01-01 12:00:00", "2024-01-05 00:00:00"],
    ),
    "timestamp from text with a zone": (
        "timestamp",
        pa.array(["2024-01-01T12:00:00.123456789+02:00", "2024-01-01"]),
        ["2024-01-01 10:00:00.123456", "2024-01-01 00:00:00"],
    ),
    "boolean from 0 and 1": ("boolean", pa.array([0, 1]), ["false", "true"]),
    "timestamptz": (
        "timestamptz",
        pa.array([dt.datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("ms", "UTC")),
        ["2024-01-01 00:00:00+00"],
    ),
    "timestamptz from a time without zone is UTC": (
        "timestamptz",
        pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("s")),
        ["2024-01-01 00:00:00+00"],
    ),
    "timestamptz from text": (
        "timestamptz",
        pa.array(["2024-01-01T00:00:00+02:00", "2024-01-01 10:00:00"]),
        ["2023-12-31 22:00:00+00", "2024-01-01 10:00:00+00"],
    ),
    "timetz": ("timetz", pa.array(["12:00:00+02"]), ["12:00:00+02"]),
    "interval": ("interval", pa.array(["1 day 02:00", "P1M"]), ["1 day 02:00:00", "1 mon"]),
    "interval from a duration": ("interval", pa.array([dt.timedelta(hours=2)]), ["02:00:00"]),
    "json": (
        "json",
        json_array(['{"b": 1,  "a": [1.50, null]}']),
        ['{"b": 1,  "a": [1.50, null]}'],
    ),
    "json from text": ("json", pa.array(['{"a" :1}', "3"]), ['{"a" :1}', "3"]),
    "json from objects": (
        "json",
        pa.array([{"a": [1, None], "b": D("1.25"), "c": "x"}]),
        ['{"a":[1,null],"b":1.25,"c":"x"}'],
    ),
    "jsonb": ("jsonb", json_array(['{"b": 1, "a": 1.50}', '"x"']), ['{"a": 1.50, "b": 1}', '"x"']),
    "jsonb from objects": (
        "jsonb",
        pa.array([{"t": dt.datetime(2024, 1, 1), "l": [{"x": 1}], "s": 'Ä"\\'}]),
        ['{"l": [{"x": 1}], "s": "Ä\\"\\\\", "t": "2024-01-01T00:00:00.000000"}'],
    ),
    "jsonb from lists of objects": (
        "jsonb",
        pa.array([[{"a": 1}, {"a": None}], []]),
        ['[{"a": 1}, {"a": null}]', "[]"],
    ),
    "jsonb from maps": (
        "jsonb",
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        ['{"k": 1}'],
    ),
    "jsonb from numbers": ("jsonb", pa.array([1.5]), ["1.5"]),
    "jsonb in a domain": ("a_document", json_array(['{"a": 1}']), ['{"a": 1}']),
    "uuid": (
        "uuid",
        pa.array(["0C2B3D5E-8f6a-4b1c-9d7e-0123456789ab"]),
        ["0c2b3d5e-8f6a-4b1c-9d7e-0123456789ab"],
    ),
    "uuid in other forms": ("uuid", pa.array(["f" * 32]), ["ffffffff-ffff-ffff-ffff-ffffffffffff"]),
    "uuid from bytes": ("uuid", pa.array([b"\x01" * 16]), ["01010101-0101-0101-0101-010101010101"]),
    "uuid from Arrow's type": (
        "uuid",
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"\x02" * 16], pa.binary(16))),
        ["02020202-0202-0202-0202-020202020202"],
    ),
    "enum": ("mood", pa.array(["sad", "ok"]), ["sad", "ok"]),
    "inet": ("inet", pa.array(["10.0.0.1/8"]), ["10.0.0.1/8"]),
    "range": ("int4range", pa.array(["[1,5)"]), ["[1,5)"]),
    "money": ("numeric(19,4)", pa.array(["12.3456"]), ["12.3456"]),
    "bits": ("bit(3)", pa.array(["101"]), ["101"]),
    "xml": ("point", pa.array(["(1,2)"]), ["(1,2)"]),
    "domain of integers": ("positive", pa.array([1, 2]), ["1", "2"]),
    "domain of numeric": ("price", pa.array([1, 2]), ["1.00", "2.00"]),
    "domain of a domain": ("small_positive", pa.array([1, 2]), ["1", "2"]),
    "composite": ("pair", pa.array(['(1,"a b")']), ['(1,"a b")']),
    "integer[]": ("integer[]", pa.array([[1, 2], [], [-3]]), ["{1,2}", "{}", "{-3}"]),
    "integer[] with nulls": ("integer[]", pa.array([[1, None], [None]]), ["{1,NULL}", "{NULL}"]),
    "bigint[]": ("bigint[]", pa.array([[2**62]]), ["{4611686018427387904}"]),
    "text[]": ("text[]", pa.array([["a", "", 'q"\\,{} NULL']]), ['{a,"","q\\"\\\\,{} NULL"}']),
    "text[] with nulls": (
        "text[]",
        pa.array([["a", None, "NULL", 'q"\\,{}']]),
        ['{a,NULL,"NULL","q\\"\\\\,{}"}'],
    ),
    "varchar[]": ("varchar(3)[]", pa.array([["abc", "d"]]), ["{abc,d}"]),
    "double[]": ("double precision[]", pa.array([[0.1, math.inf]]), ["{0.1,Infinity}"]),
    "double[] with nulls": ("double precision[]", pa.array([[0.1, None]]), ["{0.1,NULL}"]),
    "real[]": ("real[]", pa.array([[1.5]]), ["{1.5}"]),
    "boolean[]": ("boolean[]", pa.array([[True, False]]), ["{t,f}"]),
    "timestamptz[]": (
        "timestamptz[]",
        pa.array([[dt.datetime(2024, 1, 1, tzinfo=UTC)]], pa.list_(pa.timestamp("ms", "UTC"))),
        ['{"2024-01-01 00:00:00+00"}'],
    ),
    "timestamp[] with nulls": (
        "timestamp[]",
        pa.array([[dt.datetime(2024, 1, 1), None]]),
        ['{"2024-01-01 00:00:00",NULL}'],
    ),
    "date[]": ("date[]", pa.array([[dt.date(2024, 1, 1)]]), ["{2024-01-01}"]),
    "numeric[]": ("numeric(10,2)[]", pa.array([[D("1.5")]]), ["{1.50}"]),
    "numeric[] from integers": ("numeric[]", pa.array([[1, 2]]), ["{1,2}"]),
    "numeric[] from floats": ("numeric[]", pa.array([[0.1]]), ["{0.1}"]),
    "bytea[]": ("bytea[]", pa.array([[b"\x00"]]), ['{"\\\\x00"}']),
    "bytea[] with nulls": ("bytea[]", pa.array([[b"\x00", None]]), ['{"\\\\x00",NULL}']),
    "uuid[]": ("uuid[]", pa.array([["f" * 32]]), ["{ffffffff-ffff-ffff-ffff-ffffffffffff}"]),
    "enum[]": ("mood[]", pa.array([["sad", "ok"]]), ["{sad,ok}"]),
    "jsonb[]": ("jsonb[]", pa.array([[{"a": "x,y"}]]), ['{"{\\"a\\": \\"x,y\\"}"}']),
    "array from text": ("integer[]", pa.array(["{1,2}"]), ["{1,2}"]),
    "nested arrays": ("integer[]", pa.array([[[1, 2], [3, None]]]), ["{{1,2},{3,NULL}}"]),
    "large lists": ("integer[]", pa.array([[1]], pa.large_list(pa.int64())), ["{1}"]),
    "lists of a fixed size": ("integer[]", pa.array([[1, 2]], pa.list_(pa.int64(), 2)), ["{1,2}"]),
    "nothing but nulls": ("integer", pa.nulls(2), [None, None]),
    "nothing but nulls in an array column": ("integer[]", pa.nulls(1), [None]),
}
TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE DOMAIN positive AS integer CHECK (VALUE > 0)",
    "CREATE DOMAIN small_positive AS positive CHECK (VALUE < 10)",
    "CREATE DOMAIN price AS numeric(10, 2)",
    "CREATE DOMAIN code AS varchar(3)",
    "CREATE DOMAIN a_document AS jsonb",
    "CREATE DOMAIN to_the_second AS timestamp(0)",
    "CREATE TYPE pair AS (a int, b text)",
)


@pytest.mark.parametrize("mode", some(["insert", "upsert"], {"upsert"}))
def test_every_type_round_trips(target: Target, mode: str) -> None:
    """With a null after the values, in two chunks, the first of them sliced."""
    target.execute(*TYPES)
    sink = target.sink(insert_mode=mode, pk_mode="record_key", pk_fields="id")
    problems = []
    for number, (name, (kind, values, texts)) in enumerate(CASES.items()):
        table = f"t{number}"
        target.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v {kind})")
        if mode == "upsert":
            target.execute(f"INSERT INTO {table} (id) VALUES (0)")
        null = json_array([None]) if values.type == JSON else pa.nulls(1, values.type)
        column = pa.chunked_array([pa.concat_arrays([null, values]).slice(1), null])
        keys = list(range(len(texts) + 1))
        try:
            put(sink, records(pa.table({"v": column}), topic=table, keys=keys))
        except Exception as error:
            problems.append(f"{name}: {getattr(error, 'rejected', error)}")
            continue
        found = target.values(f"SELECT v::text FROM {table} ORDER BY id")
        if found != [*texts, None]:
            problems.append(f"{name}: {found} instead of {[*texts, None]}")
    assert not problems, "\n".join(problems)


def test_types_that_converters_are_asked_for(target: Target) -> None:
    target.execute(
        *TYPES,
        "CREATE TABLE t (a smallint, b numeric(10,2), c numeric, d uuid, e jsonb, f mood, "
        "g timestamptz, h integer[], i positive, j varchar(3), k jsonb[], l json, "
        "m int GENERATED ALWAYS AS (a + 1) STORED)",
    )
    schema = target.sink().schema("t")
    assert schema is not None
    assert {f.name: f.type for f in schema} == {
        "a": pa.int16(),
        "b": pa.decimal128(10, 2),
        "c": pa.decimal128(38, 18),
        "d": pa.string(),
        "e": pa.json_(),
        "f": pa.string(),
        "g": pa.timestamp("us", "UTC"),
        "h": pa.list_(pa.int32()),
        "i": pa.int32(),
        "j": pa.string(),
        "k": pa.list_(pa.string()),
        "l": pa.json_(),
    }


# SQL type, values of which the second does not fit, what the message says
MISFITS: dict[str, tuple[str, pa.Array, str]] = {
    "smallint": ("smallint", pa.array([1, 40_000]), "v .smallint. cannot take 40000"),
    "integer": ("integer", pa.array([1, 2**31]), "cannot take 2147483648"),
    "bigint from uint64": (
        "bigint",
        pa.array([1, 2**63], pa.uint64()),
        "cannot take 9223372036854775808",
    ),
    "integer from a fraction": ("integer", pa.array([1.0, 1.5]), "cannot take 1.5"),
    "integer from text": ("integer", pa.array(["1", "one"]), "one.*not a whole number"),
    "integer from text that overflows": ("integer", pa.array(["1", "3000000000"]), "3000000000"),
    "integer from hexadecimal": ("integer", pa.array(["1", "0x10"]), "not a whole number"),
    "numeric from hexadecimal": ("numeric", pa.array(["1", "0x10"]), "not a number in decimal"),
    "double from hexadecimal": ("double precision", pa.array(["1", "0x10"]), "not a number"),
    "double from text too large": (
        "double precision",
        pa.array(["1", "1e400"]),
        "out of its range",
    ),
    "double from text too small": ("double precision", pa.array(["1", "1e-400"]), "out of its"),
    "double from a long": ("double precision", pa.array([1, 2**53 + 1]), "cannot take 9007199254"),
    "real overflow": ("real", pa.array([1.0, 1e300]), "out of range for float"),
    "real underflow": ("real", pa.array([1.0, 1e-50]), "out of range for float"),
    "real[] with a null": ("real[]", pa.array([[1.0, None], [1e300, None]]), "out of range"),
    "numeric from floats": ("numeric(10,2)", pa.array([0.3, 0.1 + 0.2]), "cannot take 0.3000"),
    "numeric(50,2) from floats": ("numeric(50,2)", pa.array([0.3, 0.1 + 0.2]), "0.3000.*not fit"),
    "boolean from numbers": ("boolean", pa.array([1, 2]), "neither 0 nor 1"),
    "boolean from floats": ("boolean", pa.array([None, 0.5]), "double is not bool"),
    "date with a time": ("date", pa.array([dt.datetime(2024, 1, 1), HALF]), "time of day"),
    "date from text with a time": (
        "date",
        pa.array(["2024-01-01", "2024-01-01T10:00"]),
        "has a time of day",
    ),
    "date[] from text with a time": (
        "date[]",
        pa.array([["1 Jan 2024"], ["1 Jan 2024 5pm"]]),
        "day",
    ),
    "time with a date": ("time", pa.array(["10:00", "2024-01-01 10:00"]), "has a date"),
    "time from a timestamp": ("time", pa.array([None, HALF]), "not a time of day"),
    "time beyond the day": (
        "time",
        pa.array([0, 86_400_000], pa.int32()).cast(pa.time32("ms")),
        "out of the column's range",
    ),
    "timestamp with a leap second": (
        "timestamp",
        pa.array(["2016-12-31T23:59:59Z", "2016-12-31T23:59:60Z"]),
        "leap second",
    ),
    "timestamp with a zone in the server's form": (
        "timestamp",
        pa.array(["Jan 5 2024 10:00", "Jan 5 2024 10:00 PST"]),
        "which the column would drop",
    ),
    "interval of nanoseconds": (
        "interval",
        pa.array(["00:00:01.123456", "00:00:01.123456789"]),
        "finer than a microsecond",
    ),
    "money": ("money", pa.array(["1.25", ""]), "an amount"),
    "money would be rounded": ("money", pa.array(["1.25", "1.255"]), "an amount"),
    "varchar would cut spaces": ("varchar(3)", pa.array(["ab ", "ab  "]), "too long"),
    "char would cut spaces": ("char(3)", pa.array(["ab ", "ab  "]), "too long"),
    "numeric overflow": ("numeric(4,2)", pa.array([1, 100]), "cannot take 100"),
    "numeric would be rounded": ("numeric(4,2)", pa.array([D("1.100"), D("1.005")]), "cannot take"),
    "numeric text would be rounded": ("numeric(4,2)", pa.array(["1.1", "1.005"]), "cannot take"),
    "numeric of many digits would be rounded": (
        "numeric(50,2)",
        pa.array([D("1.100"), D("1.005")]),
        "1.005 does not fit numeric.50,2",
    ),
    "numeric of whole hundreds": ("numeric(4,-2)", pa.array([100, 101]), "101 does not fit"),
    "numeric[] with a null": (
        "numeric(10,2)[]",
        pa.array([[D("1.100"), None], [D("1.005"), None]]),
        "cannot take .*1.005",
    ),
    "numeric[] of many digits": ("numeric(50,2)[]", pa.array([[D("1.100")], [D("1.005")]]), "fit"),
    "timestamp(0)": ("timestamp(0)", micro("01.000000", "01.500000"), "more than 0 decimal digits"),
    "timestamp(3)": ("timestamp(3)", micro("01.123000", "01.123400"), "more than 3 decimal digits"),
    "timestamptz(5)": ("timestamptz(5)", micro("01.00001", "01.000001"), "more than 5 decimal"),
    "timestamp(0) before 1970": (
        "timestamp(0)",
        pa.array([-1_000_000, -1], pa.timestamp("us")),
        "more than 0",
    ),
    "timestamp(0) from text": (
        "timestamp(0)",
        pa.array(["2024-01-01", "2024-01-01 00:00:00.5"]),
        "0",
    ),
    "timestamp(0) from text of the server's": (
        "timestamp(0)",
        pa.array(["Jan 1 2024 1:00", "Jan 1 2024 1:00:00.5"]),
        "Jan 1 2024 1:00:00.5 does not fit timestamp.0. without time zone.*22007",
    ),
    "timestamp(0)[]": (
        "timestamp(0)[]",
        pa.array([[dt.datetime(2024, 1, 1)], [HALF]]),
        "more than",
    ),
    "timestamp(0)[] with a null": (
        "timestamp(0)[]",
        pa.array([[dt.datetime(2024, 1, 1), None], [HALF, None]]),
        "more than 0 decimal digits",
    ),
    "domain of timestamp(0)": (
        "to_the_second",
        pa.array([dt.datetime(2024, 1, 1), HALF]),
        "more than",
    ),
    "time(2)": ("time(2)", pa.array([dt.time(1, 2, 3, 10_000), dt.time(1, 2, 3, 1000)]), "than 2"),
    "timetz(0)": ("timetz(0)", pa.array(["01:02:03+01", "01:02:03.5+01"]), "does not fit"),
    "interval(0)": ("interval(0)", pa.array(["1 day 2 secs", "PT1.5S"]), "PT1.5S does not fit"),
    "interval(0) from a duration": (
        "interval(0)",
        pa.array([1000, 1500], pa.duration("ms")),
        "more than 0",
    ),
    "interval without seconds": (
        "interval minute",
        pa.array(["1 hour", "61 secs"]),
        "does not fit",
    ),
    "boolean from text": ("boolean", pa.array(["yes", "perhaps"]), "perhaps"),
    "timestamp from text": ("timestamp", pa.array(["2024-01-01", "tomorrow-ish"]), "tomorrow-ish"),
    "timestamp out of range": (
        "timestamp",
        pa.array([0, -9_000_000_000_000_000], pa.timestamp("ms")),
        "cannot take",
    ),
    "date out of range": (
        "date",
        pa.array([0, -5_000_000], pa.int32()).cast(pa.date32()),
        "cannot",
    ),
    "varchar too long": ("varchar(3)", pa.array(["abc", "abcd"]), "too long.*22001"),
    "varchar[] too long": ("varchar(3)[]", pa.array([["abc"], ["abcd"]]), "too long.*22001"),
    "domain of varchar too long": ("code", pa.array(["abc", "abcd"]), "too long.*22001"),
    "char too long": ("char(3)", pa.array(["abc", "abcd"]), "too long.*22001"),
    "NUL in text": ("text", pa.array(["a", "a\0b"]), "NUL"),
    "NUL in text[]": ("text[]", pa.array([["a"], ["x", "a\0b"]]), "NUL"),
    "NUL in jsonb": ("jsonb", json_array(['"a"', '"a\\u0000"']), "22P05"),
    "not JSON": ("jsonb", pa.array(["{}", "{"]), "invalid input syntax for type json"),
    "NaN in jsonb": ("jsonb", pa.array([{"a": 1.0}, {"a": math.nan}]), "json"),
    "uuid": ("uuid", pa.array(["f" * 32, "not one"]), "not one"),
    "enum": ("mood", pa.array(["ok", "angry"]), "angry"),
    "inet": ("inet", pa.array(["10.0.0.1", "10.0.0.256"]), "10.0.0.256"),
    "domain": ("positive", pa.array([1, -1]), "positive_check.*23514"),
    "domain of a domain": ("small_positive", pa.array([1, 10]), "small_positive_check.*23514"),
    "array element": ("smallint[]", pa.array([[1], [2, 40_000]]), "cannot take"),
    "not UTF-8": ("text", pa.array([b"a", b"\xff"]), "cannot take"),
}


@pytest.mark.parametrize("mode", some(["insert", "upsert"], {"insert"}))
def test_values_that_do_not_fit_are_refused_by_name(target: Target, mode: str) -> None:
    target.execute(*TYPES)
    sink = target.sink(insert_mode=mode, pk_mode="record_key", pk_fields="id")
    problems = []
    for number, (name, (kind, values, message)) in enumerate(MISFITS.items()):
        table = f"t{number}"
        target.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v {kind})")
        both = pa.table({"v": values})
        found = refused(sink, records(both, topic=table, keys=[1, 2], offsets=[10, 11]))
        if set(found) != {11} or not re.search(message, found[11].message):
            problems.append(f"{name}: {found}")
        put(sink, records(both.slice(0, 1), topic=table, keys=[1], offsets=[10]))
        assert target.values(f"SELECT id FROM {table}") == [1]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("timestamptz", pa.array([1_700_000_000_000])),
        ("date", pa.array([19_000])),
        ("time", pa.array([1000])),
        ("bigint", pa.array([dt.datetime(2024, 1, 1)])),
        ("integer[]", pa.array([1])),
        ("integer", pa.array([{"a": 1}])),
        ("integer", pa.array([[1]])),
    ],
    ids=str,
)
def test_values_of_another_kind_are_refused_not_guessed(
    target: Target, kind: str, values: pa.Array
) -> None:
    target.execute(f"CREATE TABLE t (v {kind})")
    found: dict[int, Any] = refused(target.sink(), records(pa.table({"v": values})))
    assert set(found) == {0}
    assert "column v" in found[0].message
