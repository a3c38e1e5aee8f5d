"""The Delta Lake sink: tasks write Parquet, the driver commits files and positions at once."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa

from semel.config import ConnectorConfig, absolute, read
from semel.config.extras import needs
from semel.core.delivery import Delivery, Mechanism, Support
from semel.core.errors import ConfigError, Problem, TargetChanged
from semel.core.failpoints import hit
from semel.core.ledger import (
    Advance,
    Hole,
    LedgerEntry,
    Outcome,
    Rebase,
    Target,
    TopicPartition,
)
from semel.core.patterns import compiled
from semel.core.problems import refuse, together
from semel.core.quoting import PATH, named
from semel.core.records import TIMESTAMP, Commit, Records
from semel.sinks import rows as sink_rows
from semel.sinks.base import Capabilities, Snapshot
from semel.sinks.delta.config import IGNORED, DeltaConfig
from semel.sinks.jdbc import check_key
from semel.sinks.lake import CONFLICTS, LakeSink, LakeStager, LakeView, delete
from semel.sinks.layout import check_provenance, key_metadata, keys_of
from semel.sinks.rereading import View
from semel.sinks.staging import CommitConflict, StagedCommit, Stager

with needs("connector.class=delta", "delta"):
    from semel.sinks.delta.files import Compaction, DataFile, FileWriter, merge
    from semel.sinks.delta.store import checked_options, refuses_the_second, timeouts, unjudged
    from semel.sinks.delta.table import Table
    from semel.sinks.delta.tables import (
        DeadLetterTable,
        Positions,
        Tables,
        busy,
        take_snapshot,
        topics_of_tables,
    )

log = logging.getLogger(__name__)


class DeltaSink(LakeSink):
    """See :class:`~semel.sinks.staging.StagingSink`; configuration in docs/delta.md."""

    section = DeltaConfig
    ignored = IGNORED
    address = "delta.table.path"

    def __init__(self, connector: ConnectorConfig) -> None:
        self._connector = connector
        self._config = read(DeltaConfig, connector.originals)
        waits = timeouts(self._config.table_path, connector.store_timeout_ms)
        self._options = waits | checked_options(connector.originals)
        self._tables = Tables(connector, self._config, self._options)
        self._positions = Positions(connector.name, self._tables)
        self._compaction = Compaction(self._config)
        self._topics = connector.ledger_topics
        self._is_exclusive = False
        if connector.dead_letter_table:
            where = self._config.location(connector.dead_letter_table)
            self._letters = DeadLetterTable(
                where, self._options, connector.name, self._config.codec
            )
        subject = f"connector {connector.name}"
        together(
            lambda: refuse(self._problems()),
            lambda: check_key(connector, self._config),
            lambda: check_provenance(self._config, connector.provenance_columns, subject),
        )

    def _problems(self) -> Iterator[Problem]:
        connector, dead = self._connector, self._connector.dead_letter_table
        yield from [
            Problem(
                "errors.deadletterqueue.table",
                f"connector {connector.name}: errors.deadletterqueue.table={dead} is the table of "
                f"topic {named(topic)} too: dead letters need one of their own",
            )
            for topic in connector.topics
            if self._config.table(topic) == dead
        ][:1]
        if connector.topics_regex and self._config.routes:
            yield Problem(
                "topics.regex",
                f"connector {connector.name}: topics.regex={connector.topics_regex} with "
                "transforms that route: the ledger's topics are found by the names of tables, "
                "which the router changes. List them in topics",
            )
        if connector.topics_regex and "${topic}" not in self._config.table_name_format:
            yield Problem(
                "topics.regex",
                f"connector {connector.name}: topics.regex needs ${{topic}} in "
                f"table.name.format={self._config.table_name_format!r}: a "
                "topic's ledger is found by it",
            )

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        return absolute(raw, "delta.table.path")

    @property
    def capabilities(self) -> Capabilities:
        config = self._config
        return Capabilities(
            only_objects=True,
            routes=True,
            uses_key=config.pk_mode == "record_key",
            key_metadata=key_metadata(config),
            takes_tombstones=config.delete_enabled,
            commits_dead_letters_first=True,
            replaces=self._upserts,
            any_order=True,
            tells_schemas=self._config.insert_mode == "upsert",
            carries=frozenset({TIMESTAMP}) if self._upserts else frozenset(),
            evolves=config.auto_evolve,
        )

    @property
    def _upserts(self) -> bool:
        return self._config.insert_mode == "upsert"

    def describe(self) -> dict[str, str]:
        where = self._config.location(self._config.table_name_format)
        return {"writes": f"Delta table {where}", "ledger": f"transaction identifiers of {where}"}

    def support(self) -> Mapping[Mechanism, Support]:
        keyed = self._upserts
        return {
            Mechanism.TRANSACTIONAL: Support(
                True,
                "files and positions are added to a table by one Delta commit, bound to the "
                "version whose positions were judged",
            ),
            Mechanism.IDEMPOTENT: Support(
                keyed,
                "insert.mode=upsert by key writes the same rows again on a replay; positions "
                "follow in a commit of their own"
                if keyed
                else "insert.mode=insert would add the rows of a replay twice. Set "
                "insert.mode=upsert and pk.mode, or delivery.mechanism=transactional",
            ),
        }

    # Tables

    def prepare(self, topics: Collection[str]) -> None:
        self._topics |= set(topics)
        for topic in topics:
            self._tables.check(topic)
        self._check_exclusive(topics)
        self._positions.check(topics)
        if self._letters is not None:
            self._letters.check()

    def claim(self) -> None:
        self._positions.runs = True

    def _check_exclusive(self, topics: Collection[str]) -> None:
        """Test the store: one that speaks S3's protocol may ignore the condition of a put."""
        if self._is_exclusive or self._connector.delivery is Delivery.AT_LEAST_ONCE or not topics:
            return
        where = self._tables.where(min(topics))
        if not refuses_the_second(where, self._options):
            raise ConfigError(
                f"connector {self._connector.name}: the store of {where} does not create files "
                "exclusively: two commits of one version of a table both succeeded, so a second "
                "writer could overwrite the first one's rows and positions. Set "
                "delivery=at-least-once, or use a store that supports If-None-Match, without "
                "storage.options that switch it off (aws_conditional_put, "
                "aws_s3_allow_unsafe_rename)"
            )
        self._is_exclusive = True

    def schema(self, topic: str) -> pa.Schema | None:
        return self._tables.schema(topic)

    def lacking(self, topic: str, fields: Collection[str]) -> Collection[str]:
        return self._tables.lacking(topic, fields)

    def no_column(self, topic: str, field: str) -> str:
        return self._tables.no_column(topic, field)

    def accommodate(self, records: Records) -> None:
        if records.rows.num_rows:
            self._tables.target(records)

    # The ledger

    def entries(self) -> list[LedgerEntry]:
        return self._positions.entries(self._known_topics())

    def _known_topics(self) -> set[str]:
        if not self._topics and self._connector.topics_regex:
            pattern = compiled(self._connector.topics_regex)
            self._topics = set(topics_of_tables(self._config, self._options, pattern))
        return self._topics

    def targets(self, topics: Collection[str]) -> Mapping[str, Target | None]:
        """Positions are in the tables, so there are none before a table is created."""
        return {topic: None for topic in topics if self._tables.find(topic) is None}

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        self._topics |= {entry.topic for entry in entries}
        return self._positions.start(entries)

    def _rebase(self, rebases: Sequence[Rebase]) -> None:
        self._positions.rebase(rebases)

    # Staging

    def stager(self, label: str) -> Stager:
        return DeltaStager(self._connector, self._config, self._tables, self._staged(label))

    def discard(self, staged: StagedCommit) -> None:
        for where, files in _by_where(staged.files).items():
            table = self._tables.at(where)
            if table is not None:
                delete(table.filesystem().delete_file, [f.path for f in files])

    # Committing

    def commit_staged(self, advances: Sequence[Advance], staged: StagedCommit) -> Outcome:
        return self._land(advances, staged, moves=True)[0]

    def write_staged(self, staged: StagedCommit, guard: Sequence[Advance] | None = None) -> Outcome:
        return self._land(guard or (), staged, moves=False)[0]

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        outcome, everywhere = self._land(advances, StagedCommit(), moves=True)
        # A table whose positions have moved may have its rows: at-most-once must not repeat them.
        return outcome if everywhere else Outcome.REPLAYED

    def _land(
        self, advances: Sequence[Advance], staged: StagedCommit, *, moves: bool
    ) -> tuple[Outcome, bool]:
        """Commit table by table, each under its own ledger's rule; returns the outcome, and whether
        the ranges were new to all tables.

        After a crash between two commits only the first table's ranges are a replay.
        """
        files = _by_where(staged.files)
        ranges: dict[str, list[Advance]] = {}
        for a in advances:
            ranges.setdefault(self._tables.where(a.range.topic), []).append(a)
        targets = list(dict.fromkeys([*ranges, *files]))
        # All are judged before any is written: a conflict in one leaves all of them alone.
        fresh = [
            where
            for where in targets
            if where not in ranges or self._positions.judge(where, ranges[where]) is Outcome.APPLIED
        ]
        if targets and not fresh:
            return Outcome.REPLAYED, False
        if staged.dead_letters and self._letters is not None:
            self._letters.keep(staged.dead_letters)
        landed = [
            self._land_in(where, ranges.get(where, ()), files.get(where, ()), moves=moves)
            for where in fresh
        ]
        hit("sink.after_commit")
        for where in fresh:
            table = self._tables.at(where)
            if table is not None:
                self._compaction.after(table, files.get(where, ()))
        return Outcome.APPLIED, len(fresh) == len(targets) and all(landed)

    def _land_in(
        self,
        where: str,
        advances: Sequence[Advance],
        files: Sequence[DataFile],
        *,
        moves: bool,
    ) -> bool:
        """Commit to one table; returns whether the ranges were new to it."""
        table = self._tables.at(where)
        if table is None:  # no rows so far: the first one creates the table
            self._positions.advance_uncreated(advances if moves else ())
            return True
        if files and files[0].key:
            table.keep_statistics_true()
        for _ in range(CONFLICTS):
            ledger = self._positions.current(table)
            if advances and ledger.judge(advances) is not Outcome.APPLIED:
                return False
            hit("sink.after_positions")
            moved = ledger.moved(advances) if moves else {}
            _check(table, files)
            hit("sink.before_commit")
            try:
                if files and files[0].key:
                    ledger.commit_by(partial(merge, table, files), moved)
                    delete(table.filesystem().delete_file, [f.path for f in files])
                elif files or moved:
                    ledger.commit([f.action() for f in files], moved)
                return True
            except CommitConflict as conflict:
                log.info("table %s: %s; judging again", where, conflict)
        raise busy(table)

    # For the audit and by hand

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        self._topics |= set(topics)
        return self._snapshot({t: self._tables.reload(t) for t in topics}, topics)

    @contextmanager
    def viewing(self, topics: Collection[str]) -> Iterator[Sequence[View]]:
        self._topics |= set(topics)
        tables = {t: self._tables.reload(t) for t in topics}
        take = partial(self._snapshot, tables)
        yield [LakeView(self._connector, self._config, tables.get, self._config.table, take)]

    def _snapshot(self, opened: Mapping[str, Table | None], topics: Collection[str]) -> Snapshot:
        names = {t: self._config.table(t) for t in topics}
        keys = self._config.pk_fields if self._upserts else None
        return take_snapshot(self._connector, names, opened, self._dead(), keys)

    def key_of(self, records: Records) -> tuple[pa.Table | None, pa.Table | None]:
        return keys_of(self._config, records)

    def holes(self) -> list[Hole]:
        return self._positions.holes(self._known_topics())

    def _set(self, entries: Collection[LedgerEntry] | None, by: str, reason: str) -> None:
        if entries is None:
            self._positions.forget(self._known_topics(), by)
            return
        missing = [e.topic for e in entries if self._tables.find(e.topic) is None]
        if missing:
            raise self._tables.missing(missing[0])
        self._positions.set(entries, self._known_topics(), by, reason)


