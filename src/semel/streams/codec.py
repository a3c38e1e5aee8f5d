"""Values as bytes that describe themselves, by the column: what stores and repartition topics hold.

A value is a tag, which with what follows it says the type, and the value's bytes. So a column may
change its type between batches, and whoever has the bytes can read them.

Keys (:func:`pack_keys`) that are equal have equal bytes, whichever type their batch gave them: of
integers, texts and decimals of any width, or of structs, whose fields are sorted by name, without
those that are null. Integers and times are ordered like their bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json.columns import JSON
from semel.core.errors import SemelError
from semel.streams.records import Records, concatenated, whole

_NULL = b"\0"
_NO_BYTES = np.zeros(0, np.uint8)
_LONG = pa.scalar(2**63 - 1, pa.uint64())
_MOST_BYTES = np.iinfo(np.int32).max
_SIGNED = {"c": pa.int8(), "h": pa.int16(), "i": pa.int32(), "l": pa.int64()}
_UNSIGNED = {"C": pa.uint8(), "H": pa.uint16(), "I": pa.uint32(), "L": pa.uint64()}
_FLOATS = {"f": pa.float32(), "d": pa.float64()}
_FIXED: dict[str, pa.DataType] = {**_SIGNED, **_UNSIGNED, **_FLOATS, "D": pa.date32()}
_TAGS = {kind: tag for tag, kind in _FIXED.items()}
_UNITS = {"timestamp": "Z", "duration": "P", "time32": "t", "time64": "T"}


def pack(values: pa.Array) -> pa.Array:
    """The bytes of each value. Those of a null are null."""
    return pc.if_else(values.is_valid(), _written(values), None)


def pack_keys(keys: pa.Array) -> pa.Array:
    """The bytes of each key; equal keys have equal bytes. Those of a null are null."""
    return pc.if_else(keys.is_valid(), _written_key(keys), None)


def unpack(packed: pa.Array) -> pa.Array:
    """The values of bytes; null for null."""
    there = np.flatnonzero(np.asarray(packed.is_valid()))
    data, offsets = _buffers(packed)
    values, _ = _read(data, offsets[there])
    if len(there) == len(packed):
        return values
    at = np.zeros(len(packed), np.int64)
    at[there] = np.arange(len(there))
    gone = np.ones(len(packed), np.bool_)
    gone[there] = False
    return values.take(pa.array(at, mask=gone)) if len(values) else pa.nulls(len(packed))


def binary(rows: np.ndarray) -> pa.Array:
    """Each row of a matrix of bytes as a value."""
    count, width = rows.shape
    offsets = _offsets(np.arange(count + 1) * width)
    data = np.ascontiguousarray(rows)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)])


def joined(*pieces: pa.Array | bytes) -> pa.Array:
    """The bytes of several columns, joined row by row."""
    parts = [pa.scalar(p, pa.binary()) if isinstance(p, bytes) else p for p in pieces]
    try:
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    except pa.ArrowCapacityError:
        raise _TooLarge() from None


class _TooLarge(SemelError):
    """A column of a step has more bytes than its offsets can count."""

    def __init__(self) -> None:
        super().__init__(
            "streams: the keys or values of one step have more than 2 GiB. Set max.poll.records "
            "to less"
        )


def _offsets(places: np.ndarray) -> pa.Buffer:
    if places[-1] > _MOST_BYTES:
        raise _TooLarge
    return pa.py_buffer(places.astype(np.int32))


def big_endian(numbers: np.ndarray) -> np.ndarray:
    """Signed integers as rows of bytes that are ordered like them."""
    width = numbers.dtype.itemsize
    flipped = numbers.view(f"u{width}") ^ np.array(1 << (8 * width - 1), f"u{width}")
    rows: np.ndarray = flipped.astype(f">u{width}").view(np.uint8).reshape(len(numbers), width)
    return rows


def from_big_endian(rows: np.ndarray) -> np.ndarray:
    """The signed integers of rows of bytes."""
    width = rows.shape[1]
    unsigned = np.ascontiguousarray(rows).view(f">u{width}").reshape(-1).astype(f"u{width}")
    numbers: np.ndarray = (unsigned ^ np.array(1 << (8 * width - 1), f"u{width}")).view(f"i{width}")
    return numbers


def time_bytes(time: int) -> bytes:
    """One time as eight bytes that are ordered like it."""
    return struct.pack(">Q", (time + (1 << 63)) & ((1 << 64) - 1))


def time_of(data: bytes) -> int:
    """The time that :func:`time_bytes` has made bytes of."""
    return int.from_bytes(data) - (1 << 63)


def slices(packed: pa.Array, start: int, width: int) -> np.ndarray:
    """So many bytes of each value, from the same place of each; a negative one is from its end."""
    data, offsets = _buffers(packed)
    at = offsets[:-1] + start if start >= 0 else offsets[1:] + start
    return data[at[:, None] + np.arange(width)] if len(at) else np.zeros((0, width), np.uint8)


def behind(packed: pa.Array, start: int) -> pa.Array:
    """Each value without so many first bytes; null for null."""
    return without(packed, start, 0)


def without(packed: pa.Array, start: int, end: int) -> pa.Array:
    """Each value without so many first and last bytes; null for null."""
    data, offsets = _buffers(packed)
    lengths = np.maximum(np.diff(offsets) - start - end, 0)
    values = _gathered(data, offsets[:-1] + start, lengths)
    return pc.if_else(packed.is_valid(), values, None) if packed.null_count else values


def _buffers(packed: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    _, offsets, data = packed.buffers()
    if offsets is None:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    places = np.frombuffer(offsets, np.int32)[packed.offset : packed.offset + len(packed) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return content, places.astype(np.int64)


def _written_key(keys: pa.Array) -> pa.Array:
    """The bytes of each key, with those of a null."""
    kind = keys.type
    if kind == pa.uint64():
        as_signed, too_large = _written(keys.cast(pa.int64(), safe=False)), pc.less(_LONG, keys)
        return pc.if_else(too_large.fill_null(False), _written(keys), as_signed)
    if pa.types.is_integer(kind) and kind != pa.int64():
        keys = keys.cast(pa.int64())
    elif pa.types.is_floating(kind):
        keys = keys.cast(pa.float64())
    elif pa.types.is_timestamp(kind):
        keys = keys.cast(pa.timestamp("us", kind.tz))
    elif pa.types.is_struct(kind) and kind.num_fields:
        return _present_fields(keys)
    elif pa.types.is_decimal128(kind):
        keys = keys.cast(pa.decimal128(38, kind.scale))
    elif kind == JSON:
        documents = keys.storage.dictionary_encode()
        names = pa.array(map(_document_key, documents.dictionary.to_pylist()), pa.binary())
        return names.take(documents.indices).fill_null(_NULL)
    return _written(keys, _written_key)


def _document_key(text: str) -> bytes:
    """The bytes of a JSON document: those of its value as a column of its own, if that has it."""
    try:
        loaded = json.loads(text, parse_float=_exact)
        is_unsigned = isinstance(loaded, int) and loaded > _LONG.as_py()
        value = pa.array([loaded], pa.uint64() if is_unsigned else None)
    except (ValueError, OverflowError, RecursionError, pa.ArrowException):
        value = pa.array([text])
        return b"J" + bytes(_written(value)[0].as_py())
    return bytes(_written_key(value)[0].as_py())


def _exact(text: str) -> float:
    number = float(text)
    if Decimal(repr(number)) != Decimal(text):
        raise ValueError(f"{text} has more digits than a float")
    return number


def _present_fields(keys: pa.Array) -> pa.Array:
    """The bytes of structs of the fields that are not null, sorted by name."""

    def bytes_of(structs: pa.Array) -> pa.Array:
        return _fields(
            [f.name for f in structs.type], structs.flatten(), len(structs), _written_key
        )

    data = without_nulls(keys if _is_sorted(keys.type) else _by_name(keys), bytes_of)
    return data if not keys.null_count else pc.if_else(keys.is_valid(), data, _NULL)


def without_nulls(structs: pa.Array, write: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """What ``write`` makes of structs that have only those fields which are not null: it does not
    depend on the fields that other structs have."""
    columns = structs.flatten()
    absent = np.stack([np.asarray(column.is_null()) for column in columns], axis=1)
    if not absent.any():
        return write(structs)
    patterns, group = np.unique(absent, axis=0, return_inverse=True)
    parts, places = [], []
    for number, pattern in enumerate(patterns):
        rows = np.flatnonzero(group.reshape(-1) == number)
        there = np.flatnonzero(~pattern)
        mask = structs.is_null().take(pa.array(rows))
        part = pa.array([{}] * len(rows), pa.struct([]))
        if len(there):
            part = pa.StructArray.from_arrays(
                [columns[n].take(pa.array(rows)) for n in there],
                fields=[structs.type.field(int(n)) for n in there],
                mask=mask,
            )
        parts.append(pc.if_else(mask, None, write(part)))
        places.append(rows)
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(places))))


def _by_name(structs: pa.Array) -> pa.Array:
    """The same structs, with their fields sorted by name."""
    order = np.argsort([f.name for f in structs.type], kind="stable")
    fields, columns = list(structs.type), structs.flatten()
    return pa.StructArray.from_arrays(
        [columns[n] for n in order], fields=[fields[n] for n in order], mask=structs.is_null()
    )


def _written(values: pa.Array, inner: Callable[[pa.Array], pa.Array] | None = None) -> pa.Array:
    """The bytes of each value, with those of a null. ``inner`` writes what lists hold."""
    kind = values.type
    if pa.types.is_null(kind):
        return pa.repeat(pa.scalar(_NULL, pa.binary()), len(values))
    data = _writer(kind, inner or _written)(values)
    return data if not values.null_count else pc.if_else(values.is_valid(), data, _NULL)


def _writer(  # noqa: PLR0912
    kind: pa.DataType, inner: Callable[[pa.Array], pa.Array]
) -> Callable[[pa.Array], pa.Array]:
    is_ = pa.types
    if kind in _TAGS:
        return lambda values: _fixed(_TAGS[kind].encode(), _numbers(values))
    if is_.is_boolean(kind):
        return lambda values: _fixed(b"b", _numbers(values.cast(pa.uint8())))
    if is_.is_string(kind) or is_.is_binary(kind):
        return lambda values: _long(b"s" if is_.is_string(kind) else b"y", values)
    if is_.is_large_string(kind) or is_.is_string_view(kind):
        return lambda values: _written(values.cast(pa.string()))
    if is_.is_large_binary(kind) or is_.is_binary_view(kind) or is_.is_fixed_size_binary(kind):
        return lambda values: _written(values.cast(pa.binary()))
    if is_.is_temporal(kind) and not is_.is_interval(kind):
        return _moment
    if is_.is_decimal(kind):
        return _decimal
    if is_.is_struct(kind):
        return _struct
    if is_.is_map(kind):
        return lambda values: joined(b"m", _written(values.cast(pa.list_(_entry(kind)))))
    if is_.is_list(kind):
        return lambda values: _list(values, inner)
    if is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return lambda values: inner(values.cast(pa.list_(kind.value_field)))
    if is_.is_dictionary(kind):
        return lambda values: inner(values.dictionary_decode())
    if kind == JSON:
        return lambda values: joined(b"J", _written(values.storage))
    if isinstance(kind, pa.BaseExtensionType):
        return lambda values: inner(values.storage)
    if is_.is_float16(kind):
        return lambda values: _written(values.cast(pa.float32()))
    raise SemelError(f"streams cannot store values of the type {kind}")


def _entry(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("key", kind.key_type), ("value", kind.item_type)])


def _numbers(values: pa.Array) -> np.ndarray:
    """The numbers as rows of bytes; whatever for nulls."""
    if pa.types.is_date(values.type):
        values = values.view(pa.int32())
    if values.null_count:
        values = values.fill_null(pa.scalar(0).cast(values.type))
    numbers = np.asarray(values)
    if numbers.dtype.kind == "i":
        return big_endian(np.ascontiguousarray(numbers))
    width = numbers.dtype.itemsize
    return numbers.astype(f">{numbers.dtype.kind}{width}").view(np.uint8).reshape(-1, width)


def _fixed(head: bytes, rows: np.ndarray) -> pa.Array:
    whole_rows = np.empty((len(rows), len(head) + rows.shape[1]), np.uint8)
    whole_rows[:, : len(head)] = np.frombuffer(head, np.uint8)
    whole_rows[:, len(head) :] = rows
    return binary(whole_rows)


def _long(head: bytes, values: pa.Array) -> pa.Array:
    as_bytes = values.cast(pa.binary())
    lengths = np.asarray(pc.binary_length(as_bytes).fill_null(0)).astype(np.int32)
    return joined(_fixed(head, big_endian(lengths)), as_bytes)


def _moment(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_date64(kind):
        return _written(values.cast(pa.date32()))
    name = next(n for n in _UNITS if getattr(pa.types, f"is_{n}")(kind))
    zone = (getattr(kind, "tz", None) or "").encode()
    head = f"{_UNITS[name]}{kind.unit[0]}".encode() + bytes([len(zone)]) + zone
    numbers = values.view(pa.int32() if name == "time32" else pa.int64()).cast(pa.int64())
    return _fixed(head, _numbers(numbers))


def _decimal(values: pa.Array) -> pa.Array:
    kind = values.type
    if not pa.types.is_decimal128(kind):
        wide = pa.types.is_decimal256(kind)
        return _written(values.cast(pa.decimal128(38 if wide else kind.precision, kind.scale)))
    count, start = 16 * len(values), 16 * values.offset
    raw = np.frombuffer(values.buffers()[1], np.uint8, count, start) if count else _NO_BYTES
    rows = raw.reshape(-1, 16)[:, ::-1].copy()
    rows[:, 0] ^= 0x80
    return _fixed(b"N" + bytes([kind.precision, kind.scale & 0xFF]), rows)


def _struct(values: pa.Array) -> pa.Array:
    return _fields([f.name for f in values.type], values.flatten(), len(values), _written)


def _fields(
    names: Sequence[str],
    columns: Sequence[pa.Array],
    count: int,
    inner: Callable[[pa.Array], pa.Array],
) -> pa.Array:
    """The bytes of so many structs with these fields."""
    encoded = [name.encode() for name in names]
    head = b"{" + struct.pack(">H", len(encoded))
    head += b"".join(struct.pack(">H", len(name)) + name for name in encoded)
    return joined(pa.repeat(pa.scalar(head, pa.binary()), count), *map(inner, columns))


def _list(values: pa.Array, inner: Callable[[pa.Array], pa.Array]) -> pa.Array:
    lengths = np.asarray(pc.list_value_length(values).fill_null(0)).astype(np.int32)
    written = inner(values.flatten())
    sizes = binary(big_endian(np.diff(_buffers(written)[1]).astype(np.int32)))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    none = pa.scalar(b"", pa.binary())
    tables = [
        pc.binary_join(pa.ListArray.from_arrays(offsets, part), none) for part in (sizes, written)
    ]
    return joined(_fixed(b"[", big_endian(lengths)), *tables)


DecodedValues = tuple[pa.Array, np.ndarray]
"""The values at some places, and the places behind them."""


def _read(data: np.ndarray, at: np.ndarray) -> DecodedValues:
    """Read a value at each place."""
    tags = data[at] if len(at) else np.zeros(0, np.uint8)
    there = np.flatnonzero(tags)
    if not len(there):
        return pa.nulls(len(at)), at + 1
    head = _head(data, int(at[there[0]]))
    gathered = data[np.minimum(at[there][:, None] + np.arange(len(head)), len(data) - 1)]
    alike = (gathered == np.frombuffer(head, np.uint8)).all(axis=1)
    values, ends = _values(data, head, at[there[alike]] + len(head))
    behind = at + 1
    behind[there[alike]] = ends
    if len(values) == len(at):
        return values, behind
    rows = np.full(len(at), -1)
    rows[there[alike]] = np.arange(len(values))
    if not alike.all():
        others, ends = _read(data, at[there[~alike]])
        behind[there[~alike]] = ends
        rows[there[~alike]] = len(values) + np.arange(len(others))
        are_keys = _is_sorted(values.type) and _is_sorted(others.type)
        values = concatenated([values, others])
        if are_keys and not _is_sorted(values.type):
            values = _by_name(values)
    return values.take(pa.array(rows, mask=rows < 0)), behind


def _is_sorted(kind: pa.DataType) -> bool:
    """Whether it is a struct whose fields are sorted by name, as those of keys are."""
    if not pa.types.is_struct(kind):
        return False
    names = [f.name for f in kind]
    return names == sorted(names)


def _head(data: np.ndarray, at: int) -> bytes:
    """The bytes at a place that say the type of the value there."""
    tag = chr(data[at])
    length = 1
    if tag == "{":
        length = 3
        for _ in range(_short(data, at + 1)):
            length += 2 + _short(data, at + length)
    elif tag in "ZPtT":
        length = 3 + int(data[at + 2])
    elif tag == "N":
        length = 3
    return bytes(data[at : at + length])


def _short(data: np.ndarray, at: int) -> int:
    return int(data[at]) << 8 | int(data[at + 1])


def _values(data: np.ndarray, head: bytes, at: np.ndarray) -> DecodedValues:
    tag = chr(head[0])
    if tag in _FIXED:
        return _read_fixed(data, _FIXED[tag], at)
    if tag == "b":
        values, ends = _read_fixed(data, pa.uint8(), at)
        return values.cast(pa.bool_()), ends
    if tag in "sy":
        texts, ends = _read_long(data, at)
        return (texts.view(pa.string()) if tag == "s" else texts), ends
    if tag in "ZPtT":
        values, ends = _read_fixed(data, pa.int64(), at)
        kind = _moment_type(tag, head)
        if tag == "t":
            values = values.cast(pa.int32())
        return values.view(kind), ends
    if tag == "N":
        return _read_decimal(data, pa.decimal128(head[1], struct.unpack("b", head[2:3])[0]), at)
    if tag == "{":
        return _read_struct(data, head, at)
    if tag == "m":
        entries, ends = _read(data, at)
        if pa.types.is_null(entries.type) or pa.types.is_null(entries.type.value_type):
            return pa.array([[]] * len(at), pa.map_(pa.string(), pa.null())), ends
        keys, items = entries.values.flatten()
        return pa.MapArray.from_arrays(entries.offsets, keys, items), ends
    if tag == "[":
        return _read_list(data, at)
    if tag == "J":
        texts, ends = _read(data, at)
        return pa.ExtensionArray.from_storage(JSON, texts.cast(JSON.storage_type)), ends
    raise SemelError(
        f"a store holds a value that begins with {tag!r}, which this version does not know"
    )


def _moment_type(tag: str, head: bytes) -> pa.DataType:
    unit = {"s": "s", "m": "ms", "u": "us", "n": "ns"}[chr(head[1])]
    if tag == "Z":
        return pa.timestamp(unit, head[3:].decode() or None)
    return {"P": pa.duration, "t": pa.time32, "T": pa.time64}[tag](unit)


def _read_fixed(data: np.ndarray, kind: pa.DataType, at: np.ndarray) -> DecodedValues:
    width = kind.bit_width // 8
    rows = data[at[:, None] + np.arange(width)]
    stored = pa.int32() if pa.types.is_date(kind) else kind
    numpy = np.dtype(stored.to_pandas_dtype())
    if numpy.kind == "i":
        numbers = from_big_endian(rows)
    else:
        numbers = np.ascontiguousarray(rows).view(f">{numpy.kind}{width}").reshape(-1).astype(numpy)
    return pa.array(numbers, stored).view(kind), at + width


def _read_long(data: np.ndarray, at: np.ndarray) -> DecodedValues:
    lengths = from_big_endian(data[at[:, None] + np.arange(4)]).astype(np.int64)
    return _gathered(data, at + 4, lengths), at + 4 + lengths


def _gathered(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    stored = _offsets(offsets)
    from_ = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    return pa.BinaryArray.from_buffers(
        pa.binary(),
        len(starts),
        [None, stored, pa.py_buffer(data[from_])],
    )


def _read_decimal(data: np.ndarray, kind: pa.DataType, at: np.ndarray) -> DecodedValues:
    rows = data[at[:, None] + np.arange(16)]
    rows[:, 0] ^= 0x80
    raw = np.ascontiguousarray(rows[:, ::-1])
    return pa.Array.from_buffers(kind, len(at), [None, pa.py_buffer(raw)]), at + 16


def _read_struct(data: np.ndarray, head: bytes, at: np.ndarray) -> DecodedValues:
    names, place = [], 3
    while place < len(head):
        (length,) = struct.unpack(">H", head[place : place + 2])
        names.append(head[place + 2 : place + 2 + length].decode())
        place += 2 + length
    columns = []
    for _ in names:
        column, at = _read(data, at)
        columns.append(column)
    if not names:
        return pa.array([{}] * len(at), pa.struct([])), at
    return pa.StructArray.from_arrays(columns, names=names), at


def _read_list(data: np.ndarray, at: np.ndarray) -> DecodedValues:
    counts = from_big_endian(data[at[:, None] + np.arange(4)]).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    number = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    table = np.repeat(at + 4, counts) + 4 * number
    sizes = from_big_endian(data[table[:, None] + np.arange(4)]).astype(np.int64)
    total = np.concatenate([[0], np.cumsum(sizes)])
    begin = at + 4 + 4 * counts
    starts = np.repeat(begin, counts) + total[:-1] - np.repeat(total[offsets[:-1]], counts)
    inner, _ = _read(data, starts)
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inner)
    return lists, begin + total[offsets[1:]] - total[offsets[:-1]]


def distinct(packed: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """A number for each of the bytes, and the bytes that the numbers mean. No nulls."""
    encoded = packed.dictionary_encode()
    return np.asarray(encoded.indices).astype(np.int64), encoded.dictionary


def column(values: Sequence[Any]) -> pa.Array:
    """What Python functions returned, as a column: JSON where there are numbers, texts and booleans
    in one place."""
    try:
        return whole(pa.array(values))
    except OverflowError:
        error = pa.ArrowInvalid("overflow: a whole number does not fit into 64 bits with a sign")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as raised:
        error = raised
    if all(value is None or _is_object(value) for value in values):
        return _struct_column(values)
    by_type: dict[type, list[int]] = {}
    for row, value in enumerate(values):
        by_type.setdefault(type(value), []).append(row)
    if len(by_type) == 1:
        raise error
    parts = [column([values[row] for row in rows]) for rows in by_type.values()]
    if any(pa.types.is_nested(part.type) for part in parts):
        raise error
    mixed = concatenated(parts)
    for part in parts if mixed.type == JSON else ():
        if pa.types.is_floating(part.type) and not pc.all(pc.is_finite(part)).as_py():
            raise pa.ArrowInvalid("NaN or infinity beside values of other types: JSON has neither")
    order = np.argsort(np.concatenate([np.array(rows) for rows in by_type.values()]))
    return mixed.take(pa.array(order))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


def _struct_column(values: Sequence[dict[str, Any] | None]) -> pa.Array:
    """Objects whose fields do not have one type each."""
    names = list(dict.fromkeys(name for value in values for name in value or ()))
    columns = [column([None if v is None else v.get(name) for v in values]) for name in names]
    gone = pa.array([value is None for value in values])
    return pa.StructArray.from_arrays(columns, names=names, mask=gone)


def objects(values: pa.Array) -> list[Any]:
    """Values as Python functions take them. What is JSON only for what other records have in its
    place is itself again; what is nested stays text."""
    if values.type == JSON:
        return [_scalar(text) for text in values.storage.to_pylist()]
    if not _has_json(values.type):
        try:
            plain: list[Any] = values.to_pylist()
        except UnicodeDecodeError as error:
            raise pa.ArrowInvalid(f"a function of Python cannot take the text: {error}") from None
        except (ValueError, OverflowError) as error:
            raise pa.ArrowInvalid(
                "a function of Python cannot take a time beyond its years 1 to 9999, or of "
                f"nanoseconds: {error}"
            ) from None
        return plain
    names = [f.name for f in values.type]
    rows = zip(*map(objects, values.flatten()), strict=True)
    there = values.is_valid().to_pylist()
    return [
        dict(zip(names, row, strict=True)) if present else None
        for present, row in zip(there, rows, strict=True)
    ]


def _has_json(kind: pa.DataType) -> bool:
    return kind == JSON or (pa.types.is_struct(kind) and any(_has_json(f.type) for f in kind))


def _scalar(text: str | None) -> Any:
    return text if text is None or text.lstrip()[:1] in ("{", "[") else json.loads(text)


def to_wire(records: Records) -> tuple[pa.Array, pa.Array]:
    """Keys and values of records as a repartition topic has them."""
    return pack_keys(records.keys), pack(records.values)


def from_wire(keys: pa.Array, values: pa.Array, times: pa.Array) -> Records:
    """The records of a repartition topic."""
    return Records(unpack(keys), unpack(values), times)
