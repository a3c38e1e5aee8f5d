"""What people write where an operator wants a value: text, expressions of PyArrow, or functions.

Text is an expression of SQL, which DuckDB evaluates for all records at once. DuckDB rather than
PyArrow, because PyArrow has no text for its expressions, because people know SQL, and because a
database that is closed to files, extensions and settings (:func:`semel.transforms.sql.database`)
may be given text from outside. Whatever would not give the same value again, such as ``now()`` or
``random()``, is refused.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from semel.core.errors import ConfigError, SemelError
from semel.core.quoting import named
from semel.streams.codec import column, objects
from semel.streams.records import Records, whole
from semel.transforms.sql import check_select, database, syntax, typed

Expression: TypeAlias = str | Mapping[str, Any] | Callable[..., Any] | Any
"""An expression of SQL, or of PyArrow; columns of a struct by their names, each an expression; a
function of a record, or of records (:class:`arrow`)."""
Compiled = Callable[[Records], pa.Array]

_NOW = re.compile(
    r"(current|local)_?(date|time|timestamp|user|role|catalog|schema)|(session_)?user", re.I
)
_UNSTABLE = re.compile(r"\b(current_|now\(|today\(|random|uuid|get_current|nextval|getvariable)")
_OPERATORS = frozenset({"list_value", "struct_pack", "row", "case", "coalesce"})


@dataclass(frozen=True)
class arrow:
    """Marks a function of Arrow batches: it gets :class:`~semel.streams.Records`, and returns a
    value for each."""

    function: Callable[[Records], pa.Array]


def compiled(expression: Expression, what: str) -> Compiled:
    """A function that evaluates an expression for all records. ``what`` names it in errors.

    Raises:
        ConfigError: it is no expression, or may differ from one time to the next.
    """
    if isinstance(expression, str):
        return _sql({"": expression}, what)
    if isinstance(expression, pc.Expression):
        return lambda records: _of_arrow(expression, records)
    if isinstance(expression, arrow):
        return lambda records: whole(expression.function(records))
    if isinstance(expression, Mapping):
        return _struct(expression, what)
    if callable(expression):
        return _each(expression)
    raise ConfigError(f"{what}: {named(str(expression))} is neither text nor a function")


def _struct(columns: Mapping[str, Expression], what: str) -> Compiled:
    texts = {name: e for name, e in columns.items() if isinstance(e, str)}
    others = {n: compiled(e, f"{what}.{n}") for n, e in columns.items() if n not in texts}
    together = _sql(texts, what) if texts else None

    def run(records: Records) -> pa.Array:
        arrays = {name: evaluate(records) for name, evaluate in others.items()}
        if together is not None:
            struct = together(records)
            arrays |= zip(texts, struct.flatten(), strict=True)
        return pa.StructArray.from_arrays([arrays[name] for name in columns], names=list(columns))

    return run


def takes_key(function: Callable[..., Any], others: int = 1) -> bool:
    """Whether a function wants the key before the values."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([p for p in parameters if p.kind in places and p.default is p.empty]) > others


def _each(function: Callable[..., Any]) -> Compiled:
    wants_key = takes_key(function)

    def run(records: Records) -> pa.Array:
        values = objects(records.values)
        if not wants_key:
            return column(list(map(function, values)))
        return column(list(map(function, objects(records.keys), values)))

    return run


def _columns(records: Records) -> dict[str, pa.Array]:
    columns = {"key": records.keys, "value": records.values, "timestamp": records.times}
    if pa.types.is_struct(records.values.type):
        names = [f.name for f in records.values.type]
        columns |= zip(names, records.values.flatten(), strict=True)
    return columns


def _of_arrow(expression: pc.Expression, records: Records) -> pa.Array:
    table = pa.table(_columns(records))
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([expression], [""])),
        ]
    )
    return whole(plan.to_table(use_threads=False).column(0).combine_chunks())


_LOCAL = threading.local()


def _database() -> duckdb.DuckDBPyConnection:
    if not hasattr(_LOCAL, "database"):
        _LOCAL.database = database()
    connection: duckdb.DuckDBPyConnection = _LOCAL.database
    return connection


@cache
def _unstable() -> Mapping[str, bool]:
    """The functions of one record, and whether they may differ from one time to the next."""
    rows = _database().execute(
        "SELECT function_name, function_type, stability, macro_definition FROM duckdb_functions() "
        "WHERE function_type IN ('scalar', 'macro')"
    )
    unstable: dict[str, bool] = {}
    for name, kind, stability, text in rows.fetchall():
        changes = _UNSTABLE.search(text or "") if kind == "macro" else stability != "CONSISTENT"
        unstable[name] = unstable.get(name, False) or bool(changes)
    return unstable


