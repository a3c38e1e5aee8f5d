"""What is read back from SQL databases. An audit sees their rows, as they are and as records would
make them, and the facts of one instant; people see dead letters.

The database itself shows what it makes of values: they are written into a temporary table with the
types of the target's columns, and read back as rows are read from the target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError
from semel.core.ledger import OffsetRange
from semel.core.quoting import named
from semel.core.records import (
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TIMESTAMP_TYPE,
    TOPIC,
    Records,
    some_rejected,
)
from semel.databases.columns import Table
from semel.databases.errors import DataRefused
from semel.databases.names import Name, parse_name, quote
from semel.sinks import letters
from semel.sinks.base import Snapshot, StoredKeys
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.layout import Layout, layout
from semel.sinks.rereading import HeldRows, SomeRefused, held_of, places
from semel.sinks.sql.database import Dialect, SinkDatabase
from semel.sinks.sql.ledger import Ledger, SqlLedger
from semel.sinks.sql.prepare import converted, is_optional
from semel.sinks.sql.tables import named_as_in
from semel.sinks.unavailable import refusals, without

Ranges = Sequence[OffsetRange]


class TableView(ABC):
    """Looks at the database through one session, whose transaction holds the instant. See
    :class:`~semel.sinks.rereading.View`."""

    def __init__(
        self,
        connector: ConnectorConfig,
        config: JdbcConfig,
        database: SinkDatabase,
        ledger: Ledger,
        name: Callable[[str], Name],
        key_fields: Sequence[str] | None,
    ) -> None:
        self._connector = connector
        self._config = config
        self._database = database
        self._ledger = ledger
        self._name = name
        self._key_fields = key_fields
        self._tables: dict[str, Table | None] = {}

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        return take_snapshot(
            self._database,
            self._ledger,
            {topic: [self._name(topic)] for topic in topics},
            self._connector.provenance_columns,
            self._connector.dead_letter_table,
            self._key_fields,
        )

    def target(self, topic: str) -> str:
        return str(self._name(topic))

    def rows(
        self, topic: str, columns: Sequence[str], ranges: Sequence[OffsetRange] | None = None
    ) -> Iterator[pa.RecordBatch]:
        table = self._table(topic)
        if table is not None:
            yield from self._rows(table, topic, columns, ranges)

    def held(self, records: Records) -> HeldRows:
        table = self._table(records.topic)
        if table is None:
            return HeldRows(places(records.rows.slice(0, 0)), pa.table({}))
        return held_of(records, partial(self._arranged, table))

    @abstractmethod
    def _rows(
        self, table: Table, topic: str, columns: Sequence[str], ranges: Ranges | None
    ) -> Iterator[pa.RecordBatch]:
        """A topic's rows in its table."""

    @abstractmethod
    def _held(self, table: Table, records: Records, arranged: Layout) -> HeldRows:
        """What the table would hold for the values that are ``arranged``, without provenance."""

    def _arranged(self, table: Table, records: Records) -> HeldRows:
        arranged = layout(self._config, {}, records, deletes=False)
        arranged = named_as_in(table, arranged, self._config, self._database)
        provenance = set(self._connector.provenance_columns.values())
        columns = {n: v for n, v in arranged.columns.items() if n not in provenance}
        gone = replace(arranged, columns=columns).unavailable()
        if gone and self._config.mode == "insert":
            raise some_rejected(records.rows, refusals(gone, arranged.placeholder))
        columns |= {name: without(columns[name], rows) for name, rows in gone.items()}
        held = self._held(table, records, replace(arranged, columns=columns))
        return replace(held, optional=held.optional | gone.keys() | arranged.absent.keys())

    def _table(self, topic: str) -> Table | None:
        if topic not in self._tables:
            self._tables[topic] = self._database.find(self._name(topic))
        return self._tables[topic]


_PLACE = {PARTITION: pa.int32(), OFFSET: pa.int64()}


