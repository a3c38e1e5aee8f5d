"""Which records' rows were replaced or deleted by later records of the same key."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.audit.keys import DELETED, OFFSET, PARTITION, LiveKeys, compare, live_keys
from semel.ledger import TopicPartition
from semel.records import Records
from semel.sinks.base import Sink


class Replacing:
    """Which records have no row any more, because a later one of their key replaced or deleted it.

    The last change of each key is computed from Kafka alone.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._changes: dict[str, list[pa.Table]] = {}

    def add(self, topic: str, records: Records) -> None:
        if not self._sink.capabilities.replaces:
            return
        for keys, source, deleted in zip(
            self._sink.key_of(records),
            (records.rows, records.tombstones),
            (False, True),
            strict=True,
        ):
            if keys is None or source is None or not keys.num_rows:
                continue
            place = source.select(["__connect_partition", "__connect_offset"])
            self._changes.setdefault(topic, []).append(
                pa.table(
                    {
                        **dict(zip(keys.column_names, keys.columns, strict=True)),
                        PARTITION: place.column(0),
                        OFFSET: place.column(1),
                        DELETED: pa.repeat(pa.scalar(deleted), keys.num_rows),
                    }
                )
            )

    def keep(self, places: Mapping[TopicPartition, np.ndarray]) -> None:
        """Forget all records but those at these offsets."""
        kept: dict[str, list[pa.Table]] = {}
        for topic, tables in self._changes.items():
            changes = pa.concat_tables(tables)
            partitions = changes.column(PARTITION).to_numpy()
            offsets = changes.column(OFFSET).to_numpy()
            wanted = np.zeros(changes.num_rows, dtype=bool)
            for tp, mine in places.items():
                if tp.topic == topic and len(mine):
                    wanted |= (partitions == tp.partition) & np.isin(offsets, mine)
            if wanted.any():
                kept[topic] = [changes.filter(pa.array(wanted))]
        self._changes = kept

    def live(self, topic: str) -> LiveKeys | None:
        """How many keys of a topic have a row; None if its records have no keys here."""
        tables = self._changes.get(topic)
        return live_keys(pa.concat_tables(tables)) if tables else None

    def compare(self, topic: str, stored: pa.Table) -> tuple[int, int]:
        """How many keys that must have a row are not among the ``stored`` ones, and how many of
        these no record accounts for.

        Raises:
            ValueError: the keys cannot be compared; says why.
        """
        tables = self._changes.get(topic)
        return compare(pa.concat_tables(tables), stored) if tables else (0, stored.num_rows)

    def gone(self) -> dict[TopicPartition, tuple[np.ndarray, np.ndarray]]:
        """By topic-partition: the offsets without a row, and those that may have one or not,
        because other partitions have the same key and the order between them is not known."""
        found = {}
        for topic, tables in self._changes.items():
            changes = pa.concat_tables(tables).sort_by(OFFSET)
            keys = changes.column_names[:-3]
            index = pa.array(np.arange(changes.num_rows, dtype=np.int64))
            last = (
                changes.select([*keys, PARTITION])
                .append_column("__index", index)
                .group_by([*keys, PARTITION], use_threads=False)
                .aggregate([("__index", "max")])
            )
            spread = (
                last.group_by(keys, use_threads=False)
                .aggregate([("__index_max", "max"), ("__index_max", "count")])
                .filter(pc.field("__index_max_count") > 1)
            )
            both = last.join(spread.select(keys), keys, join_type="left semi", use_threads=False)
            alive = np.zeros(changes.num_rows, dtype=bool)
            alive[last.column("__index_max").to_numpy()] = True
            alive &= ~changes.column(DELETED).to_numpy(zero_copy_only=False)
            unsure = np.zeros(changes.num_rows, dtype=bool)
            unsure[both.column("__index_max").to_numpy()] = True
            partitions = changes.column(PARTITION).to_numpy()
            offsets = changes.column(OFFSET).to_numpy()
            for partition in np.unique(partitions).tolist():
                mine = partitions == partition
                found[TopicPartition(topic, partition)] = (
                    offsets[mine & ~alive & ~unsure],
                    offsets[mine & unsure],
                )
        return found
