"""Data files: tasks write them, and no reader sees them until a commit adds them."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from deltalake.transaction import AddAction

from semel.sinks.delta import statistics
from semel.sinks.delta.table import Table, reason
from semel.sinks.parquet import ParquetFile, RollingWriter, split
from semel.storage.errors import judged

log = logging.getLogger(__name__)

Values = tuple[str | None, ...]
"""The partition values of a file, as Delta writes them."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A complete file that waits for its commit; with a key it holds changes to merge."""

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


class FileWriter(RollingWriter[Values, DataFile, ParquetFile]):
    """Writes one table's rows: a file for each partition, and another one when it is full."""

    def __init__(self, table: Table, topic: str, prefix: str, target: int, codec: str) -> None:
        super().__init__(target)
        self._table = table
        self._topic = topic
        self._prefix = prefix
        self._codec = codec
        self._filesystem = table.filesystem()
        self._key: tuple[str, ...] = ()

    def write(self, rows: pa.Table, key: tuple[str, ...] = ()) -> None:
        """Add rows; those with a key are changes, which are not partitioned."""
        self._key = key
        by = [] if key else self._table.partitioned_by
        self._write(_partitioned(rows, by))

    def _new(self, values: Values, schema: pa.Schema) -> ParquetFile:
        path = f"{self._prefix}{uuid.uuid4().hex[:12]}.{self._codec}.parquet"
        stream = self._filesystem.open_output_stream(path)
        return ParquetFile(path, stream, schema, compression=self._codec)

    def _described(self, values: Values, file: ParquetFile) -> DataFile:
        partition = dict(zip(self._table.partitioned_by, values, strict=True)) if values else {}
        return DataFile(
            self._topic,
            self._table.where,
            file.path,
            self._filesystem.get_file_info(file.path).size,
            file.schema,
            partition,
            statistics.of(file.metadata, file.schema, file.unbounded, self._table.indexed),
            self._key,
        )

    def _delete(self, paths: list[str]) -> None:
        delete(self._filesystem, paths)

    def _path(self, done: DataFile) -> str:
        return done.path

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return _writing(self._table.where)


@contextlib.contextmanager
def _writing(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"Delta table {where}: a file cannot be written: {reason(error)}"
        raise judged(message, error) from None


def delete(filesystem: Any, paths: Sequence[str]) -> None:
    """Delete files that no commit names; what cannot be deleted is left to VACUUM."""
    for path in paths:
        try:
            filesystem.delete_file(path)
        except FileNotFoundError:
            continue
        except Exception as error:
            log.info("staged file %s was not deleted: %s", path, reason(error))


def _partitioned(rows: pa.Table, by: Sequence[str]) -> Iterator[tuple[Values, pa.Table]]:
    """Rows by the values of partition columns; the files do not hold those columns."""
    if not by:
        yield (), rows
        return
    for values, part in split(rows, rows.select(list(by))):
        yield tuple(map(partition_text, values)), part.drop_columns(list(by))


def partition_text(value: Any) -> str | None:
    """A partition value as Delta writes it."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(" ", timespec="microseconds")
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    return str(value)
