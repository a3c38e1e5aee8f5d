"""One of a connector's tables, with the ledger in it. Its columns are checked, created and extended
for the records that arrive."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, RolledBack, TargetChanged, TransientError
from semel.core.ledger import LedgerEntry, TopicPartition
from semel.core.quoting import PATH, all_named, named
from semel.core.records import Records
from semel.sinks import convert
from semel.sinks import rows as sink_rows
from semel.sinks.base import no_column, no_columns_yet
from semel.sinks.iceberg.catalog import reading
from semel.sinks.iceberg.config import IcebergConfig, Settings, TableSettings
from semel.sinks.iceberg.files import StagedFile, merge
from semel.sinks.iceberg.ledger import IcebergLedger
from semel.sinks.iceberg.routing import narrowed
from semel.sinks.iceberg.table import Table
from semel.sinks.lake import CONFLICTS, delete, lacked, same_but_for_case
from semel.sinks.layout import layout, not_from_values
from semel.sinks.staging import CommitConflict

COMMENT = "doc"
EVOLVES = "iceberg.tables.evolve-schema-enabled=true"
_ATTEMPTS = 20


class TargetTable:
    """A table that the connector writes."""

    def __init__(
        self,
        connector: ConnectorConfig,
        settings: Settings,
        table_settings: TableSettings,
        catalog: Callable[[], Catalog],
        *,
        keeps_rows: bool = True,
    ) -> None:
        self._connector = connector
        self._keeps_rows = keeps_rows
        self._settings = settings
        self._table_settings = table_settings
        self._catalog = catalog
        self._table: Table | None = None
        self._kept: IcebergLedger | None = None

    @property
    def name(self) -> str:
        return self._table_settings.name

    def find(self) -> Table | None:
        if self._table is None:
            self._table = self.reload()
        return self._table

    def reload(self) -> Table | None:
        """A fresh copy of the table, at its newest state."""
        return Table.open(
            self._catalog(), self.name, self._table_settings.branch, self._settings.written
        )

    @property
    def table(self) -> Table:
        table = self.find()
        if table is None:
            raise self.missing()
        return table

    def missing(self) -> ConfigError:
        return ConfigError(
            f"connector {self._connector.name}: there is no Iceberg table {named(self.name)}. "
            "Create it, or set iceberg.tables.auto-create-enabled=true"
        )

    @property
    def ledger(self) -> IcebergLedger:
        if self._kept is None:
            self._kept = IcebergLedger(self.table, self._connector.name)
        return self._kept

    def entries(self, *, newest: bool = True) -> dict[TopicPartition, LedgerEntry]:
        """The ledger's entries in the table's newest state."""
        if newest:
            self.table.renew()
        return {e.topic_partition: e for e in self.ledger.entries()}

    def prepare(self) -> None:
        """Create the table, if it may be, and check it.

        Raises:
            ConfigError: it cannot be written as configured.
        """
        if self.find() is None and self._settings.config.auto_create:
            # It has no columns before the first records; but it can hold positions.
            Table.create(self._catalog(), self.name, self._settings.created)
        _check(self._connector, self._settings.config, self._table_settings, self.table)

    # Rows

    def fields(self) -> list[pa.Field]:
        """The columns that records may fill."""
        table = self.find()
        skip = set(self._connector.provenance_columns.values())
        return [] if table is None else [f for f in table.columns if f.name not in skip]

    def read_from_values(self) -> list[pa.Field]:
        """Those of the columns that are filled from values."""
        fields = self.fields()
        elsewhere = not_from_values(self.keyed()) if fields else frozenset()
        return [convert.to_read(f, COMMENT) for f in fields if f.name not in elsewhere]

    def accommodate(self, records: Records) -> None:
        """Add the columns of records like these to the table, if that is allowed."""
        if records.rows.num_rows:
            facts = (self._connector, self.keyed(), self._table_settings)
            _accommodate(*facts, self.table, self._own(records))

    def arranged(self, records: Records) -> sink_rows.Rows:
        """Records as rows of the table, which is extended if it may be.

        Raises:
            RowsRejected: records that do not fit.
        """
        self.accommodate(records)
        columns = self.table.columns
        if not columns.names:
            if records.rows.num_rows:
                raise no_columns_yet(records.rows)
            # Tombstones before the first row have nothing to delete.
            return sink_rows.Rows(pa.table({}))
        arrange = sink_rows.changes if self._settings.config.upsert else sink_rows.inserts
        provenance = self._connector.provenance_columns
        rows = arrange(self.keyed(), provenance, self._own(records), columns)
        sink_rows.reject_far_years(rows.table, records)  # whose bounds PyIceberg cannot write
        return rows

    def _own(self, records: Records) -> Records:
        config, columns = self._settings.config, self.table.columns
        if not config.several:
            return records
        return narrowed(records, columns, grows=config.auto_evolve or not columns.names)

    def keyed(self) -> IcebergConfig:
        """The configuration with its id columns, which may come from the table."""
        config = self._settings.config
        if not config.upsert:
            return config
        id_columns = self._table_settings.id_columns or tuple(
            self.table.metadata.schema().identifier_field_names()
        )
        if not id_columns and (config.key_source == "record_value" or config.cdc_field):
            setting = "cdc-field" if config.cdc_field else "upsert-mode-enabled=true"
            raise ConfigError(
                f"connector {self._connector.name}: iceberg.tables.{setting} needs "
                "id columns: set iceberg.tables.default-id-columns, because table "
                f"{named(self.name)} has no identifier fields"
            )
        return replace(config, id_columns=id_columns)

    # Commits

    def write(self, files: Sequence[StagedFile], moved: Mapping[str, str]) -> None:
        """Commit staged files and properties to the table as it was when it was last renewed.

        Raises:
            CommitConflict: the table is not at that state any more; nothing was written.
            TransientError: whether it was committed is not known.
        """
        if files and files[0].key:
            merge(self.table, files, moved, self._mark)
            delete(self.table.io.delete, [f.path for f in files])
        elif files or moved:
            self.table.commit([f.data_file() for f in files], moved, mark=self._mark)

    @property
    def _mark(self) -> str:
        return self.ledger.mark if self._keeps_rows else ""

    def check_rows(self) -> None:
        """Raises RolledBack: the table lacks rows that were committed to it."""
        if self._keeps_rows:
            self.ledger.check(several=self._settings.config.several)

    def keep_mark(self) -> None:
        """Check the rows, and keep an expiry of snapshots from removing the proof that they are
        there.

        Raises:
            RolledBack: the table lacks some.
        """
        self.check_rows()
        renamed = self.ledger.remark() if self._keeps_rows else {}
        if renamed:
            with contextlib.suppress(CommitConflict):  # the next check will do it
                self.table.keep(renamed)

    def check_set(self, entries: Sequence[LedgerEntry]) -> None:
        """Raises ConfigError: the table was rolled back, and positions that are not set with the
        others would count as correct."""
        others = set(self.entries()) - {e.topic_partition for e in entries}
        try:
            if others:
                self.check_rows()
        except RolledBack as error:
            raise ConfigError(
                f"{error}. Every position must be set: name {', '.join(map(str, sorted(others)))} "
                "too"
            ) from None

    def move(
        self,
        moved: Callable[[], Mapping[str, str]],
        *,
        forget: bool = False,
        checked: bool = True,
    ) -> None:
        """Commit properties computed from the ledger's present state.

        Raises:
            RolledBack: the table lacks rows; ``checked`` asks for this check.
        """
        for _ in range(CONFLICTS):
            self.table.renew()
            if checked:
                self.check_rows()
            properties = moved()
            forgotten = [*self.ledger.names(), self.ledger.mark] if forget else []
            if not properties and not forget:  # forgetting nothing still fences other runs
                return
            try:
                mark = "" if forget else self._mark
                self.table.commit([], properties, forgotten=forgotten, mark=mark)
                return
            except CommitConflict:
                continue
        raise self.busy()

    def busy(self) -> TransientError:
        return TransientError(
            f"Iceberg table {named(self.name)}: {CONFLICTS} commits of other writers came first"
        )

    def check(self, files: Sequence[StagedFile]) -> None:
        """Check that the files still exist and that the table still has their columns and their
        partition.

        Raises:
            TargetChanged: they do not, or it has not.
        """
        table = self.table
        for schema_id in {f.schema_id for f in files} - {table.metadata.current_schema_id}:
            then = table.raw.schemas().get(schema_id)
            gone = _columns(then) - _columns(table.metadata.schema())
            if gone:
                raise TargetChanged(
                    f"Iceberg table {table.where}: column {named(min(gone)[1])} was altered "
                    "meanwhile"
                )
        for file in files:
            if not file.key and file.spec_id != table.metadata.default_spec_id:
                raise TargetChanged(
                    f"Iceberg table {table.where}: its partition was altered meanwhile"
                )
            with reading(table.where):
                there = table.io.new_input(file.path).exists()
            if not there:
                raise TargetChanged(
                    f"Iceberg table {table.where}: the staged file {named(file.path, PATH)} is "
                    "gone. Did something remove orphan files that were younger than a trigger?"
                )


def _columns(schema: Schema | None) -> set[tuple[int, str]]:
    """The identities of columns, nested ones too."""
    if schema is None:
        return {(0, "of a schema that is gone")}
    return {(i, schema.find_column_name(i) or "") for i in schema.field_ids}


# The columns


def column_type(kind: pa.DataType) -> pa.DataType:
    """The type of a new column that holds values of ``kind``."""
    return convert.column_type(kind, _scalar)


def _new_column(field: pa.Field) -> pa.Field:
    comment = convert.text_column(field, COMMENT)
    return pa.field(field.name, column_type(field.type), field.nullable, metadata=comment)


def _scalar(kind: pa.DataType) -> pa.DataType:
    if is_.is_time(kind):
        return pa.time64("us")
    common = convert.common_type(kind)
    if is_.is_integer(common) and common.bit_width < 32:
        return pa.int32()
    return common


def _check(
    connector: ConnectorConfig, config: IcebergConfig, settings: TableSettings, table: Table
) -> None:
    """Raises ConfigError: the table cannot be written as configured."""
    why = table.refusal(upserts=config.upsert)
    if why is not None:
        raise ConfigError(f"connector {connector.name}: table {table.where} {why}")
    missing = [n for n in settings.id_columns if n not in table.columns.names]
    if config.upsert and missing and table.columns.names and not config.auto_evolve:
        raise ConfigError(
            f"connector {connector.name}: id-columns={','.join(settings.id_columns)}: table "
            f"{table.where} has no column {named(missing[0])}; it has "
            f"{all_named(table.columns.names)}"
        )


def _accommodate(
    connector: ConnectorConfig,
    config: IcebergConfig,
    settings: TableSettings,
    table: Table,
    records: Records,
) -> None:
    """Add the columns of these records to the table, if that is allowed.

    Raises:
        ConfigError: it is not allowed.
    """
    arranged = layout(config, connector.provenance_columns, records, deletes=False)
    fields = [_new_column(f) for f in arranged.fields()]
    for attempt in range(_ATTEMPTS):
        if attempt or lacked(table, fields):
            table.renew()
        new = lacked(table, fields)
        wider = _wider(table, arranged.columns) if config.auto_evolve else []
        if not new and not wider:
            return
        first = not table.columns.names
        if new:
            _check_columns(connector, config, table, records.topic, new, first=first)
        names = [*table.columns.names, *(f.name for f in new)]
        absent = [f.column for f in settings.partition_by if f.column not in names]
        if first and absent:
            raise ConfigError(
                f"connector {connector.name}: partition-by names {absent[0]}, but records of topic "
                f"{named(records.topic)} have no such field; they have {all_named(names)}"
            )
        try:
            if first:
                by = [(f.column, str(f)) for f in settings.partition_by]
                table.define(new, arranged.key, by)
            else:
                table.define([*wider, *(f.with_nullable(True) for f in new)])
            return
        except CommitConflict:
            continue
    raise TransientError(f"Iceberg table {table.where}: other writers keep changing it")


def _check_columns(
    connector: ConnectorConfig,
    config: IcebergConfig,
    table: Table,
    topic: str,
    new: Sequence[pa.Field],
    *,
    first: bool,
) -> None:
    if first and not config.auto_create:
        raise ConfigError(
            f"connector {connector.name}: table {table.where} has no columns. Add them, or set "
            "iceberg.tables.auto-create-enabled=true"
        )
    if not first and not config.auto_evolve:
        what = no_column(f"table {table.where}", topic, new[0].name, grow=EVOLVES)
        raise ConfigError(f"connector {connector.name}: {what}")
    names = [*table.columns.names, *(f.name for f in new)]
    same = same_but_for_case(names)
    if same is not None:
        raise ConfigError(
            f"connector {connector.name}: fields {named(same[0])} and {named(same[1])} of topic "
            f"{named(topic)} are one column to many of Iceberg's readers. Leave one out in a "
            "transform"
        )


def _wider(table: Table, columns: Mapping[str, pa.ChunkedArray]) -> list[pa.Field]:
    """The table's columns that are too narrow for a value, widened to fit it."""
    widened = []
    for f in table.columns:
        values = columns.get(f.name)
        if values is None or values.type == f.type:
            continue
        if f.type == pa.int32() and is_.is_int64(values.type) and not _fits(values, f.type):
            widened.append(f.with_type(pa.int64()))
        if f.type == pa.float32() and is_.is_float64(values.type) and not _fits(values, f.type):
            widened.append(f.with_type(pa.float64()))
    return widened


def _fits(values: pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Whether no value is lost or changed."""
    back = values.cast(kind, safe=False).cast(values.type)
    same = pc.or_kleene(pc.equal(back, values), pc.is_nan(values))
    return bool(pc.all(same).as_py())
