"""Arrow's casts of scalars, except those that change a value; and which values of a column do not
fit where they are to go.

Arrow turns the text "0x10" into 16, 2 into true, a timestamp into a date by dropping its time, and
1e300 into infinity if a float has 32 bits. Here these are errors. docs/converters.md says what is
rounded.

A batch's column has one type for all of its records. If it cannot be converted as a whole, that
says nothing about a single record. So each value is judged by itself: a null fits wherever nulls
do, and JSON of several kinds is taken apart, so that each value is converted as it would be in a
batch of its own kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_

from semel.converters.json import duck
from semel.converters.json.columns import clock_times
from semel.converters.json.infer import of_one_kind
from semel.converters.json.read import is_faithful
from semel.converters.json.text import place
from semel.converters.semantic import without_nanoseconds
from semel.core.quoting import named
from semel.core.records import check_years, one_array
from semel.databases.columns import is_text
from semel.sinks import jsontext

UNFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
"""What :func:`cast` raises when some value does not fit."""

NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
NOT_FINITE = r"[+-]?[iI][nN][fF]([iI][nN][iI][tT][yY])?|[nN][aA][nN]"
_WHOLE_NUMBER = r"[+-]?[0-9]+"
_WITH_ZONE = r"[T ][0-9]{2}.*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_NANOSECONDS = r"\.[0-9]{7}"
_ZERO = r"^[+-]?0*\.?0*$"
UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_EXACTLY = Context(prec=76, traps=[Inexact, InvalidOperation])
_EXACT = {32: 1 << 24, 64: 1 << 53}
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def cast(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Convert scalars to another type.

    Raises:
        one of UNFIT: some value does not fit.
    """
    source = values.type
    if source == target:
        return values
    if values.null_count == len(values):
        return pa.chunked_array([pa.nulls(len(values), target)])
    if is_text(source):
        return _parsed(values.cast(pa.string()), target)
    if is_text(target):
        check_years(values)
    if is_.is_boolean(target):
        return _boolean(values)
    if is_.is_floating(target):
        return _floats(values, target)
    if is_.is_decimal(target):
        return _decimals(values, target)
    if is_.is_date(target) and is_.is_timestamp(source):
        return _days(values).cast(target)
    if is_.is_time(target) and not is_.is_time(source):
        raise pa.ArrowTypeError(f"{source} is not a time of day")
    if is_.is_timestamp(target) and is_.is_timestamp(source):
        return _moments(values, target)
    if is_.is_time(source) and is_.is_time(target) and source.unit == "ns":
        return values.cast(pa.time64("us"), safe=False).cast(target)
    return values.cast(target)


def check_text(text: pa.ChunkedArray, pattern: str, what: str) -> None:
    """Raises ArrowInvalid unless the pattern matches each text as a whole."""
    if not pc.all(pc.match_substring_regex(text, f"^({pattern})$")).as_py() and len(text):
        other = text.filter(pc.invert(pc.match_substring_regex(text, f"^({pattern})$")))
        if len(other.drop_null()):
            raise pa.ArrowInvalid(f"it is not {what}")


def told(value: pa.Scalar) -> str:
    """A value in a message."""
    try:
        return repr(value.as_py())
    except (ArithmeticError, ValueError):  # a time or a decimal that Python cannot represent
        return f"{getattr(value, 'value', 'a value')} as {value.type}"


# Which values do not fit

Convert = Callable[[pa.ChunkedArray], object]


def unfit_rows(values: pa.ChunkedArray, convert: Convert) -> list[tuple[int, str]]:
    """The rows whose value ``convert`` refuses with one of UNFIT, each with the reason."""
    rows = pc.indices_nonzero(values.is_valid())
    unfit = _unfit(values.take(rows) if values.null_count else values, convert)
    return [(rows[place].as_py(), why) for place, why in unfit]


def _unfit(values: pa.ChunkedArray, convert: Convert) -> list[tuple[int, str]]:
    """The same for values without nulls, by bisection."""
    if not len(values):
        return []
    try:
        convert(values)
    except UNFIT as error:
        if len(values) == 1:
            return [(0, str(error).splitlines()[0])]
        middle = len(values) // 2
        left = _unfit(values.slice(0, middle), convert)
        right = _unfit(values.slice(middle), convert)
        return left + [(middle + place, why) for place, why in right]
    return []


