"""Finds the records whose rows later records of the same key replaced or deleted.

It computes the last change of each key from Kafka alone, in a workspace that spills to disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semel.audit.workspace import Parts, Workspace, folded, plain, quoted, reading
from semel.core.ledger import TopicPartition
from semel.core.records import OFFSET, PARTITION, Records
from semel.sinks.base import Sink, StoredKeys

_KEY = "k:"


@dataclass(frozen=True, slots=True)
class LiveKeys:
    """The number of keys that have a row once all records are applied: ``least`` to ``most``.

    The two differ if one partition's last record of a key writes it and another one's deletes it,
    and if keys differ only in case or trailing spaces, which a store may treat as equal.
    """

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class KeyDifferences:
    """How the keys of rows differ from those that the records leave.

    ``missing`` keys must have a row and have none. ``stray`` rows have keys that no record writes.
    ``unsure`` keys may have a row or not: one partition's last record writes them, and another
    one's deletes them.
    """

    missing: int = 0
    stray: int = 0
    unsure: int = 0


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """The verdict on a table by its number of rows."""

    lost: int = 0
    unknown: int = 0
    why: str | None = None


def judge_number(rows: int, live: LiveKeys, failed: int) -> TableVerdict:
    """Judge a table by its number of rows. ``failed`` unknown records may have left no row. Surplus
    rows are not duplicated, because they may have been there before. Keys that may or may not have
    a row are not judged."""
    missing = max(0, live.least - rows)
    excused = min(missing, failed)
    surplus = max(0, rows - live.most)
    why = None
    if surplus:
        why = (
            f"{surplus} of its {rows} rows have keys that no record in Kafka writes, or the key of "
            "another row"
        )
    elif excused:
        why = f"{excused} rows are missing, but {failed} unknown records failed"
    return TableVerdict(missing - excused, surplus + excused + live.most - live.least, why)


@dataclass(slots=True)
class _Changes:
    """The changes that records make in one target: where they were read, key columns, and whether
    they delete. ``source`` is the number of a topic."""

    parts: Parts
    keys: tuple[str, ...]
    """The key columns, with names as :func:`~semel.audit.workspace.folded` makes them."""
    why: str | None = None
    """Why the keys cannot be compared with the store's; None if they can."""

    @property
    def key(self) -> str:
        return ", ".join(quoted(_KEY + n) for n in self.keys)

    @property
    def last(self) -> str:
        """A query of the last change of each key in each topic-partition."""
        return (
            f'SELECT {self.key}, source, partition, max(c."offset") AS "offset", '
            f'arg_max(c.deleted, c."offset") AS deleted '
            f"FROM {self.parts.sql()} c GROUP BY {self.key}, source, partition"
        )

    @property
    def live(self) -> str:
        """A query of all keys: whether they ``may`` and whether they ``must`` have a row. The two
        differ if one partition's last change writes the key and another one's deletes it."""
        return (
            f"SELECT {self.key}, bool_or(NOT deleted) AS may, bool_and(NOT deleted) AS must "
            f"FROM ({self.last}) GROUP BY {self.key}"
        )


