"""A JSON value is itself in a database's column, or its record is refused.

What it must become is worked out from its text with Python's own fractions, decimals and times.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.audit.hashes import ExpectedRows
from semel.audit.workspace import Workspace
from semel.converters.json.converter import JsonConverter
from semel.core.records import Commit, Records, RowsRejected
from tests.databases import SYSTEMS
from tests.engine.harness import some
from tests.sinks.systems import System
from tests.sinks.target import records

REFUSED = object()
EITHER = object()
"""May be refused; if it is not, it must be what it was."""

NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
ZERO = re.compile(r"-?0+(\.0+)?[eE]\+?(\d+)")
TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII
)


def whole(least: int, greatest: int) -> Callable[[str], Any]:
    def becomes(text: str) -> Any:
        if text == "-0" and least == 0:
            return EITHER
        fits = re.fullmatch(r"-?\d+", text) and least <= int(text) <= greatest
        return int(text) if fits else REFUSED

    return becomes


def floating(width: int) -> Callable[[str], Any]:
    def becomes(text: str) -> Any:
        if not NUMBER.fullmatch(text):
            return REFUSED
        exact = Fraction(text) if len(text) < 400 else None
        near = float(text)
        if width == 32:
            try:
                near = struct.unpack("f", struct.pack("f", near))[0]
            except OverflowError:
                return REFUSED
        if math.isinf(near) or exact is None or (near == 0) != (exact == 0):
            return REFUSED
        if "e" in text.lower() or exact.denominator != 1 or Fraction(near) == exact:
            return near
        if width == 64 and Fraction(repr(near)) == exact:
            return near
        return EITHER if width == 32 and abs(exact) > 2**24 and exact % 10 == 0 else REFUSED

    return becomes


def decimal(precision: int, scale: int) -> Callable[[str], Any]:
    def becomes(text: str) -> Any:
        number = json.loads(text) if text.startswith('"') else text
        if not NUMBER.fullmatch(str(number)):
            return REFUSED
        zero = ZERO.fullmatch(str(number))
        if zero and int(zero[2]) > 36:  # Arrow counts the digits by which the exponent shifts it
            return EITHER
        units = Fraction(number) * 10**scale
        if units.denominator != 1 or abs(units) >= 10**precision:
            return REFUSED
        return Decimal(f"{units.numerator}E-{scale}")

    return becomes


def boolean(text: str) -> Any:
    return {"true": True, "false": False}.get(text, REFUSED)


def string(longest: int | None = None, *, nul: bool = True) -> Callable[[str], Any]:
    def becomes(text: str) -> Any:
        value = json.loads(text, parse_float=str, parse_int=str) if text.startswith('"') else None
        if value is None or re.search("[\ud800-\udfff]", value):
            return REFUSED
        if (longest is not None and len(value) > longest) or ("\0" in value and not nul):
            return REFUSED
        return value

    return becomes


def date(text: str) -> Any:
    if re.fullmatch(r'"\d{4}-\d\d-\d\d"', text, re.ASCII):
        try:
            return dt.date.fromisoformat(json.loads(text))
        except ValueError:
            return EITHER if text.startswith('"0000') else REFUSED
    if re.fullmatch(r"-?\d+", text):
        try:
            return dt.date(1970, 1, 1) + dt.timedelta(days=int(text))
        except OverflowError:
            return EITHER
    return REFUSED


def timestamp(text: str) -> Any:
    epoch = dt.datetime(1970, 1, 1)
    if re.fullmatch(r"-?\d+", text):
        try:
            return epoch + dt.timedelta(milliseconds=int(text))
        except OverflowError:
            return EITHER
    value = json.loads(text) if text.startswith('"') else ""
    if not TIMESTAMP.fullmatch(value):
        return REFUSED
    try:
        found = dt.datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value))
        return found.astimezone(dt.UTC).replace(tzinfo=None) if found.tzinfo else found
    except OverflowError:
        return EITHER
    except ValueError:
        return EITHER if value.startswith("0000") else REFUSED


def time(text: str) -> Any:
    if re.fullmatch(r"-?\d+", text):
        if not 0 <= int(text) < 86_400_000:
            return REFUSED
        return (dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=int(text))).time()
    value = json.loads(text) if text.startswith('"') else ""
    if not re.fullmatch(r"\d\d:\d\d(:\d\d(\.\d{1,9})?)?", value, re.ASCII):
        return EITHER if re.fullmatch(r"\d\d", value) else REFUSED
    try:
        return dt.time.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value))
    except ValueError:
        return REFUSED


@dataclass(frozen=True)
class Column:
    """A type, what a JSON text becomes in it, and how to read what is there."""

    type: str
    becomes: Callable[[str], Any]
    shown: Callable[[Any], Any]
    select: str = "v"


def _date(text: str) -> Any:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return text  # a year that Python lacks


def _naive(text: str) -> Any:
    try:
        return dt.datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        return text


_time = dt.time.fromisoformat
INT64 = whole(-(2**63), 2**63 - 1)
COLUMNS: Mapping[str, Sequence[Column]] = {
    "postgresql": [
        Column("smallint", whole(-(2**15), 2**15 - 1), int),
        Column("bigint", INT64, int),
        Column("real", floating(32), float),
        Column("double precision", floating(64), float),
        Column("numeric(10,2)", decimal(10, 2), Decimal, "v::text"),
        Column("numeric", decimal(38, 18), Decimal, "v::text"),
        Column("boolean", boolean, bool),
        Column("text", string(nul=False), str),
        Column("varchar(3)", string(3, nul=False), str),
        Column("date", date, _date, "v::text"),
        Column("timestamp", timestamp, _naive, "v::text"),
        Column("timestamptz", timestamp, _naive, "(v AT TIME ZONE 'UTC')::text"),
        Column("time", time, _time, "v::text"),
    ],
    "sqlite": [
        Column("BIGINT", INT64, int),
        Column("REAL", floating(64), float),
        Column("DECIMAL(10,2)", decimal(10, 2), lambda v: Decimal(str(v))),
        Column("BOOLEAN", boolean, bool),
        Column("TEXT", string(), lambda v: bytes.fromhex(v).decode(), "hex(v)"),
        Column("DATE", date, _date),
        Column("TIMESTAMP", timestamp, _naive),
        Column("TIME", time, _time),
    ],
    "duckdb": [
        Column("TINYINT", whole(-128, 127), int),
        Column("UBIGINT", whole(0, 2**64 - 1), int, "v::VARCHAR"),
        Column("HUGEINT", decimal(38, 0), int, "v::VARCHAR"),
        Column("FLOAT", floating(32), float),
        Column("DOUBLE", floating(64), float),
        Column("DECIMAL(10,2)", decimal(10, 2), Decimal),
        Column("BOOLEAN", boolean, bool),
        Column("VARCHAR", string(), str),
        Column("DATE", date, _date, "v::VARCHAR"),
        Column("TIMESTAMP", timestamp, _naive, "v::VARCHAR"),
        Column("TIME", time, _time, "v::VARCHAR"),
    ],
    "mariadb": [
        Column("TINYINT", whole(-128, 127), int),
        Column("BIGINT UNSIGNED", whole(0, 2**64 - 1), int, "CAST(v AS CHAR)"),
        Column("FLOAT", floating(32), float, "CAST(v AS DOUBLE)"),
        Column("DOUBLE", floating(64), float),
        Column("DECIMAL(10,2)", decimal(10, 2), Decimal, "CAST(v AS CHAR)"),
        Column("DECIMAL(65,30)", decimal(65, 30), Decimal, "CAST(v AS CHAR)"),
        Column("YEAR", whole(1901, 2155), int),
        Column("BOOLEAN", boolean, bool),
        Column("LONGTEXT CHARACTER SET utf8mb4", string(), str),
        Column("VARCHAR(3) CHARACTER SET utf8mb4", string(3), str),
        Column("DATE", date, _date, "CAST(v AS CHAR)"),
        Column("DATETIME(6)", timestamp, _naive, "CAST(v AS CHAR)"),
        Column("TIME(6)", time, _time, "CAST(v AS CHAR)"),
    ],
}

LITERALS = """
0 -0 0.0 -0.0 1 -1 1.0 1.5 0.5 2 1e3 1E3 255 256 1900 1901 2155 65536 2147483648 16777217 16777218
9007199254740992 9007199254740993 9007199254740993.0 9007199254740994 9223372036854775807
9223372036854775808 18446744073709551615 18446744073709551616 12345678901234567000 1e23
123456789012345678901234567890 1e30 1e37 999999999 99999999.99 99999999.999 1e8 1.255 0.1 1e-2 1e-3
1e38 3.5e38 1e300 1e308 1e309 1e400 1e-30 1e-50 1e-320 1e-400 0.000000000000000001
86399999 86400000 -86400000 16777216 1704103200123 253402300800000
-62135596800001 4611686018427387904 true false "true" "1" "0x10" " 7 " "1e400" "1.5" "NaN"
"Infinity" "abc" "abcd" "ab " "ab  " "" "ä€😀"
"a\\u0000b" "\\ud800" "2024-02-29" "2023-02-29" "2024-1-1" "0000-01-01" "0001-01-01" "10000-01-01"
"9999-12-31" "-0001-01-01" "2024-01-01T10:20" "2024-01-01T10:20:30Z" "2024-01-01T10:20:30+02:00"
"2024-01-01T10:20:30.123456" "2024-01-01T10:20:30.123456789Z" "2016-12-31T23:59:60Z"
"2024-01-01T24:00:00" "2024-01-01 10:20:30" "2024-01-01T10:20:30 " "9999-12-31T23:59:59-12:00"
"10:20" "10:20:30" "10:20:30.123456789" "23:59:60" "24:00:00" "10:20:30Z" [1] [] {} {"a":1}
"""
FIXED = re.findall(r'"(?:[^"\\]|\\.)*"|[^\s"]+', LITERALS.replace('{"a":1}', ""))

numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.integers(-300, 300).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12).map(
        lambda d: f"{d:f}"[:60].rstrip(".")
    ),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.builds(lambda m, e: f"{m}e{e}", st.integers(-(10**6), 10**6), st.integers(-400, 400)),
)
texts = st.one_of(
    st.text(max_size=5),
    st.dates().map(str),
    st.datetimes().map(lambda d: d.isoformat()),
    st.builds(
        lambda d, digits, zone: f"{d:%Y-%m-%dT%H:%M:%S}.{digits}{zone}".zfill(10),
        st.datetimes(min_value=dt.datetime(1700, 1, 1), max_value=dt.datetime(2200, 1, 1)),
        st.from_regex(r"\A[0-9]{1,9}\Z"),
        st.sampled_from(["", "Z", "+02:00", "-11:30"]),
    ),
    st.times().map(str),
    numbers,
).map(json.dumps)
literals = st.lists(st.one_of(numbers, texts, st.sampled_from(FIXED)), min_size=1, max_size=40)


class Store(System):
    """A table of one column in each type."""

    def __init__(self, url: str) -> None:
        super().__init__(url, {"topics": "t0"})
        self.columns = COLUMNS.get(self.system, ())
        self.written: Records | None = None
        """What :meth:`write` wrote last."""
        for number, column in enumerate(self.columns):
            self.execute(f"CREATE TABLE t{number} (id INT PRIMARY KEY, v {column.type})")

    def write(self, number: int, written: Sequence[str]) -> dict[int, Any]:
        """The column's value for each text that is not refused."""
        topic, column = f"t{number}", self.columns[number]
        self.execute(f"DELETE FROM {topic}")
        schema = self.sink.schema(topic)
        values = [f'{{"id":{n},"v":{text}}}'.encode() for n, text in enumerate(written)]
        decoded = JsonConverter(schemas_enable=False).decode(pa.array(values), schema)
        fields = zip([f.name for f in decoded.values.type], decoded.values.flatten(), strict=True)
        rows = pa.table(dict(fields)).filter(decoded.values.is_valid())
        self.written = None
        while rows.num_rows:
            try:
                ids = rows.column("id").to_pylist()
                made = records(rows, topic=topic, offsets=ids)
                self.sink.write(Commit([made]))
                self.written = made
                break
            except RowsRejected as refusal:
                gone = pa.array([r.offset for r in refusal.rejected], pa.int32())
                rows = rows.filter(pa.compute.invert(pa.compute.is_in(rows.column("id"), gone)))
        found = self.query(f"SELECT id, {column.select} AS v FROM {topic}")
        return {r["id"]: column.shown(r["v"]) for r in found}

    def changed(self) -> int:
        """How many rows the audit finds that are not what was written last."""
        assert self.written is not None
        with self.sink.viewing([self.written.topic]) as (view,), closing(Workspace()) as workspace:
            expected = ExpectedRows(workspace, replaces=False)
            held = view.held(self.written)
            assert (held.places.num_rows, held.unlike) == (self.written.count, {})
            expected.add(self.written.topic, held.places, held.values, held.optional)
            rows = view.rows(self.written.topic, expected.columns)
            missing, extra, _ = expected.by_count(rows)
        assert missing == extra
        return missing

    def change(self, number: int, row: int, other: int | None) -> None:
        """Give a row the value of another one by hand, or none."""
        value = "NULL"
        if other is not None:  # of a query of its own, or MariaDB would refuse
            value = f"(SELECT v FROM (SELECT v FROM t{number} WHERE id = {other}) AS o)"
        self.execute(f"UPDATE t{number} SET v = {value} WHERE id = {row}")


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    made = Store(database_url)
    yield made
    made.close()