class SqlView(TableView):
    """A view through the session ``instant``. Values are written by ``writer``, which is the same
    session or another one. See :class:`~semel.sinks.rereading.View`."""

    def __init__(
        self,
        connector: ConnectorConfig,
        config: JdbcConfig,
        instant: Dialect,
        writer: Dialect,
        names: Mapping[str, Name],
        key_fields: Sequence[str] | None,
    ) -> None:
        ledger = SqlLedger(instant, connector.name)
        super().__init__(connector, config, instant, ledger, names.__getitem__, key_fields)
        self._instant = instant
        self._writer = writer

    def _rows(
        self, table: Table, topic: str, columns: Sequence[str], ranges: Ranges | None
    ) -> Iterator[pa.RecordBatch]:
        provenance = self._connector.provenance_columns
        chosen = [f"{self._shown(table, n)} AS {quote(n)}" for n in columns]
        where = ["1 = 1"]
        if provenance:
            chosen = [f"{quote(provenance[n])} AS {quote(n)}" for n in _PLACE] + chosen
            where.append(f"{quote(provenance[TOPIC])} = {self._instant.literal(topic)}")
            if ranges is not None:
                where.append(within([r for r in ranges if r.topic == topic], provenance))
        batches = self._instant.stream(
            f"SELECT {', '.join(chosen) or '1 AS one'} FROM {table.name.quoted} "
            f"WHERE {' AND '.join(where)}"
        )
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for place, name in enumerate(_PLACE if provenance else ()):
                rows = rows.set_column(place, name, rows.column(place).cast(_PLACE[name]))
            yield from rows.to_batches()

    def _held(self, table: Table, records: Records, arranged: Layout) -> HeldRows:
        fit = self._instant.fit
        arrays, _ = converted(records, table, arranged.columns, arranged.key, fit, arranged.typed)
        unlike = {
            n: f"the audit cannot compare values of type {table.columns[n].type}"
            for n in arrays
            if self._instant.shown(table.columns[n], quote(n)) is None
        }
        values = pa.table({n: v for n, v in arrays.items() if n not in unlike})
        return HeldRows(
            places(records.rows),
            self._kept(table, values) if values.num_columns else values,
            frozenset(n for n in values.column_names if is_optional(table.columns[n], records)),
            unlike,
        )

    def _kept(self, table: Table, values: pa.Table) -> pa.Table:
        """The values as the database stores them."""
        chosen = [f"{self._shown(table, n)} AS {quote(n)}" for n in values.column_names]
        writer, together = self._writer, self._writer is self._instant
        writing = writer.translating() if together else writer.transaction()
        try:
            with writing, writer.kept_rows(table.name, values) as kept:
                query = f"SELECT {', '.join(chosen)} FROM {kept} ORDER BY {writer.kept_order}"
                return pa.Table.from_batches(writer.stream(query))
        except DataRefused as error:
            raise SomeRefused(str(error)) from None

    def _shown(self, table: Table, name: str) -> str:
        shown = self._instant.shown(table.columns[name], quote(name))
        assert shown is not None
        return shown


def within(ranges: Sequence[OffsetRange], provenance: Mapping[str, str]) -> str:
    """The condition that a row comes from one of these ranges of its topic."""
    partition, offset = quote(provenance[PARTITION]), quote(provenance[OFFSET])
    conditions = [
        f"({partition} = {r.partition} AND {offset} >= {r.from_offset} "
        f"AND {offset} < {r.until_offset})"
        for r in ranges
    ]
    return f"({' OR '.join(conditions) or '1 = 0'})"


# Snapshots, and dead letters

