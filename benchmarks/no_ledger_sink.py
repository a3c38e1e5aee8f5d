"""A PostgreSQL sink without a ledger, to show what the ledger costs.

Never use it for anything else. Positions must still go from one task to the next while the group
forms, so each commit notes them in a small file, which costs microseconds and is not part of any
transaction: a crash between the two repeats or loses records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from semel.config import ConnectorConfig
from semel.core.ledger import Advance, LedgerEntry, Outcome
from semel.core.records import Commit
from semel.sinks.postgresql import PostgresSink

NAME = "benchmarks.NoLedgerSink"
POSITIONS = "benchmarks.positions"


class NoLedgerSink(PostgresSink):
    """Rows only."""

    def __init__(self, connector: ConnectorConfig) -> None:
        super().__init__(connector)
        self._files = Path(connector.originals[POSITIONS]) / connector.name
        self._files.mkdir(parents=True, exist_ok=True)

    def commit(self, advances: Sequence[Advance], commit: Commit) -> Outcome:
        outcome = self.write(commit)
        for advance in advances:
            (self._files / str(advance.range.partition)).write_text(str(advance.range.until_offset))
        return outcome

    def entries(self) -> list[LedgerEntry]:
        return [
            dataclasses.replace(entry, position=int(file.read_text()))
            if (file := self._files / str(entry.partition)).exists()
            else entry
            for entry in super().entries()
        ]
