"""Writes the data files of one task; the sink commits them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from semel.core.records import Commit, Records
from semel.sinks import rows as made
from semel.sinks.iceberg.files import FileWriter
from semel.sinks.iceberg.routing import Counts, StagedRows, counted
from semel.sinks.iceberg.tables import Tables
from semel.sinks.iceberg.target import TargetTable
from semel.sinks.staging import Stager


class IcebergStager(Stager):
    """Has one writer for each table. With ``counts`` it also reports how many rows went where."""

    def __init__(self, tables: Tables, prefix: str, *, counts: bool) -> None:
        self._tables = tables
        self._prefix = prefix
        self._writers: dict[str, FileWriter] = {}
        self._shares: dict[str, Counts] | None = {} if counts else None
        self._renewed: set[str] = set()

    def add(self, commit: Commit) -> None:
        routes = [self._tables.routed(r) for r in commit.records if r.count]
        for target in [target for parts, _ in routes for target, _ in parts]:
            if target.name not in self._renewed:
                target.table.renew()  # a worker process keeps it from trigger to trigger
                self._renewed.add(target.name)
        # All records are arranged before any is written: a commit with one that does not fit leaves
        # nothing behind.
        arranged: list[tuple[TargetTable, Records, made.Rows]] = [
            (target, mine, target.arranged(mine)) for parts, _ in routes for target, mine in parts
        ]
        for target, mine, rows in arranged:
            self._count(target.name, mine)
            if not rows.table.num_rows:
                continue
            if target.name not in self._writers:
                self._writers[target.name] = FileWriter(target.table, self._prefix, rows.key)
            self._writers[target.name].write(rows.table)
        if self._shares is not None:
            for _, nowhere in routes:
                self._shares.setdefault("", Counter()).update(nowhere)

    def _count(self, table: str, mine: Records) -> None:
        if self._shares is not None:
            self._shares.setdefault(table, Counter()).update(counted(mine.rows))

    def finish(self) -> Sequence[Any]:
        files: list[Any] = [f for writer in self._writers.values() for f in writer.finish()]
        return files + [StagedRows(table, counts) for table, counts in (self._shares or {}).items()]

    def discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()
