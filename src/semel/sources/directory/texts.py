"""Lines and JSON, and what they share with CSV: formats whose positions are bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json import duck
from semel.converters.json.converter import JsonConverter
from semel.converters.json.nested import nested_as
from semel.converters.json.read import Unreadable
from semel.converters.json.text import WHITESPACE
from semel.core.quoting import named
from semel.sources.directory.config import DirectoryConfig
from semel.sources.directory.files import FileProgress
from semel.sources.directory.schemas import Field, Parser, Unfit
from semel.sources.directory.streams import (
    Ends,
    TooLarge,
    blocks,
    is_ascii_compatible,
    opened,
    value_ends,
)
from semel.sources.lines import LARGEST, ends_of

JSON = pa.json_()
MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Values of records, and how far the file was read after them."""

    values: pa.Array
    reached: FileProgress


class Broken(Exception):
    """A record cannot be read; ``chunk`` holds the records before it in its block."""

    def __init__(self, record: int, why: str, chunk: Chunk | None = None) -> None:
        super().__init__(why)
        self.record = record
        self.chunk = chunk


def is_of_the_machine(error: Exception) -> bool:
    """Whether an error is one of the disk or the memory, not of the file's content."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and bool(error.errno))


class Format(ABC):
    """Reads records from files."""

    @abstractmethod
    def read(self, file: BinaryIO, name: str, reached: FileProgress) -> Iterator[Chunk]:
        """The records of an open file from a place onwards.

        Raises:
            Broken: one cannot be read.
        """


class BytesFormat(Format):
    """Records in blocks of bytes."""

    ends: Ends = staticmethod(ends_of)
    blank: bool = False
    """Whether blank lines are records."""
    space: bytes = b"\r\n"
    """What stands for nothing at the end, unless blank lines are records."""
    largest: int = LARGEST
    """The most bytes of a record."""

    def __init__(self, config: DirectoryConfig) -> None:
        self._config = config
        self._charset = config.charset
        self.encoding = self._charset if is_ascii_compatible(self._charset) else "UTF-8"

    def read(self, file: BinaryIO, name: str, reached: FileProgress) -> Iterator[Chunk]:
        count = reached.records
        try:
            for chunk in self._chunks(file, name, reached):
                count = chunk.reached.records
                yield chunk
        except TooLarge as error:
            raise Broken(count, str(error)) from None
        except (pa.ArrowException, UnicodeError, EOFError, OSError) as error:
            if is_of_the_machine(error):
                raise
            raise Broken(count, f"its content cannot be read: {error}") from None

    def _chunks(self, file: BinaryIO, name: str, reached: FileProgress) -> Iterator[Chunk]:
        begin = self.begin(file, name)
        if reached.position or not reached.records:
            begin = max(begin, reached.position)
            skip, count = 0, reached.records
        else:  # spooldir has stored the number alone
            skip, count = reached.records, 0
        content = opened(file, name, self._charset, begin)
        records = blocks(
            content, self.ends, blank=self.blank, space=self.space, largest=self.largest
        )
        for block, ends in records:
            if skip >= len(ends):
                skip -= len(ends)
                count += len(ends)
                begin += len(block)
                continue
            start = int(ends[skip - 1]) if skip else 0
            parts = np.append(np.arange(skip, len(ends), self._config.batch_size), len(ends))
            count += skip
            for first, until in pairwise(parts):
                at = int(ends[until - 1])
                chosen = ends[first:until] - start
                yield self._chunk(block[start:at], chosen, count, begin + start)
                count += int(until - first)
                start = at
            skip = 0
            begin += len(block)

    def begin(self, file: BinaryIO, name: str) -> int:
        """Where the first record begins: after a byte order mark."""
        return len(MARK) if opened(file, name, self._charset).read(len(MARK)) == MARK else 0

    def _chunk(self, block: bytes, ends: np.ndarray, count: int, begin: int) -> Chunk:
        def reached(records: int) -> FileProgress:
            end = int(ends[records - 1]) if records else 0
            return FileProgress(count + records, begin + end)

        try:
            return Chunk(self.values(block, ends), reached(len(ends)))
        except Unfit as among:  # the others; alone, it may say more
            error = among
            good = self._good(block, ends)
            chunk = None
            if good:
                values = self.values(block[: int(ends[good - 1])], ends[:good])
                chunk = Chunk(values, reached(good))
            try:
                begun = int(ends[good - 1]) if good else 0
                alone = block[begun : int(ends[good])]
                self.values(alone, np.array([len(alone)]))
            except Unfit as first:
                error = first
            raise Broken(count + good, str(error), chunk) from None

    def _good(self, block: bytes, ends: np.ndarray) -> int:
        """How many records can be read, counting from the first."""
        good, bad = 0, len(ends)
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                self.values(block[: int(ends[middle - 1])], ends[:middle])
                good = middle
            except Unfit:
                bad = middle
        return good

    @abstractmethod
    def values(self, block: bytes, ends: np.ndarray) -> pa.Array:
        """The values of whole records.

        Raises:
            Unfit: one cannot be read.
        """

    def text(self, block: bytes, ends: np.ndarray) -> pa.Array:
        """Each record as text, without its line end."""
        if self.encoding.upper().replace("-", "") not in ("UTF8", "ASCII", "USASCII"):
            return self._decoded(block, ends)
        data = np.frombuffer(block, np.uint8)
        starts = np.concatenate(([0], ends[:-1]))
        stops = ends - (data[ends - 1] == 10)
        with_cr = (stops > starts) & (data[np.maximum(stops - 1, 0)] == 13)
        stops = stops - with_cr
        keep = np.ones(len(data), bool)
        sizes = stops - starts
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        for extra in (1, 2):  # line ends have at most two bytes
            at = stops + extra - 1
            keep[at[at < ends]] = False
        lines = pa.Array.from_buffers(
            pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data[keep])]
        )
        try:
            return lines.cast(pa.string())
        except pa.ArrowInvalid:
            raise Unfit(f"it is not {self.encoding}") from None

    def _decoded(self, block: bytes, ends: np.ndarray) -> pa.Array:
        """Like :meth:`text`, for another ASCII-compatible character set: line ends are the same
        bytes, which mean nothing else."""
        try:
            text = block.decode(self.encoding)
        except UnicodeDecodeError as error:
            raise Unfit(f"it is not {self.encoding}: {error.reason}") from None
        encoded = text.encode()
        feeds = ends_of(encoded)
        if not len(feeds) or int(feeds[-1]) < len(encoded):
            feeds = np.append(feeds, len(encoded))
        plain = TextFormat(self._config)
        plain.encoding = "UTF-8"
        return plain.text(encoded, feeds)


class TextFormat(BytesFormat):
    """Lines."""

    blank = True

    def values(self, block: bytes, ends: np.ndarray) -> pa.Array:
        return self.text(block, ends)


class JsonFormat(BytesFormat):
    """JSON values, on lines of their own or not: objects with the fields of a schema, or any values
    as they are."""

    ends = staticmethod(value_ends)
    space = b" \t\r\n"

    def __init__(
        self,
        config: DirectoryConfig,
        fields: Sequence[Field],
        parser: Parser,
        *,
        as_text: bool = False,
    ) -> None:
        super().__init__(config)
        self._fields, self._parser, self._as_text = fields, parser, as_text
        # Times are read by their patterns.
        kinds = [pa.field(f.name, pa.string() if f.is_time else f.type) for f in fields]
        self._converter = JsonConverter(schemas_enable=False, schema=pa.schema(kinds))
        nested = [f for f in fields if pa.types.is_nested(f.type)]
        self._readers = {f.name: r for f in nested if (r := nested_as(f.type)) is not None}

    def values(self, block: bytes, ends: np.ndarray) -> pa.Array:
        text = self.text(block, ends)
        if not self._fields:
            try:
                duck.check_json(pa.chunked_array([text]))
            except pa.ArrowInvalid:
                raise Unfit("it is not JSON") from None
            text = pc.utf8_trim(text, WHITESPACE)
            return text if self._as_text else pa.ExtensionArray.from_storage(JSON, text)
        decoded = self._converter.decode(text.cast(pa.binary()))
        if decoded.failures:
            raise Unfit(decoded.failures[0].message)
        arrays = []
        for field in self._fields:
            column = pc.struct_field(decoded.values, field.name)
            if field.is_time:
                column = self._parser.values(column, field)
            elif column.type == JSON:
                column = self._nested(column.storage, field)
            self._parser.check_nulls(column, field)
            arrays.append(column)
        return pa.StructArray.from_arrays(arrays, fields=[f.arrow for f in self._fields])

    def _nested(self, text: pa.Array, field: Field) -> pa.Array:
        """Structs, maps and lists of them, which the converter keeps as JSON."""
        reader = self._readers[field.name]
        try:
            return reader.read(text).cast(field.type)
        except (Unreadable, pa.ArrowInvalid) as error:
            raise Unfit(f"field {named(field.name)}: {error}") from None
