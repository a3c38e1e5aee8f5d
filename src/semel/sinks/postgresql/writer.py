"""Writing prepared rows into a table: COPY, or COPY into a temporary table and one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigError
from semel.records import KEY, OFFSET, PARTITION, TOPIC, Records, Rejected, RowsRejected
from semel.sinks.postgresql.config import PostgresConfig
from semel.sinks.postgresql.connection import Connection
from semel.sinks.postgresql.rows import cast_column, key_columns, last_of_each, rejected, unfit_rows
from semel.sinks.postgresql.tables import Table, quote

_KAFKA_KEY = (TOPIC, PARTITION, OFFSET)
# Not a record's own names for these: with provenance the rows have columns of those names.
_DELETE, _PLACE, _ORDER = "__semel_delete", "__semel_partition", "__semel_offset"


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns a topic's records have in the target, and which of them are the key."""

    columns: Mapping[str, pa.ChunkedArray]
    key: list[str]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A topic's rows and deletes in the exact types of their table.

    ``rows`` line up with ``records.rows``; :func:`write` reduces them by key first.
    """

    table: Table
    rows: pa.Table
    deletes: pa.Table | None
    key: list[str]
    records: Records

    def only_rows(self, start: int, length: int) -> Prepared:
        """Some of the rows and no deletes."""
        records = Records(self.records.topic, self.records.rows.slice(start, length))
        return Prepared(self.table, self.rows.slice(start, length), None, self.key, records)


def layout(
    config: PostgresConfig, provenance: Mapping[str, str], records: Records, *, deletes: bool
) -> Layout:
    """Lay out rows (or, with ``deletes``, tombstones) as columns of the target."""
    source: pa.Table = records.tombstones if deletes else records.rows
    fold = str.lower if config.folds_names else str
    columns: dict[str, pa.ChunkedArray] = {}
    key: list[str] = []
    if config.pk_mode == "record_key":
        _check_key(config, records.topic, source)
        for name, values in key_columns(source, config.pk_fields).items():
            columns[fold(name)] = values
        key = list(columns)
    elif config.pk_mode == "kafka":
        key = [fold(n) for n in (config.pk_fields or _KAFKA_KEY)]
        columns.update(zip(key, (source.column(n) for n in _KAFKA_KEY), strict=True))
    if not deletes:
        for name in source.column_names:
            if not name.startswith("__connect_") and config.takes(records.topic, name):
                columns.setdefault(fold(name), source.column(name))
        if config.pk_mode == "record_value":
            key = [fold(n) for n in config.pk_fields] or list(columns)
            _check_value_key(records.topic, key, columns)
        for metadata, name in provenance.items():
            columns[fold(name)] = source.column(metadata)
    return Layout(columns, key)


def _check_key(config: PostgresConfig, topic: str, source: pa.Table) -> None:
    keys = source.column(KEY)
    if pa.types.is_struct(keys.type):
        missing = [f for f in config.pk_fields if keys.type.get_field_index(f) < 0]
        if missing:
            raise ConfigError(
                f"pk.fields={','.join(config.pk_fields)}: keys of topic {topic} have no field "
                f"{missing[0]}; they have {', '.join(f.name for f in keys.type)}"
            )
    elif len(config.pk_fields) != 1:
        raise ConfigError(
            f"pk.mode=record_key: keys of topic {topic} are of type {keys.type}, so pk.fields must "
            f"name exactly one column; it is {','.join(config.pk_fields)!r}"
        )


def _check_value_key(topic: str, key: list[str], columns: Mapping[str, object]) -> None:
    missing = [n for n in key if n not in columns]
    if missing:
        raise ConfigError(
            f"pk.fields={','.join(key)}: values of topic {topic} have no field {missing[0]}; they "
            f"have {', '.join(columns)}"
        )


def prepare(config: PostgresConfig, table: Table, arranged: Layout, records: Records) -> Prepared:
    """Convert rows to the table's types.

    Raises:
        RowsRejected: rows that do not fit, with the column, the value's type and the reason.
    """
    problems: dict[int, str] = {}
    arrays: dict[str, pa.ChunkedArray] = {}
    for name, values in arranged.columns.items():
        column = table.columns[name]
        if column.generated or (column.has_default and values.null_count == len(values)):
            continue  # let the server fill it in
        if values.null_count and (column.not_null or name in arranged.key):
            what = "the key" if name in arranged.key else f"column {name} (NOT NULL)"
            for index in pc.indices_nonzero(values.is_null()).to_pylist():
                problems.setdefault(index, f"{what} is null")
        try:
            arrays[name] = cast_column(values, column.arrow)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            for index, reason in unfit_rows(values, column.arrow):
                shown = values[index].as_py()
                text = f"column {name} ({column.type}) cannot take {shown!r}: {reason}"
                problems.setdefault(index, text)
    if problems:
        raise RowsRejected(rejected(records, sorted(problems.items()), "DataException"))
    deletes = _deletes(config, table, records)
    return Prepared(table, pa.table(arrays), deletes, arranged.key, records)


def _deletes(config: PostgresConfig, table: Table, records: Records) -> pa.Table | None:
    if not config.delete_enabled or records.tombstones is None:
        return None
    arranged = layout(config, {}, records, deletes=True)
    nulls = [v for v in arranged.columns.values() if v.null_count]
    if nulls:
        tombstones = records.tombstones
        index = pc.indices_nonzero(nulls[0].is_null())[0].as_py()
        raise RowsRejected(
            [
                Rejected(
                    records.topic,
                    tombstones.column(PARTITION)[index].as_py(),
                    tombstones.column(OFFSET)[index].as_py(),
                    "DataException",
                    "a tombstone without a key deletes nothing",
                )
            ]
        )
    return pa.table(
        {n: cast_column(v, table.columns[n].arrow) for n, v in arranged.columns.items()}
    )


def _reduced(config: PostgresConfig, prepared: Prepared) -> tuple[pa.Table, pa.Table | None]:
    """Keep what is left of several changes of one key: the last one by offset.

    A row before a tombstone of its key is gone; a tombstone before a row of its key matters only
    to an insert, which must find the place empty.
    """
    rows, deletes, key = prepared.rows, prepared.deletes, prepared.key
    if deletes is not None and deletes.num_rows and rows.num_rows:
        rows, deletes = _interleave(config, prepared)
    if config.insert_mode != "insert" and rows.num_rows:
        rows = last_of_each(rows, key)
    return rows, deletes


def _interleave(config: PostgresConfig, prepared: Prepared) -> tuple[pa.Table, pa.Table]:
    records, key = prepared.records, prepared.key
    assert prepared.deletes is not None
    assert records.tombstones is not None
    order = [_PLACE, _ORDER]
    rows = prepared.rows
    changes = pa.concat_tables(
        [
            rows.select(key)
            .append_column(_PLACE, records.rows.column(PARTITION))
            .append_column(_ORDER, records.rows.column(OFFSET))
            .append_column(_DELETE, pa.repeat(pa.scalar(False), rows.num_rows)),
            prepared.deletes.select(key)
            .append_column(_PLACE, records.tombstones.column(PARTITION))
            .append_column(_ORDER, records.tombstones.column(OFFSET))
            .append_column(_DELETE, pa.repeat(pa.scalar(True), prepared.deletes.num_rows)),
        ]
    )
    last_delete = (
        changes.filter(changes.column(_DELETE))
        .group_by(key, use_threads=False)
        .aggregate([(_ORDER, "max")])
        .rename_columns([*key, _DELETE])
    )
    numbered = rows.append_column(_ORDER, records.rows.column(OFFSET)).append_column(
        _PLACE, records.rows.column(PARTITION)
    )
    joined = numbered.join(last_delete, keys=key, join_type="left outer", use_threads=False)
    alive = pc.or_kleene(
        joined.column(_DELETE).is_null(), pc.greater(joined.column(_ORDER), joined.column(_DELETE))
    )
    survivors = joined.filter(alive).sort_by([(n, "ascending") for n in order])
    deleted = last_delete.select(key)
    if config.insert_mode != "insert" and survivors.num_rows:
        # the last change of these keys is a row: no need to delete what is written over
        deleted = deleted.join(
            survivors.select(key), keys=key, join_type="left anti", use_threads=False
        )
    return survivors.select(rows.column_names), deleted


def write(connection: Connection, config: PostgresConfig, prepared: Prepared) -> None:
    """Write inside the open transaction; deletes first."""
    table = prepared.table
    rows, deletes = _reduced(config, prepared)
    if deletes is not None and deletes.num_rows:
        stage = _stage(connection, table, deletes)
        match = _match(table, prepared.key)
        connection.execute(f"DELETE FROM {table.name.quoted} AS t USING {stage} AS s WHERE {match}")
        connection.execute(f"TRUNCATE {stage}")
    if not rows.num_rows:
        return
    if config.insert_mode == "insert" and not any(
        table.columns[n].staged for n in rows.column_names
    ):
        connection.copy(table.name.table, rows, table.name.schema, temporary=False)
        return
    stage = _stage(connection, table, rows)
    connection.execute(_merge(config, table, rows.column_names, prepared.key, stage))


def _stage(connection: Connection, table: Table, rows: pa.Table) -> str:
    """COPY into a temporary table of the same columns; it empties itself at commit."""
    name = f"semel_stage_{abs(hash((str(table.name), tuple(rows.column_names)))):x}"
    columns = ", ".join(f"{quote(n)} {_stage_type(table, n)}" for n in rows.column_names)
    connection.execute(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {name} ({columns}) ON COMMIT DELETE ROWS"
    )
    connection.copy(name, rows, None, temporary=True)
    return name


def _stage_type(table: Table, name: str) -> str:
    column = table.columns[name]
    if not column.staged:
        return column.type
    if column.staged == "json":
        return "jsonb"
    return "numeric" if pa.types.is_decimal(column.arrow) else "text"


def _merge(
    config: PostgresConfig, table: Table, names: Sequence[str], key: list[str], stage: str
) -> str:
    target = table.name.quoted
    columns = ", ".join(map(quote, names))
    values = {n: table.columns[n].expression(f"s.{quote(n)}") for n in names}
    others = [n for n in names if n not in key]
    if config.insert_mode == "update":
        sets = ", ".join(f"{quote(n)} = {values[n]}" for n in others)
        return f"UPDATE {target} AS t SET {sets} FROM {stage} AS s WHERE {_match(table, key)}"
    insert = f"INSERT INTO {target} ({columns}) SELECT {', '.join(values.values())} FROM {stage} s"
    if config.insert_mode == "insert":
        return insert
    sets = ", ".join(f"{quote(n)} = EXCLUDED.{quote(n)}" for n in others)
    action = f"UPDATE SET {sets}" if others else "NOTHING"
    return f"{insert} ON CONFLICT ({', '.join(map(quote, key))}) DO {action}"


def _match(table: Table, key: Sequence[str]) -> str:
    return " AND ".join(
        f"t.{quote(n)} = {table.columns[n].expression(f's.{quote(n)}')}" for n in key
    )
