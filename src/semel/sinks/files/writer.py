"""Files that a task writes: hidden until a commit gives them their final names."""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semel.core.errors import ConfigError, SemelError
from semel.core.quoting import named
from semel.core.records import RejectedRecord, RowsRejected, absence
from semel.sinks.files.folders import PARTITION_EXCEPTION
from semel.sinks.files.formats import Format
from semel.sinks.files.ledger import HiddenFile, folder_of, staged_name
from semel.sinks.parquet import OpenFile, RollingWriter, split
from semel.storage.store import Store

log = logging.getLogger(__name__)

_TOPIC = "topic"
_OWN = _PARTITION, _OFFSET, _TIME = tuple(map(absence, ("partition", "offset", "time")))
"""Columns beside those of the rows. No field can have such a name."""
_FAR = (1 << 63) - 2
"""No offset has more digits."""


@dataclass(frozen=True, slots=True)
class Naming:
    """How files are named and when they end; ``longest`` is in milliseconds, and 0 is no limit."""

    delimiter: str
    digits: int
    most: int
    longest: int
    target: int

    def name(self, topic: str, partition: int, first: int, last: int, extension: str) -> str:
        """The name of a file, from the offsets of its first and last record."""
        offsets = f"{first:0{self.digits}}-{last + 1:0{self.digits}}"
        return f"{self.delimiter.join([folder_of(topic), str(partition), offsets])}{extension}"

    def longest_name(self, topic: str, partition: int, extension: str) -> str:
        """The longest name of a partition's files."""
        return self.name(topic, partition, _FAR, _FAR, extension)

    def pattern(self, topic: str, extension: str) -> re.Pattern[str]:
        """The pattern of the names of a topic's files, and of no other topic's."""
        delimiter = re.escape(self.delimiter)
        of_topic = re.escape(folder_of(topic))
        return re.compile(rf"{of_topic}{delimiter}\d+{delimiter}\d+-\d+{re.escape(extension)}")


@dataclass(frozen=True, slots=True)
class FileKey:
    """What all records of a file share: where they go, and where they were read."""

    folder: str
    topic: str
    partition: int


Parts = Sequence[tuple[FileKey, pa.Table]]


@dataclass(slots=True)
class _Span:
    """The records that an open file holds."""

    first: int
    last: int
    rows: int
    since: int


