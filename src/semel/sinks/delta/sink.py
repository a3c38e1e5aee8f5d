"""The Delta Lake sink: tasks write Parquet, the driver commits files and positions at once."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from semel.config import ConnectorConfig, read
from semel.delivery import Mechanism, Support
from semel.errors import ConfigError, StaleFiles, TransientError
from semel.failpoints import hit
from semel.ledger import Advance, LedgerEntry, Outcome, TopicPartition, judge
from semel.records import Commit, Records
from semel.sinks.base import Snapshot, Staged, Stager, StagingSink
from semel.sinks.delta import rows as made
from semel.sinks.delta.config import IGNORED, DeltaConfig
from semel.sinks.layout import KAFKA_KEY, layout

try:
    from semel.sinks.delta import snapshot
    from semel.sinks.delta.dead_letters import DeadLetterTable
    from semel.sinks.delta.files import DataFile, FileWriter, delete
    from semel.sinks.delta.ledger import DeltaLedger
    from semel.sinks.delta.merge import merge
    from semel.sinks.delta.table import Conflict, Table, checked_options
except ModuleNotFoundError as missing:
    raise ConfigError(
        f"connector.class=delta needs the package {missing.name}: pip install 'semel[delta]'"
    ) from missing

log = logging.getLogger(__name__)

_CONFLICTS = 50
"""Other writers' commits that one commit gives way to before it fails."""


