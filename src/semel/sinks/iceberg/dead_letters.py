"""Dead letters in a separate Iceberg table, each exactly once.

Two tables share no commit, so this table has positions of its own: those after the last dead letter
of each topic-partition. It is written before the results. After a crash in between, the same
records fail again, and those that are here already are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyiceberg.catalog import Catalog

from semel.errors import RolledBack
from semel.ledger import TopicPartition
from semel.records import DeadLetter
from semel.sinks import letters as rows_of
from semel.sinks.iceberg.files import FileWriter
from semel.sinks.iceberg.rollbacks import holds
from semel.sinks.iceberg.table import Table
from semel.sinks.staging import CommitConflict


class DeadLetterTable:
    """The dead letters of one connector."""

    def __init__(self, catalog: Callable[[], Catalog], name: str, connector: str) -> None:
        self._catalog = catalog
        self._where = name
        self._connector = connector
        self._found: Table | None = None

    def open(self) -> Table | None:
        if self._found is None:
            self._found = Table.open(self._catalog(), self._where)
        return self._found

    def _table(self) -> Table:
        if self.open() is None:
            Table.create(self._catalog(), self._where, {})
        found = self.open()
        assert found is not None
        return found

    def _name(self, tp: TopicPartition) -> str:
        return f"semel:{self._connector}:{tp.topic}:{tp.partition}"

    def _behind(self, table: Table, tp: TopicPartition) -> int:
        return int(table.metadata.properties.get(self._name(tp), 0))

    @property
    def _mark(self) -> str:
        return f"semel-snapshot:{self._connector}"

    def check(self) -> None:
        """Raises RolledBack: the table lacks, or may lack, letters that were committed to it."""
        table = self.open()
        if table is not None:
            table.renew()
            self._check(table)

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

    def keep(self, letters: Sequence[DeadLetter]) -> None:
        """Write the letters that are not there yet.

        Raises:
            TransientError: the store failed; call again with the same letters.
        """
        table = self._table()
        while letters:
            table.renew()
            self._check(table)
            writer: FileWriter | None = None
            try:
                if not table.columns.names:
                    table.define(list(rows_of.SCHEMA))
                new = [
                    x
                    for x in letters
                    if x.offset >= self._behind(table, TopicPartition(x.topic, x.partition))
                ]
                if not new:
                    return
                behind: dict[str, str] = {}
                for x in sorted(new, key=lambda x: x.offset):
                    behind[self._name(TopicPartition(x.topic, x.partition))] = str(x.offset + 1)
                writer = FileWriter(table, "semel-dead-letters-")
                rows = rows_of.rows(self._connector, new)
                writer.write(rows.select(table.columns.names).cast(table.columns))
                table.commit([f.data_file() for f in writer.finish()], behind, mark=self._mark)
                return
            except CommitConflict:
                if writer is not None:
                    writer.discard()

    def set(self, positions: Mapping[TopicPartition, int]) -> None:
        """Accept letters again from these positions on, because their records are read again."""
        table = self.open()
        while table is not None:
            table.renew()
            known = [tp for tp in positions if self._name(tp) in table.metadata.properties]
            if not known:
                return
            try:
                table.commit(
                    [], {self._name(tp): str(positions[tp]) for tp in known}, mark=self._mark
                )
                return
            except CommitConflict:
                continue
