"""One Delta table at one version, and what its log says of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.types as is_
from deltalake import DeltaTable, Field, QueryBuilder, Schema, TableFeatures
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from semel.core.answers import MOST, too_large
from semel.core.errors import ConfigError, RolledBack, ServiceError, TransientError
from semel.core.quoting import named
from semel.sinks import convert
from semel.sinks.delta import statistics
from semel.sinks.delta.store import bound, translated, unjudged
from semel.sinks.staging import CommitConflict

COMMENT = "comment"
_CHECKPOINT_EVERY = "10"
"""Delta's own default; delta-rs would wait for 100 commits, and positions are read from the log."""

_UNCHECKED = (
    ("delta.constraints.", "has CHECK constraints, which semel does not check"),
    ("delta.columnMapping.mode", "maps column names, which semel does not write"),
    ("delta.enableRowTracking", "tracks rows, which semel does not write"),
    (
        "delta.setTransactionRetentionDuration",
        "forgets transaction identifiers after a while, and the ledger is made of them",
    ),
)


class Table:
    """A table as it was when it was opened or last renewed.

    Every commit is bound to that version: if another writer has committed meanwhile, it fails with
    :class:`CommitConflict`, so that nothing is judged by an older ledger than the one it moves.
    """

    def __init__(self, table: DeltaTable, where: str, options: Mapping[str, str]) -> None:
        self._table = table
        self.where = where
        self._options = dict(options)
        self._read()

    def _read(self) -> None:
        self._read_at = self._table.version()
        self.columns = pa.schema(self._table.schema().to_arrow())
        metadata = self._table.metadata()
        self.id = str(metadata.id)
        self.partitioned_by = list(metadata.partition_columns)
        self.indexed = statistics.indexed(metadata.configuration)
        self._entry = self._log_entry()

    @staticmethod
    def open(where: str, options: Mapping[str, str]) -> Table | None:
        """The table, or None if there is none."""
        with unjudged(where):
            try:
                return Table(DeltaTable(where, storage_options=dict(options)), where, options)
            except TableNotFoundError:
                return None

    @staticmethod
    def create(
        where: str,
        options: Mapping[str, str],
        fields: Sequence[pa.Field],
        partition_by: Sequence[str] = (),
        required: Sequence[str] = (),
    ) -> Table:
        """Create the table unless another writer has done so meanwhile."""
        schema = pa.schema([new_column(f).with_nullable(f.name not in required) for f in fields])
        late = [f for f in schema if names_no_feature(f.type)]
        schema = pa.schema([f for f in schema if f not in late])
        if late and not schema.names:
            raise ConfigError(
                f"Delta table {where}: delta-rs cannot create a table whose only column is "
                f"{late[0].name}, with timestamps without a zone inside. Create it by other means, "
                "or set provenance=true"
            )
        configuration = {"delta.checkpointInterval": _CHECKPOINT_EVERY}
        indexed = statistics.named(schema, partition_by, {})
        if indexed is not None:
            configuration[statistics.PROPERTY] = indexed
        try:
            with unjudged(where):
                created = DeltaTable.create(
                    where,
                    Schema.from_arrow(schema),
                    mode="error",
                    partition_by=list(partition_by),
                    configuration=configuration,
                    storage_options=dict(options),
                )
                table = Table(created, where, options)
        except TransientError:
            existing = Table.open(where, options)
            if existing is None:
                raise
            return existing
        table.add_columns(late)
        return table

    @property
    def version(self) -> int:
        return self._table.version()

    @property
    def raw(self) -> DeltaTable:
        return self._table

    def renew(self) -> None:
        """Go to the newest version. Raises TransientError."""
        if not self._is_same():
            self._reopen()
        with unjudged(self.where):
            self._table.update_incremental()
        if self.version != self._read_at:
            self._read()

    def _log_entry(self) -> tuple[int | None, int | None]:
        """The identity of a log entry, which distinguishes it from another table's entry at the
        same place."""
        with unjudged(self.where):
            info = self.filesystem().get_file_info(f"_delta_log/{self._read_at:020}.json")
        return info.mtime_ns, info.size

    def _is_same(self) -> bool:
        try:
            return self._log_entry() == self._entry
        except TransientError:  # there may be no directory either
            return False

    def _reopen(self) -> None:
        """Raises RolledBack: another table is there, or none."""
        table = Table.open(self.where, self._options)
        if table is None or table.id != self.id:
            now = "is gone" if table is None else "was removed, and another one was created there"
            raise RolledBack(
                f"Delta table {self.where} {now}; its positions are lost. To write everything "
                "again, run semel offsets reset with the connector's file, then start the connector"
            )
        self._table = table.raw
        self._read()

    def refusal(self, *, merges: bool) -> str | None:
        """The reason why semel cannot write the table, if there is one."""
        configuration = self._table.metadata().configuration
        for name, value in configuration.items():
            for prefix, why in _UNCHECKED:
                if name.startswith(prefix) and value.lower() not in ("none", "false"):
                    return f"{why} ({name}={value})"
        if merges and configuration.get("delta.appendOnly", "false").lower() == "true":
            return "is append-only (delta.appendOnly=true): set insert.mode=insert"
        if self.partitioned_by and len(self.partitioned_by) == len(self.columns):
            return "is partitioned by all of its columns, so that a data file would have none"
        for name in self.partitioned_by:
            kind = self.columns.field(name).type
            if not partitions(kind):
                return (
                    f"is partitioned by column {named(name)} of type {kind}, which has no text in "
                    "the log"
                )
        for f in self._table.schema().fields:
            special = [
                n
                for n in f.metadata
                if n in ("delta.invariants", "delta.generationExpression")
                or n.startswith("delta.identity.")
            ]
            if special:
                return f"computes or checks column {named(f.name)} ({special[0]})"
        return None

    def transaction(self, app_id: str) -> int | None:
        """The version of a transaction identifier."""
        with translated(self.where):
            version: int | None = self._table.transaction_version(app_id)
            return version

    def transactions_at(self, version: int, app_ids: Iterable[str]) -> dict[str, int]:
        """The values of identifiers in an older version; empty if it can no longer be read."""
        try:
            with translated(self.where):
                then = DeltaTable(self.where, version, storage_options=dict(self._options))
                versions = {name: then.transaction_version(name) for name in app_ids}
        except (CommitConflict, ServiceError, TransientError):
            return {}
        return {name: at for name, at in versions.items() if at is not None}

    def operations(self, since: int) -> dict[int, Operation]:
        """The operations of the versions after ``since``, as far as the log still has them."""
        filesystem = self.filesystem()

        def operation(version: int) -> Operation | None:
            try:
                with filesystem.open_input_stream(f"_delta_log/{version:020}.json") as stream:
                    content = stream.read(MOST + 1)
                    if len(content) > MOST:
                        raise too_large(MOST, self.where)
                    return operation_of(content)
            except FileNotFoundError:
                return None

        with unjudged(self.where):
            operations = {v: operation(v) for v in range(since + 1, self.version + 1)}
        return {version: entry for version, entry in operations.items() if entry is not None}

    def logs(self, version: int) -> bool:
        """Whether the log still has the entry of a version."""
        with unjudged(self.where):
            info = self.filesystem().get_file_info(f"_delta_log/{version:020}.json")
        return bool(info.is_file)

    def scanned(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows; text as plain strings, not as the query engine's views."""
        with translated(self.where):
            reader = pa.RecordBatchReader.from_stream(self._table.scan(columns=list(columns)))
            plain = [
                pa.field(f.name, pa.string() if f.type == pa.string_view() else f.type)
                for f in reader.schema
            ]
            for batch in reader:
                yield from pa.Table.from_batches([batch]).cast(pa.schema(plain)).to_batches()

    def scan(self, columns: Sequence[str]) -> pa.Table:
        """The same, as one table."""
        batches = list(self.scanned(columns))
        if batches:
            return pa.Table.from_batches(batches)
        return pa.schema([self.columns.field(c) for c in columns]).empty_table()

    def count(self) -> int:
        """The number of rows. delta-rs's own count knows no deletion vectors, and takes a file
        without statistics for an empty one."""
        with translated(self.where):
            query = QueryBuilder().register("t", self._table).execute("SELECT count(*) FROM t")
            return int(pa.table(query.read_all()).column(0)[0].as_py())

    def append(self, actions: Sequence[Any], transactions: Mapping[str, int]) -> None:
        """Add files and move transaction identifiers in one commit.

        Raises:
            CommitConflict: the table is not at this version any more.
            TransientError: whether it was committed is not known.
        """
        with translated(self.where):
            self._table.create_write_transaction(
                list(actions),
                "append",
                self._table.schema(),
                partition_by=self.partitioned_by,
                commit_properties=bound(transactions),
            )
            self._table.update_incremental()

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns in a commit of their own, unless another writer has added them."""
        columns = [new_column(f) for f in fields]

        def add() -> bool:
            missing = [f for f in columns if f.name not in self.columns.names]
            added = Schema.from_arrow(pa.schema(missing)).fields
            features = self._table.protocol().writer_features or ()
            if any(names_no_feature(f.type) for f in missing) and "timestampNtz" not in features:
                self._table.alter.add_feature(
                    TableFeatures.TimestampWithoutTimezone,
                    allow_protocol_versions_increase=True,
                    commit_properties=bound({}),
                )
                return True
            if missing:
                self._table.alter.add_columns(
                    [Field(f.name, f.type, metadata=f.metadata) for f in added],
                    commit_properties=bound({}),
                )
            return bool(missing)

        self._alter(add)

    def keep_statistics_true(self) -> None:
        """Before delta-rs writes files, exclude from their statistics what it cannot write
        correctly, in a separate commit."""

        def leave_out() -> bool:
            configuration = self._table.metadata().configuration
            value = statistics.named(self.columns, self.partitioned_by, configuration)
            if value is None or value == configuration.get(statistics.PROPERTY):
                return False
            self._table.alter.set_table_properties(
                {statistics.PROPERTY: value}, commit_properties=bound({})
            )
            return True

        self._alter(leave_out)

    def _alter(self, step: Callable[[], bool]) -> None:
        """Repeat a step that commits, at the newest version, until it finds nothing to do."""
        for _ in range(20):
            with suppress(CommitConflict), translated(self.where):
                if not step():
                    return
            self.renew()
        raise TransientError(f"Delta table {self.where}: other writers keep changing it")

    def filesystem(self) -> fs.FileSystem:
        """The table's directory, in whatever store it is. Raises TransientError."""
        with unjudged(self.where):
            return fs.PyFileSystem(DeltaStorageHandler(self.where, self._options))


@dataclass(frozen=True, slots=True)
class Operation:
    """The operation of one version of a table, as its log entry names it."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


def operation_of(entry: bytes) -> Operation:
    """The operation that a log entry names; writers may omit it."""
    for line in entry.splitlines():
        if line.startswith(b'{"commitInfo"'):
            facts = json.loads(line)["commitInfo"]
            return Operation(str(facts.get("operation")), facts.get("operationParameters") or {})
    return Operation("")


def column_type(kind: pa.DataType) -> pa.DataType:
    """The type of a new column that holds values of ``kind``. Delta has no type for times of day:
    they become text."""
    return convert.column_type(kind, convert.common_type)


def new_column(field: pa.Field) -> pa.Field:
    """A new column for this field, which may be null."""
    comment = convert.text_column(field, COMMENT)
    return pa.field(field.name, column_type(field.type), metadata=comment)


def partitions(kind: pa.DataType) -> bool:
    """Whether a table may be partitioned by a column of this type: the log holds partition values
    as text, and bytes are not text."""
    return not (is_.is_nested(kind) or is_.is_binary(kind))


def names_no_feature(kind: pa.DataType) -> bool:
    """Whether delta-rs would omit the table feature that a column needs, so that nobody could open
    the table. It does so for nested timestamps without a zone."""
    if not is_.is_nested(kind):
        return False
    inner = [kind.field(n).type for n in range(kind.num_fields)]
    return any((is_.is_timestamp(i) and i.tz is None) or names_no_feature(i) for i in inner)
