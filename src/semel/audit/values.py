"""Compares the values of each record, after converter and transform, with those of its row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from semel.audit.hashes import Differences, ExpectedRows
from semel.audit.report import ChangedRow, PartitionAudit
from semel.audit.workspace import Workspace
from semel.config import ConnectorConfig
from semel.core.ledger import LedgerEntry, OffsetRange
from semel.core.quoting import named
from semel.core.records import OFFSET, PARTITION, Records
from semel.sinks.base import Sink, Snapshot
from semel.sinks.rereading import View
from semel.tasks.pipeline import ConvertedRecords
from semel.tasks.unplaced import Counts

OnProgress = Callable[[str, int, int], None]
"""Called with a step's name, the records or rows done, and their total number."""


@dataclass
class ValueFindings:
    """The partitions with their changed rows, the first changed rows, what could not be judged,
    the number of rows that were compared, and the values that reached no column."""

    partitions: list[PartitionAudit]
    rows: list[ChangedRow] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)
    compared: int = 0
    unplaced: Counts = field(default_factory=dict)


def audited(connector: ConnectorConfig) -> ConnectorConfig:
    """The configuration with which an audit converts records: it counts values that reach no
    column where a run would stop."""
    mode = "ignore" if connector.fields_unknown == "ignore" else "warn"
    return replace(connector, fields_unknown=mode)


