"""Finds the records whose rows later records of the same key replaced or deleted.

It computes the last change of each key from Kafka alone, in a workspace that spills to disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semel.audit.keys import KeyDifferences, LiveKeys
from semel.audit.workspace import Parts, Workspace, folded, plain, quoted, reading
from semel.ledger import TopicPartition
from semel.records import OFFSET, PARTITION, Records
from semel.sinks.base import Sink
from semel.sinks.storedkeys import StoredKeys

_KEY = "k:"


@dataclass(slots=True)
class _Changes:
    """The changes that one topic's records make in one target: coordinates, key columns, and
    whether they delete."""

    parts: Parts
    keys: tuple[str, ...]
    """The key columns, with names as :func:`~semel.audit.workspace.folded` makes them."""
    why: str = ""
    """Why the keys cannot be compared with the store's; empty if they can."""

    @property
    def key(self) -> str:
        return ", ".join(quoted(_KEY + n) for n in self.keys)

    @property
    def last(self) -> str:
        """A query of the last change of each key in each partition."""
        return (
            f'SELECT {self.key}, partition, max(c."offset") AS "offset", '
            f'arg_max(c.deleted, c."offset") AS deleted '
            f"FROM {self.parts.sql()} c GROUP BY {self.key}, partition"
        )

    @property
    def live(self) -> str:
        """A query of all keys: whether they ``may`` and whether they ``must`` have a row. The two
        differ if one partition's last change writes the key and another one's deletes it."""
        return (
            f"SELECT {self.key}, bool_or(NOT deleted) AS may, bool_and(NOT deleted) AS must "
            f"FROM ({self.last}) GROUP BY {self.key}"
        )


