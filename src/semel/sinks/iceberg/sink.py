"""The Iceberg sink: tasks write data files, the driver commits files and positions at once."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.delivery import Mechanism, Support
from semel.errors import ConfigError, TargetChanged, TransientError
from semel.failpoints import hit
from semel.ledger import Advance, LedgerEntry, Outcome, TopicPartition
from semel.records import Commit, Records
from semel.sinks import rows as made
from semel.sinks.base import Snapshot, Staged, Stager, StagingSink
from semel.sinks.iceberg.config import IGNORED, PREFIXES, IcebergConfig, settings
from semel.sinks.layout import keys_of

try:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema

    from semel.sinks.iceberg import snapshot
    from semel.sinks.iceberg.catalog import Conflict, connect, reading
    from semel.sinks.iceberg.dead_letters import DeadLetterTable
    from semel.sinks.iceberg.files import FileWriter, StagedFile, delete
    from semel.sinks.iceberg.ledger import IcebergLedger
    from semel.sinks.iceberg.merge import merge
    from semel.sinks.iceberg.schema import accommodated, check
    from semel.sinks.iceberg.table import Table
except ModuleNotFoundError as missing:
    raise ConfigError(
        f"connector.class=iceberg needs the package {missing.name}: pip install 'semel[iceberg]'"
    ) from missing

log = logging.getLogger(__name__)

CONFLICTS = 50
"""Other writers' commits that one commit gives way to before it fails."""


