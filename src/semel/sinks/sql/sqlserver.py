"""The sink for SQL Server: bulk loads into a temporary table, and one statement from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.compute as pc

from semel.core.quoting import named
from semel.databases.columns import Column, Table
from semel.databases.errors import DataRefused
from semel.databases.names import Name, listed, quote
from semel.databases.sqlserver import SqlServer
from semel.databases.sqlserver.types import declared, equal, sent_type, shown, unfit
from semel.sinks.casts import UUID, check_text
from semel.sinks.rereading import NotShown
from semel.sinks.sql.config import SqlServerConfig
from semel.sinks.sql.convert import ConvertedValues
from semel.sinks.sql.database import KEPT, STAGE, Dialect, no_rows
from semel.sinks.sql.sink import SqlSink

_STAGE, _KEPT = f"#{STAGE}", f"#{KEPT}"
_NUMBER = "semel row number"


class SqlServerDialect(Dialect, SqlServer):
    """See :class:`~semel.sinks.sql.database.Dialect`."""

    now = "SYSUTCDATETIME()"
    compares_bytes = False
    kept_order = quote(_NUMBER)
    reads_only = True

    def rows_of(self, target: Table, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        query = f"SELECT {listed(names)} FROM {target.name.quoted}"
        return self._client.stream(query, target.schema_of(names))

    def insert(self, target: Name, rows: pa.Table) -> None:
        with self.staged(target, rows) as stage, self._identities(target, rows):
            names = listed(rows.column_names)
            self.execute(f"INSERT INTO {target.quoted} ({names}) SELECT {names} FROM {stage}")

    def upsert(self, target: Table, rows: pa.Table, key: Sequence[str]) -> None:
        # Not MERGE: it would need HOLDLOCK, whose range locks cause deadlocks. A writer that
        # inserts a key at the same time is refused by the index, and retries.
        name, names = target.name, rows.column_names
        with self.staged(name, rows) as stage, self._identities(name, rows):
            self._update(name, names, key, stage)
            self.execute(
                f"INSERT INTO {name.quoted} ({listed(names)}) "
                f"SELECT {listed(names)} FROM {stage} AS s WHERE NOT EXISTS "
                f"(SELECT 1 FROM {name.quoted} AS t WHERE {self._same(name, key)})"
            )

    def update(self, target: Table, rows: pa.Table, key: Sequence[str]) -> None:
        with self.staged(target.name, rows) as stage:
            self._update(target.name, rows.column_names, key, stage)

    def _update(self, target: Name, names: Sequence[str], key: Sequence[str], stage: str) -> None:
        columns = self._columns[target]
        sets = [
            f"{quote(n)} = s.{quote(n)}"
            for n in names
            if n not in key and not columns[n]["is_identity"]  # which cannot be updated
        ]
        if sets:
            self.execute(
                f"UPDATE t SET {', '.join(sets)} FROM {target.quoted} AS t "
                f"JOIN {stage} AS s ON {self._same(target, key)}"
            )

    def delete(self, target: Name, keys: pa.Table) -> None:
        with self.staged(target, keys) as stage:
            self.execute(
                f"DELETE t FROM {target.quoted} AS t "
                f"JOIN {stage} AS s ON {self._same(target, keys.column_names)}"
            )

    def _same(self, target: Name, key: Sequence[str]) -> str:
        columns = self._columns[target]
        return " AND ".join(equal(columns[n], f"t.{quote(n)}", f"s.{quote(n)}") for n in key)

    @contextmanager
    def staged(self, target: Name, rows: pa.Table) -> Iterator[str]:
        """Rows in a temporary table, all of which fit into the target's columns."""
        fields = ", ".join(f"{quote(f.name)} {sent_type(f.type)} NULL" for f in rows.schema)
        self.execute(f"CREATE TABLE {_STAGE} ({fields})")
        self._client.load(_STAGE, rows)
        self._check(target, rows.column_names)
        yield _STAGE
        self.execute(f"DROP TABLE {_STAGE}")

    def _check(self, target: Name, names: Sequence[str]) -> None:
        """Raises DataRefused for values that SQL Server would silently truncate or change."""
        columns = self._columns[target]
        conditions = [(n, unfit(columns[n], quote(n))) for n in names if n in columns]
        counts = [f"COUNT(CASE WHEN {c} THEN 1 END) AS {quote(n)}" for n, c in conditions if c]
        if not counts:
            return
        (totals,) = self.query(f"SELECT {', '.join(counts)} FROM {_STAGE}").to_pylist()
        for name in (n for n, count in totals.items() if count):
            raise DataRefused(
                f"{self.where}: column {named(name)} ({declared(columns[name])}) of {target} would "
                "cut or replace a value"
            )

    @contextmanager
    def _identities(self, target: Name, rows: pa.Table) -> Iterator[None]:
        """Let rows bring the values of an IDENTITY column."""
        if not any(self._columns[target][n]["is_identity"] for n in rows.column_names):
            yield
            return
        self.execute(f"SET IDENTITY_INSERT {target.quoted} ON")
        try:
            yield
        except BaseException:
            with suppress(Exception):  # it belongs to the session, for one table at a time
                self.execute(f"SET IDENTITY_INSERT {target.quoted} OFF")
            raise
        self.execute(f"SET IDENTITY_INSERT {target.quoted} OFF")

    def fit(self, values: pa.ChunkedArray, column: Column) -> ConvertedValues:
        converted = super().fit(values, column)
        if column.type == "uniqueidentifier":
            return ConvertedValues(_identifiers(converted.values), False)
        return converted

    # For the audit

    @contextmanager
    def instant(self) -> Iterator[None]:
        with self.transaction(reading=True):
            if not self.keeps_versions:
                raise NotShown(
                    f"{self.where} keeps no versions of rows, so the audit would hold up the "
                    "connector. Run ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON"
                )
            yield

    def shown(self, column: Column, value: str) -> str | None:
        return shown(column, value)

    @contextmanager
    def kept_rows(self, target: Name, rows: pa.Table) -> Iterator[str]:
        if target not in self._columns:
            self.find(target)
        names = listed(rows.column_names)
        numbered = rows.append_column(_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
        self.execute(no_rows(target, rows.column_names, f" INTO {_KEPT}"))
        self.execute(f"ALTER TABLE {_KEPT} ADD {self.kept_order} bigint")
        with self.staged(target, numbered) as stage:
            self.execute(
                f"INSERT INTO {_KEPT} ({names}, {self.kept_order}) "
                f"SELECT {names}, {self.kept_order} FROM {stage}"
            )
        yield _KEPT
        self.execute(f"DROP TABLE {_KEPT}")

    def locking_query(self, names: Sequence[str], target: Name, where: str) -> str:
        # An update that changes nothing: Microsoft's server would accept a SELECT WITH (UPDLOCK),
        # but Babelfish ignores lock hints. The update's OUTPUT would show rows as they were before
        # it waited, so they are read by the next statement.
        still = quote(names[-1])
        return (
            f"UPDATE {target.quoted} WITH (ROWLOCK) SET {still} = {still} WHERE {where}; "
            f"SELECT {listed(names)} FROM {target.quoted} WHERE {where}"
        )


def _identifiers(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """UUIDs as SQL Server writes them, so that equal ones are equal texts. What follows one in a
    text it would cut off."""
    bare = pc.replace_substring_regex(text, r"^\{(.{36})\}$", r"\1")
    check_text(bare, UUID, "a UUID")
    return pc.ascii_upper(bare)


class SqlServerSink(SqlSink):
    """Rows and positions in one transaction of a SQL Server database."""

    section = SqlServerConfig
    database_class = SqlServerDialect
