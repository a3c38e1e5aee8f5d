"""The sink for DuckDB: Arrow goes in without a copy."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.json import duck
from semel.core.records import one_array
from semel.databases.columns import Column
from semel.databases.duckdb import Duckdb, confined
from semel.databases.files import normalized
from semel.databases.names import Name, listed
from semel.sinks.sql.config import DuckdbConfig
from semel.sinks.sql.convert import ConvertedValues
from semel.sinks.sql.database import STAGE, Dialect, same
from semel.sinks.sql.sink import SqlSink

_NATIVE = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    *("BOOLEAN", "FLOAT", "DOUBLE", "VARCHAR", "BLOB", "DATE", "TIME"),
    *("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"),
}
"""Types whose values the audit reads as they are; others as text."""
_COPIED = 16 * 1024 * 1024


class DuckdbDialect(Dialect, Duckdb):
    """See :class:`~semel.sinks.sql.database.Dialect`."""

    @contextmanager
    def instant(self) -> Iterator[None]:
        """Read a copy of the file: while the file itself is open, nobody else can write into it."""
        with tempfile.TemporaryDirectory(prefix="semel-audit-") as directory, self.translating():
            copy = Path(directory, "copy")
            # Closing a file releases all locks that the process has on it, DuckDB's among them.
            with ExitStack() as opened, self.transaction(reading=True):
                for suffix in ("", ".wal"):
                    with suppress(FileNotFoundError):
                        path = self._path.with_name(self._path.name + suffix)
                        source = opened.enter_context(path.open("rb"))
                        with copy.with_name(copy.name + suffix).open("wb") as target:
                            shutil.copyfileobj(source, target, _COPIED)
            self._connection = confined(copy)
            try:
                yield
            finally:
                self._leave()

    def shown(self, column: Column, value: str) -> str | None:
        return value if column.type in _NATIVE else f"({value})::VARCHAR"

    def insert(self, target: Name, rows: pa.Table) -> None:
        names = listed(rows.column_names)
        with self.staged(target, rows) as stage:
            self.execute(f"INSERT INTO {target.quoted} ({names}) SELECT {names} FROM {stage}")

    @contextmanager
    def staged(self, _target: Name, rows: pa.Table) -> Iterator[str]:
        self._session.register(STAGE, rows)
        yield STAGE
        self._session.unregister(STAGE)

    def delete(self, target: Name, keys: pa.Table) -> None:
        with self.staged(target, keys) as stage:
            self.execute(
                f"DELETE FROM {target.quoted} AS t USING {stage} AS s "
                f"WHERE {same(keys.column_names)}"
            )

    def fit(self, values: pa.ChunkedArray, column: Column) -> ConvertedValues:
        converted = super().fit(values, column)
        if column.type == "UUID" and converted.values.null_count < len(values):
            return ConvertedValues(_uuids(converted.values), False)
        cut = r"[.][0-9]{7}"
        if column.type == "INTERVAL" and pc.any(pc.match_substring_regex(values, cut)).as_py():
            raise pa.ArrowInvalid("it has digits finer than a microsecond")
        return converted


def _uuids(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """UUIDs as DuckDB writes them, so that equal ones are equal texts."""
    try:
        return pa.chunked_array([duck.uuid_texts(one_array(text))])
    except duck.errors():
        raise pa.ArrowInvalid("it is not a UUID") from None


class DuckdbSink(SqlSink):
    """Rows and positions in one transaction of a DuckDB file."""

    section = DuckdbConfig
    database_class = DuckdbDialect
    local = True

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        return normalized(raw, "duckdb")
