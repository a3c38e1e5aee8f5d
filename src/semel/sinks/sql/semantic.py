"""Values of semantic types in the form that a column takes. See
:mod:`semel.converters.semantic`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.nested import nested_as
from semel.converters.semantic import SemanticType, plain, times_in_utc
from semel.core.records import lists_like, one_array
from semel.databases.columns import SPATIAL, Column, is_binary, is_number, length_of
from semel.sinks.convert import read_nested


def formed(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """Values of a semantic type in the form that a column takes; others as they are.

    Raises:
        ArrowInvalid: some value has no such form.
    """
    kind = values.type
    if column.base == "hstore" and (pa.types.is_map(kind) or isinstance(kind, pa.JsonType)):
        return pa.chunked_array([_hstores(one_array(values))])
    if not isinstance(kind, SemanticType):
        return values
    storage = plain(one_array(values))
    target = column.base or column.type.partition("(")[0].lower()
    items = kind.items
    if items is not None and column.element is not None:
        inner = pa.chunked_array([pa.ExtensionArray.from_storage(items, storage.flatten())])
        whole = lists_like(storage, one_array(formed(inner, column.element)))
        return pa.chunked_array([whole])
    form = _FORMS.get(kind.name)
    return pa.chunked_array([storage if form is None else form(storage, kind, column, target)])


def _bit_values(values: pa.Array, kind: SemanticType, column: Column, target: str) -> pa.Array:
    """Bits come as bytes, the lowest first."""
    if not is_binary(values.type):
        return values
    arrow = column.copied if column.copied is not None else column.arrow
    numeric = is_number(column.arrow) or pa.types.is_boolean(column.arrow)
    if is_binary(arrow) and target != "bit":
        return values
    if target == "bit" and is_binary(arrow):  # MySQL's, whose bytes begin with the highest
        return _big_endian(values, ((_declared(column) or 1) + 7) // 8)
    texts = _bit_texts(values, kind, column, target)
    return _whole_numbers(texts) if numeric else texts


def _declared(column: Column) -> int | None:
    """The length in a column's type; None if its type is a domain, which names none."""
    inside = re.search(r"\((\d+)\)", column.type)
    return int(inside[1]) if inside else None


def _reversed(values: pa.Array, size: int) -> np.ndarray:
    """The bytes of each value, the highest first, in ``size`` bytes."""
    rows = np.zeros((len(values), size), np.uint8)
    _, offsets, data = values.cast(pa.binary()).buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    starts, lengths = ends[:-1].astype(np.int64), np.diff(ends).astype(np.int64)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.where(valid, lengths, 0)
    for at in range(int(lengths.max(initial=0))):
        there = lengths > at
        octets = content[starts[there] + at]
        if at < size:
            rows[there, size - 1 - at] = octets
        elif octets.any():
            raise pa.ArrowInvalid("it has more bits than the column")
    return rows


def _big_endian(values: pa.Array, size: int) -> pa.Array:
    return pc.if_else(values.is_valid(), _fixed(_reversed(values, size), size), None)