class Replacing:
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
        self._changes: dict[tuple[str, str], _Changes] = {}
        """By the topic that records were read from, and the one that they go to."""

    def add(self, topic: str, records: Records) -> None:
        if not self._sink.capabilities.replaces:
            return
        keys, gone = self._sink.key_of(records)
        if keys is not None:
            self._add(topic, records.topic, keys, records.rows, deleted=False)
        if gone is not None and records.tombstones is not None:
            self._add(topic, records.topic, gone, records.tombstones, deleted=True)

    def _add(self, topic: str, to: str, keys: pa.Table, source: pa.Table, *, deleted: bool) -> None:
        if not keys.num_rows:
            return
        if (topic, to) not in self._changes:
            names = tuple(map(folded, keys.column_names))
            self._changes[topic, to] = _Changes(self._workspace.parts(), names)
        mine = self._changes[topic, to]
        if topic in self._stored and not mine.why:
            try:
                schema = self._stored[topic]
                keys = keys.cast(pa.schema([schema.field(n) for n in keys.column_names]))
            except (pa.ArrowException, KeyError) as error:
                mine.why = str(error).splitlines()[0]
        shown = plain(keys)
        place = source.select([PARTITION, OFFSET])
        mine.parts.add(
            pa.table(
                {
                    "partition": place.column(0),
                    "offset": place.column(1),
                    "deleted": pa.repeat(pa.scalar(deleted), keys.num_rows),
                    **{_KEY + n: shown.column(n) for n in shown.column_names},
                }
            )
        )

    def keep(self, places: Mapping[TopicPartition, np.ndarray]) -> None:
        """Forget all records except those at these offsets."""
        for (topic, to), mine in list(self._changes.items()):
            wanted = {tp.partition: o for tp, o in places.items() if tp.topic == topic and len(o)}
            kept = self._at(mine, wanted) if wanted else None
            mine.parts.clear()
            if kept is None or not kept.num_rows:
                del self._changes[topic, to]
            else:
                mine.parts.add(kept)

    def _at(self, mine: _Changes, offsets: Mapping[int, np.ndarray]) -> pa.Table:
        lengths = list(map(len, offsets.values()))
        wanted = pa.table(
            [np.repeat(list(offsets), lengths), np.concatenate(list(offsets.values()))],
            names=["partition", "offset"],
        )
        with self._workspace.named("wanted", wanted):
            return self._workspace.asked(
                f'SELECT c.* FROM {mine.parts.sql()} c SEMI JOIN wanted USING (partition, "offset")'
            )

    def live(self, topic: str) -> LiveKeys | None:
        """The number of a topic's keys that have a row; None if no record of it has a key."""
        mine = self._changes.get((topic, topic))
        if mine is None:
            return None
        types = mine.parts.columns
        alike = ", ".join(
            f"rtrim(lower({quoted(_KEY + n)}))"
            if pa.types.is_string(types[_KEY + n])
            else quoted(_KEY + n)
            for n in mine.keys
        )
        found = self._workspace.asked(
            f"""WITH live AS MATERIALIZED ({mine.live})
            SELECT (SELECT count(*) FROM (SELECT DISTINCT {alike} FROM live WHERE must)) AS least,
                (SELECT count(*) FROM live WHERE may) AS most"""
        )
        return LiveKeys(found["least"][0].as_py(), found["most"][0].as_py())

    def compare(self, topic: str, stored: StoredKeys) -> KeyDifferences:
        """Compare the keys of the records with the ``stored`` ones, which are read a batch at a
        time.

        Raises:
            ValueError: the keys cannot be compared. The message says why.
        """
        mine = self._changes.get((topic, topic))
        if mine is None:
            return KeyDifferences(stray=stored.num_rows)
        if mine.why:
            raise ValueError(mine.why)
        self._workspace.execute(f"CREATE OR REPLACE TEMP TABLE live AS {mine.live}")
        counted = self._workspace.asked(
            """SELECT count(*) FILTER (WHERE must) AS must,
                count(*) FILTER (WHERE may AND NOT must) AS unsure FROM live"""
        )
        must, unsure = (counted.column(n)[0].as_py() for n in ("must", "unsure"))
        if not stored.num_rows:
            return KeyDifferences(missing=must, unsure=unsure)
        same = " AND ".join(
            f"l.{quoted(_KEY + n)} IS NOT DISTINCT FROM s.{quoted(n)}" for n in mine.keys
        )
        missing = self._counted(f"live l ANTI JOIN {{}} s ON {same} WHERE l.must", stored)
        may = "(SELECT * FROM live WHERE may)"
        stray = self._counted(f"{{}} s ANTI JOIN {may} l ON {same}", stored)
        return KeyDifferences(missing, stray, unsure)

    def _counted(self, joined: str, stored: StoredKeys) -> int:
        """The number of rows of a join with the stored keys."""
        with reading(self._workspace, stored.batches()) as rows:
            found = self._workspace.asked(f"SELECT count(*) AS n FROM {joined.format(rows.name)}")
        return int(found.column("n")[0].as_py())

    def gone(self) -> dict[TopicPartition, tuple[np.ndarray, np.ndarray]]:
        """By topic-partition: the offsets without a row, and those that may or may not have one,
        because their keys are in several partitions, whose order is not known."""
        found: dict[TopicPartition, tuple[np.ndarray, np.ndarray]] = {}
        for (topic, _), mine in self._changes.items():
            last = self._workspace.asked(
                f"""SELECT partition, "offset", deleted,
                    count(*) OVER (PARTITION BY {mine.key}) > 1 AS unsure FROM ({mine.last})"""
            )
            partitions, offsets = _places(last)
            unsure = last.column("unsure").to_numpy()
            with_row = ~last.column("deleted").to_numpy() & ~unsure
            every = _places(
                self._workspace.asked(f'SELECT partition, "offset" FROM {mine.parts.sql()}')
            )
            for partition in np.unique(every[0]).tolist():
                here = partitions == partition
                alive, either = offsets[here & with_row], offsets[here & unsure]
                others = every[1][every[0] == partition]
                tp = TopicPartition(topic, partition)
                gone = np.setdiff1d(others, np.concatenate([alive, either]))
                known = found.get(tp, (gone[:0], either[:0]))  # in other targets
                found[tp] = np.concatenate([known[0], gone]), np.concatenate([known[1], either])
        return found


def _places(found: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    return found.column("partition").to_numpy(), found.column("offset").to_numpy()
