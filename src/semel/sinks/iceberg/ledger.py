"""The ledger in an Iceberg table: properties, set by the commit that adds the files.

``semel:<connector>:<topic>:<partition>`` holds position, running counts and holes as JSON. Table
properties outlive what snapshots do not: expiry of snapshots, rewriting of files and of manifests;
and each topic-partition of each connector has one of its own, so that several write one table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from semel.errors import ServiceError
from semel.ledger import Advance, LedgerEntry, OffsetRange, Outcome, TopicPartition, judge
from semel.sinks.iceberg.table import Table

_FIELDS = {
    "position": "position",
    "start": "start_position",
    "read": "records_read",
    "written": "rows_written",
    "filtered": "records_filtered",
    "failed": "records_failed",
    "lost": "records_lost",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    entry: LedgerEntry
    holes: tuple[tuple[int, int], ...] = ()

    def text(self) -> str:
        facts: dict[str, object] = {k: getattr(self.entry, f) for k, f in _FIELDS.items()}
        facts["time"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self.holes:
            facts["holes"] = self.holes
        return json.dumps(facts, separators=(",", ":"))


class IcebergLedger:
    """What one connector's ledger holds in one table. It is read again when the table has moved."""

    def __init__(self, table: Table, connector: str) -> None:
        self._table = table
        self._connector = connector
        self._version = ""
        self._entries: dict[TopicPartition, _Entry] = {}

    def _name(self, tp: TopicPartition) -> str:
        return f"semel:{self._connector}:{tp.topic}:{tp.partition}"

    def _known(self) -> Mapping[TopicPartition, _Entry]:
        if self._version != self._table.version:
            self._entries = dict(self._read())
            self._version = self._table.version
        return self._entries

    def _read(self) -> Iterable[tuple[TopicPartition, _Entry]]:
        prefix = f"semel:{self._connector}:"
        for name, text in self._table.metadata.properties.items():
            topic, colon, partition = name.removeprefix(prefix).rpartition(":")
            if not name.startswith(prefix) or not colon or ":" in topic:
                continue  # or of a connector whose name begins with ours
            tp = TopicPartition(topic, int(partition))
            try:
                facts = json.loads(text)
                counts = {f: int(facts[k]) for k, f in _FIELDS.items()}
            except (ValueError, KeyError, TypeError):
                raise ServiceError(
                    f"Iceberg table {self._table.where}: property {name}={text!r} is not a ledger "
                    f"entry. Was it changed by hand? Run: semel offsets set {self._connector}"
                ) from None
            entry = LedgerEntry(tp.topic, tp.partition, updated_at=facts.get("time", ""), **counts)
            yield tp, _Entry(entry, tuple((a, b) for a, b in facts.get("holes", ())))

    def entries(self) -> list[LedgerEntry]:
        """All entries, by topic and partition."""
        return [e.entry for _, e in sorted(self._known().items())]

    def holes(self) -> list[OffsetRange]:
        """The ranges that retention removed before they were read."""
        return [OffsetRange(*tp, *h) for tp, e in sorted(self._known().items()) for h in e.holes]

    def positions(self) -> dict[TopicPartition, int]:
        return {tp: e.entry.position for tp, e in self._known().items()}

    def judge(self, advances: Sequence[Advance]) -> Outcome:
        """Apply the ledger rule to the table as it stands.

        Raises:
            LedgerConflict: see :func:`semel.ledger.judge`.
        """
        return judge(self._connector, self.positions(), [a.range for a in advances])

    def moved(self, advances: Sequence[Advance]) -> dict[str, str]:
        """The properties to set with the results of ``advances``."""
        found = {}
        for a in advances:
            tp = a.range.topic_partition
            known = self._known()[tp]
            e = known.entry
            entry = replace(
                e,
                position=a.range.until_offset,
                records_read=e.records_read + a.read,
                rows_written=e.rows_written + a.written,
                records_filtered=e.records_filtered + a.filtered,
                records_failed=e.records_failed + a.failed,
                records_lost=e.records_lost + a.lost,
            )
            hole = ((a.range.from_offset, a.range.until_offset),) if a.lost else ()
            found[self._name(tp)] = _Entry(entry, known.holes + hole).text()
        return found

    def started(self, positions: Mapping[TopicPartition, int]) -> dict[str, str]:
        """The properties that enter first positions where there are none."""
        return self.set({tp: at for tp, at in positions.items() if tp not in self._known()})

    def set(self, positions: Mapping[TopicPartition, int]) -> dict[str, str]:
        """The properties that overwrite positions; counts and holes start anew."""
        return {
            self._name(tp): _Entry(LedgerEntry(*tp, at, at)).text() for tp, at in positions.items()
        }

    def names(self) -> list[str]:
        """The properties that hold the connector's entries."""
        return [self._name(tp) for tp in self._known()]
