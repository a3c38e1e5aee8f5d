"""Damages a broker's log files as a failing disk or an unclean leader election would.

A partition's log is a series of record batches in ``<first offset>.log`` files. The functions here
work on the directory of one partition while its broker is stopped; stop it cleanly, or it checks
its logs when it starts and cuts off what is damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from semel.core.ledger import TopicPartition

_PREFIX = struct.Struct(">qi")
"""Base offset, and the length of everything after it."""
_HEADER = struct.Struct(">qiibIHiqqqh")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base and maximum
timestamp, producer id, producer epoch."""
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_MAGIC, _BODY = 16, 61
"""Bytes of a batch before its format and before its records."""


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """One batch of a log file (magic 2): bytes ``[start, end)`` hold its offsets."""

    file: Path
    start: int
    end: int
    first_offset: int
    next_offset: int
    leader_epoch: int
    producer_id: int
    is_transactional: bool
    is_control: bool


def partition_directory(data: Path, tp: TopicPartition) -> Path:
    """The directory of a partition on a broker whose ``log.dirs`` is ``data``."""
    return data / f"{tp.topic}-{tp.partition}"


def batches(directory: Path) -> Iterator[RecordBatch]:
    """The batches of a partition, in order."""
    for file in sorted(directory.glob("*.log")):
        content = file.read_bytes()
        start = 0
        while start + _HEADER.size <= len(content):
            header = _HEADER.unpack_from(content, start)
            end = start + _PREFIX.size + header[1]
            attributes = header[5]
            if header[3] != 2 or end > len(content):  # preallocated, or torn
                break
            yield RecordBatch(
                file,
                start,
                end,
                first_offset=header[0],
                next_offset=header[0] + header[6] + 1,
                leader_epoch=header[2],
                producer_id=header[9],
                is_transactional=bool(attributes & _TRANSACTIONAL),
                is_control=bool(attributes & _CONTROL),
            )
            start = end


def clean_cuts(directory: Path) -> list[int]:
    """The offsets at which a log can be cut without leaving a transaction open forever."""
    offsets: list[int] = []
    under_way: set[int] = set()
    for batch in batches(directory):
        if not under_way:
            offsets.append(batch.first_offset)
        if batch.is_control:
            under_way.discard(batch.producer_id)
        elif batch.is_transactional:
            under_way.add(batch.producer_id)
    return offsets


def truncate(directory: Path, offset: int) -> int:
    """Cut a partition's log so that it ends at ``offset``, the first one of a batch.

    The broker rebuilds indexes and producer states when it starts.

    Returns:
        the offset at which the log ended before.

    Raises:
        ValueError: no batch begins there.
    """
    there = list(batches(directory))
    cut = next((b for b in there if b.first_offset == offset), None)
    if cut is None:
        raise ValueError(f"no batch of {directory.name} begins at offset {offset}")
    for file in sorted(directory.glob("*.log")):
        if file > cut.file:
            file.unlink()
    with cut.file.open("r+b") as log:
        log.truncate(cut.start)
    for pattern in ("*.index", "*.timeindex", "*.txnindex", "*.snapshot"):
        for file in directory.glob(pattern):
            file.unlink()
    return there[-1].next_offset


def strange(batch: RecordBatch) -> None:
    """Give a batch a format that nobody knows."""
    with batch.file.open("r+b") as log:
        log.seek(batch.start + _MAGIC)
        log.write(bytes([0x42]))


def flip(batch: RecordBatch) -> None:
    """Flip one bit in the last record of a batch. A second flip restores it."""
    at = max(batch.start + _BODY, batch.end - 2)
    with batch.file.open("r+b") as log:
        log.seek(at)
        byte = log.read(1)[0]
        log.seek(at)
        log.write(bytes([byte ^ 0x01]))
