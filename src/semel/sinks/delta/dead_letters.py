"""Dead letters in a separate Delta table."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from semel.core.errors import RolledBack
from semel.sinks.delta.files import FileWriter
from semel.sinks.delta.ledger import DeltaLedger
from semel.sinks.delta.table import Table
from semel.sinks.letter_tables import LetterTable
from semel.sinks.letters import SCHEMA


class DeadLetterTable(LetterTable[Table]):
    def __init__(self, where: str, options: Mapping[str, str], connector: str, codec: str) -> None:
        super().__init__(where, connector)
        self._options = options
        self._codec = codec
        self._kept: DeltaLedger | None = None

    def _open(self) -> Table | None:
        return Table.open(self._where, self._options)

    def _create(self) -> Table:
        return Table.create(self._where, self._options, list(SCHEMA))

    def _ledger(self, table: Table) -> DeltaLedger:
        if self._kept is None:
            self._kept = DeltaLedger(table, self._connector)
        return self._kept

    def _check(self, table: Table) -> None:
        ledger = self._ledger(table)
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

    def _behind(self, table: Table, name: str) -> int | None:
        return table.transaction(name)

    def _commit(self, table: Table, letters: pa.Table | None, behind: Mapping[str, int]) -> None:
        writer = FileWriter(table, "", "semel-dead-letters-", 1 << 62, self._codec)
        if letters is not None:
            writer.write(letters)
        # If an answer is lost, delta-rs sends the request again and conflicts with itself: the file
        # may be part of the table. Otherwise it is garbage.
        self._ledger(table).commit([f.action() for f in writer.finish()], behind)