def without_json(rows: pa.Table, *, years: bool = True) -> dict[int, str]:
    """The rows with a value that JSON cannot hold, each with the column and the reason: a NaN or an
    infinity and, with ``years``, a time too far away."""

    def fits(values: pa.ChunkedArray) -> None:
        jsontext.check(one_array(values), years=years)

    problems: dict[int, str] = {}
    for name, values in zip(rows.column_names, rows.columns, strict=True):
        if is_.is_floating(values.type):
            for row in pc.indices_nonzero(pc.invert(pc.is_finite(values))).to_pylist():
                problems.setdefault(row, f"column {named(name)}: JSON has no {values[row].as_py()}")
            continue
        for row, why in unfit_rows(values, fits):
            problems.setdefault(row, f"column {named(name)}: {why}")
    return problems


def without_text(rows: pa.Table) -> dict[int, str]:
    """The rows with a date or a time that no text can hold, each with the column and the reason."""
    return {
        row: f"column {named(name)}: {why}"
        for name, values in zip(rows.column_names, rows.columns, strict=True)
        for row, why in unfit_rows(values, check_years)
    }


_YEARS = -62_135_596_800, 253_402_300_800
"""The years 1 to 9999 in seconds since 1970, the end not included."""


def far_years(rows: pa.Table) -> dict[int, str]:
    """The rows with a date or a time outside the years 1 to 9999, which are all that Python's own
    types hold, each with the column."""
    problems: dict[int, str] = {}
    for name, values in zip(rows.column_names, rows.columns, strict=True):
        for row in _far_rows(values):
            problems.setdefault(row, f"column {named(name)}: the year is not between 1 and 9999")
    return problems


def _far_rows(values: pa.ChunkedArray) -> list[int]:
    """The rows with such a value, by bisection."""
    if not any(map(_is_far, values.chunks)):
        return []
    if len(values) == 1:
        return [0]
    middle = len(values) // 2
    right = _far_rows(values.slice(middle))
    return _far_rows(values.slice(0, middle)) + [middle + n for n in right]


def _is_far(values: pa.Array) -> bool:
    """Whether any value is, however deep inside."""
    kind = values.type
    if is_.is_date(kind):
        return _outside(values.cast(pa.date32()).cast(pa.int32()), [s // 86_400 for s in _YEARS])
    if is_.is_timestamp(kind):
        unit = _DAY[kind.unit] // 86_400
        return _outside(values.cast(pa.int64()), [s * unit for s in _YEARS])
    if is_.is_struct(kind):
        return any(map(_is_far, values.flatten()))
    if is_.is_map(kind):
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return _is_far(values.keys[first:last]) or _is_far(values.items[first:last])
    if is_.is_list(kind):
        return _is_far(values.flatten())
    return False


def _outside(counts: pa.Array, bounds: Sequence[int]) -> bool:
    least, greatest = pc.min_max(counts).as_py().values()
    return least is not None and (least < bounds[0] or greatest >= bounds[1])


def only_null(values: pa.ChunkedArray) -> bool:
    """Whether no value has to fit."""
    return bool(values.null_count == len(values))


def by_kind(
    values: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], pa.ChunkedArray]
) -> pa.ChunkedArray:
    """JSON values, each kind converted from its own type as without the others; as text if that
    gives several types. What is nested, or has no type of its own, is converted as JSON."""
    text = one_array(values)
    text = text.storage if isinstance(text.type, pa.BaseExtensionType) else text
    parts = [(rows, convert(pa.chunked_array([piece]))) for rows, piece in of_one_kind(text)]
    if not parts:
        return convert(pa.chunked_array([pa.nulls(len(text))]))
    several = len({part.type for _, part in parts}) > 1
    joined = [one_array(part.cast(pa.string()) if several else part) for _, part in parts]
    rows = pa.concat_arrays([rows for rows, _ in parts])
    return pa.chunked_array([place(pa.concat_arrays(joined), rows, len(text))])


# From text