class DeltaStager(LakeStager[FileWriter]):
    """Writes the Parquet files of one task."""

    def __init__(
        self, connector: ConnectorConfig, config: DeltaConfig, tables: Tables, prefix: str
    ) -> None:
        super().__init__(prefix)
        self._connector = connector
        self._config = config
        self._tables = tables

    def add(self, commit: Commit) -> None:
        parts = [r for r in commit.records if r.count]
        for topic in {r.topic for r in parts} - self._renewed:
            self._renew(topic)
        # All records are arranged before any is written, so a batch that does not fit leaves
        # nothing behind.
        for records, (table, rows) in [(r, self._arranged(r)) for r in parts]:
            if rows.table.num_rows:
                self._writer(table, records.topic).write(rows.table, rows.key)

    def _renew(self, topic: str) -> None:
        table = self._tables.find(topic)
        if table is not None:
            table.renew()
        self._renewed.add(topic)

    def _arranged(self, records: Records) -> tuple[Table, sink_rows.Rows]:
        """Records as rows of their table, which is created or extended if that is allowed.

        Raises:
            RowsRejected: records that do not fit.
        """
        self._check_home(records)
        table = self._tables.find(records.topic)
        if records.rows.num_rows or table is None:
            table = self._tables.target(records)
        arguments = (self._config, self._connector.provenance_columns, records, table.columns)
        if self._config.insert_mode == "upsert":
            rows = sink_rows.changes(*arguments, tells_given=True)
        else:
            rows = sink_rows.inserts(*arguments)
        # Readers of the log parse a partition's date or time, and few parse years of five digits.
        by = [n for n in table.partitioned_by if n in rows.table.column_names]
        sink_rows.reject_far_years(rows.table.select(by), records)
        return table, rows

    def _check_home(self, records: Records) -> None:
        """Raises ConfigError: the rows would be in one table and their positions in another."""
        origin, topic = records.origin, records.topic
        if self._tables.where(origin) != self._tables.where(topic):
            raise ConfigError(
                f"connector {self._connector.name}: records of topic {named(origin)} are routed to "
                f"topic {named(topic)}, whose table is {self._tables.where(topic)}, but their "
                f"positions are in {self._tables.where(origin)}: Delta Lake commits one table at a "
                "time. Route no records, or set table.name.format to one table for all topics"
            )

    def _writer(self, table: Table, topic: str) -> FileWriter:
        if table.where not in self._writers:
            config = self._config
            self._writers[table.where] = FileWriter(
                table, topic, self._prefix, config.target_file_size, config.codec
            )
        return self._writers[table.where]


def _by_where(files: Sequence[DataFile]) -> dict[str, list[DataFile]]:
    by_table: dict[str, list[DataFile]] = {}
    for file in files:
        by_table.setdefault(file.table, []).append(file)
    return by_table


def _check(table: Table, files: Sequence[DataFile]) -> None:
    """Check that the files still exist and have the types of the table's columns.

    Raises:
        TargetChanged: they do not.
        TransientError: the store did not answer.
    """
    for file in files:
        for column in file.columns:
            at = table.columns.get_field_index(column.name)
            ours = column.name in sink_rows.OWN
            if not ours and (at < 0 or table.columns.field(at).type != column.type):
                raise TargetChanged(
                    f"Delta table {table.where}: column {named(column.name)} was altered meanwhile"
                )
    filesystem = table.filesystem()
    for file in files:
        with unjudged(table.where):
            there = filesystem.get_file_info(file.path).is_file
        if not there:
            raise TargetChanged(
                f"Delta table {table.where}: the staged file {named(file.path, PATH)} is gone. Was "
                "the table vacuumed with a retention of zero?"
            )
