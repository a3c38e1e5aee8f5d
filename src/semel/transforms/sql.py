"""``type=sql``: a query of DuckDB as a transform."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.converters.json.columns import JSON
from semel.core.errors import misconfigured
from semel.core.quoting import named
from semel.core.records import KEY, OFFSET, PARTITION, TIMESTAMP, TOPIC, one_array
from semel.transforms.base import Batch, Contents, Refused, Transform, bisected, reasons, valid
from semel.transforms.structs import columns

if typing.TYPE_CHECKING:
    import duckdb

RECORDS = "records"
_TABLE, _ROW, _VALUE = "__semel_batch", "__semel_row", "value"
_NOT_ARROWS = frozenset(
    {
        *("bignum", "bit", "geometry", "interval", "time with time zone"),
        *("uhugeint", "union", "variant"),
    }
)
_NESTED = frozenset({"array", "list", "map", "struct"})
_MOST = 10**38 - 1
_LONGEST, _SIGNS = 100_000, 1_000
"""How many characters a query may have, and how many of them may be brackets and signs: DuckDB's
parser takes time and memory by the square of how deep they nest, and cannot be ended."""
_LIMITS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,  # a Spark task has one core
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,
}


def check_select(query: str) -> None:
    """Raises ValueError: this is not one SELECT, or it is too large to be parsed."""
    import duckdb

    if len(query) > _LONGEST or _signs(query) > _SIGNS:
        raise ValueError(
            f"is too large: it may have {_LONGEST:,} characters, and {_SIGNS:,} brackets and signs"
        )
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise ValueError(f"is not SQL: {_message(error)}") from None
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ValueError("must be one SELECT")


def _checked(query: str) -> None:
    check_select(query)
    if RECORDS not in query.lower():
        raise ValueError(f"must select from {RECORDS}")


def _signs(query: str) -> int:
    """How many brackets and signs there are outside of texts and comments."""
    import duckdb

    written = query.encode(errors="replace")
    lexed = duckdb.tokenize(query)
    ends = [start for start, _ in lexed[1:]] + [len(written)]
    tokens = zip(lexed, ends, strict=True)
    code = [written[at:end] for (at, kind), end in tokens if kind == duckdb.token_type.operator]
    return len(re.findall(rb"[(\[{~!@+-]", b"".join(code)))


@dataclass(frozen=True)
class SqlConfig:
    """The keys of a query."""

    query: str = key(
        "query",
        doc="A SELECT from records, whose columns are the fields of the value. It sees one record "
        "at a time.",
        validator=_checked,
    )


class Sql(Transform):
    """Runs a query for each record, all records of a batch at once: the query is a lateral join
    with the table of the batch. So aggregates and windows also see a single record, and each row
    belongs to exactly one record.

    Tombstones pass as they are. A field that no record of a batch has is null, unless records come
    with schemas.
    """

    section = SqlConfig
    fills_fields = True

    def __init__(self, config: SqlConfig) -> None:
        super().__init__(config)
        self._query = config.query.strip().rstrip(";")

    @property
    def needs_key(self) -> bool:
        return KEY in self._query

    @property
    def needs_timestamp(self) -> bool:
        return TIMESTAMP in self._query

    @property
    def changes_key(self) -> bool:
        return self.needs_key

    def apply(self, batch: Batch) -> Batch:
        there = valid(batch.values.array)
        present = np.flatnonzero(there)
        if not len(present):
            return batch
        table, missing = self._records(batch)
        result = bisected(self._run, table.take(pa.array(present)))
        rows = np.asarray(result.column(_ROW))
        repeated = np.unique(rows[:-1][np.diff(rows) == 0])
        if len(repeated):
            raise Refused(reasons(repeated, "the query returns several rows for this record"))
        return self._result(batch, result, rows, np.flatnonzero(~there), missing)

    def _records(self, batch: Batch) -> tuple[pa.Table, set[str]]:
        """The table that ``records`` is made of, and the columns in it that no record has."""
        values = batch.values
        arrays: dict[str, pa.Array] = {_VALUE: values.array}
        if values.is_struct:
            arrays = {name: c.array for name, c in columns(values.array).items()}
        folded: dict[str, str] = {}
        for name in arrays:
            other = folded.setdefault(name.lower(), name)
            if other != name:
                both = f"the fields {named(other)} and {named(name)}"
                why = f"{both} differ only in case, which SQL ignores"
                raise Refused(reasons(np.arange(len(batch)), why))
        missing = {n for n in self._columns if n.lower() not in folded and not n.startswith("__")}
        if missing and values.has_schema:
            why = f"the query reads {named(min(missing))}, which is not a field of the value"
            raise Refused(reasons(np.arange(len(batch)), why))
        arrays |= {name: pa.nulls(len(batch)) for name in missing}
        places = {KEY: batch.keys.array, TIMESTAMP: batch.timestamps, PARTITION: batch.partitions}
        places |= {OFFSET: batch.offsets, TOPIC: batch.topics}
        arrays |= {n: a for n, a in places.items() if n in self._query and a is not None}
        return pa.table({_ROW: np.arange(len(batch)), **arrays}), missing

    @cached_property
    def _columns(self) -> set[str]:
        """The columns that the query reads from ``records``, as far as its text says."""
        nodes = syntax(self._database, self._query)
        names = {str(node["alias"]).lower() for node in nodes if node.get("alias")}
        tables = names | {RECORDS}
        references = set()
        for node in nodes:
            if node.get("class") == "COLUMN_REF":
                first, *others = node["column_names"]
                references.add(others[0] if others and first.lower() in tables else first)
        return {name for name in references if name.lower() not in names}

    @cached_property
    def _database(self) -> duckdb.DuckDBPyConnection:
        return database()

    def _run(self, table: pa.Table) -> pa.Table:
        import duckdb

        try:
            return self._rows(table)
        except duckdb.CatalogException as error:
            raise misconfigured("query", f"query: {_message(error)}") from None
        except duckdb.Error as error:
            raise Refused({0: _message(error)}, f"duckdb.{type(error).__name__}") from None

    def _rows(self, table: pa.Table) -> pa.Table:
        names = [name for name in table.column_names if name != _ROW]
        selected = ", ".join(f"b.{_quoted(name)} AS {_quoted(name)}" for name in names)
        text = (
            f"SELECT b.{_ROW}, q.* FROM {_TABLE} b, LATERAL (WITH {RECORDS} AS (SELECT {selected}) "
            f"SELECT * FROM ({self._query}\n)) q ORDER BY b.{_ROW}"  # it may end with a comment
        )
        relation: Any = self._database.from_arrow(table).query(_TABLE, text)
        return typed(relation)

    def _result(
        self, batch: Batch, table: pa.Table, rows: np.ndarray, gone: np.ndarray, missing: set[str]
    ) -> Batch:
        old_fields = columns(batch.values.array) if batch.values.is_struct else {}
        fields, arrays = [], []
        for name, column in zip(table.column_names[1:], table.columns[1:], strict=True):
            absent = name in missing and pa.types.is_null(column.type)
            if absent or name in (KEY, TIMESTAMP, PARTITION, OFFSET, TOPIC):
                continue
            old = old_fields.get(name)
            same = old is not None and old.type == column.type
            fields.append(
                old.field.with_nullable(True) if old and same else pa.field(name, column.type)
            )
            arrays.append(one_array(column))
        kind = pa.struct(fields)
        values = (
            pa.StructArray.from_arrays(arrays, fields=fields)
            if arrays
            else pa.array([{}] * len(rows), kind)
        )
        all_rows = np.concatenate([rows, gone])
        order = np.argsort(all_rows, kind="stable")
        taken = batch.take(all_rows[order].astype(np.int64))
        values = pa.concat_arrays([values, pa.nulls(len(gone), kind)]).take(pa.array(order))
        if KEY in table.column_names:
            keys = one_array(table.column(KEY))
            old_keys = batch.keys.array.take(pa.array(gone))
            if len(gone) and not pc.all(old_keys.is_null(), min_count=0).as_py():
                keys = pa.concat_arrays([keys, old_keys.cast(keys.type)])
            else:
                keys = pa.concat_arrays([keys, pa.nulls(len(gone), keys.type)])
            taken = replace(taken, keys=Contents(keys.take(pa.array(order)), taken.keys.has_schema))
        return replace(taken, values=Contents(values, taken.values.has_schema))


def database() -> duckdb.DuckDBPyConnection:
    """A database for queries from outside: it reads no files and loads no extensions."""
    import duckdb

    connection = duckdb.connect(config=_LIMITS)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


def syntax(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    """The nodes of a query's syntax tree."""
    rows = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    return list(_nodes(json.loads(rows[0][0])))


