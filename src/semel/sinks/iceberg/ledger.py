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
from typing import Any

from semel.errors import ServiceError
from semel.ledger import Advance, Hole, LedgerEntry, Outcome, TopicPartition, judge
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
    elsewhere: int = 0

    def text(self) -> str:
        facts: dict[str, object] = {k: getattr(self.entry, f) for k, f in _FIELDS.items()}
        facts["time"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self.holes:
            facts["holes"] = self.holes
        if self.elsewhere:
            facts["elsewhere"] = self.elsewhere
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
                counts: dict[str, Any] = {f: int(facts[k]) for k, f in _FIELDS.items()}
            except (ValueError, KeyError, TypeError):
                raise ServiceError(
                    f"Iceberg table {self._table.where}: property {name}={text!r} is not a ledger "
                    "entry. Was it changed by hand? Run: semel offsets set FILE "
                    f"{topic}-{partition}=OFFSET"
                ) from None
            entry = LedgerEntry(tp.topic, tp.partition, updated_at=facts.get("time", ""), **counts)
            holes = tuple((a, b) for a, b in facts.get("holes", ()))
            yield tp, _Entry(entry, holes, int(facts.get("elsewhere", 0)))

    def entries(self) -> list[LedgerEntry]:
        """All entries, by topic and partition."""
        return [e.entry for _, e in sorted(self._known().items())]

    def holes(self) -> list[Hole]:
        """The ranges that retention removed before they were read."""
        return [Hole(*tp, *h) for tp, e in sorted(self._known().items()) for h in e.holes]

    def positions(self) -> dict[TopicPartition, int]:
        return {tp: e.entry.position for tp, e in self._known().items()}

    def elsewhere(self) -> dict[TopicPartition, int]:
        """How many records were read whose rows are other tables'."""
        return {tp: e.elsewhere for tp, e in self._known().items()}

    def judge(self, advances: Sequence[Advance], *, lags: bool = False) -> Outcome:
        """Apply the ledger rule to one of several tables as it stands: what it holds already is a
        replay, also where it holds more than that. One that lags had no rows of what lies between
        its position and the range.

        Raises:
            LedgerConflict: see :func:`semel.ledger.judge`.
        """
        stored = self.positions()
        seen = {a.range.topic_partition: _seen(stored, a, lags=lags) for a in advances}
        known = {tp: at for tp, at in seen.items() if at is not None}
        return judge(self._connector, known, [a.range for a in advances])

    def moved(
        self, advances: Sequence[Advance], elsewhere: Mapping[TopicPartition, int]
    ) -> dict[str, str]:
        """The properties to set with the results of ``advances``."""
        found = {}
        for a in advances:
            tp = a.range.topic_partition
            begun = _Entry(LedgerEntry(*tp, a.range.from_offset, a.range.from_offset))
            known = self._known().get(tp, begun)
            e = known.entry
            lost = (max(e.position, a.range.from_offset), a.range.until_offset)
            entry = replace(
                e,
                position=a.range.until_offset,
                records_read=e.records_read + a.read,
                rows_written=e.rows_written + a.written,
                records_filtered=e.records_filtered + a.filtered,
                records_failed=e.records_failed + a.failed,
                records_lost=e.records_lost + (lost[1] - lost[0] if a.lost else 0),
            )
            holes = (*known.holes, lost) if a.lost else known.holes
            more = known.elsewhere + elsewhere.get(tp, 0)
            found[self._name(tp)] = _Entry(entry, holes, more).text()
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


def _seen(stored: Mapping[TopicPartition, int], advance: Advance, *, lags: bool) -> int | None:
    """A table's position as the rule may see it: no further than the range's end, and where it
    lags no less than its beginning. A hole may begin before it."""
    position, wanted = stored.get(advance.range.topic_partition), advance.range
    if lags:
        position = max(position or 0, wanted.from_offset)
    if position is None:
        return None
    if advance.lost and wanted.from_offset < position < wanted.until_offset:
        return wanted.from_offset
    return min(position, wanted.until_offset)
