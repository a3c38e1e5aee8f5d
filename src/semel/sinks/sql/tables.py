"""The tables of topics: finding them, checking their keys, creating and extending them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa

from semel.config import ConnectorConfig
from semel.core.errors import ConfigError, Problem, ServiceError, TargetChanged, misconfigured
from semel.core.quoting import all_named, named
from semel.core.records import Records, RowsRejected, rejected
from semel.databases.columns import Table, in_one_case
from semel.databases.names import Name, is_name, parse_name, quote
from semel.sinks.base import EVOLVES_OR_EXCLUDES, lacking, no_column, no_columns_yet
from semel.sinks.jdbc import JdbcConfig
from semel.sinks.layout import KAFKA_KEY, Layout, not_from_values
from semel.sinks.sql.database import KEPT, STAGE, SinkDatabase
from semel.sinks.sql.ledger import HOLES, OFFSETS

_FORMAT = "table.name.format"
_LEDGER = (OFFSETS.table, HOLES.table)


def _check_apart(connector: ConnectorConfig, topic: str, name: Name, *, fold: bool) -> None:
    """Raises ConfigError if a topic's rows would go to a table of semel's own, or of dead letters.

    ``fold``: names that differ only in case are the same.
    """
    same = str.lower if fold else str
    holds = "the ledger" if same(name.table) in _LEDGER else ""
    if same(name.table) in (STAGE, KEPT):  # temporary tables, which would hide it
        holds = "rows on their way to other tables"
    if connector.dead_letter_table and same(str(name)) == same(
        str(parse_name(connector.dead_letter_table, fold=False))
    ):
        holds = f"dead letters: errors.deadletterqueue.table={connector.dead_letter_table}"
    if holds:
        raise misconfigured(
            _FORMAT,
            f"connector {connector.name}: topic {named(topic)} goes to table {named(name)}, which "
            f"holds {holds}. Name another one in table.name.format or topics.to.tables.mapping",
        )


def check_letters(connector: ConnectorConfig) -> None:
    """Raises ConfigError if dead letters do not have a table of their own."""
    table = connector.dead_letter_table
    where = f"connector {connector.name}: errors.deadletterqueue.table={table}"
    if table and not is_name(table):
        raise misconfigured(
            "errors.deadletterqueue.table", f"{where} is not table or schema.table, or quoted parts"
        )
    if table and parse_name(table, fold=True).table in _LEDGER:
        raise misconfigured(
            "errors.deadletterqueue.table", f"{where} is a table of the ledger. Name another one"
        )


def _too_long(kind: type[SinkDatabase], name: str) -> str | None:
    """Why a database of this kind has no such name; None if its length is no reason."""
    longest, unit = kind.longest_name, kind.name_unit
    length = len(name.encode() if unit == "bytes" else name)
    if not longest or length <= longest:
        return None
    return f"is longer than the {longest} {unit} that {kind.system} allows"


def table_name(
    connector: ConnectorConfig, config: JdbcConfig, kind: type[SinkDatabase], topic: str
) -> Name:
    """The name of a topic's table in a database of this kind.

    Raises:
        ConfigError: the database does not allow the name, or it is a table of semel's own.
    """
    name = parse_name(config.table(topic), fold=config.folds_names)
    _check_apart(connector, topic, name, fold=kind.one_in_any_case)
    if why := _too_long(kind, name.table):  # PostgreSQL would cut it, and two topics share a table
        raise misconfigured(
            _FORMAT,
            f"connector {connector.name}: table {named(name)} for topic {named(topic)} {why}. Name "
            "a shorter one in table.name.format or topics.to.tables.mapping",
        )
    if name.schema and not kind.has_schemas:
        raise misconfigured(
            "table.name.format",
            f"connector {connector.name}: table {named(name)} for topic {named(topic)}: "
            f"{kind.system} has no schemas. Where the dot belongs to the name, "
            'quote it: table.name.format="${topic}"',
        )
    return name


def column_in(table: Table, name: str, config: JdbcConfig, database: SinkDatabase) -> str:
    """The column of a table that a name stands for."""
    twin = table.twin(name) if config.unquoted and database.one_in_any_case else None
    return twin or name


def named_as_in(
    table: Table, arranged: Layout, config: JdbcConfig, database: SinkDatabase
) -> Layout:
    """The layout with the names that its columns have in a table."""
    return arranged.renamed({n: column_in(table, n, config, database) for n in arranged.columns})


class Tables:
    """The tables of one connector's topics, each looked up once."""

    def __init__(
        self, connector: ConnectorConfig, config: JdbcConfig, database: SinkDatabase
    ) -> None:
        self._connector = connector
        self._config = config
        self._database = database
        self._tables: dict[str, Table] = {}
        self._uncreated: set[str] = set()

    def name(self, topic: str) -> Name:
        return table_name(self._connector, self._config, type(self._database), topic)

    def check(self, topic: str) -> None:
        """Raises ConfigError: there is no table and none may be created, or its key is wrong."""
        table = self.look_up(topic)
        if table is not None:
            key = [self._column(table, name) for name in self.declared_key()]
            self._check_key(table, key, topic)
        elif not self._config.creates:
            raise self._missing(topic)

    def schema(self, topic: str) -> pa.Schema | None:
        if self._config.unquoted:
            return None  # the values' own names, in upper and lower case, are unknown
        table = self._find(topic)
        if table is None:
            self._uncreated.add(topic)
            return None
        self._uncreated.discard(topic)
        skip = {*self._connector.provenance_columns.values(), *not_from_values(self._config)}
        return pa.schema(
            [
                (n, c.arrow)
                for n, c in table.writable.items()
                if n not in skip and self._config.takes(topic, n)
            ]
        )

    def kinds(self, topic: str, fields: Collection[str]) -> dict[str, pa.DataType]:
        """The types of those columns that the table has."""
        table = self._find(topic)
        if table is None:
            return {}
        columns = {f: self._column(table, f) for f in fields}
        return {f: table.columns[n].arrow for f, n in columns.items() if n in table.columns}

    def lacking(self, topic: str, fields: Collection[str]) -> list[str]:
        """See :meth:`semel.sinks.base.Sink.lacking`."""
        table = None
        with suppress(ServiceError):  # the commit will report it
            table = self._find(topic)
        if table is None:
            return []
        taken = [f for f in fields if self._config.takes(topic, f)]
        if self._config.evolves:
            columns = {f: table.columns.get(self._column(table, f)) for f in taken}
            return [f for f, column in columns.items() if column and column.generated]
        return lacking(
            taken,
            lambda: self._tables[topic].writable,
            lambda: self._look_again(topic),
            fold=lambda field: self._column(self._tables[topic], field),
        )

    def no_column(self, topic: str, field: str) -> str:
        """See :meth:`semel.sinks.base.Sink.no_column`."""
        table, name = self._tables.get(topic), f"table {named(self.name(topic))}"
        column = field if table is None else self._column(table, field)
        if table is not None and column in table.columns:
            return (
                f"{name} computes column {named(column)} itself, and cannot take the values that "
                f"records of topic {named(topic)} hold. Leave the field out "
                f"{EVOLVES_OR_EXCLUDES['leave']}"
            )
        if table is not None and (twin := self._twin(table, column)) is not None:
            return self._one_column(topic, field, table, twin)
        return no_column(name, topic, field, **EVOLVES_OR_EXCLUDES)

    def _find(self, topic: str) -> Table | None:
        if topic not in self._tables:
            table = self.look_up(topic)
            if table is None:
                return None
            self._tables[topic] = table
        return self._tables[topic]

    def look_up(self, topic: str) -> Table | None:
        name = self.name(topic)
        with self._database.transaction(reading=True):
            return self._database.find(name)

    def named(self, topic: str, arranged: Layout) -> Layout:
        """The layout with the names that its columns have in the topic's table."""
        if self._config.unquoted:
            self._check_columns(topic, list(arranged.columns))
        names = list(arranged.columns)
        return arranged.renamed(dict(zip(names, self.columns_of(topic, names), strict=True)))

    def columns_of(self, topic: str, names: Sequence[str]) -> list[str]:
        """The columns of the topic's table that names stand for."""
        self.look_for([topic])
        return self.known_columns_of(topic, names)

    def look_for(self, topics: Collection[str]) -> None:
        """Look up the tables in which names may stand for columns of other names."""
        if self._config.unquoted and self._database.one_in_any_case:
            for topic in topics:
                self._find(topic)

    def known_columns_of(self, topic: str, names: Sequence[str]) -> list[str]:
        """As :meth:`columns_of`, but without asking the database, in which another thread may be
        committing: while the table is unknown, names stand for themselves."""
        table = self._tables.get(topic)
        if table is None or not (self._config.unquoted and self._database.one_in_any_case):
            return list(names)
        return [self._column(table, n) for n in names]

    def target(self, topic: str, arranged: Layout, records: Records) -> Table:
        """The topic's table, created or extended if it may be.

        Raises:
            RowsRejected: records that need more columns, or longer names, than a table may have.
        """
        fields = [
            arranged.field(n, v.type)
            for n, v in arranged.columns.items()
            if not pa.types.is_null(v.type)  # only nulls so far: the type is not known yet
        ]
        table = self._find(topic)
        if self._config.creates if table is None else self._config.evolves:
            fields = self._possible(fields, table, arranged, records)
        if table is None:
            if not self._config.creates:
                raise self._missing(topic)
            if not fields and records.rows.num_rows:
                raise no_columns_yet(records.rows)
            self._check_columns(topic, [f.name for f in fields])
            with self._database.transaction():
                self._database.create(self.name(topic), fields, arranged.key)
        if table is None or any(f.name not in table.columns for f in fields):
            table = self._look_again(topic)
        new = [f for f in fields if f.name not in table.columns]
        if new:
            self._check_columns(topic, [f.name for f in fields], table)
            if topic in self._uncreated:
                self._uncreated.discard(topic)
                if not self._config.evolves:
                    raise TargetChanged(
                        f"another task has made table {named(table.name)} meanwhile"
                    )
            if not self._config.evolves:
                where = f"table {named(table.name)}"
                what = no_column(where, topic, named(new[0].name), **EVOLVES_OR_EXCLUDES)
                raise ConfigError(f"connector {self._connector.name}: {what}")
            with self._database.transaction():
                self._check_required(topic, table, new)
                self._database.add_columns(table.name, new)
            table = self._look_again(topic)
        self._check_key(table, arranged.key, topic)
        return table

    def _check_required(self, topic: str, table: Table, new: Sequence[pa.Field]) -> None:
        """Raises ConfigError: rows that are there would have no value in a new column."""
        lacking = [f.name for f in new if not f.nullable and not self._database.default(f)]
        if lacking and self._database.query(self._database.first("1 AS one", table.name, 1)):
            raise ConfigError(
                f"connector {self._connector.name}: field {named(lacking[0])} of topic "
                f"{named(topic)} is required and has no default that {self._database.system} has "
                f"a literal for, and table {named(table.name)} has rows, which would have no value "
                "in the new column. Add the column yourself, give the field a default or make it "
                "optional"
            )

    def _possible(
        self, fields: list[pa.Field], table: Table | None, arranged: Layout, records: Records
    ) -> list[pa.Field]:
        """The fields that the table has or can get; nulls alone have no need of a column.

        Raises:
            RowsRejected: see :meth:`target`.
        """
        database, there = self._database, table.columns if table is not None else {}
        new = [f.name for f in fields if f.name not in there]
        refused = {n: why for n in new if (why := self._unusable(n))}
        most = database.most_columns
        if not refused and most is not None and len(there) + len(new) > most:
            room = max(0, most - len(there))
            where = f"does not fit into table {named(self.name(records.topic))}"
            why = f"{where}: {database.system} allows at most {most} columns"
            counts = sum((_given(arranged, name) for name in new), np.zeros(1, np.int64))
            wide = np.flatnonzero(counts > room)
            self._reject(records, {int(row): (new[room], why) for row in wide})
            refused = dict.fromkeys(new[room:], why)
        rows: dict[int, tuple[str, str]] = {}
        for name, why in sorted(refused.items()):
            for row in np.flatnonzero(_given(arranged, name)).tolist():
                rows.setdefault(row, (name, why))
        self._reject(records, rows)
        return [f for f in fields if f.name not in refused]

    def _unusable(self, name: str) -> str | None:
        """Why no column can have this name; None if one can."""
        if not name or "\0" in name:
            return "has a name that no column can have"
        return _too_long(type(self._database), name)

    def _reject(self, records: Records, rows: Mapping[int, tuple[str, str]]) -> None:
        if rows:
            raise RowsRejected(
                [
                    rejected(records.rows, row, f"field {named(name)} {why}")
                    for row, (name, why) in sorted(rows.items())
                ]
            )

    def _look_again(self, topic: str) -> Table:
        self._tables.pop(topic, None)
        table = self._find(topic)
        if table is None:
            raise self._missing(topic)
        return table

    def altered(self, topics: Collection[str]) -> bool:
        """Whether somebody has altered a table since it was looked up; looks again."""
        before = {topic: self._tables.get(topic) for topic in topics}
        self._tables.clear()
        return any(self._find(topic) != table for topic, table in before.items())

    def _missing(self, topic: str) -> ConfigError:
        return ConfigError(
            f"connector {self._connector.name}: table {named(self.name(topic))} for topic "
            f"{named(topic)} does not exist in {self._database.where}. Create it, or set "
            f"auto.create=true; table.name.format={self._config.table_name_format!r} names it"
        )

    def declared_key(self) -> list[str]:
        """The columns of the key, as far as the configuration names them."""
        if self._config.pk_mode == "kafka" and not self._config.pk_fields:
            return list(KAFKA_KEY)
        return list(self._config.key_columns)

    def _check_key(self, table: Table, key: list[str], topic: str) -> None:
        where = (
            f"connector {self._connector.name}: pk.fields={','.join(key)}: table "
            f"{named(table.name)}"
        )
        missing = [n for n in key if n not in table.columns]
        if missing and not self._config.evolves:
            raise ConfigError(
                f"{where} (topic {named(topic)}) has no column {named(missing[0])}; it has "
                f"{all_named(table.columns)}"
            )
        generated = [n for n in key if n in table.columns and table.columns[n].generated]
        if generated:
            raise ConfigError(f"{where} {self._database.generated(generated[0])}")
        self._database.check_key(table, key)
        if key and self._config.mode == "upsert" and frozenset(key) not in table.keys:
            unique_keys = "; ".join(", ".join(sorted(k)) for k in table.keys) or "none"
            raise ConfigError(
                f"connector {self._connector.name}: insert.mode=upsert needs a primary key or "
                f"unique index on ({', '.join(key)}) of table {named(table.name)}; its unique "
                f"keys: {unique_keys}. Add one, or set pk.fields to an existing one"
            )

    def _check_columns(self, topic: str, fields: Sequence[str], table: Table | None = None) -> None:
        """Raises ConfigError: the database treats two of these fields, or one of them and a column
        of another name, as one column."""
        if not self._database.one_in_any_case:
            return
        seen: dict[bytes, str] = {}
        for name in fields:
            other = seen.setdefault(in_one_case(name), name)
            if other != name:
                raise ConfigError(
                    f"connector {self._connector.name}: fields {named(other)} and {named(name)} of "
                    f"topic {named(topic)} are one column to {self._database.system}. Leave one "
                    "out with field.exclude.list"
                )
            twin = None if table is None else self._twin(table, name)
            if table is not None and twin is not None:
                raise ConfigError(
                    f"connector {self._connector.name}: "
                    f"{self._one_column(topic, name, table, twin)}"
                )

    def _twin(self, table: Table, name: str) -> str | None:
        return table.twin(name) if self._database.one_in_any_case else None

    def _column(self, table: Table, name: str) -> str:
        name = name.lower() if self._config.folds_names else name
        return column_in(table, name, self._config, self._database)

    def _one_column(self, topic: str, field: str, table: Table, column: str) -> str:
        return (
            f"field {named(field)} of topic {named(topic)} and column {named(column)} of table "
            f"{named(table.name)} are one column to {self._database.system}. Set "
            "quote.sql.identifiers=never, rename the field by ReplaceField in transforms, or leave "
            f"it out {EVOLVES_OR_EXCLUDES['leave']}"
        )