def problems(store: Store, number: int, written: Sequence[str]) -> list[str]:
    column, found = store.columns[number], store.write(number, written)
    wrong = []
    for n, text in enumerate(written):
        wanted = column.becomes(text)
        there = found.get(n, REFUSED)
        if wanted is EITHER or (wanted is REFUSED and there is REFUSED):
            continue
        if there is REFUSED or wanted is REFUSED or there != wanted:
            said = ["refused" if v is REFUSED else repr(v) for v in (there, wanted)]
            wrong.append(f"{column.type}: {text} is {said[0]} instead of {said[1]}")
    return wrong


@pytest.mark.parametrize(
    "database_url", some(("postgresql", *SYSTEMS), {"postgresql"}), indirect=True
)
def test_a_json_value_is_itself_in_the_table_or_refused(store: Store) -> None:
    found = [w for n in range(len(store.columns)) for w in problems(store, n, FIXED)]
    assert not found, "\n".join(found)


@pytest.mark.long
def test_any_json_value_is_itself_in_the_table_or_refused(store: Store) -> None:
    @settings(max_examples=150, suppress_health_check=list(HealthCheck))
    @given(literals, st.integers(0, len(store.columns) - 1))
    def check(written: Sequence[str], number: int) -> None:
        found = problems(store, number, written)
        assert not found, "\n".join(found)

    check()


