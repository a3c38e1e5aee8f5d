"""CSV: rows as opencsv reads them.

Arrow parses what both understand in the same way, which is nearly every file: values without
quotes, values that are quoted as a whole, and escape characters in quotes. For anything else,
:mod:`~semel.sources.directory.opencsv` parses the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import csv

from semel.core.quoting import all_named
from semel.core.records import one_array
from semel.sources.directory.config import DirectoryConfig
from semel.sources.directory.opencsv import Row, lines_of
from semel.sources.directory.schemas import Field, Parser, Unfit
from semel.sources.directory.streams import not_blank, opened
from semel.sources.directory.texts import MARK, Broken, BytesFormat
from semel.sources.lines import ends_of

_NOT_CLOSED = "a quote is not closed"
_FEW = 64
"""Rows of which one is odd that the slow parser takes together."""
_SOME = 1024
"""Lines of a block with an odd quote that are looked at together."""


class CsvFormat(BytesFormat):
    """Rows of CSV."""

    largest = 16 * 1024 * 1024  # a quote that is never closed takes in all that follows

    def __init__(self, config: DirectoryConfig, fields: Sequence[Field], parser: Parser) -> None:
        super().__init__(config)
        self._fields, self._parser = fields, parser
        self._dialect = config.dialect
        self._rows = self._dialect.parser
        self._take([f.name for f in fields])

    def _take(self, columns: Sequence[str]) -> None:
        """Take the names of the columns. A blank line is a row of one empty text."""
        self._columns = columns
        field = next((f for f in self._fields if [f.name] == list(columns)), None)
        text = not self._fields or (field is not None and pa.types.is_string(field.type))
        self.blank = (
            len(columns) == 1 and text and self._dialect.nulls in ("neither", "empty_quotes")
        )
        self.ends = self._ends if self.blank else not_blank(self._ends)

    # Where rows begin and end

    def begin(self, file: BinaryIO, name: str) -> int:
        config = self._config
        position = super().begin(file, name)
        if not config.skip_lines and not config.header:
            return position
        content = opened(file, name, self._charset)
        rest, block = b"", b" "
        header = not_blank(self._ends)
        while block:
            block = content.read(max(1 << 20, len(rest)))
            rest += block
            skipped = ends_of(rest)[: config.skip_lines] if rest else np.array([], np.int64)
            if len(skipped) == config.skip_lines:
                position = int(skipped[-1]) if config.skip_lines else position
                if not config.header:
                    return position
                if len(rest) > position and len(ends := header(rest[position:])):
                    self._take(self._named(rest[position : position + int(ends[0])]))
                    return position + int(ends[0])
            if len(rest) > self.largest:
                raise Broken(0, f"its first lines have more than {self.largest:,} bytes")
        head = rest[position:] if len(skipped) == config.skip_lines else b""
        if config.header and head.strip():
            self._take(self._named(head))
        return len(rest)

    def _named(self, head: bytes) -> list[str]:
        try:
            rows = self._parsed(head.removeprefix(MARK))
        except Unfit as error:
            raise Broken(0, f"its header cannot be read: {error}") from None
        names = [n or "" for n in rows[0]] if rows else []
        if not self._fields and len(set(names)) == len(names):
            return names
        declared = {self._folded(f.name): f.name for f in self._fields}
        named = [declared.get(self._folded(n.strip()), n) for n in names]
        missing = [f.name for f in self._fields if f.name not in named and not f.optional]
        if missing or len(set(named)) < len(named):
            why = f"lacks {all_named(missing)}" if missing else "has a name twice"
            raise Broken(0, f"its first row, {all_named(names)}, {why}")
        return named

    def _folded(self, name: str) -> str:
        return name if self._config.case_sensitive else name.lower()

    def _ends(self, block: bytes) -> np.ndarray:
        """Where each whole row at the beginning of a block ends. Quotes may hold line ends."""
        quotes = self._plain_quotes(block)
        ends = ends_of(block)
        if quotes is not None:
            return np.asarray(ends[np.searchsorted(quotes, ends) % 2 == 0])
        lines = self._lines(block[: int(ends[-1])] if len(ends) else b"", errors="replace")
        whole = np.zeros(len(ends), bool)
        first = 0
        while first < len(ends):
            start, until = int(ends[first - 1]) if first else 0, min(first + _SOME, len(ends))
            quotes = self._plain_quotes(block[start : int(ends[until - 1])])
            if quotes is not None:
                closed = np.searchsorted(quotes, ends[first:until] - start) % 2 == 0
                whole[first:until] = closed
                if closed.any():
                    first += int(np.flatnonzero(closed)[-1]) + 1
                    continue
                until = first + 1
            while first < until:
                row = self._rows.row(lines, first)
                if row is None:
                    return np.asarray(ends[whole])
                first = row[1]
                whole[first - 1] = True
        return np.asarray(ends[whole])

    def _lines(self, block: bytes, errors: str = "strict") -> list[str]:
        return lines_of(block.decode(self.encoding, errors)) if block else []

    def _plain_quotes(self, block: bytes) -> np.ndarray | None:
        """Where quotes begin and end, if Arrow and opencsv agree about all of them."""
        of = self._dialect
        if of.strict_quotes or of.separator == "\0":  # Arrow takes no NUL
            return None
        data = np.frombuffer(block, np.uint8)
        escapes = np.array([], np.int64)
        if not of.rfc_4180 and of.escape.encode() in block:
            data, escapes = _without_escaped(data, of.escape)
        at = np.flatnonzero(data == ord(of.quote)) if of.quote.encode() in block else escapes[:0]
        if len(at) and (of.ignore_quotations or of.nulls == "empty_quotes" or of.quote == "\0"):
            return None
        outside = np.zeros(256, bool)
        outside[list(f"{of.separator}{of.quote}\r\n".encode())] = True
        begins, ends = at[::2], at[1::2]
        joined = np.zeros(len(begins), bool)
        joined[1:] = begins[1:] == ends[: len(begins) - 1] + 1  # "" within quotes
        before = data[begins - 1]
        good = joined | (outside[before] & (before != ord(of.quote))) | (begins == 0)
        behind = outside[data[np.minimum(ends + 1, len(data) - 1)]] | (ends == len(data) - 1)
        if not (good.all() and behind.all()):
            return None
        if len(escapes):
            bare = escapes[np.searchsorted(at, escapes) % 2 == 0]
            after = np.frombuffer(block + b"\n", np.uint8)[bare + 1]
            outside[ord(of.escape)] = True
            if outside[after].any() or of.escape == "\0":
                return None
        return at

    # Values

    def values(self, block: bytes, ends: np.ndarray) -> pa.Array:
        present = [f for f in self._fields if f.name in self._columns]
        fields = self._fields or [Field(n, pa.string()) for n in self._columns]
        names = [f.name for f in present] if self._fields else list(self._columns)
        texts = self._texts(block, ends, names)
        arrays = [
            self._parser.values(texts[f.name], f)
            if f.name in texts
            else pa.nulls(len(ends), f.type)
            for f in fields
        ]
        return pa.StructArray.from_arrays(arrays, fields=[f.arrow for f in fields])

    def _texts(self, block: bytes, ends: np.ndarray, names: Sequence[str]) -> dict[str, pa.Array]:
        """The columns. If there are odd rows, the others are left to Arrow."""
        columns = self._by_arrow(block, ends, names)
        if columns is not None or len(ends) <= _FEW:
            return columns if columns is not None else self._by_rows(block, ends, names)
        half = len(ends) // 2
        at = int(ends[half - 1])
        first = self._texts(block[:at], ends[:half], names)
        second = self._texts(block[at:], ends[half:] - at, names)
        return {n: pa.concat_arrays([first[n], second[n]]) for n in names}

    def _by_arrow(
        self, block: bytes, ends: np.ndarray, names: Sequence[str]
    ) -> dict[str, pa.Array] | None:
        """The columns, unless only opencsv can tell."""
        quotes = self._plain_quotes(block)
        if quotes is None or len(quotes) % 2 or not names:
            return None
        of = self._dialect
        if len(quotes) and b"\r" in block:  # within quotes, each line ends with LF
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not block.endswith((b"\n", b"\r")):  # Arrow takes an empty value at the end as quoted
            block += b"\n"
        first = self._rows.row(self._lines(block[: int(ends[0])].lstrip(b"\r\n"), "replace"), 0)
        more = len(first[0]) - len(self._columns) if first else 0
        columns = [*self._columns, *(f"\0{n}" for n in range(more))]
        escaping = not of.rfc_4180 and of.escape.encode() in block
        try:
            table = csv.read_csv(
                pa.BufferReader(block),
                csv.ReadOptions(
                    use_threads=False,
                    block_size=len(block) + 1,
                    column_names=columns,
                    encoding=self.encoding,
                ),
                csv.ParseOptions(
                    delimiter=of.separator,
                    quote_char=of.quote if len(quotes) else False,
                    double_quote=True,
                    escape_char=of.escape if escaping else False,
                    newlines_in_values=True,
                    ignore_empty_lines=not self.blank,
                ),
                csv.ConvertOptions(
                    include_columns=names,
                    column_types={n: pa.string() for n in names},
                    null_values=[""],
                    strings_can_be_null=of.nulls in ("empty_separators", "both"),
                    quoted_strings_can_be_null=of.nulls == "both",
                ),
            )
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return None
        if len(table) != len(ends):
            return None
        return {n: one_array(table.column(n)) for n in names}

    def _by_rows(self, block: bytes, ends: np.ndarray, names: Sequence[str]) -> dict[str, pa.Array]:
        rows = self._parsed(block)
        if len(rows) != len(ends):
            raise Unfit(_NOT_CLOSED)
        least = len(self._columns)
        for row in rows:
            if len(row) < least:
                raise Unfit(f"Expected {least} columns, got {len(row)}")
        places = {n: self._columns.index(n) for n in names}
        return {n: pa.array([row[at] for row in rows], pa.string()) for n, at in places.items()}

    def _parsed(self, block: bytes) -> list[Row]:
        try:
            lines = self._lines(block)
        except UnicodeDecodeError as error:
            raise Unfit(f"it is not {self.encoding}: {error.reason}") from None
        rows, at = [], 0
        while at < len(lines):
            if not lines[at] and not self.blank:
                at += 1
                continue
            row = self._rows.row(lines, at)
            if row is None:
                raise Unfit(_NOT_CLOSED)
            rows.append(row[0])
            at = row[1]
        return rows


def _without_escaped(data: np.ndarray, escape: str) -> tuple[np.ndarray, np.ndarray]:
    """The block with escape characters, and the characters after them, replaced by blanks; and
    where the escape characters are that count."""
    blanked = data.copy()
    at = np.flatnonzero(blanked == ord(escape))
    # In a run of escape characters, every second one is a literal.
    starts = np.concatenate(([True], np.diff(at) != 1))
    first = at[np.maximum.accumulate(np.where(starts, np.arange(len(at)), 0))]
    real = at[(at - first) % 2 == 0]
    blanked[real] = ord(" ")
    following = real + 1
    blanked[following[following < len(blanked)]] = ord(" ")
    return blanked, real
