"""Chooses the folder of a record below its topic's: by its partition, by fields, or by its time.

The folders are Hive's ``name=value``, as Kafka Connect's file sinks make them.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.columns import JSON
from semel.converters.json.duck import raw
from semel.core import watchdog
from semel.core.errors import misconfigured
from semel.core.quoting import all_named, named
from semel.core.records import (
    TIMESTAMP,
    TIMESTAMP_TYPE,
    Records,
    RowsRejected,
    known_times,
    nested_field,
    one_array,
    rejected,
    value_columns,
)
from semel.core.zones import shown
from semel.sinks.casts import UNFIT, by_kind, far_years, only_null, unfit_rows
from semel.sinks.convert import convert

PARTITION_EXCEPTION = "io.confluent.connect.storage.errors.PartitionException"
"""The exception that Confluent's sinks raise for a record without a folder; dead letters name
it."""

_NULL = "__HIVE_DEFAULT_PARTITION__"
_UNSAFE_KEPT = " !$&'()+,-.;@_~"
"""What Hive writes as it is, besides letters and digits."""

_UNITS = {"s": 1, "m": 60, "H": 3600, "d": 86400, "M": 86400, "y": 86400, "Y": 86400}
"""Seconds of the finest step that each letter of path.format needs; a day for months and years."""
_PARTS = {"y": "year", "Y": "year", "M": "month", "d": "day"} | {
    "H": "hour",
    "m": "minute",
    "s": "second",
}
_FIRST = pa.scalar(datetime(1, 1, 2, tzinfo=UTC), TIMESTAMP_TYPE)
_END = pa.scalar(datetime(9999, 12, 31, tzinfo=UTC), TIMESTAMP_TYPE)
"""Times that have a year of four digits in every time zone."""
_EPOCH = datetime(1970, 1, 1)
_PIECE = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")

_tell_once = lru_cache(maxsize=256)(watchdog.tell)

DAILY = "'year'=YYYY/'month'=MM/'day'=dd"
HOURLY = f"{DAILY}/'hour'=HH"


class Folders(ABC):
    """Chooses folders below a topic's."""

    @abstractmethod
    def by(self, records: Records) -> dict[str, pa.ChunkedArray]:
        """The columns whose values decide the folder, one row per record; possibly none.

        Raises:
            RowsRejected: names the records that lack such a value.
        """

    @abstractmethod
    def folder(self, partition: int, values: Sequence[Any]) -> str:
        """The folder of a partition's records that have these values; empty for the topic's."""


class FlatFolders(Folders):
    """Only the topic's own folder."""

    def by(self, records: Records) -> dict[str, pa.ChunkedArray]:
        return {}

    def folder(self, partition: int, values: Sequence[Any]) -> str:
        return ""


class PartitionFolders(FlatFolders):
    """One for each Kafka partition."""

    def folder(self, partition: int, values: Sequence[Any]) -> str:
        return f"partition={partition}"


class FieldFolders(Folders):
    """One for each combination of some fields' values; ``a.b`` is field b of field a."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = list(fields)

    def by(self, records: Records) -> dict[str, pa.ChunkedArray]:
        columns = [
            self._scalars(records, name, _field(records, name, "partition.field.name"))
            for name in self._fields
        ]
        if far := far_years(pa.Table.from_arrays(columns, self._fields)):
            raise _rejected(records, sorted(far.items()))
        return {str(n): column for n, column in enumerate(columns)}

    def _scalars(self, records: Records, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """The values of a field that holds one value, or JSON of several kinds."""
        nested: Sequence[int] = ()
        if pa.types.is_nested(column.type):
            nested = pc.indices_nonzero(column.is_valid()).to_pylist()
        elif column.type == JSON:
            try:
                return by_kind(column, _names)
            except UNFIT:
                nested = [row for row, _ in unfit_rows(column, lambda c: by_kind(c, _names))]
        if nested:
            why = f"{named(name)} holds an object or a list; partition.field.name needs one value"
            raise _rejected(records, [(row, why) for row in nested])
        return column

    def folder(self, partition: int, values: Sequence[Any]) -> str:
        pairs = zip(self._fields, values, strict=True)
        return "/".join(f"{_escaped(n)}={_text(v)}" for n, v in pairs)


class Clock:
    """The time of each record: when it is written, Kafka's timestamp, or a field of its own."""

    def __init__(self, extractor: str, field: str) -> None:
        self.extractor = extractor
        self._field = field

    @property
    def reads_records(self) -> bool:
        """Whether times come from records."""
        return self.extractor != "wallclock"

    def times(self, records: Records) -> pa.ChunkedArray:
        """Milliseconds, in UTC; what is finer is cut off.

        Raises:
            RowsRejected: records without one.
        """
        rows = records.rows
        if self.extractor == "wallclock":
            now = pa.scalar(int(time.time() * 1000), pa.int64()).cast(TIMESTAMP_TYPE)
            return pa.chunked_array([pa.repeat(now, rows.num_rows)])
        if self.extractor == "record":
            values, source = known_times(rows.column(TIMESTAMP)), "the record's timestamp"
        else:
            values, source = _field(records, self._field, "timestamp.field"), self._field
        try:
            stamps = _moments(values)
        except UNFIT:
            wrong = unfit_rows(values, _moments)
            raise _rejected(
                records, [(i, f"{source} is not a time: {why}") for i, why in wrong]
            ) from None
        if stamps.null_count:
            missing = pc.indices_nonzero(stamps.is_null()).to_pylist()
            raise _rejected(records, [(i, f"{source} is null") for i in missing])
        beyond = pc.or_(pc.less(stamps, _FIRST), pc.greater_equal(stamps, _END))
        if pc.any(beyond).as_py():
            why = f"{source} is outside the years 1 to 9999; numbers are milliseconds"
            raise _rejected(records, [(i, why) for i in pc.indices_nonzero(beyond).to_pylist()])
        return stamps