def unseen(store: Store, number: int, written: Sequence[str]) -> list[str]:
    """What the audit does not see: that nothing is changed, and then that one cell is."""
    there = store.write(number, written)
    if store.written is None:
        return []
    kind, first = store.columns[number].type, min(there)
    wrong = [f"{kind}: {n} rows are changed" for n in [store.changed()] if n]
    others = [n for n, v in there.items() if v != there[first]]
    for other in [*others[:1], *others[-1:], None]:
        store.change(number, first, other)
        if store.changed() != 1:
            before, after = written[first], "null" if other is None else written[other]
            wrong.append(f"{kind}: {before} is {after} now")
    return wrong


@pytest.mark.parametrize("database_url", some(("postgresql", *SYSTEMS), {"sqlite"}), indirect=True)
def test_the_audit_finds_one_cell_that_was_changed_by_hand_and_no_other(store: Store) -> None:
    found = [w for n in range(len(store.columns)) for w in unseen(store, n, FIXED)]
    assert not found, "\n".join(found)


@pytest.mark.long
def test_the_audit_finds_any_cell_that_was_changed_by_hand(store: Store) -> None:
    @settings(max_examples=100, suppress_health_check=list(HealthCheck), deadline=None)
    @given(literals, st.integers(0, len(store.columns) - 1))
    def check(written: Sequence[str], number: int) -> None:
        found = unseen(store, number, written)
        assert not found, "\n".join(found)

    check()
