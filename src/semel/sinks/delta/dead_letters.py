"""Dead letters in a separate Delta table, each exactly once.

Two tables share no commit, so this table has positions of its own: those after the last dead letter
of each topic-partition. It is written before the results. After a crash in between, the same
records fail again, and those that are here already are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.errors import RolledBack
from semel.ledger import TopicPartition
from semel.records import DeadLetter
from semel.sinks import letters as rows_of
from semel.sinks.delta.files import FileWriter
from semel.sinks.delta.ledger import DeltaLedger
from semel.sinks.delta.table import Table
from semel.sinks.staging import CommitConflict


class DeadLetterTable:
    """The dead letters of one connector."""

    def __init__(self, where: str, options: Mapping[str, str], connector: str, codec: str) -> None:
        self._where = where
        self._options = options
        self._connector = connector
        self._codec = codec
        self._found: Table | None = None
        self._kept: DeltaLedger | None = None

    def open(self) -> Table | None:
        if self._found is None:
            self._found = Table.open(self._where, self._options)
        return self._found

    def check(self) -> None:
        """Raises RolledBack: the table lacks, or may lack, letters that were committed to it."""
        table = self.open()
        if table is not None:
            table.renew()
            self._check(self._ledger(table))

    def _ledger(self, table: Table) -> DeltaLedger:
        if self._kept is None:
            self._kept = DeltaLedger(table, self._connector)
        return self._kept

    def _check(self, ledger: DeltaLedger) -> None:
        found = ledger.setback()
        if found is None:
            return
        undo = (
            ""
            if found.undo is None
            else f"To bring the letters back, restore the table to version {found.undo}. "
        )
        raise RolledBack(
            f"connector {self._connector}: Delta table {self._where}, which holds dead letters: "
            f"{found.said}, after version {ledger.committed}, which holds this connector's last "
            f"commit there. {undo}To continue without them, confirm the connector's positions: "
            "semel offsets show FILE, then semel offsets set FILE TOPIC-PARTITION=OFFSET for each"
        )

    def _table(self) -> Table:
        if self.open() is None:
            self._found = Table.create(self._where, self._options, list(rows_of.SCHEMA))
        assert self._found is not None
        return self._found

    def _name(self, tp: TopicPartition) -> str:
        return f"semel:{self._connector}:{tp.topic}:{tp.partition}"

    def keep(self, letters: Sequence[DeadLetter]) -> None:
        """Write the letters that are not there yet.

        Raises:
            TransientError: the store failed; call again with the same letters.
        """
        table = self._table()
        while letters:
            table.renew()
            ledger = self._ledger(table)
            self._check(ledger)
            partitions = {TopicPartition(x.topic, x.partition) for x in letters}
            stood = {tp: table.transaction(self._name(tp)) or 0 for tp in partitions}
            new = [x for x in letters if x.offset >= stood[TopicPartition(x.topic, x.partition)]]
            if not new:
                return
            behind: dict[str, int] = {}
            for x in new:
                name = self._name(TopicPartition(x.topic, x.partition))
                behind[name] = max(behind.get(name, 0), x.offset + 1)
            writer = FileWriter(table, "", "semel-dead-letters-", 1 << 62, self._codec)
            writer.write(rows_of.rows(self._connector, new))
            # If an answer is lost, delta-rs sends the request again and conflicts with itself: the
            # file may be part of the table. Otherwise it is garbage.
            try:
                ledger.commit([f.action() for f in writer.finish()], behind)
            except CommitConflict:
                continue
            return

    def set(self, positions: Mapping[TopicPartition, int]) -> None:
        """Accept letters again from these positions on, because their records are read again."""
        table = self.open()
        while table is not None:
            table.renew()
            known = {tp for tp in positions if table.transaction(self._name(tp)) is not None}
            if not known:
                return
            try:
                self._ledger(table).commit([], {self._name(tp): positions[tp] for tp in known})
                return
            except CommitConflict:
                continue