class Replacements:
    """Finds the records that no longer have a row, because a later record of their key replaced or
    deleted it.

    ``stored`` holds the store's own types of each topic's key columns, if its keys are compared and
    it has rows.
    """

    def __init__(
        self,
        sink: Sink,
        workspace: Workspace,
        stored: Mapping[str, pa.Schema] | None = None,
    ) -> None:
        self._sink = sink
        self._workspace = workspace
        self._stored = stored or {}
        self._changes: dict[str, _Changes] = {}
        """By target."""
        self._topics: list[str] = []

    def add(self, topic: str, records: Records, target: str = "") -> None:
        """Take records of a topic, and the target that they go to; without one, the topic has a
        target of its own."""
        if not self._sink.capabilities.replaces:
            return
        target = target or topic
        keys, gone = self._sink.key_of(records)
        if keys is not None:
            self._add(topic, target, keys, records.rows, deleted=False)
        if gone is not None and records.tombstones is not None:
            self._add(topic, target, gone, records.tombstones, deleted=True)

    def _add(
        self, topic: str, target: str, keys: pa.Table, source: pa.Table, *, deleted: bool
    ) -> None:
        if not keys.num_rows:
            return
        if target not in self._changes:
            names = tuple(map(folded, keys.column_names))
            self._changes[target] = _Changes(self._workspace.parts(), names)
        changes = self._changes[target]
        if topic not in self._topics:
            self._topics.append(topic)
        number = pa.scalar(self._topics.index(topic), pa.int32())
        if topic in self._stored and not changes.why:
            try:
                schema = self._stored[topic]
                keys = keys.cast(pa.schema([schema.field(n) for n in keys.column_names]))
            except (pa.ArrowException, KeyError) as error:
                changes.why = str(error).splitlines()[0]
        shown = plain(keys)
        place = source.select([PARTITION, OFFSET])
        changes.parts.add(
            pa.table(
                {
                    "source": pa.repeat(number, keys.num_rows),
                    "partition": place.column(0),
                    "offset": place.column(1),
                    "deleted": pa.repeat(pa.scalar(deleted), keys.num_rows),
                    **{_KEY + n: shown.column(n) for n in shown.column_names},
                }
            )
        )

    def keep(self, places: Mapping[TopicPartition, np.ndarray]) -> None:
        """Forget all records except those at these offsets."""
        by_place = {
            (self._topics.index(tp.topic), tp.partition): offsets
            for tp, offsets in places.items()
            if tp.topic in self._topics and len(offsets)
        }
        for target, changes in list(self._changes.items()):
            kept = self._at(changes, by_place) if by_place else None
            changes.parts.clear()
            if kept is None or not kept.num_rows:
                del self._changes[target]
            else:
                changes.parts.add(kept)

    def _at(self, changes: _Changes, offsets: Mapping[tuple[int, int], np.ndarray]) -> pa.Table:
        lengths = list(map(len, offsets.values()))
        sources, partitions = zip(*offsets, strict=True)
        table = pa.table(
            [
                np.repeat(sources, lengths),
                np.repeat(partitions, lengths),
                np.concatenate(list(offsets.values())),
            ],
            names=["source", "partition", "offset"],
        )
        with self._workspace.named("wanted", table):
            return self._workspace.query(
                f"SELECT c.* FROM {changes.parts.sql()} c "
                'SEMI JOIN wanted USING (source, partition, "offset")'
            )

    def live(self, target: str) -> LiveKeys | None:
        """The number of a target's keys that have a row; None if no record of it has a key."""
        changes = self._changes.get(target)
        if changes is None:
            return None
        types = changes.parts.columns
        alike = ", ".join(
            f"rtrim(lower({quoted(_KEY + n)}))"
            if pa.types.is_string(types[_KEY + n])
            else quoted(_KEY + n)
            for n in changes.keys
        )
        counts = self._workspace.query(
            f"""WITH live AS MATERIALIZED ({changes.live})
            SELECT (SELECT count(*) FROM (SELECT DISTINCT {alike} FROM live WHERE must)) AS least,
                (SELECT count(*) FROM live WHERE may) AS most"""
        )
        return LiveKeys(counts["least"][0].as_py(), counts["most"][0].as_py())

    def compare(self, target: str, stored: StoredKeys) -> KeyDifferences:
        """Compare the keys of the records with the ``stored`` ones, which are read a batch at a
        time.

        Raises:
            ValueError: the keys cannot be compared. The message says why.
        """
        changes = self._changes.get(target)
        if changes is None:
            return KeyDifferences(stray=stored.num_rows)
        if changes.why:
            raise ValueError(changes.why)
        self._workspace.execute(f"CREATE OR REPLACE TEMP TABLE live AS {changes.live}")
        counted = self._workspace.query(
            """SELECT count(*) FILTER (WHERE must) AS must,
                count(*) FILTER (WHERE may AND NOT must) AS unsure FROM live"""
        )
        must, unsure = (counted.column(n)[0].as_py() for n in ("must", "unsure"))
        if not stored.num_rows:
            return KeyDifferences(missing=must, unsure=unsure)
        same = " AND ".join(
            f"l.{quoted(_KEY + n)} IS NOT DISTINCT FROM s.{quoted(n)}" for n in changes.keys
        )
        missing = self._counted(f"live l ANTI JOIN {{}} s ON {same} WHERE l.must", stored)
        may = "(SELECT * FROM live WHERE may)"
        stray = self._counted(f"{{}} s ANTI JOIN {may} l ON {same}", stored)
        return KeyDifferences(missing, stray, unsure)

    def _counted(self, joined: str, stored: StoredKeys) -> int:
        """The number of rows of a join with the stored keys."""
        with reading(self._workspace, stored.batches()) as rows:
            counts = self._workspace.query(f"SELECT count(*) AS n FROM {joined.format(rows.name)}")
        return int(counts.column("n")[0].as_py())

    def gone(self) -> dict[TopicPartition, tuple[np.ndarray, np.ndarray]]:
        """By topic-partition: the offsets without a row, and those that may or may not have one,
        because their keys are in several topic-partitions, whose order is not known."""
        by_partition: dict[TopicPartition, tuple[np.ndarray, np.ndarray]] = {}
        for changes in self._changes.values():
            last = self._workspace.query(
                f"""SELECT source, partition, "offset", deleted,
                    count(*) OVER (PARTITION BY {changes.key}) > 1 AS unsure
                FROM ({changes.last})"""
            )
            sources, partitions, offsets = _places(last)
            unsure = last.column("unsure").to_numpy()
            with_row = ~last.column("deleted").to_numpy() & ~unsure
            every = _places(
                self._workspace.query(
                    f'SELECT source, partition, "offset" FROM {changes.parts.sql()}'
                )
            )
            for source, partition in np.unique(np.stack(every[:2]), axis=1).T.tolist():
                mask = (sources == source) & (partitions == partition)
                alive, either = offsets[mask & with_row], offsets[mask & unsure]
                others = every[2][(every[0] == source) & (every[1] == partition)]
                tp = TopicPartition(self._topics[source], partition)
                gone = np.setdiff1d(others, np.concatenate([alive, either]))
                before = by_partition.get(tp, (gone[:0], either[:0]))  # in other targets
                by_partition[tp] = (
                    np.concatenate([before[0], gone]),
                    np.concatenate([before[1], either]),
                )
        return by_partition


def _places(table: pa.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sources, partitions, offsets = (
        table.column(name).to_numpy() for name in ("source", "partition", "offset")
    )
    return sources, partitions, offsets
