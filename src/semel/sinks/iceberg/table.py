"""One Iceberg table as it was when it was last read, and commits that are bound to that."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as is_
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.io import pyarrow as by_arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import FileScanTask, TableProperties, Transaction
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import (
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
)
from pyiceberg.types import ListType, MapType

from semel.converters.json.columns import WALL
from semel.core.errors import ConfigError, RolledBack, ServiceError
from semel.core.quoting import named
from semel.sinks.iceberg.catalog import create_namespace, reading, reason, translated

log = logging.getLogger(__name__)

_ALL = AlwaysTrue()


class _SingleTryTransaction(Transaction):
    """A transaction that is tried only once.

    PyIceberg's own commit rebases an append on other commits and tries again: it would write rows
    that were judged by an older ledger.
    """

    _computed: tuple[object, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The same as PyIceberg's, but cached: that one copies all metadata on each access."""
        if not self._updates:
            return self._table.metadata
        if self._computed is None or self._computed[0] is not self._updates:
            self._computed = (self._updates, super().table_metadata)
        return self._computed[1]

    def commit_transaction(self) -> IcebergTable:
        self._failed = True  # it is used once, whatever comes of it
        same = AssertTableUUID(uuid=self.table_metadata.table_uuid)
        try:
            self._table._do_commit(self._updates, (*self._requirements, same))
        except CommitFailedException:
            if self._has_landed():
                return self._table
            for producer in self._snapshot_producers:
                producer._clean_all_uncommitted()
            raise
        return self._table

    def _has_landed(self) -> bool:
        """Whether the catalog holds a commit that it says it refused.

        A client or gateway in between may lose the answer and send the request again by itself. It
        then conflicts with itself, and what it has written must not be deleted.

        Raises:
            CommitStateUnknownException: it is unknown; perhaps its snapshot has expired meanwhile.
        """
        if not self._snapshot_producers:
            return False
        table = self._table
        try:
            current = table.catalog.load_table(table.name())
        except Exception as error:
            raise CommitStateUnknownException(f"{table.name()}: {error}") from error
        there = {s.snapshot_id: s for s in current.metadata.snapshots}
        if any(producer._snapshot_id in there for producer in self._snapshot_producers):
            table.metadata = current.metadata
            table.metadata_location = current.metadata_location
            return True
        for producer in self._snapshot_producers:
            head = current.metadata.refs.get(str(producer._target_branch))
            at = None if head is None else head.snapshot_id
            while at is not None and at != producer._parent_snapshot_id:
                if at not in there:
                    raise CommitStateUnknownException(f"{table.name()}: snapshots have expired")
                at = there[at].parent_snapshot_id
            if at != producer._parent_snapshot_id:
                raise CommitStateUnknownException(f"{table.name()}: rolled back, or recreated")
        return False


