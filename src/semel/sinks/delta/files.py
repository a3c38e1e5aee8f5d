"""Data files: written by tasks, seen by nobody until a commit names them."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as is_
from deltalake.transaction import AddAction

from semel.errors import TransientError
from semel.sinks.delta import statistics
from semel.sinks.delta.table import Table, reason

log = logging.getLogger(__name__)

_ROW_GROUP = 64 * 1024 * 1024
"""Arrow bytes of a row group."""
_WAITING = 256 * 1024 * 1024
"""Arrow bytes that may wait in all open files of a table; with many partitions they are many."""

Values = tuple[str | None, ...]
"""The partition values of a file, as Delta writes them."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A complete file that waits for its commit, or holds changes that are to be merged."""

    topic: str
    table: str
    path: str
    size: int
    columns: pa.Schema
    partition: Mapping[str, str | None] = field(default_factory=dict)
    stats: str = ""
    key: tuple[str, ...] = ()

    def action(self) -> AddAction:
        return AddAction(
            self.path, self.size, self.partition, int(time.time() * 1000), True, self.stats
        )


class FileWriter:
    """Writes one table's rows: a file for each partition, and another one when it is full."""

    def __init__(self, table: Table, topic: str, prefix: str, target: int, codec: str) -> None:
        self._table = table
        self._topic = topic
        self._prefix = prefix
        self._target = target
        self._codec = codec
        self._filesystem = table.filesystem()
        self._open: dict[Values, _File] = {}
        self._done: list[DataFile] = []

    def write(self, rows: pa.Table, key: tuple[str, ...] = ()) -> None:
        """Add rows; those with a key are changes, which are not partitioned."""
        by = [] if key else self._table.partitioned_by
        for values, part in split(rows, by):
            if values not in self._open:
                path = f"{self._prefix}{uuid.uuid4().hex[:12]}.{self._codec}.parquet"
                self._open[values] = _File(self._filesystem, path, part.schema, self._codec, key)
            file = self._open[values]
            with _writing(self._table.where):
                file.add(part)
            if file.size >= self._target:
                self._close(values)
        if sum(f.waiting for f in self._open.values()) >= _WAITING:
            with _writing(self._table.where):
                for file in self._open.values():
                    file.flush()

    def finish(self) -> list[DataFile]:
        for values in list(self._open):
            self._close(values)
        return self._done

    def discard(self) -> None:
        """Delete everything; never raises."""
        paths = [f.path for f in self._done]
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.abandon()
            paths.append(file.path)
        delete(self._filesystem, paths)

    def _close(self, values: Values) -> None:
        file = self._open[values]
        with _writing(self._table.where):
            stats = file.close()
            size = self._filesystem.get_file_info(file.path).size
        del self._open[values]
        partition = dict(zip(self._table.partitioned_by, values, strict=True)) if values else {}
        self._done.append(
            DataFile(
                self._topic,
                self._table.where,
                file.path,
                size,
                file.schema,
                partition,
                stats,
                file.key,
            )
        )


class _File:
    """One Parquet file that is being written."""

    def __init__(
        self, filesystem: Any, path: str, schema: pa.Schema, codec: str, key: tuple[str, ...]
    ) -> None:
        self.path = path
        self.schema = schema
        self.key = key
        self._noted: list[pq.FileMetaData] = []
        self._stream = filesystem.open_output_stream(path)
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression=codec,
            metadata_collector=self._noted,
            store_schema=False,
        )
        self._waiting: list[pa.Table] = []
        self.waiting = 0
        self._nan: set[str] = set()

    @property
    def size(self) -> int:
        return int(self._stream.tell())

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self.waiting += rows.nbytes
        for column in rows.schema:
            if is_.is_floating(column.type) and column.name not in self._nan:
                with_nan = pc.any(pc.is_nan(rows.column(column.name))).as_py()
                self._nan |= {column.name} if with_nan else set()
        if self.waiting >= _ROW_GROUP:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            group = pa.concat_tables(self._waiting)
            self._waiting, self.waiting = [], 0
            self._writer.write_table(group, row_group_size=max(1, group.num_rows))

    def close(self) -> str:
        """Complete the file; returns its statistics."""
        self.flush()
        self._writer.close()
        self._stream.close()
        return statistics.of(self._noted[0], self.schema, self._nan)

    def abandon(self) -> None:
        self._writer.close()
        self._stream.close()


@contextlib.contextmanager
def _writing(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TransientError(
            f"Delta table {where}: a file cannot be written: {reason(error)}"
        ) from None


def delete(filesystem: Any, paths: Sequence[str]) -> None:
    """Delete files that no commit names; what cannot be deleted is left to VACUUM."""
    for path in paths:
        try:
            filesystem.delete_file(path)
        except FileNotFoundError:
            continue
        except Exception as error:
            log.info("staged file %s stays: %s", path, reason(error))


def split(rows: pa.Table, by: Sequence[str]) -> Iterator[tuple[Values, pa.Table]]:
    """Rows by the values of partition columns; the files do not hold those columns."""
    if not by:
        yield (), rows
        return
    rest = rows.drop_columns(list(by))
    groups = rows.select(list(by)).group_by(list(by), use_threads=False).aggregate([])
    for group in groups.to_pylist():
        mask = None
        for name in by:
            values, wanted = rows.column(name), group[name]
            same = (
                values.is_null()
                if wanted is None
                else pc.equal(values, pa.scalar(wanted, values.type))
            )
            mask = same if mask is None else pc.and_(mask, same)
        chosen = rest.filter(pc.fill_null(mask, False))
        yield tuple(partition_text(group[name]) for name in by), chosen


def partition_text(value: Any) -> str | None:
    """A partition value as Delta writes it."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(" ", timespec="microseconds")
    return str(value)