def _given(arranged: Layout, name: str) -> np.ndarray:
    """Which rows have a value in a column."""
    valid: np.ndarray = arranged.columns[name].is_valid().to_numpy()
    return valid


_LOOKED_AT = 1000
"""How many keys to look at: in such a table, all of them are JSON texts."""


def check_text_keys(database: SinkDatabase, table: Table, key: str, where: str) -> None:
    """Look at some keys, inside the open transaction: a sink without ``key.converter`` may have
    read keys as text when it wrote them.

    Raises:
        ConfigError: they are texts of JSON. Records read as JSON would have other keys.
    """
    column = table.columns.get(key)
    if column is None or not pa.types.is_string(column.arrow):
        return
    keys = database.query(database.first(quote(key), table.name, _LOOKED_AT))
    written = keys.column(0).cast(pa.string()).drop_null()
    if len(written) and all(_is_text_of_json(text) for text in written.to_pylist()):
        raise ConfigError(
            Problem(
                "key.converter",
                f"{where}: key.converter is not set, and table {named(table.name)} holds keys that "
                f"were written as text, such as {written[0].as_py()[:60]} in column {named(key)}. "
                "Read as JSON, the same records would get different keys. To keep these, set "
                "key.converter=org.apache.kafka.connect.storage.StringConverter; else correct the "
                "column, and set key.converter=org.apache.kafka.connect.json.JsonConverter",
            )
        )


def _is_text_of_json(text: str) -> bool:
    """Whether a key is a JSON string, object or array: a number is the same as text and as JSON."""
    try:
        return isinstance(json.loads(text), str | dict | list)
    except (ValueError, RecursionError):
        return False
