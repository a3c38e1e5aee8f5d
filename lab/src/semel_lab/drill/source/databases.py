"""A drill's databases that are files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from semel.core.errors import ServiceError
from semel_lab.drill.plan import Kind
from semel_lab.drill.processes import PATIENCE
from semel_lab.drill.source.system import OF_ANY

Run = Callable[[str], Sequence[Any]]
"""Runs a statement in a transaction of its own, and returns the rows of a SELECT."""

_FREEZES = frozenset({Kind.ZOMBIE, Kind.REPLACED_ZOMBIE, Kind.TIME_OUT})
"""A process that is frozen while it reads keeps the file locked, and nobody else can write it."""


def _sqlite(path: Path) -> tuple[Run, frozenset[Kind]]:
    """In write-ahead mode, in which readers and the writer do not wait for each other."""
    from adbc_driver_manager import Error
    from adbc_driver_sqlite import dbapi

    connection = dbapi.connect(str(path), autocommit=True)
    for pragma in ("journal_mode = WAL", f"busy_timeout = {int(PATIENCE * 1000)}"):
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA {pragma}")
            cursor.fetchall()

    def run(sql: str) -> Sequence[Any]:
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall() if sql.startswith("SELECT") else []
        except Error as failure:
            raise ServiceError(f"SQLite: {failure}") from None

    return run, OF_ANY


def _duckdb(path: Path) -> tuple[Run, frozenset[Kind]]:
    import duckdb

    def run(sql: str) -> Sequence[Any]:
        try:
            with duckdb.connect(str(path)) as connection:
                return connection.execute(sql).fetchall()
        except duckdb.Error as failure:
            raise ServiceError(f"DuckDB: {failure}") from None

    run("SELECT 1")  # makes the file, which the source expects to be there
    return run, OF_ANY - _FREEZES


FILES: Mapping[str, Callable[[Path], tuple[Run, frozenset[Kind]]]] = {
    "duckdb": _duckdb,
    "sqlite": _sqlite,
}
"""URL scheme -> what runs statements, and the faults that can hit a reader."""
