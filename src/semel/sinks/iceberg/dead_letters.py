"""Dead letters in a separate Iceberg table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from pyiceberg.catalog import Catalog

from semel.core.errors import RolledBack
from semel.sinks.iceberg.files import FileWriter
from semel.sinks.iceberg.rollbacks import holds
from semel.sinks.iceberg.table import Table
from semel.sinks.letter_tables import LetterTable
from semel.sinks.letters import SCHEMA
from semel.sinks.staging import CommitConflict


class DeadLetterTable(LetterTable[Table]):
    def __init__(self, catalog: Callable[[], Catalog], name: str, connector: str) -> None:
        super().__init__(name, connector)
        self._catalog = catalog

    def _open(self) -> Table | None:
        return Table.open(self._catalog(), self._where)

    def _create(self) -> Table:
        Table.create(self._catalog(), self._where, {})
        found = self._open()
        assert found is not None
        return found

    @property
    def _mark(self) -> str:
        return f"semel-snapshot:{self._connector}"

    def _check(self, table: Table) -> None:
        mark = table.metadata.properties.get(self._mark)
        if mark is None or holds(table, frozenset({int(mark)})):
            return
        raise RolledBack(
            f"connector {self._connector}: Iceberg table {self._where}, which holds dead letters, "
            f"does not descend from snapshot {mark}, this connector's last commit there, as far as "
            "its snapshots tell: it was rolled back. To bring the letters back, set it to that "
            "snapshot again. To continue without them, confirm the connector's positions: semel "
            "offsets show FILE, then semel offsets set FILE TOPIC-PARTITION=OFFSET for each"
        )

    def _behind(self, table: Table, name: str) -> int | None:
        found = table.metadata.properties.get(name)
        return None if found is None else int(found)

    def _commit(self, table: Table, letters: pa.Table | None, behind: Mapping[str, int]) -> None:
        if not table.columns.names:
            table.define(list(SCHEMA))
        writer = FileWriter(table, "semel-dead-letters-")
        try:
            if letters is not None:
                writer.write(letters.select(table.columns.names).cast(table.columns))
            files = [f.data_file() for f in writer.finish()]
            table.commit(files, {n: str(at) for n, at in behind.items()}, mark=self._mark)
        except CommitConflict:
            writer.discard()
            raise
