"""Parquet and Avro: formats whose positions are record numbers."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semel.converters.avro import contents
from semel.converters.avro.parse import parse
from semel.converters.avro.schema import (
    MOST_EMPTY,
    Array,
    Decimal,
    Enum,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Recursion,
    Union,
)
from semel.converters.registry import FramedMessages
from semel.core.quoting import named
from semel.sources.directory.config import DirectoryConfig
from semel.sources.directory.files import FileProgress
from semel.sources.directory.texts import Broken, Chunk, Format, is_of_the_machine

_MARK = 16
_MAGIC = b"Obj\x01"
_BYTES = 4 * 1024 * 1024
"""Bytes of the blocks that are read together."""
_PIECE, _MOST = 1 << 20, 256 * 1024 * 1024
"""What is read at once, and the most bytes of a block, packed or unpacked."""


class ParquetFormat(Format):
    """Rows of Parquet."""

    def __init__(self, config: DirectoryConfig) -> None:
        self._size = config.batch_size

    def read(self, file: BinaryIO, name: str, reached: FileProgress) -> Iterator[Chunk]:
        count = reached.records
        try:
            parquet = pq.ParquetFile(file)
            kind = _read_as(pa.struct(parquet.schema_arrow))
            first, skip = 0, count
            groups = parquet.metadata.num_row_groups
            while first < groups and parquet.metadata.row_group(first).num_rows <= skip:
                skip -= parquet.metadata.row_group(first).num_rows
                first += 1
            for batch in parquet.iter_batches(self._size, list(range(first, groups))):
                if skip >= len(batch):
                    skip -= len(batch)
                    continue
                values, why = _cast(batch.slice(skip).to_struct_array(), kind)
                skip = 0
                count += len(values)
                if why:
                    raise Broken(count, why, Chunk(values, FileProgress(count)))
                yield Chunk(values, FileProgress(count))
        except (pa.ArrowException, UnicodeDecodeError, EOFError, OSError) as error:
            if is_of_the_machine(error):
                raise
            reason = " ".join(str(error).split())
            raise Broken(count, f"it is not a whole Parquet file: {reason}") from None


def _read_as(kind: pa.DataType) -> pa.DataType:
    """The type in records of a type in Parquet: pandas stores categories as dictionaries, for
    example.

    Raises:
        Broken: columns share a name.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return _read_as(kind.value_type)
    if types.is_struct(kind):
        twice = [name for name, count in Counter(f.name for f in kind).items() if count > 1]
        if twice:
            raise Broken(0, f"it has several columns named {named(twice[0])}")
        return pa.struct([f.with_type(_read_as(f.type)) for f in kind])
    if types.is_map(kind):
        item = kind.item_field
        return pa.map_(_read_as(kind.key_type), item.with_type(_read_as(item.type)))
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_read_as(kind.value_type)))
    return _READ_AS.get(kind, kind)