class FileWriter(RollingWriter[FileKey, HiddenFile, OpenFile]):
    """Writes the files of one task, or of a commit's dead letters.

    ``sequence`` is the newest entry of the ledger: the files can be committed by the next one.
    """

    def __init__(
        self, store: Store, staging: str, sequence: int, naming: Naming, kind: Format
    ) -> None:
        super().__init__(naming.target)
        self._store = store
        self._staging = staging
        self._sequence = sequence
        self._naming = naming
        self._kind = kind
        self._spans: dict[FileKey, _Span] = {}

    def write(self, rows: pa.Table, where: Rows) -> None:
        """Add rows."""
        self.add(self.parts(rows, where))

    def add(self, parts: Parts) -> None:
        """Add rows by their place."""
        self._write(chunk for place, part in parts for chunk in self._cut(place, part))

    def parts(self, rows: pa.Table, where: Rows) -> Parts:
        """Rows by their place.

        Raises:
            RowsRejected: a folder's name would be too long for the store.
            ConfigError: even the topic's folder would have too long a name.
        """
        marked = rows.append_column(_PARTITION, where.partitions)
        marked = marked.append_column(_OFFSET, where.offsets)
        if where.times is not None:
            marked = marked.append_column(_TIME, where.times.cast(pa.int64()))
        by = pa.table({**where.by, _TOPIC: where.origins, _PARTITION: where.partitions})
        parts: list[tuple[FileKey, pa.Table]] = []
        refused: list[RejectedRecord] = []
        for (*values, topic, partition), part in split(marked, by):
            below = where.folder(partition, values)
            place = FileKey("/".join(p for p in (where.root, below) if p), topic, partition)
            why_not = self._store.too_long(place.folder, self._longest_name(place))
            if why_not and not (below and self._has_room(where, topic)):  # no record is to blame
                raise ConfigError(
                    f"path={self._store.where}: no folder can be named by topic "
                    f"{named(where.topic)}: {why_not}. Use a topic with a shorter name"
                )
            if why_not:
                why = f"folder {below[:60]}...: {why_not}"
                offsets = part.column(_OFFSET).to_pylist()
                refused += [
                    RejectedRecord(topic, partition, o, PARTITION_EXCEPTION, why) for o in offsets
                ]
            parts.append((place, part))
        if refused:
            raise RowsRejected(refused)
        return parts

    def _has_room(self, where: Rows, topic: str) -> bool:
        """Whether the store can name a folder by the topic alone."""
        file = self._longest_name(FileKey(where.root, topic, 0))
        return not self._store.too_long(where.root, file)

    def _longest_name(self, place: FileKey) -> str:
        return self._naming.longest_name(place.topic, place.partition, self._kind.extension)

    def _cut(self, place: FileKey, part: pa.Table) -> Iterator[tuple[FileKey, pa.Table]]:
        offsets = part.column(_OFFSET).to_numpy()
        times = part.column(_TIME).to_numpy() if _TIME in part.column_names else None
        rows = part.drop_columns([n for n in _OWN if n in part.column_names])
        if place in self._open and self._open[place].schema != rows.schema:
            self._close(place)  # the topic has gained fields
        start = 0
        while start < len(offsets):
            end = self._end(place, start, len(offsets), times)
            if end == start:
                self._close(place)
                continue
            chosen = offsets[start:end]
            low, high = int(chosen.min()), int(chosen.max())
            span = self._spans.get(place)
            if span is None:
                since = int(times[start]) if times is not None else 0
                self._spans[place] = _Span(low, high, end - start, since)
            else:
                span.first, span.last = min(span.first, low), max(span.last, high)
                span.rows += end - start
            yield place, rows.slice(start, end - start)
            start = end

    def _end(self, place: FileKey, start: int, end: int, times: Any) -> int:
        """The end of the rows that the place's file can still take."""
        span = self._spans.get(place)
        if self._naming.most:
            end = min(end, start + self._naming.most - (span.rows if span else 0))
        if times is not None and end > start:
            since = span.since if span else int(times[start])
            late = np.flatnonzero(times[start:end] >= since + self._naming.longest)
            end = start + int(late[0]) if len(late) else end
        return end

    def _new(self, values: FileKey, schema: pa.Schema) -> OpenFile:
        path = f"{self._staging}/{staged_name(self._sequence, uuid.uuid4().hex)}"
        return self._kind.open(path, self._store.open(path), schema)

    def _described(self, values: FileKey, file: OpenFile) -> HiddenFile:
        span = self._spans.pop(values)
        name = self._naming.name(
            values.topic, values.partition, span.first, span.last, self._kind.extension
        )
        self._store.check_name(values.topic, name)  # the name must be possible after the commit
        target = f"{values.folder}/{name}"
        return HiddenFile(file.path, target, span.rows, self._store.size(file.path) or 0)

    def _delete(self, paths: list[str]) -> None:
        delete(self._store, paths)

    def _path(self, done: HiddenFile) -> str:
        return done.staged

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return self._store.writing()


@dataclass(frozen=True, slots=True)
class Rows:
    """Where rows belong, with one value per row; the columns in ``by`` decide the ``folder``.
    The files are in ``root``, the folder of ``topic``, and are named after the topics that the rows
    come from, so that records of several topics can go to one folder."""

    topic: str
    root: str
    origins: pa.ChunkedArray
    partitions: pa.ChunkedArray
    offsets: pa.ChunkedArray
    by: Mapping[str, pa.ChunkedArray]
    folder: Any
    times: pa.ChunkedArray | None = None


def in_order(parts: Sequence[pa.Table]) -> pa.Table:
    """The rows of one place, by their offsets; later parts may have more fields."""
    if len(parts) == 1:
        return parts[0]
    return pa.concat_tables(parts, promote_options="default").sort_by(_OFFSET)


def delete(store: Store, paths: list[str]) -> None:
    """Delete staged files; what cannot be deleted is left to the next start."""
    for path in paths:
        try:
            store.delete([path])
        except SemelError as error:
            log.info("staged file %s was not deleted: %s", path, error)