def typed(relation: Any) -> pa.Table:
    """The result of a query, in the types that semel uses. Raises ConfigError: records have no
    such type."""
    for name, kind in zip(relation.columns, relation.types, strict=True):
        _check_type(name, kind)
    table = relation.to_arrow_table()
    columns = map(_with_type, table.columns, map(str, relation.types))
    return pa.table([*columns], names=table.column_names)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a syntax tree."""
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from _nodes(branch)


def _check_type(name: str, kind: Any) -> None:
    """Raises ConfigError: Arrow has no such type, and DuckDB would give something else."""
    if kind.id in _NOT_ARROWS:
        raise misconfigured(
            "query",
            f"query: column {named(name)} has the type {kind}, which records do not have. Convert "
            "it, for example to VARCHAR",
        )
    if kind.id in _NESTED:
        for _, inner in kind.children:
            if not isinstance(inner, int):  # the length of an array
                _check_type(name, inner)


def _check_digits(column: pa.ChunkedArray) -> None:
    import duckdb

    extremes = pc.min_max(column)
    if (
        extremes["min"].is_valid
        and not -_MOST <= extremes["min"].as_py() <= extremes["max"].as_py() <= _MOST
    ):
        raise duckdb.OutOfRangeException("Out of Range Error: a number of more than 38 digits")


def _with_type(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """A DuckDB column in the type that semel uses for it."""
    if kind == "JSON":
        storage = one_array(column.cast(JSON.storage_type))
        return pa.chunked_array([pa.ExtensionArray.from_storage(JSON, storage)])
    if kind == "HUGEINT":
        _check_digits(column)
    if pa.types.is_timestamp(column.type) and column.type.tz:
        return column.cast(pa.timestamp(column.type.unit, "UTC"))
    return column


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _message(error: Exception) -> str:
    """The message of DuckDB without the query."""
    return str(error).partition("\n\nLINE ")[0].replace("\n", " ").strip()
