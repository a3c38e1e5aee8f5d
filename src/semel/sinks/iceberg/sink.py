"""The Iceberg sink: tasks write data files, the driver commits files and positions at once."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from semel.config import ConnectorConfig
from semel.config.extras import needs
from semel.core.delivery import Mechanism, Support
from semel.core.errors import LedgerConflict, TargetChanged, TransientError
from semel.core.failpoints import hit
from semel.core.ledger import SKIPPED, Advance, Hole, LedgerEntry, Outcome, Rebase, TopicPartition
from semel.core.records import TIMESTAMP, Commit, Records, RowsRejected
from semel.sinks import rows as sink_rows
from semel.sinks.base import ALL_ENGINES, Capabilities, Snapshot
from semel.sinks.iceberg.config import BY_KEY, IGNORED, PREFIXES, IcebergConfig, check, settings
from semel.sinks.lake import CONFLICTS, LakeSink, LakeStager, LakeView, delete
from semel.sinks.layout import key_metadata, keys_of
from semel.sinks.protocols import SeveralLedgers
from semel.sinks.rereading import NotShown, View
from semel.sinks.staging import CommitConflict, StagedCommit, Stager

with needs("connector.class=iceberg", "iceberg"):
    from pyiceberg.catalog import Catalog

    from semel.sinks.iceberg.catalog import connect
    from semel.sinks.iceberg.dynamic import DynamicTables
    from semel.sinks.iceberg.files import FileWriter
    from semel.sinks.iceberg.routing import Counts, Parts, StagedRows, counted
    from semel.sinks.iceberg.tables import DeadLetterTable, Tables, take_snapshot
    from semel.sinks.iceberg.target import TargetTable

log = logging.getLogger(__name__)


class IcebergSink(LakeSink, SeveralLedgers):
    """See :class:`~semel.sinks.staging.StagingSink`; configuration in docs/iceberg.md."""

    section = IcebergConfig
    ignored = IGNORED
    address = "iceberg.catalog.uri"
    prefixes = PREFIXES

    def __init__(self, connector: ConnectorConfig) -> None:
        self._connector = connector
        self._settings = settings(connector.originals)
        self._config = self._settings.config
        self._opened: Catalog | None = None
        kind = DynamicTables if self._config.dynamic else Tables
        self._tables = kind(connector, self._settings, lambda: self._catalog)
        self._last = Parts()
        check(connector, self._settings)
        dead = connector.dead_letter_table
        if dead:
            self._letters = DeadLetterTable(lambda: self._catalog, dead, connector.name)

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        by_key = BY_KEY if raw.get("iceberg.tables.cdc-field", "").strip() else {}
        uri = "iceberg.catalog.uri"
        file = raw.get(uri, "").strip().removeprefix("sqlite:///")
        if file in (raw.get(uri, "").strip(), "", ":memory:"):
            return by_key
        return {uri: f"sqlite:///{Path(file).absolute()}", **by_key}

    @classmethod
    def takes_key_fields(cls, raw: Mapping[str, str]) -> bool:
        if raw.get("iceberg.tables.cdc-field", "").strip():
            return False  # keys are made of values
        named = raw.get("iceberg.tables.default-id-columns", "").strip()
        return super().takes_key_fields(raw) and not named

    @property
    def capabilities(self) -> Capabilities:
        config = self._config
        return Capabilities(
            engines=frozenset({"bounded"}) if config.several else ALL_ENGINES,
            only_objects=True,
            ignores_topics=True,
            uses_key=config.pk_mode == "record_key",
            key_metadata=key_metadata(config),
            takes_tombstones=config.delete_enabled,
            commits_dead_letters_first=True,
            replaces=config.upsert,
            any_order=True,
            carries=frozenset({TIMESTAMP}) if config.upsert else frozenset(),
            # One table may take what another one does not.
            evolves=config.auto_evolve or config.several,
        )

    @property
    def interval(self) -> float | None:
        return self._config.interval

    def support(self) -> Mapping[Mechanism, Support]:
        keyed = self._config.upsert
        targets = "each table, under positions of its own," if self._config.several else "the table"
        return {
            Mechanism.TRANSACTIONAL: Support(
                True,
                f"files and positions are added to {targets} by one Iceberg commit, bound to the "
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

    # Tables

    @property
    def _catalog(self) -> Catalog:
        if self._opened is None:
            self._opened = connect(
                self._config.catalog_name,
                self._settings.catalog,
                self._connector.store_timeout_ms / 1000,
                self._connector.name,
            )
        return self._opened

    def describe(self) -> dict[str, str]:
        return self._tables.describe()

    def prepare(self, topics: Collection[str]) -> None:
        self._tables.prepare()
        if self._letters is not None:
            self._letters.check()

    def claim(self) -> None:
        self._tables.runs = True

    def schema(self, topic: str) -> pa.Schema | None:
        return self._tables.schema()

    def lacking(self, topic: str, fields: Collection[str]) -> Collection[str]:
        return self._tables.lacking(topic, fields)

    def no_column(self, topic: str, field: str) -> str:
        return self._tables.no_column(topic, field)

    def accommodate(self, records: Records) -> None:
        with contextlib.suppress(RowsRejected):  # they turn up again when they are read
            for target, part in self._tables.routed(records)[0]:
                target.accommodate(part)

    # The ledger

    def entries(self) -> list[LedgerEntry]:
        return self._tables.entries()

    def holes(self) -> list[Hole]:
        return self._tables.holes()

    def known_topics(self) -> set[str]:
        return self._tables.known_topics()

    def uneven(self, among: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._tables.uneven(among)

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        self._tables.start(entries)
        stored = {e.topic_partition: e.position for e in self.entries()}
        partitions = [e.topic_partition for e in entries]
        return {tp: stored[tp] for tp in partitions if tp in stored}

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        self._tables.check_rebases(rebases)
        super().rebase(rebases)

    def _rebase(self, rebases: Sequence[Rebase]) -> None:
        self._tables.rebase(rebases)

    # Staging

    def stager(self, label: str) -> Stager:
        return IcebergStager(self._tables, self._staged(label), counts=self._config.several)

    def discard(self, staged: StagedCommit) -> None:
        for name, files in Parts.of(staged.files).files.items():
            table = self._tables.of(name).find()
            if table is not None:
                delete(table.io.delete, [f.path for f in files])

    # Committing

    def commit_staged(self, advances: Sequence[Advance], staged: StagedCommit) -> Outcome:
        return self._land(advances, staged, Parts.of(staged.files), moves=True)

    def write_staged(self, staged: StagedCommit, guard: Sequence[Advance] | None = None) -> Outcome:
        self._last = replace(Parts.of(staged.files), ranges=[a.range for a in guard or ()])
        return self._land(guard or (), staged, self._last, moves=False)

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        parts = Parts()
        if self._last.ranges == [a.range for a in advances]:  # their rows were written just now
            parts = replace(self._last, files={})
        return self._land(advances, StagedCommit(), parts, moves=True)

    def _land(
        self, advances: Sequence[Advance], staged: StagedCommit, parts: Parts, *, moves: bool
    ) -> Outcome:
        """Commit table by table, each under its own ledger's rule.

        After a crash between two commits only the first table's ranges are a replay;
        :meth:`uneven` keeps a range from reaching beyond what one of them holds.
        """
        kept = False
        written: set[str] = set()
        why = ""
        for _ in range(CONFLICTS):
            # The tables are read before the positions are judged: whoever sets positions by hand
            # writes to the tables last, so a commit that comes too late conflicts.
            touched = self._tables.touched(parts.tables)
            outcome = self._tables.judge(advances)
            for target in touched:
                target.check_rows()
            if outcome is not Outcome.APPLIED:
                return Outcome.REPLAYED
            # All are judged before any is written: a conflict in one leaves all of them alone.
            fresh = [
                t
                for t in touched
                if t.name not in written and (not advances or self._lacks(t, advances))
            ]
            if staged.dead_letters and self._letters is not None and not kept:
                self._letters.keep(staged.dead_letters)
                kept = True
            try:
                for target in fresh:
                    self._land_in(target, advances, parts, moves=moves)
                    written.add(target.name)
                if moves:
                    self._tables.settle([parts.share(None, a) for a in advances])
            except CommitConflict as conflict:
                why = str(conflict)
                log.info("connector %s: %s; judging again", self._connector.name, why)
                continue
            hit("sink.after_commit")
            return Outcome.APPLIED
        raise TransientError(
            f"connector {self._connector.name}: {CONFLICTS} commits of other writers came first: "
            f"{why}"
        )

    def _lacks(self, target: TargetTable, advances: Sequence[Advance]) -> bool:
        lags = self._tables.lags
        try:
            return target.ledger.judge(advances, lags=lags) is Outcome.APPLIED
        except LedgerConflict as conflict:
            if not lags:
                raise
            raise TargetChanged(str(conflict)) from None  # :meth:`uneven` says how far to read

    def _land_in(
        self, target: TargetTable, advances: Sequence[Advance], parts: Parts, *, moves: bool
    ) -> None:
        hit("sink.after_positions")
        files = parts.files.get(target.name, ())
        moved: Mapping[str, str] = {}
        if moves:
            own = [parts.share(target.name, a) for a in advances]
            moved = target.ledger.moved(own, parts.elsewhere(target.name, advances))
        target.check(files)
        hit("sink.before_commit")
        target.write(files, moved)

    # For the audit and by hand

    def snapshots(self, topics: Collection[str]) -> list[Snapshot]:
        return self._tables.snapshots(topics, self._dead)

    @contextlib.contextmanager
    def viewing(self, topics: Collection[str]) -> Iterator[Sequence[View]]:
        if self._config.several:
            raise NotShown("with several tables, it is not checked which one a row belongs to")
        target = self._tables.all()[0]
        table = target.reload()
        if table is None:
            raise target.missing()
        config = target.keyed()
        keys = config.pk_fields if config.upsert else ()

        def taken(names: Collection[str]) -> Snapshot:
            return take_snapshot(self._connector, names, table, self._dead(), keys)

        yield [LakeView(self._connector, config, lambda _: table, lambda _: table.where, taken)]

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        """The snapshot of the first table; :meth:`snapshots` has all."""
        return self.snapshots(topics)[0]

    def key_of(self, records: Records) -> tuple[pa.Table | None, pa.Table | None]:
        # There is at least one table: see IcebergConfig.
        return keys_of(self._tables.all()[0].keyed(), records)

    def set_positions(
        self, entries: Collection[LedgerEntry] | None, by: str = "", reason: str = SKIPPED
    ) -> None:
        self._tables.check_commits()
        super().set_positions(entries, by, reason)

    def _set(self, entries: Collection[LedgerEntry] | None, by: str, reason: str) -> None:
        self._tables.set(entries, by, reason)


class IcebergStager(LakeStager[FileWriter]):
    """Writes the data files of one task. With ``counts`` it also reports how many rows went
    where."""

    def __init__(self, tables: Tables, prefix: str, *, counts: bool) -> None:
        super().__init__(prefix)
        self._tables = tables
        self._shares: dict[str, Counts] | None = {} if counts else None

    def add(self, commit: Commit) -> None:
        routes = [self._tables.routed(r) for r in commit.records if r.count]
        for target in [target for parts, _ in routes for target, _ in parts]:
            if target.name not in self._renewed:
                target.table.renew()
                self._renewed.add(target.name)
        # All records are arranged before any is written: a commit with one that does not fit leaves
        # nothing behind.
        arranged: list[tuple[TargetTable, Records, sink_rows.Rows]] = [
            (target, part, target.arranged(part)) for parts, _ in routes for target, part in parts
        ]
        for target, part, rows in arranged:
            self._count(target.name, part)
            if not rows.table.num_rows:
                continue
            if target.name not in self._writers:
                self._writers[target.name] = FileWriter(target.table, self._prefix, rows.key)
            self._writers[target.name].write(rows.table)
        if self._shares is not None:
            for _, nowhere in routes:
                self._shares.setdefault("", Counter()).update(nowhere)

    def _count(self, table: str, records: Records) -> None:
        if self._shares is not None:
            self._shares.setdefault(table, Counter()).update(counted(records.rows))

    def finish(self) -> Sequence[Any]:
        shares = (self._shares or {}).items()
        return [*super().finish(), *(StagedRows(table, counts) for table, counts in shares)]