class IcebergSink(StagingSink):
    """See :class:`~semel.sinks.base.StagingSink`; configuration in docs/iceberg.md."""

    section = IcebergConfig
    ignored = IGNORED
    prefixes = PREFIXES

    def __init__(self, connector: ConnectorConfig, raw: Mapping[str, str]) -> None:
        self._connector = connector
        self._settings = settings(raw)
        self._config = self._settings.config
        self._opened: Catalog | None = None
        self._found: Table | None = None
        self._kept: IcebergLedger | None = None
        self._letters: DeadLetterTable | None = None
        dead = connector.dead_letter_table
        if dead == self._settings.table:
            raise ConfigError(
                f"connector {connector.name}: errors.deadletterqueue.table={dead} is in "
                "iceberg.tables too: dead letters need a table of their own"
            )
        if dead:
            if "." not in dead.strip("."):
                raise ConfigError(
                    f"connector {connector.name}: errors.deadletterqueue.table={dead!r} has no "
                    "namespace: set it to namespace.name"
                )
            self._letters = DeadLetterTable(lambda: self._catalog, dead, connector.name)

    @property
    def uses_key(self) -> bool:
        return self._config.pk_mode == "record_key"

    @property
    def takes_tombstones(self) -> bool:
        return self._config.delete_enabled

    @property
    def replaces(self) -> bool:
        return self._config.upsert

    @property
    def evolves(self) -> bool:
        return self._config.auto_evolve

    @property
    def interval(self) -> float | None:
        return self._config.interval_ms / 1000 if self._config.interval_ms else None

    def support(self) -> Mapping[Mechanism, Support]:
        keyed = self._config.upsert
        return {
            Mechanism.TRANSACTIONAL: Support(
                True,
                "files and positions are added to the table by one Iceberg commit, bound to the "
                "snapshot whose positions were judged",
            ),
            Mechanism.IDEMPOTENT: Support(
                keyed,
                "upserts by id columns write the same rows again on a replay; positions follow in "
                "a commit of their own"
                if keyed
                else "appending would add the rows of a replay twice. Set "
                "iceberg.tables.upsert-mode-enabled=true, or delivery.mechanism=transactional",
            ),
        }

    # The table

    @property
    def _catalog(self) -> Catalog:
        if self._opened is None:
            self._opened = connect(self._config.catalog_name, self._settings.catalog)
        return self._opened

    def _find(self) -> Table | None:
        if self._found is None:
            self._found = self._anew()
        return self._found

    def _anew(self) -> Table | None:
        """The table at its newest state, apart from the one that is kept."""
        s = self._settings
        return Table.open(self._catalog, s.table, s.branch, s.written)

    @property
    def _table(self) -> Table:
        found = self._find()
        if found is None:
            raise self._missing()
        return found

    def _missing(self) -> ConfigError:
        return ConfigError(
            f"connector {self._connector.name}: there is no Iceberg table {self._settings.table}. "
            "Create it, or set iceberg.tables.auto-create-enabled=true"
        )

    @property
    def _ledger(self) -> IcebergLedger:
        if self._kept is None:
            self._kept = IcebergLedger(self._table, self._connector.name)
        return self._kept

    def prepare(self, topics: Collection[str]) -> None:
        if self._find() is None and self._config.auto_create:
            # It has no columns before the first records; but it can hold positions.
            Table.create(self._catalog, self._settings.table, self._settings.created)
        check(self._connector, self._settings, self._table)

    def schema(self, topic: str) -> pa.Schema | None:
        table = self._find()
        if table is None or not table.columns.names:
            return None
        skip = set(self._connector.provenance_columns.values())
        return pa.schema([f for f in table.columns if f.name not in skip])

    def accommodate(self, records: Records) -> None:
        if records.rows.num_rows:
            accommodated(self._connector, self._keyed(), self._settings, self._table, records)

    def _keyed(self) -> IcebergConfig:
        """The configuration with its id columns, which the table may know."""
        if not self._config.upsert:
            return self._config
        known = self._settings.id_columns or tuple(
            self._table.metadata.schema().identifier_field_names()
        )
        if not known and self._config.key_source == "record_value":
            raise ConfigError(
                f"connector {self._connector.name}: iceberg.tables.upsert-mode-enabled=true needs "
                f"id columns: set iceberg.tables.default-id-columns, for table "
                f"{self._settings.table} has no identifier fields"
            )
        return replace(self._config, id_columns=known)

    # The ledger

    def entries(self) -> list[LedgerEntry]:
        table = self._find()
        if table is None:
            return []
        table.renew()
        return self._ledger.entries()

    def start(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self._move(lambda: self._ledger.started(positions))
        stored = self._ledger.positions()
        return {tp: stored[tp] for tp in positions if tp in stored}

    def _move(self, moved: Callable[[], Mapping[str, str]], *, forget: bool = False) -> None:
        """Commit properties that are computed from the ledger as it stands."""
        for _ in range(CONFLICTS):
            self._table.renew()
            properties = moved()
            forgotten = self._ledger.names() if forget else []
            if not properties and not forgotten:
                return
            try:
                self._table.commit([], properties, forgotten=forgotten)
                return
            except Conflict:
                continue
        raise self._busy()

    def _busy(self) -> TransientError:
        return TransientError(
            f"Iceberg table {self._settings.table}: {CONFLICTS} commits of other writers came first"
        )

    # Staging

    def stager(self, label: str) -> Stager:
        safe = re.sub(r"[^\w.-]", "_", f"{self._connector.name}-{label}", flags=re.ASCII)
        return _IcebergStager(self, f"semel-{safe}-")

    def arranged(self, records: Records) -> tuple[Table, made.Rows]:
        """Records as rows of the table, which is extended if it may be.

        Raises:
            RowsRejected: records that do not fit.
        """
        table, config = self._table, self._keyed()
        if records.rows.num_rows:
            accommodated(self._connector, config, self._settings, table, records)
        if not table.columns.names:
            return table, made.Rows(pa.table({}))  # tombstones before the first row: of nothing
        arrange = made.changes if self.replaces else made.inserts
        provenance = self._connector.provenance_columns
        return table, arrange(config, provenance, records, table.columns)

    def renew(self) -> None:
        """Look at the table again: a worker process keeps it from trigger to trigger."""
        self._table.renew()

    def discard(self, staged: Staged) -> None:
        table = self._find()
        if table is not None:
            delete(table.io, [f.path for f in staged.files])

    # Committing

    def commit_staged(self, advances: Sequence[Advance], staged: Staged) -> Outcome:
        return self._land(advances, staged, moves=True)

    def write_staged(self, staged: Staged, guard: Sequence[Advance] | None = None) -> Outcome:
        return self._land(guard or (), staged, moves=False)

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        return self._land(advances, Staged(()), moves=True)

    def _land(self, advances: Sequence[Advance], staged: Staged, *, moves: bool) -> Outcome:
        kept = False
        for _ in range(CONFLICTS):
            self._table.renew()
            if advances and self._ledger.judge(advances) is not Outcome.APPLIED:
                return Outcome.REPLAYED
            if staged.dead_letters and self._letters is not None and not kept:
                self._letters.keep(staged.dead_letters)
                kept = True
            hit("sink.after_positions")
            moved = self._ledger.moved(advances) if moves else {}
            _check(self._table, staged.files)
            hit("sink.before_commit")
            try:
                self._write(staged.files, moved)
            except Conflict as conflict:
                log.info("table %s: %s; judging again", self._settings.table, conflict)
                continue
            hit("sink.after_commit")
            return Outcome.APPLIED
        raise self._busy()

    def _write(self, files: Sequence[StagedFile], moved: Mapping[str, str]) -> None:
        if files and files[0].key:
            merge(self._table, files, moved)
            delete(self._table.io, [f.path for f in files])
        elif files or moved:
            self._table.commit([f.data_file() for f in files], moved)

    # For the audit and by hand

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        table = self._anew()
        if table is None:
            raise self._missing()
        letters = self._letters.open() if self._letters is not None else None
        return snapshot.take(self._connector, topics, table, letters)

    def key_of(self, records: Records) -> tuple[pa.Table | None, pa.Table | None]:
        return keys_of(self._keyed(), records)

    def set_positions(self, positions: Mapping[TopicPartition, int] | None) -> None:
        letters = dict(positions or {e.topic_partition: 0 for e in self.entries()})
        if positions is None:
            if self._find() is not None:
                self._move(dict, forget=True)
        else:
            self._move(lambda: self._ledger.set(positions))
        if self._letters is not None:
            self._letters.set(letters)


class _IcebergStager(Stager):
    """The files of one task."""

    def __init__(self, sink: IcebergSink, prefix: str) -> None:
        self._sink = sink
        self._prefix = prefix
        self._writer: FileWriter | None = None
        self._renewed = False

    def add(self, commit: Commit) -> None:
        given = [r for r in commit.records if r.count]
        if given and not self._renewed:
            self._sink.renew()
            self._renewed = True
        for table, rows in [self._sink.arranged(r) for r in given]:
            if not rows.table.num_rows:
                continue
            if self._writer is None:
                self._writer = FileWriter(table, self._prefix, rows.key)
            self._writer.write(rows.table)

    def finish(self) -> Sequence[Any]:
        return self._writer.finish() if self._writer is not None else []

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()


def _check(table: Table, files: Sequence[StagedFile]) -> None:
    """Files must still be there, and the table have their columns and their partition.

    Raises:
        TargetChanged: they are not, or it has not.
    """
    for schema_id in {f.schema_id for f in files} - {table.metadata.current_schema_id}:
        gone = _columns(table.raw.schemas().get(schema_id)) - _columns(table.metadata.schema())
        if gone:
            raise TargetChanged(
                f"Iceberg table {table.where}: column {min(gone)[1]} was altered meanwhile"
            )
    for file in files:
        if not file.key and file.spec_id != table.metadata.default_spec_id:
            raise TargetChanged(f"Iceberg table {table.where}: its partition was altered meanwhile")
        with reading(table.where):
            there = table.io.new_input(file.path).exists()
        if not there:
            raise TargetChanged(
                f"Iceberg table {table.where}: the staged file {file.path} is gone. Were orphan "
                "files removed that are younger than a trigger?"
            )


def _columns(schema: Schema | None) -> set[tuple[int, str]]:
    """The identities of columns, nested ones too."""
    if schema is None:
        return {(0, "of a schema that is gone")}
    return {(i, schema.find_column_name(i) or "") for i in schema.field_ids}
