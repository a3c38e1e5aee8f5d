"""Parquet and Avro: formats whose records are known by their number."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semel.converters.avro import columns, rows
from semel.converters.avro.parse import SchemaError, parse
from semel.converters.avro.schema import Array
from semel.converters.cursor import Content
from semel.sources.directory.config import DirectoryConfig
from semel.sources.directory.files import Reached
from semel.sources.directory.texts import Broken, Chunk, Format

_MARK = 16
_MAGIC = b"Obj\x01"


class OfParquet(Format):
    """Rows of Parquet."""

    def __init__(self, config: DirectoryConfig) -> None:
        self._size = config.batch_size

    def read(self, file: BinaryIO, name: str, reached: Reached) -> Iterator[Chunk]:
        count = reached.records
        try:
            found = pq.ParquetFile(file)
            first, skip = 0, count
            groups = found.metadata.num_row_groups
            while first < groups and found.metadata.row_group(first).num_rows <= skip:
                skip -= found.metadata.row_group(first).num_rows
                first += 1
            for batch in found.iter_batches(self._size, list(range(first, groups))):
                if skip >= len(batch):
                    skip -= len(batch)
                    continue
                values = batch.slice(skip).to_struct_array()
                skip = 0
                count += len(values)
                yield Chunk(values, Reached(count))
        except (pa.ArrowException, EOFError) as error:
            reason = " ".join(str(error).split())
            raise Broken(count, f"it is no whole Parquet: {reason}") from None


class OfAvro(Format):
    """Records of Avro's container files."""

    def read(self, file: BinaryIO, name: str, reached: Reached) -> Iterator[Chunk]:
        count = 0
        try:
            if file.read(4) != _MAGIC:
                raise _Cut("its first bytes are not those of an Avro file")
            facts = _facts(file)
            mark = _taken(file, _MARK)
            schema = facts.get("avro.schema", b"").decode()
            codec = facts.get("avro.codec", b"null").decode()
            unpack = _CODECS.get(codec)
            if unpack is None:
                raise _Cut(f"codec {codec} is not one of {', '.join(_CODECS)}")
            node = Array(parse(schema))
            while (held := _long(file, ends=True)) is not None:
                size = _long(file)
                block = _taken(file, size or 0)
                if _taken(file, _MARK) != mark:
                    raise _Cut("a block does not end with the file's mark")
                count += held
                if count <= reached.records or not held:
                    continue
                values = _values(node, held, unpack(block))
                values = values.slice(max(0, held - (count - reached.records)))
                yield Chunk(values, Reached(count))
        except (_Cut, SchemaError, ValueError, pa.ArrowException, zlib.error, EOFError) as error:
            raise Broken(
                max(count, reached.records), f"it is no whole Avro file: {error}"
            ) from None


class _Cut(Exception):
    """The file is not as it must be."""


def _taken(file: BinaryIO, size: int) -> bytes:
    if size < 0:
        raise _Cut("a length is negative")
    found = file.read(size)
    if len(found) < size:
        raise _Cut("it ends too early")
    return found


def _long(file: BinaryIO, *, ends: bool = False) -> int | None:
    """A number of variable length; None where the file may end."""
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
    found = {}
    while count := _long(file):
        if count < 0:
            _long(file)  # its size in bytes
        for _ in range(abs(count)):
            key = _taken(file, _long(file) or 0)
            found[key.decode()] = _taken(file, _long(file) or 0)
    return found


def _values(node: Array, count: int, block: bytes) -> pa.Array:
    """A block is what stands in an array between its number of items and its end."""
    value = _written(count) + block + b"\0"
    data = np.frombuffer(value, np.uint8)
    if node.columnar:
        found, unsure = columns.read(node, Content(data), np.array([0]), np.array([len(data)]))
        if not len(unsure):
            return found.flatten()
    found, good, why = rows.read(node, [value])
    if not good:
        raise _Cut(why.get(0, "a block cannot be read"))
    return found.flatten()


def _written(number: int) -> bytes:
    left, found = number << 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def _zstd(block: bytes) -> bytes:
    return bytes(pa.CompressedInputStream(pa.BufferReader(block), "zstd").read())


def _snappy(block: bytes) -> bytes:
    size = shift = at = 0
    while True:  # the content's length comes first, and a checksum last
        byte = block[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return bytes(pa.decompress(block[:-4], size, "snappy", asbytes=True))


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": lambda block: block,
    "deflate": lambda block: zlib.decompress(block, -15),
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
    "zstandard": _zstd,
    "snappy": _snappy,
}
