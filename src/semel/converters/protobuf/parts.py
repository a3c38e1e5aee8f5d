"""Dates, times and decimals as messages, in columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semel.converters.bytestrings import unscaled
from semel.converters.protobuf.known_values import FIRST_SECOND, LAST_SECOND
from semel.converters.protobuf.schema import Known
from semel.core.quoting import named

_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_POWERS = np.array([10**n for n in range(19)], np.int64)


class Unwritable(ValueError):
    """Values that do not fit their schema."""


def cast(values: pa.Array, wanted: pa.DataType, path: str) -> pa.Array:
    """Cast values to another type, if it can hold them.

    Raises:
        Unwritable: it does not.
    """
    if values.type == wanted:
        return values
    try:
        return values.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        told = f"field {named(path)}: " if path else ""
        reason = str(error).splitlines()[0]
        raise Unwritable(f"{told}{values.type} does not fit {wanted}: {reason}") from None


def of(node: Known, values: pa.Array, path: str) -> pa.StructArray:
    """The fields of the message that represents each value.

    Raises:
        Unwritable: no message can represent it.
    """
    kind, told = values.type, f"field {named(path)}: " if path else ""
    if node.kind == "Timestamp" and pa.types.is_timestamp(kind):
        seconds, nanos = _split(values, kind.unit)
        if ((seconds < FIRST_SECOND) | (seconds > LAST_SECOND)).any():
            raise Unwritable(f"{told}a timestamp that is not within the years 1 to 9999")
        return _struct(seconds=seconds, nanos=nanos.astype(np.int32))
    if node.kind == "Date" and pa.types.is_date(kind):
        return _dates(values.cast(pa.date32()), told)
    if node.kind == "TimeOfDay" and pa.types.is_time(kind):
        seconds, nanos = _split(values, kind.unit)
        return _struct(
            hours=(seconds // 3600).astype(np.int32),
            minutes=(seconds // 60 % 60).astype(np.int32),
            seconds=(seconds % 60).astype(np.int32),
            nanos=nanos.astype(np.int32),
        )
    if node.kind == "Decimal" and (pa.types.is_decimal(kind) or pa.types.is_integer(kind)):
        return _decimals(cast(values, node.type, path))
    raise Unwritable(f"{told}{kind} cannot be written as {node.type}")


def _struct(**columns: object) -> pa.StructArray:
    return pa.StructArray.from_arrays([pa.array(c) for c in columns.values()], names=list(columns))


def _split(values: pa.Array, unit: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Whole seconds and nanoseconds."""
    if values.type.bit_width == 32:
        values = values.cast(pa.int32())
    numbers = values.cast(pa.int64()).to_numpy()
    per = _PER_SECOND[unit]
    seconds = numbers // per
    return seconds, (numbers - seconds * per) * (_PER_SECOND["ns"] // per)


def _dates(values: pa.Array, told: str) -> pa.StructArray:
    days = values.cast(pa.int32()).to_numpy().astype("M8[D]")
    years, months = days.astype("M8[Y]"), days.astype("M8[M]")
    year = years.astype(np.int64) + 1970
    if ((year < 1) | (year > 9999)).any():
        raise Unwritable(f"{told}a date that is not within the years 1 to 9999")
    return _struct(
        year=year.astype(np.int32),
        month=((months - years.astype("M8[M]")).astype(np.int64) + 1).astype(np.int32),
        day=((days - months.astype("M8[D]")).astype(np.int64) + 1).astype(np.int32),
    )


def _decimals(values: pa.Array) -> pa.StructArray:
    digits = unscaled(values)
    content = values.buffers()[1]
    halves = np.frombuffer(content, "<i8")[2 * values.offset :][: 2 * len(values)].reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    small = (high == np.where(low < 0, -1, 0)) & (low > np.iinfo(np.int64).min)
    precision = np.searchsorted(_POWERS, np.abs(np.where(small, low, 0)), side="right")
    precision = np.maximum(precision, 1)
    for row in np.flatnonzero(~small).tolist():
        number = int.from_bytes(digits[row].as_py(), "big", signed=True)
        precision[row] = len(str(abs(number)))
    return _struct(
        value=digits,
        precision=precision.astype(np.uint32),
        scale=np.full(len(values), values.type.scale, np.int32),
    )
