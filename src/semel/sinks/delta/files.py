"""Data files: tasks write them, and no reader sees them until a commit adds or merges them. Small
ones are compacted, in commits that change no data."""

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
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import WriterProperties
from deltalake.transaction import AddAction

from semel.core.errors import TransientError
from semel.sinks.delta import statistics
from semel.sinks.delta.config import DeltaConfig
from semel.sinks.delta.store import bound, reason, translated
from semel.sinks.delta.table import Table
from semel.sinks.lake import delete
from semel.sinks.parquet import ParquetFile, RollingWriter, split
from semel.sinks.rows import CHANGE_DELETES, CHANGE_GIVEN, PLACES, given_in, last_changes
from semel.sinks.staging import CommitConflict
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
        delete(self._filesystem.delete_file, paths)

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
        if value.tzinfo:  # without the Z, Spark reads it in its session's time zone
            return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        return value.isoformat(" ", timespec="microseconds")
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), str(value))
    return str(value)


def merge(table: Table, files: Sequence[DataFile], transactions: Mapping[str, int]) -> None:
    """Merge the last change of each key and move transaction identifiers, by one commit. An
    existing row keeps the columns that no change of its key gives.

    Raises:
        CommitConflict, TransientError: see :meth:`Table.append`.
    """
    filesystem = table.filesystem()
    key = files[0].key
    with translated(table.where):
        parts = [pq.read_table(f.path, filesystem=filesystem) for f in files]
        changes = pa.concat_tables(parts, promote_options="permissive")
        lacking = [f for f in table.columns if f.name not in changes.column_names]
        for field in lacking:
            changes = changes.append_column(field, pa.nulls(changes.num_rows, field.type))
        partial = given_in(changes, (n for n in table.columns.names if n not in key))
        source = last_changes(changes, key, partial).drop_columns(list(PLACES))
        same = " AND ".join(f"target.{_quoted(n)} = source.{_quoted(n)}" for n in key)
        deletes = f"source.{_quoted(CHANGE_DELETES)}"
        merger = table.raw.merge(
            source,
            same,
            source_alias="source",
            target_alias="target",
            # Unless the source is streamed, its smallest and largest keys are known, and files are
            # skipped by them.
            streamed_exec=not all(_bounded(source.schema.field(n).type) for n in key),
            commit_properties=bound(transactions),
        )
        # delta-rs's shortcuts for all columns (1.6) fail for names with a backtick.
        every = {_quoted(n): f"source.{_quoted(n)}" for n in table.columns.names}
        updates = dict(every)
        for name in partial:
            own, has = _quoted(name), f"source.{_quoted(CHANGE_GIVEN + name)}"
            if pc.any(source.column(CHANGE_GIVEN + name)).as_py():
                updates[own] = f"CASE WHEN {has} THEN source.{own} ELSE target.{own} END"
            else:
                del updates[own]
        merger = merger.when_matched_delete(deletes)
        merger = merger.when_matched_update(updates, f"NOT {deletes}")
        merger.when_not_matched_insert(every, f"NOT {deletes}").execute()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _bounded(kind: pa.DataType) -> bool:
    """Whether bounds of this type can be trusted from any writer: many round decimals and ignore
    NaN."""
    return not (pa.types.is_decimal(kind) or pa.types.is_floating(kind))


class Compaction:
    """Compacts a table when this run has added enough small files to it.

    A compaction may fail without harm: the next one finds the same files.
    """

    def __init__(self, config: DeltaConfig) -> None:
        self._config = config
        self._small: dict[str, int] = {}

    def after(self, table: Table, files: Sequence[DataFile]) -> None:
        """Count files that were committed; compact if there are enough small ones."""
        if not self._config.auto_compact:
            return
        half = self._config.target_file_size // 2
        small = self._small.get(table.where, 0) + sum(f.size < half for f in files)
        if small >= self._config.compact_min_files:
            self._compact(table)
            small = 0
        self._small[table.where] = small

    def _compact(self, table: Table) -> None:
        codec = {"none": "UNCOMPRESSED"}.get(self._config.codec, self._config.codec.upper())
        try:
            table.keep_statistics_true()
            with translated(table.where):
                done = table.raw.optimize.compact(
                    target_size=self._config.target_file_size,
                    writer_properties=WriterProperties(compression=codec),  # type: ignore[arg-type]
                )
        except (CommitConflict, TransientError) as error:
            log.info("table %s was not compacted: %s", table.where, error)
        else:
            log.info(
                "table %s: %d files compacted to %d",
                table.where,
                done["numFilesRemoved"],
                done["numFilesAdded"],
            )
