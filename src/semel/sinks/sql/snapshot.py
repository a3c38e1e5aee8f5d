"""The facts that an audit needs from the database, read at one instant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.core.records import OFFSET, PARTITION, TIMESTAMP, TIMESTAMP_TYPE, TOPIC
from semel.databases.columns import Table
from semel.databases.names import Name, parse_name, quote
from semel.sinks import letters
from semel.sinks.base import Snapshot, StoredKeys
from semel.sinks.sql.database import SinkDatabase
from semel.sinks.sql.ledger import Ledger

_OF_A_LETTER = {PARTITION: "partition", OFFSET: "offset", TIMESTAMP: "timestamp"}
"""The columns of a dead letter that say which record it was."""
_ASK = "set provenance=true"
_PLACE = {"partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.int64()}


def take(
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
            read = _places(
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
        topic: _places(rows.filter(pc.equal(topics, topic)).drop_columns("topic"))
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


def _places(rows: pa.Table) -> pa.Table:
    return rows.cast(pa.schema([(name, _PLACE[name]) for name in rows.column_names]))
