"""TimestampConverter: times as text, numbers, or Kafka Connect's Date, Time and Timestamp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.core.errors import misconfigured
from semel.core.records import TIMESTAMP_TYPE
from semel.transforms.base import Batch, Contents, ContentsTransform, Refused, refuse, valid
from semel.transforms.dates import DateFormat
from semel.transforms.fields import Defaults
from semel.transforms.structs import (
    Column,
    column,
    columns,
    java_class,
    refuse_all,
    required,
    struct,
)
from semel.transforms.texts import floor_divided, milliseconds

_DAY = 86_400_000
_LAST_DAY = 2**31 - 1
_CONNECT_EXCEPTION = "org.apache.kafka.connect.errors.ConnectException"
_PER_MILLISECOND = {"microseconds": 1000, "nanoseconds": 1_000_000}
_LONGEST = 2**63 - 1


def _pattern(text: str) -> None:
    if text.strip():
        DateFormat(text).check_it_reads()


@dataclass(frozen=True)
class TimestampConverterConfig(Defaults):
    """The keys of TimestampConverter."""

    field: str = key("field", "", "The field to convert; empty for the whole key or value.")
    target: str = key(
        "target.type",
        doc="The type to convert it to.",
        choices=("string", "unix", "date", "time", "timestamp"),
    )
    format: str = key(
        "format",
        "",
        "How text is read and written, as in java.text.SimpleDateFormat, in UTC.",
        validator=_pattern,
    )
    precision: str = key(
        "unix.precision",
        "milliseconds",
        "The unit of numbers.",
        choices=("seconds", "milliseconds", "microseconds", "nanoseconds"),
    )

    def __post_init__(self) -> None:
        if self.target == "string" and not self.format.strip():
            raise misconfigured(
                "format",
                "TimestampConverter requires format option to be specified when using string "
                "timestamps",
            )


class TimestampConverter(ContentsTransform):
    """See Kafka Connect's TimestampConverter. Digits finer than a millisecond are cut off."""

    section = TimestampConverterConfig
    config: TimestampConverterConfig

    def __init__(self, config: TimestampConverterConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._format = DateFormat(config.format) if config.format.strip() else None

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        name = self.config.field
        if not name:
            values = self._converted(self._milliseconds(contents.array, contents, contents.array))
            kept = {n: v for n, v in contents.facts.items() if n == "optional"}
            return Contents(values, contents.has_schema, kept)
        array = required(contents, "converting timestamp formats", nulls=True)
        fields = columns(array, defaults=self.config.replace_nulls)
        if name in fields:
            old = fields[name]
            values = self._converted(self._milliseconds(old.array, contents, array))
            absent = old.absent if contents.has_schema else None
            fields[name] = Column(pa.field(name, values.type, old.field.nullable), values, absent)
        elif not contents.has_schema:
            fields[name] = column(name, pa.nulls(len(array)))
        return contents.holding(struct(fields, array))

    def _milliseconds(self, array: pa.Array, contents: Contents, records: pa.Array) -> pa.Array:
        kind, kinds = array.type, pa.types
        if kinds.is_null(kind):
            return array.cast(pa.int64())
        if kinds.is_temporal(kind):
            return milliseconds(array)
        if kinds.is_string(kind) or kinds.is_large_string(kind):
            return self._parsed(array)
        if kinds.is_int64(kind):
            return self._of_unix(array)
        if contents.has_schema:
            refuse_all(
                records,
                f"Schema {kind} does not correspond to a known timestamp type format",
                _CONNECT_EXCEPTION,
            )
        what = java_class(kind, has_schema=False)
        refuse_all(array, f"TimestampConverter does not support class {what} objects as timestamps")
        return pa.nulls(len(array), pa.int64())

    def _parsed(self, array: pa.Array) -> pa.Array:
        if self._format is None:
            refuse_all(array, "the timestamp is text, and format= does not say how to read it")
            return pa.nulls(len(array), pa.int64())
        stamps = self._format.parse(array)
        wrong = np.flatnonzero(np.asarray(pc.and_(array.is_valid(), stamps.is_null())))
        if len(wrong):
            texts = array.take(pa.array(wrong)).to_pylist()
            raise Refused(
                {
                    int(at): f"Could not parse timestamp: value ({text}) does not match pattern "
                    f"({self._format.pattern})"
                    for at, text in zip(wrong, texts, strict=True)
                }
            )
        return stamps

    def _of_unix(self, array: pa.Array) -> pa.Array:
        precision = self.config.precision
        if precision == "seconds":
            return _times(array, 1000)
        if precision == "milliseconds":
            return array
        return pc.divide(array, _PER_MILLISECOND[precision])

    def _converted(self, stamps: pa.Array) -> pa.Array:
        target, precision = self.config.target, self.config.precision
        if target == "string":
            assert self._format is not None
            return self._format.format(stamps)
        if target == "unix":
            if precision == "seconds":
                return pc.divide(stamps, 1000)
            return _times(stamps, _PER_MILLISECOND.get(precision, 1))
        if target == "timestamp":
            return stamps.cast(TIMESTAMP_TYPE)
        days = floor_divided(stamps, _DAY)
        if target == "date":
            refuse(np.abs(np.asarray(pc.fill_null(days, 0))) > _LAST_DAY, "there is no such date")
            return days.cast(pa.int32()).cast(pa.date32())
        return pc.subtract(stamps, pc.multiply(days, _DAY)).cast(pa.int32()).cast(pa.time32("ms"))


def _times(numbers: pa.Array, by: int) -> pa.Array:
    """Multiplication that saturates at the largest number."""
    if by == 1:
        return numbers
    most = _LONGEST // by
    filled = np.asarray(pc.fill_null(numbers, 0))
    product = np.clip(filled, -most, most) * by
    product = np.where(filled > most, _LONGEST, np.where(filled < -most, -_LONGEST - 1, product))
    return pa.array(product, mask=~valid(numbers))
