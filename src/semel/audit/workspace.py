"""A DuckDB session that compares any number of rows on disk, in bounded memory."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from semel.sinks.rereading import canonical

_MEMORY = "1GB"
_PART = 64 * 1024 * 1024
"""The size in bytes from which rows are written to a file."""


class Workspace:
    """A DuckDB session that spills into a directory, which :meth:`close` removes."""

    def __init__(self) -> None:
        import duckdb

        self._directory = tempfile.TemporaryDirectory(prefix="semel-audit-")
        self.path = Path(self._directory.name)
        self.session = duckdb.connect(
            config={
                "memory_limit": _MEMORY,
                "temp_directory": str(self.path / "spilled"),
                "threads": min(4, os.cpu_count() or 1),
                "preserve_insertion_order": False,
            }
        )
        self.session.execute("SET enable_progress_bar = false")  # it would be part of the output
        self._made = 0

    def parts(self) -> Parts:
        self._made += 1
        return Parts(self.path / f"part{self._made}", self)

    def execute(self, sql: str) -> None:
        self.session.execute(sql)

    def query(self, sql: str) -> pa.Table:
        """All rows of a query."""
        return self.session.sql(sql).to_arrow_table()

    @contextmanager
    def named(self, name: str, table: pa.Table) -> Iterator[None]:
        """Let queries inside the context read a table by name."""
        self.session.register(name, table)
        try:
            yield
        finally:
            self.session.unregister(name)

    def close(self) -> None:
        self.session.close()
        self._directory.cleanup()

    def hashed(self, table: pa.Table, kept: Sequence[str], optional: Collection[str]) -> pa.Table:
        """The columns ``kept`` unchanged, and the hashes of all other columns' values. A null in an
        ``optional`` column is not judged."""
        relation = self.session.from_arrow(plain(table))
        chosen = [quoted(folded(n)) for n in kept]
        chosen += [
            f"{hash_of(folded(n), 'NULL' if n in optional else '0')} AS {quoted(folded(n))}"
            for n in table.column_names
            if n not in kept
        ]
        return relation.project(", ".join(chosen)).to_arrow_table()


class Parts:
    """Rows that are written to files as they come. Later rows may have other columns."""

    def __init__(self, path: Path, workspace: Workspace) -> None:
        self._path = path
        self._workspace = workspace
        self._waiting: list[pa.Table] = []
        self._files = 0
        self.rows = 0
        self.columns: dict[str, pa.DataType] = {}
        self.partial: set[str] = set()
        """The columns that some rows lack."""

    def add(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        names = dict(zip(table.column_names, table.schema.types, strict=True))
        if self.rows:
            self.partial |= names.keys() ^ self.columns.keys()
        self.columns = {**self.columns, **names}
        self.rows += table.num_rows
        self._waiting.append(table)
        if sum(t.nbytes for t in self._waiting) >= _PART:
            self._flush()

    def clear(self) -> None:
        """Forget all rows."""
        shutil.rmtree(self._path, ignore_errors=True)
        self._waiting.clear()
        self._files = self.rows = 0
        self.columns.clear()
        self.partial.clear()

    def _flush(self) -> None:
        if self._waiting:
            self._path.mkdir(exist_ok=True)
            table = pa.concat_tables(self._waiting, promote_options="permissive")
            self._files += 1
            pq.write_table(table, self._path / f"{self._files}.parquet", compression="none")
            self._waiting.clear()

    def sql(self) -> str:
        """The FROM clause that reads all rows."""
        self._flush()
        return f"read_parquet('{self._path}/*.parquet', union_by_name=true)"


def plain(table: pa.Table) -> pa.Table:
    """A table with names as :func:`folded` makes them, in types with one form for each value."""
    return pa.table({folded(n): canonical(table.column(n)) for n in table.column_names})


class StoredRows:
    """Batches of rows in the form of :func:`plain`, which a query reads once."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.name = "stored_rows"
        self.columns: list[str] = []
        self.error: BaseException | None = None
        self.count = 0
        first = next(batches, None)
        self._first = plain(pa.table({}) if first is None else pa.Table.from_batches([first]))
        self.columns = self._first.column_names

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._first.schema, self._plain())

    def _plain(self) -> Iterator[pa.RecordBatch]:
        self.count = self._first.num_rows
        yield from self._first.to_batches()
        try:
            for batch in self._batches:
                self.count += batch.num_rows
                yield from plain(pa.Table.from_batches([batch])).to_batches()
        except BaseException as error:  # the query would wrap it in an error of its own
            self.error = error
            raise


@contextmanager
def reading(workspace: Workspace, batches: Iterator[pa.RecordBatch]) -> Iterator[StoredRows]:
    """Let queries inside the context read rows by name. Errors of the batches are raised
    unchanged."""
    import duckdb

    rows = StoredRows(batches)
    if rows.columns:
        workspace.session.register(rows.name, rows.reader())
    try:
        yield rows
    except duckdb.Error:
        if rows.error is not None:
            raise rows.error from None
        raise
    finally:
        if rows.columns:
            workspace.session.unregister(rows.name)


def folded(name: str) -> str:
    """A column's name for DuckDB, which ignores case: ``Id`` becomes ``^id``."""
    return re.sub(r"[A-Z^]", lambda capital: "^" + capital[0].lower(), name)


def unfolded(name: str) -> str:
    """The name from which :func:`folded` made this one."""
    return re.sub(r"\^(.)", lambda capital: capital[1].upper(), name)


def hash_of(name: str, null: str) -> str:
    """The hash of a column's value, or ``null`` for a null. It is never 0, which stands for null;
    DuckDB's hash of the number 0 is."""
    value = quoted(name)
    return f"CASE WHEN {value} IS NULL THEN {null} ELSE greatest(hash({value}), 1) END"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