_OF_A_LETTER = {PARTITION: "partition", OFFSET: "offset", TIMESTAMP: "timestamp"}
"""The columns of a dead letter that say which record it was."""
_ASK = "set provenance=true"
_PLACE_TYPES = {"partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.int64()}


def take_snapshot(
    database: SinkDatabase,
    ledger: Ledger,
    tables: Mapping[str, Collection[Name]],
    provenance: Mapping[str, str],
    dead_letter_table: str,
    key_fields: Sequence[str] | None,
    together: str = "",
) -> Snapshot:
    """Read ledger and results inside the open transaction. Each topic has one table, unless all of
    them are one target, whose name is ``together``.

    Without provenance, the keys of the rows are read unless ``key_fields`` is None; if it is empty,
    the table's first unique key is used.
    """
    records: dict[str, pa.Table] = {}
    rows: Counter[str] = Counter()
    untraced: Counter[str] = Counter()
    keys, unjudged = {}, {}
    counted: set[tuple[str, Name]] = set()
    for topic, name in [(topic, name) for topic, names in tables.items() for name in names]:
        table = database.find(name)
        if table is None:
            continue
        target = together or str(name)
        missing = [c for c in provenance.values() if c not in table.columns]
        if missing:
            raise ConfigError(
                f"connector {ledger.connector}: provenance=true, but table {named(name)} has no "
                f"column {named(missing[0])}. Add it, run the connector with auto.evolve=true, or "
                "audit by counts with provenance=false"
            )
        traced = f"count({quote(provenance[TOPIC])})" if provenance else "count(*)"
        if (target, name) not in counted:
            counted.add((target, name))
            (counts,) = database.query(
                f"SELECT count(*) AS n, count(*) - {traced} AS untraced FROM {name.quoted}"
            ).to_pylist()
            rows[target] += counts["n"]
            untraced[target] += counts["untraced"]
        if provenance:
            read = _typed(
                database.query(
                    f"SELECT {', '.join(database.places(provenance))} FROM {name.quoted} "
                    f"WHERE {quote(provenance[TOPIC])} = {database.literal(topic)}"
                )
            )
            parts = [records[topic], read] if topic in records else [read]
            records[topic] = pa.concat_tables(parts)
        elif key_fields is not None and together:
            unjudged[topic] = f"rows replace each other by key in several tables; {_ASK}"
        elif key_fields is not None:
            try:
                keys[topic] = _keys(database, table, key_fields)
            except (ValueError, pa.ArrowException) as why:
                unjudged[topic] = str(why)
    return Snapshot(
        ledger.entries(),
        ledger.holes(),
        records,
        rows,
        untraced,
        {topic: together or str(next(iter(names))) for topic, names in tables.items()},
        _dead(database, ledger.connector, dead_letter_table),
        keys=keys,
        unjudged=unjudged,
    )


def _keys(database: SinkDatabase, table: Table, fields: Sequence[str]) -> StoredKeys:
    """The key columns of all rows.

    Raises:
        ValueError: there is no key, or it may treat different texts as equal.
        ArrowException: Arrow has no type for a value.
    """
    if database.one_in_any_case:
        fields = [table.twin(name) or name for name in fields]
    chosen = table.key_columns(fields)
    loose = database.loose_columns(table, chosen)
    if loose:
        raise ValueError(f"column {named(loose[0])} may treat different texts as equal; {_ASK}")
    return StoredKeys(database.rows_of(table, chosen))


def _dead(database: SinkDatabase, connector: str, table: str) -> dict[str, pa.Table]:
    if not table:
        return {}
    name = parse_name(table, fold=False)
    if not database.exists(name):
        return {}
    rows = database.query(
        f"SELECT topic, format, {', '.join(database.places(_OF_A_LETTER))} FROM {name.quoted} "
        f"WHERE connector = {database.literal(connector)}"
    )
    rows = letters.known(connector, rows)
    topics = rows.column("topic").cast(pa.string())
    return {
        topic: _typed(rows.filter(pc.equal(topics, topic)).drop_columns("topic"))
        for topic in topics.unique().to_pylist()
    }


def dead_letters(
    database: SinkDatabase,
    connector: str,
    table: str,
    beyond: letters.Place | None,
    most: int,
    *,
    backwards: bool,
) -> pa.Table:
    """See :class:`~semel.sinks.letters.LetterStore`; inside the open transaction."""
    name = parse_name(table, fold=False)
    if not database.exists(name):
        return letters.SHOWN.empty_table()
    order, sign = ("DESC", "<") if backwards else ("ASC", ">")
    where = f"connector = {database.literal(connector)}"
    columns = [quote(n) for n in ("topic", "partition", "offset")]
    if beyond is not None:
        topic, partition, offset = columns
        values = (database.literal(beyond[0]), beyond[1], beyond[2])
        where += (
            f" AND ({topic} {sign} {values[0]} OR {topic} = {values[0]} AND ({partition} {sign} "
            f"{values[1]} OR {partition} = {values[1]} AND {offset} {sign} {values[2]}))"
        )
    names = [n for n in letters.SHOWN.names if n not in ("partition", "offset", "timestamp")]
    chosen = [*map(quote, [*names, "format"]), *database.places(_OF_A_LETTER)]
    which = f"WHERE {where} ORDER BY {', '.join(f'{n} {order}' for n in columns)}"
    rows = database.query(database.first(", ".join(chosen), name, most, which))
    rows = letters.known(connector, rows)
    if "timestamp" in rows.column_names:  # in milliseconds
        at = rows.column_names.index("timestamp")
        times = rows.column(at).cast(pa.int64()).cast(TIMESTAMP_TYPE)
        rows = rows.set_column(at, "timestamp", times)
    return letters.shown(rows)


def _typed(rows: pa.Table) -> pa.Table:
    return rows.cast(pa.schema([(name, _PLACE_TYPES[name]) for name in rows.column_names]))
