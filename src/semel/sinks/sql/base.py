"""What the sinks of all SQL databases share: rows and positions in one transaction of the database
that holds the rows. Each sink says in a few methods how its database differs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pyarrow as pa

from semel.config import ConnectorConfig, read
from semel.core import failpoints
from semel.core.delivery import Mechanism, Support
from semel.core.errors import ConfigError, TransientError
from semel.core.ledger import Advance, Hole, LedgerEntry, Outcome, Rebase, TopicPartition
from semel.core.problems import together
from semel.core.records import (
    HEADERS,
    Commit,
    DeadLetter,
    Records,
    RejectedRecord,
    RowsRejected,
    united,
)
from semel.databases.errors import DataRefused, SchemaChanged
from semel.databases.names import Name
from semel.sinks.base import Capabilities, Sink, Snapshot
from semel.sinks.config import is_by_record_key, names_key_columns
from semel.sinks.jdbc import CLASSES, IGNORED, JdbcConfig, check_key
from semel.sinks.layout import Layout, check_provenance, key_metadata, keys_of, layout
from semel.sinks.letters import Place
from semel.sinks.protocols import Named, settled
from semel.sinks.sql.database import SinkDatabase
from semel.sinks.sql.ledger import OFFSETS, Ledger
from semel.sinks.sql.prepare import TableChanges, prepare
from semel.sinks.sql.tables import Tables, check_letters, check_text_keys, table_name
from semel.sinks.sql.view import dead_letters, take_snapshot


class DatabaseSink(Sink):
    """See :class:`~semel.sinks.base.Sink`."""

    ignored = IGNORED
    address = "connection.url"
    section: ClassVar[type[JdbcConfig]]
    database_class: ClassVar[type[SinkDatabase]]

    def __init__(self, connector: ConnectorConfig) -> None:
        self._connector = connector
        self._config: JdbcConfig = read(self.section, connector.originals)
        subject = f"connector {connector.name}"
        together(
            self._make,
            lambda: check_key(connector, self._config),
            lambda: check_letters(connector),
            lambda: check_provenance(self._config, connector.provenance_columns, subject),
            *(partial(self._name, topic) for topic in connector.topics),
        )

    def _make(self) -> None:
        self._database, self._ledger = self._open()
        self._tables = Tables(self._connector, self._config, self._database)

    # What each sink implements

    @abstractmethod
    def _open(self) -> tuple[SinkDatabase, Ledger]:
        """Make the session and the ledger. Raises ConfigError; reaches nothing."""

    @abstractmethod
    def _create_dead_letters(self, table: str) -> None:
        """Create the table inside the open transaction, if it is missing."""

    @abstractmethod
    def _insert_dead_letters(self, table: str, letters: Sequence[DeadLetter]) -> None:
        """Write the dead letters inside the open transaction."""

    @abstractmethod
    def _write(
        self, judge: Callable[[], Outcome], prepared: Sequence[TableChanges], commit: Commit
    ) -> Outcome:
        """Judge and write with :meth:`_apply`; outside of a transaction."""

    @abstractmethod
    def _find_refused(self, prepared: Sequence[TableChanges]) -> list[RejectedRecord]:
        """Name the records that the database refuses; outside of a transaction."""

    def _freeing(self) -> AbstractContextManager[None]:
        """A context for what waits for the ledger's rows; a sink may free them before a retry."""
        return nullcontext()

    # What a configuration means

    @classmethod
    def takes_key_fields(cls, raw: Mapping[str, str]) -> bool:
        # Keys of other projects' workers are mostly JSON, which would pass for text. Text does not
        # pass for JSON.
        of_others = raw.get("connector.class", "") in CLASSES
        return is_by_record_key(raw) and (of_others or not names_key_columns(raw))

    @property
    def capabilities(self) -> Capabilities:
        config = self._config
        replaces = config.mode != "insert" or config.delete_enabled
        takes_all = config.evolves and not (config.include or config.exclude)
        return Capabilities(
            only_objects=True,
            routes=True,
            splits=True,
            uses_key=config.pk_mode == "record_key",
            key_metadata=key_metadata(config),
            carries=frozenset({HEADERS} if config.pk_mode == "record_header" else ()),
            takes_tombstones=config.delete_enabled,
            takes_change_events=config.of_debezium,
            tells_schemas=True,
            replaces=replaces,
            any_order=not replaces,
            only_updates=config.mode == "update",
            evolves=config.evolves,
            most_columns=self.database_class.most_columns if takes_all else None,
        )

    def describe(self) -> dict[str, str]:
        where = self._database.where
        return {
            "writes": f"table {self._config.table_name_format} in {where} ({self._config.mode})",
            "ledger": f"table {OFFSETS} in {where}",
        }

    def support(self) -> Mapping[Mechanism, Support]:
        mode, system = self._config.mode, self._database.system
        keyed = mode != "insert"
        return {
            Mechanism.TRANSACTIONAL: Support(
                True,
                f"rows and positions are committed in one {system} transaction, under a "
                "compare-and-set on the old position",
            ),
            Mechanism.IDEMPOTENT: Support(
                keyed,
                f"insert.mode={mode} by key writes the same rows again on a replay; positions "
                "follow in a transaction of their own"
                if keyed
                else "insert.mode=insert would insert the rows of a replay twice. Set "
                "insert.mode=upsert and pk.mode, or delivery.mechanism=transactional",
            ),
        }

    def prepare(self, topics: Collection[str]) -> None:
        self._open_ledger()
        if self._connector.dead_letter_table:
            with self._database.transaction():
                self._create_dead_letters(self._connector.dead_letter_table)
        for topic in () if self._config.splits else topics:
            self._tables.check(topic)
        config = self._config
        if self._connector.assumes_keys and config.pk_mode == "record_key" and not config.splits:
            self._check_keys(topics)

    def _check_keys(self, topics: Collection[str]) -> None:
        if len(self._config.pk_fields) != 1:
            return
        (key,) = self._tables.declared_key()
        with self._database.transaction(reading=True):
            written = {e.topic for e in self._ledger.entries() if e.rows_written}
            for topic in sorted(written.intersection(topics)):
                table = self._database.find(self._name(topic))
                if table is not None:
                    check_text_keys(self._database, table, key, f"connector {self._connector.name}")

    def _open_ledger(self) -> None:
        with self._database.transaction():
            self._ledger.create()

    def _name(self, topic: str) -> Name:
        return table_name(self._connector, self._config, self.database_class, topic)

    def schema(self, topic: str) -> pa.Schema | None:
        return self._tables.schema(topic)

    def lacking(self, topic: str, fields: Collection[str]) -> Collection[str]:
        return self._tables.lacking(topic, fields)

    def no_column(self, topic: str, field: str) -> str:
        return self._tables.no_column(topic, field)

    def accommodate(self, records: Records) -> None:
        self._tables.target(records.topic, self._layout(records), records)

    def _layout(self, records: Records) -> Layout:
        try:
            arranged = layout(
                self._config, self._connector.provenance_columns, records, deletes=False
            )
        except ConfigError as error:
            raise ConfigError(f"connector {self._connector.name}: {error}") from None
        return self._tables.named(records.topic, arranged)

    def key_of(self, records: Records) -> tuple[pa.Table | None, pa.Table | None]:
        keys, gone = keys_of(self._config, records)
        names = self._tables.known_columns_of(records.topic, keys.column_names)
        return keys.rename_columns(names), None if gone is None else gone.rename_columns(names)

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        return self._taken({topic: [self._name(topic)] for topic in topics})

    def gathered(self, topics: Collection[str], named: Named) -> Snapshot:
        """See :class:`~semel.sinks.protocols.Gathering`."""
        together = f"the tables that records name in {self._database.where}"

        tables: dict[str, Name] = {}

        def target(topic: str) -> str:
            name = self._name(topic)
            key = str(name).lower() if self._database.one_in_any_case else str(name)
            tables.setdefault(key, name)
            return key

        def taken(names: Collection[str]) -> Snapshot:
            chosen = [tables[n] for n in names]
            return self._taken(dict.fromkeys(topics, chosen), together)

        return settled(taken, named, target)

    def _taken(self, tables: Mapping[str, Collection[Name]], together: str = "") -> Snapshot:
        self._tables.look_for(tables)
        with self._database.transaction(reading=True):
            return take_snapshot(
                self._database,
                self._ledger,
                tables,
                self._connector.provenance_columns,
                self._connector.dead_letter_table,
                self._config.key_columns if self.capabilities.replaces else None,
                together,
            )

    def letters(self, beyond: Place | None, most: int, *, backwards: bool = False) -> pa.Table:
        """See :class:`~semel.sinks.letters.LetterStore`."""
        connector = self._connector
        of = self._database, connector.name, connector.dead_letter_table
        with self._database.transaction(reading=True):
            return dead_letters(*of, beyond, most, backwards=backwards)

    # The ledger and committing

    def entries(self) -> list[LedgerEntry]:
        with self._database.transaction(reading=True):
            return self._ledger.entries()

    def holes(self) -> list[Hole]:
        with self._database.transaction(reading=True):
            return self._ledger.holes()

    def start(self, entries: Collection[LedgerEntry]) -> dict[TopicPartition, int]:
        with self._database.transaction():
            return self._ledger.start(entries)

    def rebase(self, rebases: Sequence[Rebase]) -> None:
        with self._freeing(), self._database.transaction():
            self._ledger.rebase(rebases)

    def commit(self, advances: Sequence[Advance], commit: Commit) -> Outcome:
        with self._freeing():
            return self._transact(commit, lambda: self._ledger.advance(advances))

    def write(self, commit: Commit, guard: Sequence[Advance] | None = None) -> Outcome:
        if guard is None:
            return self._transact(commit, lambda: Outcome.APPLIED)
        with self._freeing():
            return self._transact(commit, lambda: self._ledger.guard(guard))

    def advance(self, advances: Sequence[Advance]) -> Outcome:
        with self._freeing(), self._database.transaction():
            return self._ledger.advance(advances)

    def _transact(self, commit: Commit, judge: Callable[[], Outcome]) -> Outcome:
        """Judge and write; retry if a table has changed."""
        topics = {r.topic for r in commit.records if r.count}
        while True:
            prepared: list[TableChanges] = []
            try:
                for records in united(commit.records):
                    self.accommodate(records)
                prepared = [self._prepare(r) for r in self._with_keys(commit) if r.count]
                return self._write(judge, prepared, commit)
            except DataRefused as error:
                rejected = self._find_refused(prepared)
                if self._tables.altered(topics):
                    continue
                if rejected:
                    raise RowsRejected(rejected) from None
                # Nothing is refused any more: another writer's rows were there only for a moment.
                raise TransientError(str(error)) from None
            except (SchemaChanged, RowsRejected):
                if not self._tables.altered(topics):
                    raise

    def _apply(
        self,
        judge: Callable[[], Outcome],
        prepared: Sequence[TableChanges],
        commit: Commit,
        put: Callable[[TableChanges], None],
    ) -> Outcome:
        """Judge and write in one transaction; ``put`` writes a batch inside it."""
        with self._database.transaction():
            outcome = judge()
            failpoints.hit("sink.after_positions")
            if outcome is Outcome.APPLIED:
                for batch in prepared:
                    put(batch)
                if commit.dead_letters and self._connector.dead_letter_table:
                    self._insert_dead_letters(
                        self._connector.dead_letter_table, commit.dead_letters
                    )
            failpoints.hit("sink.before_commit")
        failpoints.hit("sink.after_commit")
        return outcome

    def _with_keys(self, commit: Commit) -> Iterator[Records]:
        """The records, with nulls for fields of the key that they lack, but their table or other
        records of the commit have: such records are bad ones. A field that nothing has is a
        mistake."""
        fields = self._config.pk_fields if self._config.pk_mode == "record_value" else ()
        fold = str.lower if self._config.folds_names else str
        types = {f.name: f.type for r in commit.records for f in r.rows.schema if f.name in fields}
        for records in commit.records:
            rows, names = records.rows, {fold(n) for n in records.rows.column_names}
            missing = [n for n in fields if fold(n) not in names]
            kinds = {**self._tables.kinds(records.topic, missing), **types} if missing else {}
            for name in [n for n in missing if n in kinds]:
                rows = rows.append_column(name, pa.nulls(rows.num_rows, kinds[name]))
            yield records if rows is records.rows else replace(records, rows=rows)

    def _prepare(self, records: Records) -> TableChanges:
        arranged = self._layout(records)
        table = self._tables.target(records.topic, arranged, records)
        database = self._database
        return prepare(self._config, table, arranged, records, database.compare, database.fit)

    def _set_positions(self, entries: Collection[LedgerEntry] | None, by: str, reason: str) -> None:
        if entries is None:
            self._ledger.forget(by)
        else:
            self._ledger.set(entries, by, reason)

    def claim(self) -> None:
        self._database.claim()

    def close(self) -> None:
        self._database.close()

    def _is_running(self) -> ConfigError:
        return ConfigError(
            f"connector {self._connector.name} is running: stop it before its offsets are changed"
        )


class Undo(Exception):
    """Ends a transaction without committing it."""