class Values:
    """Compares the rows of one view with records: first it takes all records, then reads the rows.

    With provenance, each row names its record. Without it, a row belongs to the last record of its
    key or, if rows do not replace each other, to any record with its values. ``ranges`` holds the
    offsets of each topic whose rows are compared; by default all are.
    """

    def __init__(
        self,
        sink: Sink,
        view: View,
        snapshot: Snapshot,
        workspace: Workspace,
        *,
        exact: bool,
        progress: OnProgress,
        ranges: Mapping[str, Sequence[OffsetRange]] | None = None,
    ) -> None:
        self._sink = sink
        self._view = view
        self._snapshot = snapshot
        self._workspace = workspace
        self._exact = exact
        self._progress = progress
        self._ranges = ranges or {}
        self._expected: dict[str, ExpectedRows] = {}
        self._topics: dict[str, list[str]] = {}
        self._failed: dict[str, int] = {}
        self._refused: dict[str, list[np.ndarray]] = {}
        """With provenance, by target: the coordinates of records that make no row now."""
        self._filtered: dict[str, int] = {}
        self._unlike: dict[str, dict[str, str]] = {}
        self._rows_read = 0
        self._unplaced: Counter[tuple[str, str]] = Counter()

    def add(self, topic: str, raw: pa.Table, converted: ConvertedRecords) -> None:
        """Take records that the sink has not refused, both raw and converted."""
        self._unplaced.update(converted.unplaced)
        target = self._target(topic)
        tables = [self._part(topic, target, records) for records in converted.parts]
        rows = sum(records.rows.num_rows for records in converted.parts)
        kept = sum(places.num_rows for places in tables)
        refused = rows - kept + len(converted.failed)
        self._failed[target] = self._failed.get(target, 0) + refused
        self._filtered[target] = self._filtered.get(target, 0) + converted.filtered
        if self._exact and kept < raw.num_rows:
            spots = np.concatenate([_spots(places, PARTITION, OFFSET) for places in tables])
            self._refused.setdefault(target, []).append(np.setdiff1d(_spots(raw), spots))

    def _part(self, topic: str, target: str, records: Records) -> pa.Table:
        """Take some of the records; returns the places of those that make a row."""
        by_key = self._sink.capabilities.replaces and not self._exact
        keys, deleted = self._sink.key_of(records) if by_key else (None, None)
        if target not in self._expected:
            key = [] if keys is None else keys.column_names
            new = ExpectedRows(
                self._workspace,
                key=key,
                replaces=self._sink.capabilities.replaces,
                evolves=self._sink.capabilities.evolves,
            )
            self._expected[target] = new
        if topic not in self._topics.setdefault(target, []):
            self._topics[target].append(topic)
        expected = self._expected[target]
        stored = self._view.held(records)
        self._unlike.setdefault(target, {}).update(stored.unlike)
        expected.add(topic, stored.places, stored.values, stored.optional)
        if keys is not None:
            expected.change(topic, keys, records.rows, deleted=False)
        if deleted is not None and records.tombstones is not None:
            expected.change(topic, deleted, records.tombstones, deleted=True)
        return stored.places

    def judge(
        self, partitions: Sequence[PartitionAudit], entries: Collection[LedgerEntry]
    ) -> ValueFindings:
        """Read and compare all rows."""
        result = ValueFindings(list(partitions), unplaced=self._unplaced)
        for target, expected in self._expected.items():
            self._judge(target, expected, result, entries)
        return result

    def _judge(
        self,
        target: str,
        expected: ExpectedRows,
        result: ValueFindings,
        entries: Collection[LedgerEntry],
    ) -> None:
        topics = self._topics[target]
        self._note_refused(target, entries, result)
        for name, why in self._unlike[target].items():
            result.not_judged.append(f"{target}: values of column {named(name)}: {why}")
        why = "" if self._exact else self._snapshot.unjudged.get(topics[0], "")
        unlike = set(expected.key) & self._unlike[target].keys()
        if unlike and not why:
            why = f"column {named(min(unlike))} of the key cannot be compared"
        if why and self._sink.capabilities.replaces:
            result.not_judged.append(f"{target}: values: {why}")
            return
        self._rows_read = 0
        stored = self._rows(topics[0], target, expected.columns)
        if self._exact:
            differences = expected.by_place(stored)
        elif self._sink.capabilities.replaces:
            differences = expected.by_key(stored)
            if differences.unsure:
                result.not_judged.append(
                    f"{target}: values of {differences.unsure} keys that are in several "
                    "partitions: their last record is not known"
                )
        else:
            differences = self._by_count(target, expected, stored, result, entries)
        for name, count in differences.left_alone.items():
            result.not_judged.append(
                f"{target}: values of column {named(name)} in {count} rows: their records have "
                "none, and an upsert may have kept an earlier one"
            )
        rows = max(self._rows_read, 0 if self._ranges else self._snapshot.rows.get(target, 0))
        if not differences.compared and expected.rows and rows:
            result.not_judged.append(
                f"{target}: values: none of its {rows} rows belongs to one of the {expected.rows} "
                "records, so nothing was compared"
            )
        result.compared += differences.compared
        result.partitions = _with(result.partitions, differences.counts)
        result.rows += differences.first

    def _note_refused(
        self, target: str, entries: Collection[LedgerEntry], result: ValueFindings
    ) -> None:
        """Note records that make no values to compare now, although they once made rows."""
        if self._exact:
            refused = np.concatenate([*self._refused.get(target, []), np.array([], np.int64)])
            rows = self._snapshot.records.get(target)
            count = 0 if rows is None else int(np.isin(refused, _spots(rows)).sum())
        else:
            own = [e for e in entries if e.topic in self._topics[target]]
            failed = sum(e.records_failed for e in own) - self._dead(self._topics[target])
            filtered = sum(e.records_filtered for e in own)
            count = max(0, self._failed[target] - max(0, failed))
            count += max(0, self._filtered[target] - filtered)
        if count > 0:
            result.not_judged.append(
                f"{target}: values of {count} records that converter, transform or target leave "
                "out now, although the connector has written them"
            )

    def _dead(self, topics: Collection[str]) -> int:
        """The number of records among the dead letters, which :meth:`add` does not get."""
        return sum(d.num_rows for t, d in self._snapshot.dead.items() if t in topics)

    def _by_count(
        self,
        target: str,
        expected: ExpectedRows,
        stored: Iterator[pa.RecordBatch],
        result: ValueFindings,
        entries: Collection[LedgerEntry],
    ) -> Differences:
        """Compare rows that name no record. A row whose values no record has is changed, unless it
        is surplus."""
        topics = self._topics[target]
        for name in expected.uncompared:
            result.not_judged.append(
                f"{target}: values of column {named(name)}: some records leave it to the database. "
                "Set provenance=true"
            )
        missing, extra, first = expected.by_count(stored)
        compared = self._rows_read
        own = [p for p in result.partitions if p.topic in topics]
        refused = sum(e.records_failed for e in entries if e.topic in topics)
        dead = self._dead(topics)
        gone = sum(p.lost for p in own) + max(0, refused - dead - self._failed[target])
        changed = min(extra, max(0, missing - gone))
        if not changed or not own:
            return Differences({}, (), compared=compared)
        place = (own[0].topic, own[0].partition)
        return Differences({place: changed}, first[:changed], compared=compared)

    def _target(self, topic: str) -> str:
        return topic if self._exact else self._snapshot.targets.get(topic, topic)

    def _rows(self, topic: str, target: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        records = self._snapshot.records.get(topic)
        total = self._snapshot.rows.get(target, 0) if records is None else records.num_rows
        done = 0
        for batch in self._view.rows(topic, columns, self._ranges.get(topic)):
            done += batch.num_rows
            self._rows_read = done
            self._progress(f"rows of {topic}", done, total)
            yield batch


def _spots(places: pa.Table, partition: str = "partition", offset: str = "offset") -> np.ndarray:
    """One number for each pair of partition and offset."""
    partitions = places.column(partition).to_numpy().astype(np.int64)
    spots: np.ndarray = (partitions << 48) + places.column(offset).to_numpy()
    return spots


def _with(
    partitions: Sequence[PartitionAudit], counts: Mapping[tuple[str, int], int]
) -> list[PartitionAudit]:
    return [
        replace(p, changed=counts.get((p.topic, p.partition), 0) + p.changed) for p in partitions
    ]