def _bit_texts(values: pa.Array, kind: SemanticType, column: Column, target: str) -> pa.Array:
    """Bits as zeros and ones, the highest first: as many as there are in the column, or as their
    source has."""
    declared = _declared(column) if target == "bit" else None
    length = declared or length_of(kind.parameters)
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    size = longest if length is None else max(longest, (length + 7) // 8)
    digits = np.unpackbits(_reversed(values, size), axis=1)
    width = digits.shape[1]
    if length is not None and digits[:, : width - length].any():
        raise pa.ArrowInvalid(f"it has more than {length} bits")
    kept = digits[:, width - length :] if length is not None else digits
    count = kept.shape[1]
    offsets = pa.py_buffer((np.arange(len(values) + 1) * count).astype(np.int32))
    letters = pa.py_buffer((kept + ord("0")).astype(np.uint8).tobytes())
    texts = pa.StringArray.from_buffers(len(values), offsets, letters)
    if length is None:  # an end of zeros is not known
        texts = pc.ascii_ltrim(texts, characters="0")
        texts = pc.if_else(pc.equal(texts, ""), "0", texts)
    return pc.if_else(values.is_valid(), texts, None)


def _whole_numbers(texts: pa.Array) -> pa.Array:
    numbers = [None if t is None else int(t, 2) for t in texts.to_pylist()]
    try:
        return pa.array(numbers, pa.int64())
    except OverflowError:
        raise pa.ArrowInvalid("it has more than 63 bits") from None


def _zoned_times(values: pa.Array, kind: SemanticType, column: Column, target: str) -> pa.Array:
    is_time = column.copied is not None and pa.types.is_time(column.copied)
    zoned = target in ("timetz", "time with time zone")
    return times_in_utc(values) if is_time and not zoned else values


def _durations(unit: str) -> Callable[[pa.Array, SemanticType, Column, str], pa.Array]:
    def form(values: pa.Array, kind: SemanticType, column: Column, target: str) -> pa.Array:
        if target != "interval":
            return values
        spans = values.cast(pa.duration(unit))
        if column.base:
            return spans
        micros = spans.cast(pa.duration("us"), safe=False).cast(pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(micros, " microseconds", "")

    return form


_ISO = r"^P(-?\d+)Y(-?\d+)M(-?\d+)DT(-?\d+)H(-?\d+)M(-?[\d.]+)S$"


def _intervals(values: pa.Array, kind: SemanticType, column: Column, target: str) -> pa.Array:
    if target != "interval" or column.base:
        return values
    spelt = r"\1 years \2 months \3 days \4 hours \5 minutes \6 seconds"  # for DuckDB
    return pc.replace_substring_regex(values, _ISO, spelt)


def _vectors(values: pa.Array, kind: SemanticType, column: Column, target: str) -> pa.Array:
    if target not in ("vector", "halfvec"):
        return values
    texts = lists_like(values, values.flatten().cast(pa.string()))
    return pc.binary_join_element_wise("[", pc.binary_join(texts, ","), "]", "")


def _geometries(values: pa.Array, kind: SemanticType, column: Column, target: str) -> pa.Array:
    fields = dict(zip([f.name for f in values.type], values.flatten(), strict=True))
    wkb, srid = fields["wkb"], pc.fill_null(fields["srid"], 0)
    if target in ("geometry", "geography") and column.base:
        return _extended(wkb, srid)
    if target == "point" and column.base and "x" in fields:
        x, y = (fields[n].cast(pa.string()) for n in ("x", "y"))
        return pc.binary_join_element_wise("(", pc.binary_join_element_wise(x, y, ","), ")", "")
    if is_binary(column.arrow) and target in SPATIAL:  # the form in which MySQL stores them
        before = _fixed(srid.cast(pa.int32()).to_numpy().astype("<u4"), 4)
        return pc.binary_join_element_wise(before, wkb, b"")
    return wkb if is_binary(column.arrow) else values


def _fixed(numbers: np.ndarray, size: int) -> pa.Array:
    buffers = [None, pa.py_buffer(numbers.tobytes())]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(numbers), buffers).cast(
        pa.binary()
    )


_HAS_SRID = 0x20000000


def _extended(wkb: pa.Array, srid: pa.Array) -> pa.Array:
    """PostGIS's hexadecimal form, which holds the reference system, too."""
    from semel.converters.json.duck import hexadecimal

    texts = hexadecimal(wkb)
    little = pc.equal(pc.utf8_slice_codeunits(texts, 0, 2), "01")
    if not pc.all(pc.fill_null(little, True)).as_py():
        raise pa.ArrowInvalid("its bytes do not begin with those of the lowest value")
    kind = np.array(
        [0 if t is None else int.from_bytes(t[1:5], "little") for t in wkb.to_pylist()], np.int64
    )
    numbers = srid.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.int64)
    flagged = kind & _HAS_SRID != 0
    kinds = hexadecimal(_fixed(np.where(numbers > 0, kind | _HAS_SRID, kind).astype("<u4"), 4))
    systems = hexadecimal(_fixed(numbers.astype("<u4"), 4))
    systems = pc.if_else(pa.array((numbers > 0) & ~flagged), systems, "")
    return pc.binary_join_element_wise("01", kinds, systems, pc.utf8_slice_codeunits(texts, 10), "")


_TEXTS = pa.map_(pa.string(), pa.string())


def _hstores(values: pa.Array) -> pa.Array:
    """Maps in PostgreSQL's form: ``"a"=>"1","b"=>NULL``."""
    if isinstance(values.type, pa.JsonType):
        reader = nested_as(_TEXTS)
        assert reader is not None
        values = one_array(read_nested(pa.chunked_array([values]), reader))
    pairs = values.cast(_TEXTS).cast(pa.list_(pa.struct([("k", pa.string()), ("v", pa.string())])))
    keys, items = pairs.flatten().flatten()
    texts = pc.binary_join_element_wise(
        _in_quotes(keys), pc.fill_null(_in_quotes(items), "NULL"), "=>"
    )
    return pc.binary_join(lists_like(pairs, texts), ",")


def _in_quotes(texts: pa.Array) -> pa.Array:
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    return pc.binary_join_element_wise('"', escaped, '"', "")


_FORMS: Mapping[str, Callable[[pa.Array, SemanticType, Column, str], pa.Array]] = {
    "data.Bits": _bit_values,
    "data.DoubleVector": _vectors,
    "data.FloatVector": _vectors,
    "data.geometry.Geometry": _geometries,
    "data.geometry.Geography": _geometries,
    "data.geometry.Point": _geometries,
    "time.Interval": _intervals,
    "time.MicroDuration": _durations("us"),
    "time.NanoDuration": _durations("ns"),
    "time.ZonedTime": _zoned_times,
}
