"""The source partitions of one task, each read on from its offset."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from semel.sources.base import Sharded, Source, SourceBatch, StoredOffset
from semel.sources.offsets.store import StoredOffsets, canonical


class Readers:
    """Reads some partitions in turn."""

    def __init__(
        self, source: Source, partitions: Sequence[Mapping[str, Any]], stored: StoredOffsets
    ) -> None:
        self._partitions = partitions
        self._sharded = isinstance(source, Sharded)
        known = stored.lookup()
        if isinstance(source, Sharded):
            self._open = {n: source.read_shard(p, known) for n, p in enumerate(partitions)}
            return
        self._open = {
            n: source.read(partition, stored_offset(source, partition, known))
            for n, partition in enumerate(partitions)
        }

    def round(self, room: int, only: Collection[int] = ()) -> Iterator[tuple[int, SourceBatch]]:
        """One batch of each partition that has one, with the partition's number, until they hold
        ``room`` bytes. Partitions that had no turn come first in the next round. If ``only`` holds
        partitions, no others are read."""
        chosen = [(n, r) for n, r in self._open.items() if not only or n in only]
        for number, reader in chosen:
            if room <= 0:
                return
            del self._open[number]
            try:
                batch = next(reader)
            except StopIteration:  # it will never have more
                continue
            self._open[number] = reader  # behind the others
            if batch is not None:
                room -= nbytes(batch)
                yield number, batch

    def reached(
        self, number: int, batch: SourceBatch
    ) -> Iterator[tuple[object, tuple[Mapping[str, Any], Mapping[str, Any]]]]:
        """The source partitions of a batch with their offsets, each under a name of its own."""
        if not batch.reached and not self._sharded:
            yield number, (self._partitions[number], batch.offset)
        for partition, offset in batch.reached:
            yield canonical(partition), (partition, offset)

    def close(self) -> None:
        """Let each free what it holds."""
        for reader in self._open.values():
            close = getattr(reader, "close", None)
            if close is not None:
                close()
        self._open.clear()


def stored_offset(
    source: Source, partition: Mapping[str, Any], known: StoredOffset
) -> Mapping[str, Any] | None:
    """Where reading continues: the partition's offset, or one under a name that it had before."""
    offset = known(partition)
    if offset is None:
        offset = next((o for p in source.former(partition) if (o := known(p)) is not None), None)
    return offset


def nbytes(batch: SourceBatch) -> int:
    """The bytes that a batch holds in memory."""
    return sum(int(r.values.nbytes) + int(r.keys.nbytes) for r in batch.records)