def _check(query: str, text: str, what: str) -> list[Sequence[str]]:
    """The names of all columns that an expression reads, with those of fields in them. Raises
    ConfigError."""
    subject = f"{what}: {named(text)}"
    if not text.strip():
        raise ConfigError(f"{what}: an expression is empty")
    try:
        check_select(query)
    except ValueError as error:
        raise ConfigError(f"{subject} {error}") from None
    columns: list[Sequence[str]] = []
    nodes = syntax(_database(), query)
    if [len(node["select_list"]) for node in nodes if "select_list" in node] != [1]:
        raise ConfigError(f"{subject} must be one expression about one record")
    for node in nodes:
        kind = node.get("class")
        if kind == "COLUMN_REF":
            first, *inside = node["column_names"]
            columns.append((first, *inside))
            if not inside and _NOW.fullmatch(first):
                raise ConfigError(
                    f"{subject} reads {first}, which differs from one time to the next"
                )
        elif kind in ("SUBQUERY", "WINDOW", "STAR", "PARAMETER"):
            raise ConfigError(f"{subject} has a {kind.lower()}: it must be about one record")
        elif kind == "FUNCTION":
            _check_function(node, subject)
    return columns


def _check_function(node: Mapping[str, Any], subject: str) -> None:
    name = node["function_name"].lower()
    functions = _unstable()
    if name in functions and (functions[name] or (name == "age" and len(_given(node)) == 1)):
        raise ConfigError(
            f"{subject} calls {name}(), which differs from one time to the next: after a crash, a "
            "batch must give the same results again"
        )
    if name not in functions and name not in _OPERATORS:
        raise ConfigError(f"{subject} calls {name}(), which is no function of one record")


def _given(node: Mapping[str, Any]) -> list[Any]:
    return next(part for part in node.values() if isinstance(part, list))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _with_fields(array: pa.Array, names: Collection[str]) -> pa.Array:
    """A struct with all these fields, as far as it is one: null where no record has them."""
    if not names or not (pa.types.is_struct(array.type) or pa.types.is_null(array.type)):
        return array
    fields: dict[str, pa.Array] = {}
    if pa.types.is_struct(array.type):
        fields = dict(zip([f.name for f in array.type], array.flatten(), strict=True))
    missing = set(names) - {name for n in fields for name in (n, n.lower())}
    if not missing:
        return array
    fields |= {name: pa.nulls(len(array)) for name in sorted(missing)}
    return pa.StructArray.from_arrays(
        list(fields.values()), names=list(fields), mask=array.is_null()
    )


_PLAIN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")


def _sql(texts: Mapping[str, str], what: str) -> Compiled:
    """Compile expressions of SQL: several give a struct. Names alone need no database."""
    wanted: dict[str, set[str]] = {}
    plain: dict[str, Sequence[str]] = {}
    for name, text in texts.items():
        # The line break ends a comment.
        read = _check(f"SELECT ({text}\n) FROM records", text, what)
        if _PLAIN.fullmatch(text.strip()) and [".".join(path) for path in read] == [text.strip()]:
            plain[name] = read[0]
            continue
        for first, *inside in read:
            wanted.setdefault(first, set()).update(inside[:1])
    others = {name: text for name, text in texts.items() if name not in plain}
    chosen = ", ".join(f"({text}\n) AS {_quoted(name or 'made')}" for name, text in others.items())
    query = f"SELECT {chosen} FROM records"

    def run(records: Records) -> pa.Array:
        arrays = {name.lower(): (name, array) for name, array in _columns(records).items()}

        def column_of(name: str, fields: Collection[str] = ()) -> tuple[str, pa.Array]:
            actual, array = arrays.get(name.lower(), (name, pa.nulls(len(records))))
            return actual, _with_fields(array, fields)

        results = {
            name: _inside(column_of(path[0], path[1:])[1], path[1:], what)
            for name, path in plain.items()
        }
        if others and not len(records):
            results |= dict.fromkeys(others, pa.nulls(0))
        elif others:
            columns = dict(column_of(name, fields) for name, fields in sorted(wanted.items()))
            columns["__semel_row"] = pa.array(np.arange(len(records)))
            try:
                table = typed(_database().from_arrow(pa.table(columns)).query("records", query))
            except duckdb.Error as error:
                why = str(error).partition("\n\nLINE ")[0].replace("\n", " ").strip()
                raise SemelError(f"{what}: {why}") from None
            results |= zip(others, map(whole, table.combine_chunks().columns), strict=True)
        if list(texts) == [""]:
            return results[""]
        return pa.StructArray.from_arrays([results[name] for name in texts], names=list(texts))

    return run


def _inside(array: pa.Array, path: Sequence[str], what: str) -> pa.Array:
    """A field of a struct, or the array itself."""
    for name in path:
        if not pa.types.is_struct(array.type):
            raise SemelError(f"{what}: {array.type} has no field {named(name)}")
        names = [f.name for f in array.type]
        exact = name if name in names else next(n for n in names if n.lower() == name.lower())
        array = array.flatten()[names.index(exact)]
    return array