class DeltaSink(StagingSink):
    """See :class:`~semel.sinks.base.StagingSink`; configuration in docs/delta.md."""

    section = DeltaConfig
    ignored = IGNORED

    def __init__(self, connector: ConnectorConfig, raw: Mapping[str, str]) -> None:
        self._connector = connector
        self._config = read(DeltaConfig, raw)
        self._options = checked_options(raw)
        self._tables: dict[str, Table] = {}
        self._ledgers: dict[str, DeltaLedger] = {}
        self._topics = set(connector.topics)
        self._unborn: dict[TopicPartition, LedgerEntry] = {}
        """Positions of topics whose tables are yet to be created: nothing of them is lost."""
        self._letters: DeadLetterTable | None = None
        if connector.dead_letter_table:
            where = self._config.location(connector.dead_letter_table)
            self._letters = DeadLetterTable(
                where, self._options, connector.name, self._config.codec
            )
        constant = "${topic}" not in self._config.table_name_format
        if connector.topics_regex and constant:
            raise ConfigError(
                f"connector {connector.name}: topics.regex needs ${{topic}} in table.name.format="
                f"{self._config.table_name_format!r}, for the ledger's topics are found by it"
            )

    @property
    def uses_key(self) -> bool:
        return self._config.pk_mode == "record_key"

    @property
    def key_metadata(self) -> frozenset[str]:
        if self._config.pk_mode == "kafka":
            return frozenset(KAFKA_KEY)
        return super().key_metadata

    @property
    def takes_tombstones(self) -> bool:
        return self._config.delete_enabled

    @property
    def replaces(self) -> bool:
        return self._config.insert_mode == "upsert"

    @property
    def evolves(self) -> bool:
        return self._config.auto_evolve

    def support(self) -> Mapping[Mechanism, Support]:
        keyed = self._config.insert_mode == "upsert"
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
            table = self._find(topic)
            if table is None and not self._config.auto_create:
                raise self._missing(topic)
            if table is not None:
                self._check(topic, table)

    def _check(self, topic: str, table: Table) -> None:
        why = table.refusal(merges=self.replaces)
        if why is not None:
            raise ConfigError(
                f"connector {self._connector.name}: table {table.where} of topic {topic} {why}"
            )
        key = self._config.pk_fields if self.replaces else ()
        missing = [n for n in key if n not in table.columns.names]
        if missing and not self.evolves:
            raise ConfigError(
                f"connector {self._connector.name}: pk.fields={','.join(key)}: table "
                f"{table.where} (topic {topic}) has no column {missing[0]}; it has "
                f"{', '.join(table.columns.names)}"
            )

    def _missing(self, topic: str) -> ConfigError:
        return ConfigError(
            f"connector {self._connector.name}: there is no Delta table at {self._where(topic)} "
            f"for topic {topic}. Create it, or set auto.create=true; "
            f"table.name.format={self._config.table_name_format!r} names it"
        )

    def _where(self, topic: str) -> str:
        return self._config.location(self._config.table(topic))

    def _find(self, topic: str) -> Table | None:
        return self._at(self._where(topic))

    def _at(self, where: str) -> Table | None:
        if where not in self._tables:
            found = Table.open(where, self._options)
            if found is None:
                return None
            self._keep(found)
        return self._tables[where]

    def _keep(self, table: Table) -> None:
        self._tables[table.where] = table
        self._ledgers[table.where] = DeltaLedger(table, self._connector.name)

    def schema(self, topic: str) -> pa.Schema | None:
        table = self._find(topic)
        if table is None:
            return None
        skip = set(self._connector.provenance_columns.values())
        return pa.schema(
            [f for f in table.columns if f.name not in skip and self._config.takes(topic, f.name)]
        )

    def accommodate(self, records: Records) -> None:
        if records.rows.num_rows:
            self._target(records)

    def _target(self, records: Records) -> Table:
        """The topic's table, created or extended if it may be."""
        topic = records.topic
        arranged = layout(self._config, self._provenance, records, deletes=False)
        fields = [
            pa.field(n, v.type)
            for n, v in arranged.columns.items()
            if not pa.types.is_null(v.type)  # only nulls so far: of what type is not known yet
        ]
        table = self._find(topic)
        if table is None:
            if not self._config.auto_create:
                raise self._missing(topic)
            table = self._create(topic, fields, arranged.key)
        new = [f for f in fields if f.name not in table.columns.names]
        if new:
            table.renew()
            new = [f for f in fields if f.name not in table.columns.names]
        if new:
            if not self.evolves:
                raise ConfigError(
                    f"connector {self._connector.name}: table {table.where} has no column "
                    f"{new[0].name}, which records of topic {topic} hold. Add it, set "
                    "auto.evolve=true, or leave the field out with field.exclude.list"
                )
            table.add_columns(new)
        return table

    def _create(self, topic: str, fields: Sequence[pa.Field], key: Sequence[str]) -> Table:
        by = self._config.partition_by
        missing = [n for n in by if n not in {f.name for f in fields}]
        if missing:
            raise ConfigError(
                f"connector {self._connector.name}: partition.by={','.join(by)}: records of topic "
                f"{topic} have no field {missing[0]}; they have "
                f"{', '.join(f.name for f in fields)}"
            )
        table = Table.create(self._where(topic), self._options, fields, by, key)
        self._keep(table)
        self._check(topic, table)
        return table

    @property
    def _provenance(self) -> Mapping[str, str]:
        return self._connector.provenance_columns

    # The ledger

    def entries(self) -> list[LedgerEntry]:
        found = []
        for topic in sorted(self._known_topics()):
            table = self._find(topic)
            if table is None:
                found += [e for tp, e in sorted(self._unborn.items()) if tp.topic == topic]
                continue
            self._renew(table)
            self._bear(table)
            found += self._ledgers[table.where].entries(topic)
        return found

    def _known_topics(self) -> set[str]:
        if not self._topics and self._connector.topics_regex:
            self._topics = set(
                snapshot.topics_of_tables(
                    self._config, self._options, re.compile(self._connector.topics_regex)
                )
            )
        return self._topics

    def start(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self._topics |= {tp.topic for tp in positions}
        for tp, at in positions.items():
            if self._find(tp.topic) is None:
                entry = LedgerEntry(tp.topic, tp.partition, at, at)
                self._unborn.setdefault(tp, entry)
        for where, mine in self._by_table(positions).items():
            wanted = {tp: positions[tp] for tp in mine}
            self._move(where, lambda ledger, wanted=wanted: ledger.started(wanted))
        stored = {tp: self._position(tp) for tp in positions}
        return {tp: at for tp, at in stored.items() if at is not None}

    def _position(self, tp: TopicPartition) -> int | None:
        table = self._find(tp.topic)
        if table is None:
            return self._unborn[tp].position if tp in self._unborn else None
        return self._ledgers[table.where].position(tp)

    def _by_table(self, partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
        """Topic-partitions by the tables there are."""
        found: dict[str, list[TopicPartition]] = {}
        for tp in partitions:
            table = self._find(tp.topic)
            if table is not None:
                found.setdefault(table.where, []).append(tp)
        return found

    def _bear(self, table: Table) -> None:
        """Enter what was held for a table that did not exist."""
        held = {tp: e for tp, e in self._unborn.items() if self._where(tp.topic) == table.where}
        if held:
            self._move(table.where, lambda ledger: ledger.adopted(held.values()))
            self._unborn = {tp: e for tp, e in self._unborn.items() if tp not in held}

    def _move(self, where: str, identifiers: Any) -> None:
        """Commit identifiers that are computed from the ledger as it stands."""
        table, ledger = self._tables[where], self._ledgers[where]
        for _ in range(_CONFLICTS):
            self._renew(table)
            moved = identifiers(ledger)
            if not moved:
                return
            try:
                ledger.commit([], moved)
                return
            except Conflict:
                continue
        raise self._busy(table)

    def _renew(self, table: Table) -> None:
        try:
            table.renew()
        except Conflict as error:
            raise TransientError(f"Delta table {table.where}: {error}") from None

    def _busy(self, table: Table) -> TransientError:
        return TransientError(
            f"Delta table {table.where}: {_CONFLICTS} commits of other writers came first"
        )

    # Staging

    def stager(self, label: str) -> Stager:
        safe = re.sub(r"[^\w.-]", "_", f"{self._connector.name}-{label}", flags=re.ASCII)
        return _DeltaStager(self, f"semel-{safe}-")

    def arranged(self, records: Records) -> tuple[Table, made.Rows]:
        """Records as rows of their table, which is created or extended if it may be.

        Raises:
            RowsRejected: records that do not fit.
        """
        table = self._find(records.topic)
        if records.rows.num_rows or table is None:
            table = self._target(records)
        arrange = made.changes if self.replaces else made.inserts
        return table, arrange(self._config, self._provenance, records, table.columns)

    def writer(self, table: Table, topic: str, prefix: str) -> FileWriter:
        config = self._config
        return FileWriter(table, topic, prefix, config.target_file_size, config.codec)

    def discard(self, staged: Staged) -> None:
        for where, files in _by_where(staged.files).items():
            delete(self._tables[where].filesystem(), [f.path for f in files])

    # Committing

    def commit_staged(self, advances: Sequence[Advance], staged: Staged) -> Outcome:
        return self._land(advances, staged, moves=True)

    def write_staged(self, staged: Staged, guard: Sequence[Advance] | None = None) -> Outcome:
        return self._land(guard or (), staged, moves=False)

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        return self._land(advances, Staged(()), moves=True)

    def _land(self, advances: Sequence[Advance], staged: Staged, *, moves: bool) -> Outcome:
        """Table by table, each under the rule of its own ledger.

        After a crash between two tables the first one's ranges are a replay, the second one's not.
        """
        files = _by_where(staged.files)
        ranges: dict[str, list[Advance]] = {}
        for a in advances:
            ranges.setdefault(self._where(a.range.topic), []).append(a)
        targets = list(dict.fromkeys([*ranges, *files]))
        # A conflict in any of the tables leaves all of them alone.
        fresh = [where for where in targets if self._judge(where, ranges.get(where, ()))]
        if staged.dead_letters and self._letters is not None and (fresh or not targets):
            self._letters.keep(staged.dead_letters)
        for where in fresh:
            self._land_in(where, ranges.get(where, ()), files.get(where, ()), moves=moves)
        hit("sink.after_commit")
        return Outcome.APPLIED if fresh or not targets else Outcome.REPLAYED

    def _judge(self, where: str, advances: Sequence[Advance]) -> bool:
        """Whether the ledger still stands where these ranges begin."""
        table = self._at(where)
        if not advances:
            return True
        if table is None:
            stored = {tp: e.position for tp, e in self._unborn.items()}
            wanted = [a.range for a in advances]
            return judge(self._connector.name, stored, wanted) is Outcome.APPLIED
        self._renew(table)
        self._bear(table)
        return self._ledgers[where].judge(advances) is Outcome.APPLIED

    def _land_in(
        self,
        where: str,
        advances: Sequence[Advance],
        files: Sequence[DataFile],
        *,
        moves: bool,
    ) -> None:
        table = self._at(where)
        if table is None:  # not one row so far: the next one makes the table
            for a in advances if moves else ():
                self._unborn[a.range.topic_partition] = _after(
                    self._unborn[a.range.topic_partition], a
                )
            return
        ledger = self._ledgers[where]
        for _ in range(_CONFLICTS):
            self._renew(table)
            if advances and ledger.judge(advances) is not Outcome.APPLIED:
                return
            hit("sink.after_positions")
            moved = ledger.moved(advances) if moves else {}
            self._check_files(table, files)
            hit("sink.before_commit")
            try:
                if files and files[0].key:
                    merge(table, files, moved)
                    delete(table.filesystem(), [f.path for f in files])
                elif files or moved:
                    ledger.commit([f.action() for f in files], moved)
                return
            except Conflict as conflict:
                log.info("table %s: %s; judging again", where, conflict)
        raise self._busy(table)

    def _check_files(self, table: Table, files: Sequence[DataFile]) -> None:
        """Files must still be there, and of the types that the table's columns have."""
        for file in files:
            for column in file.columns:
                at = table.columns.get_field_index(column.name)
                ours = column.name in made.OWN
                if not ours and (at < 0 or table.columns.field(at).type != column.type):
                    raise StaleFiles(
                        f"Delta table {table.where}: column {column.name} was altered meanwhile"
                    )
        filesystem = table.filesystem()
        for file in files:
            if not filesystem.get_file_info(file.path).is_file:
                raise StaleFiles(
                    f"Delta table {table.where}: the staged file {file.path} is gone. Was the "
                    "table vacuumed with a retention of nothing?"
                )

    # For the audit and by hand

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        self._topics |= set(topics)
        tables = {t: self._config.table(t) for t in topics}
        found = {t: Table.open(self._where(t), self._options) for t in topics}
        letters = self._letters.open() if self._letters is not None else None
        return snapshot.take(self._connector, tables, found, letters)

    def key_of(self, records: Records) -> tuple[pa.Table | None, pa.Table | None]:
        arranged = layout(self._config, {}, records, deletes=False)
        keys = pa.table({n: arranged.columns[n] for n in arranged.key})
        if not self._config.delete_enabled or records.tombstones is None:
            return keys, None
        deletes = layout(self._config, {}, records, deletes=True)
        return keys, pa.table({n: deletes.columns[n] for n in deletes.key})

    def claim(self) -> None:
        """Nothing to hold on to: a Delta table has no locks. Whoever moves positions by hand while
        the connector runs fences it."""

    def set_positions(self, positions: Mapping[TopicPartition, int] | None) -> None:
        if positions is None:
            positions_of_letters = {e.topic_partition: 0 for e in self.entries()}
            for topic in self._known_topics():
                table = self._find(topic)
                if table is not None:
                    self._move(table.where, lambda ledger, t=topic: ledger.forget([t]))
        else:
            positions_of_letters = dict(positions)
            missing = [tp.topic for tp in positions if self._find(tp.topic) is None]
            if missing:
                raise self._missing(missing[0])
            for where, mine in self._by_table(positions).items():
                wanted = {tp: positions[tp] for tp in mine}
                self._move(where, lambda ledger, wanted=wanted: ledger.set(wanted))
        if self._letters is not None:
            self._letters.set(positions_of_letters)

    def close(self) -> None:
        """Nothing is held open."""


class _DeltaStager(Stager):
    """The files of one task: one writer a table."""

    def __init__(self, sink: DeltaSink, prefix: str) -> None:
        self._sink = sink
        self._prefix = prefix
        self._writers: dict[str, FileWriter] = {}

    def add(self, commit: Commit) -> None:
        given = [r for r in commit.records if r.count]
        for records, (table, rows) in [(r, self._sink.arranged(r)) for r in given]:
            if not rows.table.num_rows:
                continue
            if table.where not in self._writers:
                self._writers[table.where] = self._sink.writer(table, records.topic, self._prefix)
            self._writers[table.where].write(rows.table, rows.key)

    def finish(self) -> Sequence[Any]:
        return [file for writer in self._writers.values() for file in writer.finish()]

    def discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()


def _by_where(files: Sequence[DataFile]) -> dict[str, list[DataFile]]:
    found: dict[str, list[DataFile]] = {}
    for file in files:
        found.setdefault(file.table, []).append(file)
    return found


def _after(entry: LedgerEntry, a: Advance) -> LedgerEntry:
    """An entry that has moved on."""
    return LedgerEntry(
        entry.topic,
        entry.partition,
        a.range.until_offset,
        entry.start_position,
        entry.records_read + a.read,
        entry.rows_written + a.written,
        entry.records_filtered + a.filtered,
        entry.records_failed + a.failed,
        entry.records_lost + a.lost,
    )