class TimeFolders(Folders):
    """One for each span of time, named by a format such as ``'day'=YYYY-MM-dd/'hour'=HH``."""

    def __init__(self, clock: Clock, path_format: str, duration_ms: int, zone: ZoneInfo) -> None:
        self._clock = clock
        self._pieces = list(_pieces(path_format))
        finest = min((_UNITS[p[0]] for p, literal in self._pieces if not literal), default=86400)
        self._step = duration_ms if duration_ms > 0 else finest * 1000
        self._zone = zone

    def by(self, records: Records) -> dict[str, pa.ChunkedArray]:
        local = shown(one_array(self._clock.times(records)), self._zone)
        counted = pa.chunked_array([local.cast(pa.int64())])
        # Arrow rounds towards zero, which is wrong for times before 1970.
        below = pc.and_(pc.less(counted, 0), pc.not_equal(_remainder(counted, self._step), 0))
        spans = pc.subtract(pc.divide(counted, self._step), below.cast(pa.int64()))
        return {"span": spans}

    def folder(self, partition: int, values: Sequence[Any]) -> str:
        since = timedelta(milliseconds=values[0] * self._step)
        at = _EPOCH + max(since, datetime.min - _EPOCH)  # a long span may begin before year 1
        return _filled(self._pieces, at)


def zone_of(name: str) -> ZoneInfo:
    """A time zone.

    Raises:
        ConfigError: there is none of this name.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise misconfigured(
            "timezone", f"timezone={name!r} is not a time zone, such as UTC or Europe/Vienna"
        ) from None


def check_format(path_format: str) -> None:
    """Raises ConfigError if ``path.format`` is not valid."""
    folder = _filled(list(_pieces(path_format)), _EPOCH)
    for part in folder.split("/") if folder else ():
        if part.startswith(".") or (part.startswith("_") and "=" not in part):
            raise misconfigured(
                "path.format",
                f"path.format={path_format!r} gives folders such as {part}, in which readers look "
                "for no files. Let no folder begin with a dot or with _",
            )


def _pieces(path_format: str) -> Iterator[tuple[str, bool]]:
    """Letters of a format, or literal text."""
    at = 0
    for match in _PIECE.finditer(path_format):
        if match.start() != at:
            break
        at = match.end()
        if match[2] is None:
            quoted = match[1] is not None
            yield (match[1].replace("''", "'") if quoted else match[0]), True
        elif match[2] not in _PARTS or (match[2] == "M" and len(match[0]) > 2):
            raise misconfigured(
                "path.format",
                f"path.format={path_format!r}: {match[0]} is not available; years (YYYY), months "
                "(MM), days (dd), hours (HH), minutes (mm) and seconds (ss) are. Put text in "
                "single quotes",
            )
        else:
            yield match[0], False
    if at != len(path_format):
        raise misconfigured(
            "path.format", f"path.format={path_format!r}: a single quote is not closed"
        )


def _moments(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times from numbers of milliseconds, from text, or from JSON of both.

    Raises:
        one of UNFIT: some value is no time.
    """
    if only_null(values):
        return pa.chunked_array([pa.nulls(len(values), TIMESTAMP_TYPE)])
    if values.type == JSON:
        return by_kind(values, _of_one_kind)
    if pa.types.is_integer(values.type):  # as Kafka Connect reads it
        return convert(values, pa.int64()).cast(TIMESTAMP_TYPE)
    if pa.types.is_string(values.type):
        values = _in_utc(values)
    elif pa.types.is_timestamp(values.type):
        utc = values.cast(pa.timestamp(values.type.unit, "UTC"))
        values = pc.floor_temporal(utc, unit="millisecond")
    return convert(values, TIMESTAMP_TYPE)