class Table:
    """A table as it was when it was opened or last renewed.

    Every commit is bound to the branch's snapshot at that time, and every commit that moves the
    ledger makes a new one: if another writer has committed meanwhile, it fails with
    :class:`CommitConflict`.
    """

    def __init__(
        self, table: IcebergTable, name: str, branch: str, written: Mapping[str, str]
    ) -> None:
        self._table = table
        self.where = name
        self.branch = branch
        self._written = dict(written)
        self._seen = ""
        self._read()

    def _read(self) -> None:
        if self._seen != self._table.metadata_location:
            self._seen = self._table.metadata_location
            self.columns = _plain(schema_to_pyarrow(self._table.schema()))

    @staticmethod
    def open(
        catalog: Catalog,
        name: str,
        branch: str = MAIN_BRANCH,
        written: Mapping[str, str] | None = None,
    ) -> Table | None:
        """The table, or None if there is none."""
        with reading(name):
            try:
                return Table(catalog.load_table(name), name, branch, written or {})
            except NoSuchTableError:
                return None

    @staticmethod
    def create(catalog: Catalog, name: str, properties: Mapping[str, str]) -> None:
        """Create an empty table without columns, unless another writer has done so meanwhile."""
        with reading(name):
            create_namespace(catalog, name)
            try:
                catalog.create_table(name, Schema(), properties=dict(properties))
                log.info("table %s was created", name)
            except TableAlreadyExistsError:
                return
            except Exception:
                # If two processes create it at once, not every catalog tells the second one.
                if not catalog.table_exists(name):
                    raise

    @property
    def raw(self) -> IcebergTable:
        return self._table

    @property
    def metadata(self) -> TableMetadata:
        return self._table.metadata

    @property
    def io(self) -> FileIO:
        return self._table.io

    @property
    def version(self) -> str:
        """The location of the metadata that was read."""
        return self._table.metadata_location

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties; this connector's write properties override them."""
        return {**self._table.properties, **self._written}

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot of the branch."""
        snapshot = self.metadata.snapshot_by_name(self.branch)
        return None if snapshot is None else snapshot.snapshot_id

    def renew(self) -> None:
        """Read the newest state."""
        with reading(self.where):
            try:
                self._table.refresh()
            except ValueError as error:
                if "UUID" not in str(error):
                    raise
                raise RolledBack(
                    f"Iceberg table {self.where} was dropped and created again. Run: "
                    "semel offsets reset, and start the connector again"
                ) from None
        self._read()

    def refusal(self, *, upserts: bool) -> str | None:
        """The reason why semel cannot write the table, if there is one."""
        if self.metadata.format_version > 2:
            return f"is of format version {self.metadata.format_version}: PyIceberg writes 1 and 2"
        form = self.properties.get(TableProperties.WRITE_FILE_FORMAT, "parquet").lower()
        if form != "parquet":
            return f"wants {form} files (write.format.default): semel writes parquet"
        ref = self.metadata.refs.get(self.branch)
        if ref is None and self.branch != MAIN_BRANCH:
            return f"has no branch {named(self.branch)}: create it, or change the commit-branch"
        if ref is not None and ref.snapshot_ref_type != SnapshotRefType.BRANCH:
            return f"has a tag {named(self.branch)}, and no such branch: change the commit-branch"
        if upserts and self.columns.names and self.metadata.format_version < 2:
            return "is of format version 1, whose readers do not expect upserts: upgrade it to 2"
        return None

    def commit(
        self,
        files: Sequence[DataFile],
        moved: Mapping[str, str],
        *,
        forgotten: Iterable[str] = (),
        replaced: Sequence[DataFile] = (),
        mark: str = "",
    ) -> None:
        """Add files, remove those that they replace, and set properties: one snapshot, whose id
        becomes the property ``mark``.

        Raises:
            CommitConflict: the table is not at this state any more.
            TransientError: whether it was committed is not known.
        """
        transaction = _SingleTryTransaction(self._table)
        with translated(self.where):
            gone = [name for name in forgotten if name in self.metadata.properties]
            if gone:
                transaction._apply((RemovePropertiesUpdate(removals=gone),))
            if files:
                spec = AssertDefaultSpecId.model_validate(
                    {"default-spec-id": self.metadata.default_spec_id}
                )
                transaction._apply((), (spec,))
            update = transaction.update_snapshot(branch=self.branch)
            merges = self.properties.get(TableProperties.MANIFEST_MERGE_ENABLED, "true") == "true"
            producer: Any
            if replaced:
                producer = update.overwrite()
            elif merges:
                producer = update.merge_append()
                producer._merge_enabled = True
            else:
                producer = update.fast_append()
            own = {mark: str(producer.snapshot_id)} if mark else {}
            if moved or own:
                transaction._apply((SetPropertiesUpdate(updates={**moved, **own}),))
            with producer:
                for file in files:
                    producer.append_data_file(file)
                for file in replaced:
                    producer.delete_data_file(file)
            transaction.commit_transaction()
        self._read()

    def keep(self, properties: Mapping[str, str]) -> None:
        """Set properties without a new snapshot, if the branch has not moved.

        Raises:
            CommitConflict: the branch has moved.
        """
        transaction = _SingleTryTransaction(self._table)
        stands = AssertRefSnapshotId.model_validate(
            {"ref": self.branch, "snapshot-id": self.snapshot_id}
        )
        with translated(self.where):
            transaction._apply((SetPropertiesUpdate(updates=dict(properties)),), (stands,))
            transaction.commit_transaction()
        self._read()

    def history(self) -> Iterator[TableMetadata]:
        """Former states of the table, newest first, as far as their metadata files still exist."""
        for entry in reversed(self.metadata.metadata_log):
            with reading(self.where):
                try:
                    metadata = FromInputFile.table_metadata(self.io.new_input(entry.metadata_file))
                except FileNotFoundError:
                    return
            yield metadata

    def added_by(self, snapshots: frozenset[int]) -> bool:
        """Whether the branch has a data file that one of these snapshots has added."""
        head = self.metadata.snapshot_by_name(self.branch)
        if head is None:
            return False
        with reading(self.where):
            return any(
                entry.snapshot_id in snapshots
                for manifest in head.manifests(self.io)
                for entry in manifest.fetch_manifest_entry(self.io)
            )

    def tasks(self, where: BooleanExpression = _ALL) -> list[FileScanTask]:
        """The branch's files, except those whose statistics rule ``where`` out."""
        if self.snapshot_id is None:
            return []
        with self._reading():
            scan = self._table.scan(row_filter=where, snapshot_id=self.snapshot_id)
            return list(scan.plan_files())

    def read(self, columns: Schema, tasks: Iterable[FileScanTask]) -> pa.Table:
        """Columns of some files' rows, except rows that delete files remove."""
        by_arrow.ArrowProjectionVisitor = _Projection  # type: ignore[misc]
        with self._reading():
            return by_arrow.ArrowScan(self.metadata, self.io, columns, _ALL).to_table(tasks)

    def scanned(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows, a file at a time."""
        for task in self.tasks():
            yield from self._columns(columns, [task]).to_batches()

    def scan(self, columns: Sequence[str]) -> pa.Table:
        """The same, as one table, from many files at once."""
        if self.snapshot_id is None:
            return pa.schema([self.columns.field(c) for c in columns]).empty_table()
        return self._columns(columns, self.tasks())

    def _columns(self, names: Sequence[str], tasks: Iterable[FileScanTask]) -> pa.Table:
        """Columns by their present names. PyIceberg's own scan of a snapshot looks for those of
        the snapshot's schema, which an alteration of the table leaves behind."""
        with self._reading():
            columns = self.metadata.schema().select(*names)
        return self.read(columns, tasks).select(list(names))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with reading(self.where):
            try:
                yield
            except ValueError as error:
                raise ServiceError(f"Iceberg table {self.where}: {reason(error)}") from None

    def count(self) -> int:
        if self.snapshot_id is None:
            return 0
        with reading(self.where):
            return int(self._table.scan(snapshot_id=self.snapshot_id).count())

    def define(
        self,
        fields: Sequence[pa.Field],
        identifier: Sequence[str] = (),
        partition_by: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Add columns; with them, if the table has none yet, its identifier and its partition.

        Raises:
            CommitConflict: another writer has changed the table.
            ConfigError: the partition does not suit the columns.
        """
        transaction = _SingleTryTransaction(self._table)
        with translated(self.where):
            with transaction.update_schema(allow_incompatible_changes=True) as schema:
                schema.union_by_name(pa.schema(fields))
                if identifier:
                    schema.set_identifier_fields(*identifier)
            try:
                with transaction.update_spec() as spec:
                    for column, transform in partition_by:
                        spec.add_field(column, transform)
            except ValueError as error:
                raise ConfigError(f"Iceberg table {self.where}: partition-by: {error}") from None
            transaction.commit_transaction()
        self._read()


def _plain(schema: pa.Schema) -> pa.Schema:
    """The schema with 32-bit offsets for text, bytes and lists, as converters make them. Times
    without a zone take texts with one as Iceberg's own sink does."""
    return pa.schema([_small(f) for f in schema])


def _small(field: pa.Field) -> pa.Field:
    kind = field.type
    if is_.is_large_string(kind):
        kind = pa.string()
    elif is_.is_large_binary(kind):
        kind = pa.binary()
    elif is_.is_large_list(kind):
        kind = pa.list_(_small(kind.value_field))
    elif is_.is_struct(kind):
        kind = pa.struct([_small(f) for f in kind.fields])
    elif is_.is_map(kind):
        kind = pa.map_(_small(kind.key_field), _small(kind.item_field))
    elif is_.is_timestamp(kind) and kind.tz is None:
        field = field.with_metadata({**(field.metadata or {}), WALL: b""})
    return field.with_type(kind)


class _Projection(by_arrow.ArrowProjectionVisitor):
    """PyIceberg (0.12) turns a null list of structs, or a null map, into an empty one."""

    def list(
        self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None
    ) -> pa.Array | None:
        return _nulls_of(list_array, super().list(list_type, list_array, value_array))

    def map(
        self,
        map_type: MapType,
        map_array: pa.Array | None,
        key_result: pa.Array | None,
        value_result: pa.Array | None,
    ) -> pa.Array | None:
        return _nulls_of(map_array, super().map(map_type, map_array, key_result, value_result))


def _nulls_of(before: pa.Array | None, after: pa.Array | None) -> pa.Array | None:
    if before is None or after is None or before.null_count == after.null_count:
        return after
    rows = pa.array(np.arange(len(after)), mask=~before.is_valid().to_numpy(zero_copy_only=False))
    return after.take(rows)