_READ_AS = {
    pa.float16(): pa.float32(),
    pa.uint64(): pa.int64(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}


def _cast(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, str]:
    """The values of a type, up to the first that does not fit; and why not, or an empty text."""
    try:
        return values.cast(kind), ""
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.nulls(0, kind), _misfit(values, kind)
    half = len(values) // 2
    first, why = _cast(values[:half], kind)
    if why:
        return first, why
    second, why = _cast(values[half:], kind)
    return pa.concat_arrays([first, second]), why


def _misfit(row: pa.StructArray, kind: pa.StructType) -> str:
    """Why a row does not fit, with its first field that does not."""
    for field, value in zip(kind, row.flatten(), strict=True):
        try:
            value.cast(field.type)
        except pa.ArrowInvalid as error:
            return f"field {named(field.name)}: {error}"
    raise AssertionError(row)


class AvroFormat(Format):
    """Records of Avro's container files."""

    def __init__(self, config: DirectoryConfig) -> None:
        self._size = config.batch_size

    def read(self, file: BinaryIO, name: str, reached: FileProgress) -> Iterator[Chunk]:
        count = 0  # records before those of the batch
        batch: list[_Block] = []
        blocks = _blocks(file)
        why: Exception | None = None
        while why is None:
            block = None
            try:
                block = next(blocks, None)
            except _WRONG as error:
                why = error
            if block is not None and count + block.records <= reached.records:
                count += block.records
                continue
            full = sum(len(b.packed) for b in batch) >= _BYTES
            if batch and (block is None or full or sum(b.records for b in batch) >= self._size):
                done = max(0, reached.records - count)
                values, broken = _values(batch)
                count += len(values)
                if len(values) > done:
                    yield Chunk(values.slice(done), FileProgress(count))
                why = broken or why
                batch = []
            if block is None:
                break
            batch.append(block)
        if why is not None:
            raise Broken(
                max(count, reached.records), f"it is not a whole Avro file: {why}"
            ) from None


@dataclass(frozen=True, slots=True)
class _Block:
    node: Node
    records: int
    packed: bytes
    unpack: Callable[[bytes], bytes]


def _blocks(file: BinaryIO) -> Iterator[_Block]:
    if file.read(4) != _MAGIC:
        raise _Cut("its first bytes are not those of an Avro file")
    facts = _facts(file)
    mark = _taken(file, _MARK)
    codec = facts.get("avro.codec", b"null").decode()
    unpack = _CODECS.get(codec)
    if unpack is None:
        raise _Cut(f"codec {codec} is not one of {', '.join(_CODECS)}")
    node = parse(facts.get("avro.schema", b"").decode())
    while (count := _long(file, ends=True)) is not None:
        packed = _taken(file, _long(file) or 0)
        if _taken(file, _MARK) != mark:
            raise _Cut("a block does not end with the file's mark")
        if count < 0:
            raise _Cut("a block has a negative number of records")
        if count:
            yield _Block(node, count, packed, unpack)


def _values(blocks: Sequence[_Block]) -> tuple[pa.Array, Exception | None]:
    """The records of some blocks, up to the first that cannot be read."""
    node = blocks[0].node
    try:
        content = b""
        for block in blocks:
            content += block.unpack(block.packed)
            if len(content) > _MOST:
                raise _Cut(f"a block holds more than {_MOST} bytes")
        return _records(node, sum(b.records for b in blocks), content), None
    except (*_WRONG, OSError) as error:  # bz2 raises it for data that is not bzip2
        if len(blocks) == 1:
            return pa.nulls(0, node.type), error
    parts = [pa.nulls(0, node.type)]
    for block in blocks:
        part, why = _values([block])
        if why is not None:
            return pa.concat_arrays(parts), why
        parts.append(part)
    return pa.concat_arrays(parts), None


class _Cut(Exception):
    """The file is malformed."""


_WRONG = (_Cut, ValueError, IndexError, pa.ArrowException, zlib.error, lzma.LZMAError, EOFError)


def _taken(file: BinaryIO, size: int) -> bytes:
    if size < 0:
        raise _Cut("a length is negative")
    if size > _MOST:
        raise _Cut(f"a length of {size} bytes is more than {_MOST}")
    content = b""  # a length is believed no further than the file goes
    while len(content) < size:
        part = file.read(min(size - len(content), max(_PIECE, len(content))))
        if not part:
            raise _Cut("it ends too early")
        content += part
    return content


def _long(file: BinaryIO, *, ends: bool = False) -> int | None:
    """A variable-length number; None at the end of the file, if it may end here."""
    value = shift = 0
    while True:
        byte = file.read(1)
        if not byte:
            if ends and not shift:
                return None
            raise _Cut("it ends too early")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7
        if shift > 63:
            raise _Cut("a number is too long")


def _facts(file: BinaryIO) -> dict[str, bytes]:
    """The header's map."""
    facts = {}
    while count := _long(file):
        if count < 0:
            _long(file)  # its size in bytes
        for _ in range(abs(count)):
            key = _taken(file, _long(file) or 0)
            facts[key.decode()] = _taken(file, _long(file) or 0)
    return facts


def _zstd(block: bytes) -> bytes:
    return bytes(pa.CompressedInputStream(pa.BufferReader(block), "zstd").read(_MOST + 1))


def _unpacked(unpacker: Any, block: bytes) -> bytes:
    """What a decompressor of Python's makes of a block, up to one byte too many."""
    content: bytes = unpacker.decompress(block, _MOST + 1)
    if not unpacker.eof and len(content) <= _MOST:
        raise _Cut("a block ends within its compressed content")
    return content


def _snappy(block: bytes) -> bytes:
    size = shift = at = 0
    while True:  # the content's length comes first, and a checksum last
        byte = block[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80 or shift > 63:
            break
    if size > _MOST:
        raise _Cut(f"a block holds more than {_MOST} bytes")
    content = bytes(pa.decompress(block[:-4], size, "snappy", asbytes=True))
    if zlib.crc32(content).to_bytes(4, "big") != block[-4:]:
        raise _Cut("a block's checksum is not that of its content")
    return content


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": lambda block: block,
    "deflate": lambda block: _unpacked(zlib.decompressobj(-15), block),
    "bzip2": lambda block: _unpacked(bz2.BZ2Decompressor(), block),
    "xz": lambda block: _unpacked(lzma.LZMADecompressor(), block),
    "zstandard": _zstd,
    "snappy": _snappy,
}


# The records of a block. It does not say where they end. So each one is skipped field by
# field first, and then all are read in columns.

_Skip = Callable[[bytes, int], int]
"""Returns where a value ends, given where it begins."""

_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def _records(node: Node, count: int, block: bytes) -> pa.Array:
    """The records of a block.

    Raises:
        ValueError: the block does not hold them.
    """
    if count > (len(block) // node.smallest if node.smallest else MOST_EMPTY):
        raise ValueError(f"a block of {len(block)} bytes cannot hold {count} records")
    skip = _skipper(node)
    places, at = [0] * (count + 1), 0
    try:
        for number in range(count):
            at = skip(block, at)
            places[number + 1] = at
    except IndexError:
        raise ValueError("a block ends within a record") from None
    except RecursionError:
        raise ValueError("a record is nested too deeply") from None
    if at != len(block):
        raise ValueError("a block holds more than its records")
    bounds = np.array(places)
    data = np.frombuffer(block, np.uint8)
    read = contents(node, FramedMessages(0, np.arange(count), data, bounds[:-1], bounds[1:]))
    if read.refused:
        raise ValueError(next(iter(read.refused.values())))
    return read.values


def _skipper(node: Node) -> _Skip:
    """A function that skips the values of a node."""
    if isinstance(node, Primitive):
        if node.kind in _SIZES:
            return _skip_constant(_SIZES[node.kind])
        return _skip_number if node.kind in ("int", "long") else _skip_sized
    if isinstance(node, Fixed):
        return _skip_constant(node.size)
    if isinstance(node, Decimal):
        return _skip_sized if node.size is None else _skip_constant(node.size)
    if isinstance(node, Enum):
        return _skip_number
    if isinstance(node, Record):
        return _skip_all([_skipper(field.node) for field in node.fields])
    if isinstance(node, Union):
        return _skip_branch([_skipper(branch) for branch in node.branches])
    if isinstance(node, Array):
        return _skip_blocks(_skipper(node.item))
    if isinstance(node, Map):
        return _skip_blocks(_skip_all([_skip_sized, _skipper(node.value)]))
    assert isinstance(node, Recursion)
    cached: list[_Skip] = []

    def inside(block: bytes, at: int) -> int:
        if not cached:
            cached.append(_skipper(node.named[node.name]))
        return cached[0](block, at)

    return inside


def _skip_constant(size: int) -> _Skip:
    return lambda _block, at: at + size


def _skip_number(block: bytes, at: int) -> int:
    while block[at] > 0x7F:
        at += 1
    return at + 1


def _skip_sized(block: bytes, at: int) -> int:
    size = block[at]
    if size < 0x80:
        return at + 1 + (size >> 1)
    size, at = _long_at(block, at)
    if size < 0:
        raise ValueError("a length is negative")
    return at + size


def _long_at(block: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while True:
        byte = block[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than ten bytes")


def _skip_all(skips: Sequence[_Skip]) -> _Skip:
    def skip(block: bytes, at: int) -> int:
        for step in skips:
            at = step(block, at)
        return at

    return skip


def _skip_branch(skips: Sequence[_Skip]) -> _Skip:
    def skip(block: bytes, at: int) -> int:
        branch, at = _long_at(block, at)
        if not 0 <= branch < len(skips):
            raise ValueError(f"a union has no branch {named(branch)}: it has {len(skips)}")
        return skips[branch](block, at)

    return skip


def _skip_blocks(item: _Skip) -> _Skip:
    def skip(block: bytes, at: int) -> int:
        while True:
            count, at = _long_at(block, at)
            if not count:
                return at
            if count < 0:  # the size in bytes follows
                size, at = _long_at(block, at)
                if size < 0:
                    raise ValueError("a length is negative")
                at += size
                continue
            begin = at
            for number in range(count):
                at = item(block, at)
                if at == begin and number == MOST_EMPTY:
                    raise ValueError(f"a list has {count} items that take no bytes")

    return skip
