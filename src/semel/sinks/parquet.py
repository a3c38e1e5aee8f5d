"""Parquet files that a task writes: one for each table partition, and more as they fill up."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as is_

from semel.core.failpoints import hit

_ROW_GROUP = 64 * 1024 * 1024
"""Arrow bytes of a row group."""
_WAITING = 256 * 1024 * 1024
"""Arrow bytes that may wait in all of a table's open files: with many partitions they add up."""

LAST_CHARACTER = "\U0010ffff"
_LONG = 4000
"""Bytes of a text; Parquet's writer records no min and max for texts above 4096 bytes."""


class OpenFile(Protocol):
    """One file that is being written; :class:`ParquetFile` is one."""

    path: str
    schema: pa.Schema
    waiting: int

    @property
    def order(self) -> Callable[[pa.Table], pa.Table] | None: ...

    @property
    def size(self) -> int: ...

    def add(self, rows: pa.Table) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


Values = TypeVar("Values")
Done = TypeVar("Done")
File = TypeVar("File", bound=OpenFile)


class ParquetFile:
    """One file that is being written.

    With ``order`` all its rows are kept in memory and sorted when it is closed.
    """

    def __init__(
        self,
        path: str,
        stream: Any,
        schema: pa.Schema,
        *,
        order: Callable[[pa.Table], pa.Table] | None = None,
        **options: Any,
    ) -> None:
        self.path = path
        self.schema = schema
        self.order = order
        self.unbounded: set[str] = set()
        """Columns whose bounds Parquet's statistics do not give; see :func:`_unbounded`."""
        self.waiting = 0
        self._rows: list[pa.Table] = []
        self._noted: list[pq.FileMetaData] = []
        self._stream = stream
        self._writer = pq.ParquetWriter(
            stream, schema, metadata_collector=self._noted, store_schema=False, **options
        )

    @property
    def size(self) -> int:
        """The bytes written so far; for rows that wait to be sorted, their size in memory."""
        return self.waiting if self.order else int(self._stream.tell())

    @property
    def metadata(self) -> pq.FileMetaData:
        """The metadata of the closed file, from Parquet's writer."""
        return self._noted[0]

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)
        self.waiting += rows.nbytes
        for name in set(rows.column_names) - self.unbounded:
            self.unbounded |= {name} if _unbounded(rows.column(name)) else set()
        if self.waiting >= _ROW_GROUP and self.order is None:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            group = pa.concat_tables(self._rows)
            size = group.num_rows
            if self.order:
                group = self.order(group)
                size = size * _ROW_GROUP // max(self.waiting, _ROW_GROUP)
            self._rows, self.waiting = [], 0
            self._writer.write_table(group, row_group_size=max(1, size))

    def close(self) -> None:
        """Complete the file."""
        self.flush()
        self._writer.close()
        self._stream.close()

    def abandon(self) -> None:
        self._writer.close()
        abandon(self._stream)


def abandon(stream: Any) -> None:
    """Close a stream and drop what it has not sent."""
    getattr(stream, "abandon", stream.close)()


def _unbounded(values: pa.ChunkedArray) -> bool:
    """Whether there are values that statistics ignore and no simple bound covers: NaN, and long
    text (which has no statistics) that begins with the highest code point."""
    if is_.is_floating(values.type):
        return bool(pc.any(pc.is_nan(values)).as_py())
    if is_.is_string(values.type) and (pc.max(pc.binary_length(values)).as_py() or 0) > _LONG:
        return bool(pc.any(pc.starts_with(values, LAST_CHARACTER)).as_py())
    return False


class RollingWriter(ABC, Generic[Values, Done, File]):
    """Writes one table's rows. A subclass knows where files go and how they are described."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: dict[Values, File] = {}
        self._done: list[Done] = []

    @abstractmethod
    def _new(self, values: Values, schema: pa.Schema) -> File:
        """Begin a file."""

    @abstractmethod
    def _described(self, values: Values, file: File) -> Done:
        """The description of a complete file."""

    @abstractmethod
    def _delete(self, paths: list[str]) -> None:
        """Delete files as far as that is possible; never raises."""

    @abstractmethod
    def _path(self, done: Done) -> str: ...

    @abstractmethod
    def _writing(self) -> contextlib.AbstractContextManager[None]:
        """Translate the store's errors."""

    def _write(self, parts: Iterator[tuple[Values, pa.Table]]) -> None:
        for values, part in parts:
            if values in self._open and self._open[values].schema != part.schema:
                self._close(values)  # the table has gained columns
            if values not in self._open:
                with self._writing():
                    self._open[values] = self._new(values, part.schema)
            file = self._open[values]
            with self._writing():
                file.add(part)
            hit("staging.mid_file")
            if file.size >= self._target:
                self._close(values)
        if sum(f.waiting for f in self._open.values()) >= _WAITING:
            for values, file in list(self._open.items()):
                if file.order:
                    self._close(values)
                    continue
                with self._writing():
                    file.flush()

    def finish(self) -> list[Done]:
        for values in list(self._open):
            self._close(values)
        return self._done

    def discard(self) -> None:
        """Delete everything; never raises."""
        paths = [self._path(d) for d in self._done]
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.abandon()
            paths.append(file.path)
        self._delete(paths)

    def _close(self, values: Values) -> None:
        file = self._open[values]
        with self._writing():
            file.close()
            self._done.append(self._described(values, file))
        del self._open[values]


def bare(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values as Arrow compares them, which it does not do for UUIDs: these become bytes."""
    return values.cast(getattr(values.type, "storage_type", values.type))


def split(rows: pa.Table, by: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Rows by the values that they have in ``by``, each group in its order."""
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for column in by.columns:
        encoded = pc.dictionary_encode(bare(column).combine_chunks(), null_encoding="encode")
        array = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        size = len(array.dictionary)
        if size == 1:
            continue
        _, codes = np.unique(codes * size + array.indices.to_numpy(), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    arranged = rows.take(pa.array(order)) if len(starts) > 1 else rows
    firsts = by.take(pa.array(order[starts])).to_pylist()
    for start, end, first in zip(starts, [*starts[1:], len(order)], firsts, strict=True):
        yield tuple(first.values()), arranged.slice(start, end - start)