def _of_one_kind(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if values.type == JSON:
        raise pa.ArrowTypeError("it is neither a number nor text")
    return _moments(values)


def _in_utc(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times in ISO 8601, to the millisecond; a missing time is midnight, a missing zone UTC."""
    texts = pc.replace_substring_regex(texts, r"(\.\d{3})\d+", r"\1")
    days = pc.match_substring_regex(texts, r"^\d{4}-\d\d-\d\d$")
    whole = pc.if_else(days, pc.binary_join_element_wise(texts, "T00:00:00", ""), texts)
    zoned = pc.match_substring_regex(whole, r"(Z|[+-]\d\d(:?\d\d)?)$")
    return pc.if_else(zoned, whole, pc.binary_join_element_wise(whole, "Z", ""))


def _filled(pieces: Sequence[tuple[str, bool]], at: datetime) -> str:
    return "".join(text if literal else _shown(at, text) for text, literal in pieces).strip("/")


def _shown(at: datetime, letters: str) -> str:
    """A number with at least as many digits as letters; two letters of a year are its last two."""
    number = getattr(at, _PARTS[letters[0]])
    if letters in ("yy", "YY"):
        number %= 100
    return f"{number:0{len(letters)}}"


def _remainder(values: pa.ChunkedArray, by: int) -> pa.ChunkedArray:
    return pc.subtract(values, pc.multiply(pc.divide(values, by), by))


def _field(records: Records, name: str, key: str) -> pa.ChunkedArray:
    """A field of the values; with dots, one that is nested. It is null where they lack it, as in
    a batch in which others have it.

    Raises:
        RowsRejected: the values have no fields at all.
    """
    rows = records.rows
    if not records.has_fields:
        why = f"{key}={name}: the value has no fields"
        raise _rejected(records, [(i, why) for i in range(rows.num_rows)])
    if name in rows.column_names:
        return rows.column(name)
    first, *rest = name.split(".")
    column = _below(rows.column(first), rest) if first in rows.column_names else None
    if column is not None:
        return column
    present = all_named(value_columns(rows.column_names))
    _tell_once(
        f"{key}={name}: records of topic {named(records.topic)} have no such field; they have "
        f"{present}"
    )
    return pa.chunked_array([pa.nulls(rows.num_rows)])


def _below(column: pa.ChunkedArray, path: Sequence[str]) -> pa.ChunkedArray | None:
    """The field at a path below structs or JSON objects. An object without it has a null."""
    for name in path:
        if column.type == JSON:
            text = one_array(column).storage
            column = pa.chunked_array([pa.ExtensionArray.from_storage(JSON, raw(text, [name])[0])])
        elif (inner := nested_field(column, [name])) is not None:
            column = inner
        else:
            return None
    return column


def _rejected(records: Records, problems: Sequence[tuple[int, str]]) -> RowsRejected:
    return RowsRejected(
        [rejected(records.rows, i, why, PARTITION_EXCEPTION) for i, why in problems]
    )


def _text(value: Any) -> str:
    """A value in a path, as Hive writes it."""
    return _NULL if value is None or value == "" else _escaped(_plain(value))


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        plain = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return plain.isoformat(" ")
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _names(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values of one kind as texts; what stays JSON may only be numbers.

    Raises:
        ArrowTypeError: some value is an object or a list.
    """
    array = one_array(values)
    if values.type == JSON and pc.all(pc.match_substring_regex(array.storage, "^-?[0-9]")).as_py():
        return pa.chunked_array([array.storage])
    if values.type == JSON or pa.types.is_nested(values.type):
        raise pa.ArrowTypeError("it is nested")
    distinct = array.dictionary_encode()
    texts = [None if v is None else _plain(v) for v in distinct.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string()).take(distinct.indices)])


def _escaped(text: str) -> str:
    whole = "".join(c if ord(c) > 127 else quote(c, safe=_UNSAFE_KEPT) for c in text)
    return f"%2E{whole[1:]}" if whole.startswith(".") else whole