def _parsed(text: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if is_.is_integer(target):
        trimmed = pc.ascii_trim_whitespace(text)
        check_text(trimmed, _WHOLE_NUMBER, "a whole number in decimal digits")
        return pc.ascii_ltrim(trimmed, characters="+").cast(target)
    if is_.is_floating(target):
        trimmed = pc.ascii_trim_whitespace(text)
        check_text(trimmed, f"{NUMBER}|{NOT_FINITE}", "a number in decimal digits")
        return _parsed_floats(pc.ascii_ltrim(trimmed, characters="+"), target)
    if is_.is_decimal(target):
        trimmed = pc.ascii_trim_whitespace(text)
        check_text(trimmed, NUMBER, "a number in decimal digits")
        return _parsed_decimals(trimmed, target)
    if is_.is_timestamp(target):
        return _parsed_moments(text, target)
    if is_.is_time(target):
        return pa.chunked_array([clock_times(c, target) for c in text.chunks], target)
    if target == pa.uuid():
        check_text(text, UUID, "a UUID")
        return pa.chunked_array([duck.uuids(c) for c in text.chunks], target)
    return text.cast(target)


def _parsed_floats(text: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    floats = text.cast(target)
    width = target.bit_width
    zero = pc.and_(pc.equal(floats, 0.0), pc.invert(pc.match_substring_regex(text, _ZERO)))
    doubtful = pc.or_(zero, pc.greater_equal(pc.abs(floats), float(_EXACT[width])))
    for number in text.filter(doubtful).to_pylist():
        if not is_faithful(number.replace("inf", "Inf").replace("INF", "Inf"), width):
            raise pa.ArrowInvalid(f"it is not exact in {target}, or out of its range")
    return floats


def _parsed_decimals(text: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Arrow shifts a number to the scale and does not check for overflow."""
    longest = pc.max(pc.binary_length(text)).as_py() or 0
    exponents = pc.any(pc.match_substring_regex(text, "[eE]")).as_py()
    if longest + max(0, target.scale) <= 76 and not exponents:
        return text.cast(pa.decimal256(76, target.scale)).cast(target)
    # Arrow may crash on a number with very many decimal places.
    last = Decimal(1).scaleb(-target.scale)
    try:
        numbers = [
            None if t is None else Decimal(t).quantize(last, context=_EXACTLY)
            for t in text.to_pylist()
        ]
    except ArithmeticError:  # Inexact, or InvalidOperation: it is too large
        raise pa.ArrowInvalid(f"it does not fit {target}") from None
    return pa.chunked_array([pa.array(numbers, target)])


def _parsed_moments(text: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """ISO 8601, with a zone or in UTC; digits finer than a microsecond are cut off."""
    zoned = pc.match_substring_regex(text, _WITH_ZONE)
    finer = pc.match_substring_regex(text, _NANOSECONDS)
    parsed = []
    for has_zone, zone in ((zoned, "UTC"), (pc.invert(zoned), None)):
        for is_fine, unit in ((finer, "ns"), (pc.invert(finer), "us")):
            mask = pc.and_(has_zone, is_fine)
            if pc.any(mask).as_py():
                some = pc.if_else(mask, text, pa.scalar(None, pa.string()))
                moments = some.cast(pa.timestamp(unit, zone)).cast(pa.timestamp(unit))
                parsed.append(without_nanoseconds(moments))
    if not parsed:
        return pa.chunked_array([pa.nulls(len(text), target)])
    return pc.coalesce(*parsed).cast(target)


# From numbers


def _boolean(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not is_.is_integer(values.type):
        raise pa.ArrowTypeError(f"{values.type} is not bool")
    least, greatest = pc.min_max(values).as_py().values()
    if least is not None and (least < 0 or greatest > 1):
        raise pa.ArrowInvalid("it is neither 0 nor 1")
    return values.cast(pa.bool_())


def _floats(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    source = values.type
    if is_.is_floating(source):
        floats = values.cast(target)
        if source.bit_width > target.bit_width:
            lost = pc.and_(pc.is_inf(floats), pc.invert(pc.is_inf(values)))
            gone = pc.and_(pc.equal(floats, 0.0), pc.not_equal(values, 0.0))
            if pc.any(pc.or_(lost, gone)).as_py():
                raise pa.ArrowInvalid(f"it is out of range for {target}")
        return floats
    if is_.is_decimal(source):
        return _parsed_floats(values.cast(pa.string()), target)
    if not is_.is_integer(source):
        return values.cast(target)
    try:
        return values.cast(target)
    except pa.ArrowInvalid:  # Arrow looks at the size only
        floats = values.cast(target, safe=False)
        if pc.all(pc.equal(floats.cast(source), values)).as_py():
            return floats
        raise


def _decimals(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    source = values.type
    if is_.is_floating(source):
        wide = values.cast(pa.float32()) if is_.is_float16(source) else values
        text = wide.cast(pa.string())  # the fewest digits that identify the float
        check_text(text, NUMBER, "a finite number")
        return _parsed_decimals(text, target)
    if is_.is_integer(source):  # Arrow demands room for the largest number of the type
        return values.cast(pa.decimal256(76, target.scale)).cast(target)
    return values.cast(target)


# From times


def _days(values: pa.ChunkedArray) -> pa.ChunkedArray:
    counts, day = values.cast(pa.int64()), _DAY[values.type.unit]
    if pc.any(pc.not_equal(pc.multiply(pc.divide(counts, day), day), counts)).as_py():
        raise pa.ArrowInvalid("it has a time of day")
    return values.cast(pa.timestamp(values.type.unit)).cast(pa.date32())


def _moments(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if values.type.unit == "ns" and target.unit != "ns":
        values = without_nanoseconds(values)
    return values.cast(pa.timestamp(target.unit, values.type.tz)).cast(target)
