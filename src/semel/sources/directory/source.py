"""The directory source connector.

A file is a source partition. Its offset says how many records were read, of which version of the
file, and whether that was all. A finished file is moved or deleted after the commit that records
its end, or after a restart if that did not happen then: once its offset says ``done``, nothing more
of a file is read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from semel.config import SourceConnectorConfig, absolute, read
from semel.config.allowed import roots_of
from semel.core.delivery import Support
from semel.core.errors import ConfigError, ServiceError
from semel.core.quoting import PATH, named
from semel.core.records import ConnectRecords
from semel.sources.base import (
    Source,
    SourceBatch,
    SourceOffset,
    SourcePartition,
    StoredOffset,
    source_records,
)
from semel.sources.directory import files
from semel.sources.directory.config import (
    DELETE,
    FILEPULSE,
    FILEPULSE_PATHS,
    FILEPULSE_PREFIXES,
    IGNORED,
    MOVE_BY_DATE,
    NONE,
    DirectoryConfig,
    of_filepulse,
)
from semel.sources.directory.files import (
    BROKEN,
    DONE,
    FILE_NAME,
    HEADERS,
    FileProgress,
    Listing,
    Listings,
    Metadata,
    Versions,
    told,
)
from semel.sources.directory.formats import formats_of
from semel.sources.directory.places import FoundFile, Places
from semel.sources.directory.schemas import TIMESTAMP
from semel.sources.directory.texts import Broken, Chunk
from semel.storage import options_of

log = logging.getLogger(__name__)

_SHARD = "shard"
_MOVES = 3
"""How often a file may be moved while it is read again."""
_YOUNG = 0.05
"""Seconds between two looks at a file that is not old enough."""
_INPUT, _FINISHED, _ERROR = "input.path", "finished.path", "error.path"


class DirectorySource(Source):
    """Shards of files, by their names."""

    section = DirectoryConfig
    ignored = IGNORED
    address = _INPUT
    unit = "files"
    tombstones = False
    prefixes = ("storage.options.", *FILEPULSE_PREFIXES)

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._name = connector.name
        self._tasks = connector.tasks_max
        originals: Mapping[str, str] = connector.originals
        is_filepulse = connector.connector_class.strip() == FILEPULSE
        self._config = config = read(
            DirectoryConfig, of_filepulse(originals) if is_filepulse else originals
        )
        self.local = "://" not in config.input_path
        self.headers = HEADERS if config.metadata_location == "headers" else ()
        self._formats = formats_of(config, connector.connector_class.strip())
        self.keyed = bool(self._formats.key_fields)
        self._line_field = "message" if is_filepulse and self._formats.name == "text" else ""
        self._paths = {
            _INPUT: config.input_path,
            _FINISHED: config.finished_path,
            _ERROR: config.error_path,
        }
        options, roots = options_of(connector.originals), roots_of(connector.originals)
        self._places = Places(self._paths, options, roots)
        self._versions = Versions(self._places, _INPUT)
        self._listing = Listing(self._places, _INPUT, config, self._warn)
        self._listings = Listings(connector.name, self._places, self._paths)
        self._warned: set[str] = set()
        self._broken = ""

    def describe(self) -> dict[str, str]:
        config = self._config
        finished = {
            NONE: "are left",
            DELETE: "are deleted",
        }.get(config.cleanup, f"are moved to {config.finished_path}")
        return {
            "reads": f"{self._formats.name} of files {config.pattern} in {config.input_path}; "
            f"finished ones {finished}",
            "writes": f"topic {named(config.topic)}",
        }

    def exactly_once(self) -> Support:
        return Support(
            True,
            "records and how far their file is read are committed in one Kafka transaction; files "
            "must be whole when they appear",
        )

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        paths: dict[str, str] = {}
        for name in (_INPUT, _FINISHED, _ERROR, *FILEPULSE_PATHS):
            paths |= absolute(raw, name)
        return paths

    def check(self) -> None:
        if not self.local:
            self._places.files(_INPUT, recursive=False)

    def topics(self) -> Sequence[str]:
        return [self._config.topic]

    def partitions(self) -> Sequence[SourcePartition]:
        return [{_SHARD: n} for n in range(self._tasks)]

    def check_offset(self, partition: SourcePartition, offset: SourceOffset) -> None:
        if partition.keys() != {FILE_NAME} or not isinstance(partition[FILE_NAME], str):
            raise ConfigError(
                f"connector {self._name}: source partition {dict(partition)} must be a "
                f'{FILE_NAME}, such as {{"{FILE_NAME}": "orders.csv"}}'
            )
        self._progress(offset)

    def read(
        self, partition: SourcePartition, offset: SourceOffset | None
    ) -> Iterator[SourceBatch | None]:
        raise NotImplementedError("see read_shard")

    # Reading

    def read_shard(
        self, shard: SourcePartition, stored: StoredOffset
    ) -> Iterator[SourceBatch | None]:
        """See :class:`~semel.sources.base.Sharded`."""
        uncommitted: dict[str, SourceOffset] = {}
        """Offsets of batches, which may not be committed yet."""
        due = 0.0
        while True:
            if time.monotonic() < due:
                yield None
                continue
            young, ready = self._listed(int(shard[_SHARD]))
            some = False
            for batch in self._read_files(ready, stored, uncommitted):
                some = True
                yield batch
            if young and not some:
                time.sleep(_YOUNG)
                yield SourceBatch((), {})  # there will be more
            elif not some:
                due = time.monotonic() + self._config.empty_poll_ms / 1000

    def before(self, partition: SourcePartition, offset: SourceOffset) -> Iterator[SourceBatch]:
        """See :class:`~semel.sources.base.Repeatable`."""
        name, count = str(partition[FILE_NAME]), 0
        for _ in range(_MOVES):
            place, entry = self._listings.find(name, offset)
            try:
                as_read = replace(entry, name=name)  # it may have been moved since
                for values in self._first(place, entry, self._progress(offset).records, count):
                    yield SourceBatch([self._records(values, as_read, count)], offset)
                    count += len(values)
                return
            except FileNotFoundError:  # it was moved since the places were listed
                self._listings.forget()
        raise self._listings.missing(name, offset)

    def _first(self, place: str, entry: FoundFile, until: int, begin: int) -> Iterator[pa.Array]:
        """The first records of a file, those from ``begin`` on."""
        count = 0
        try:
            for chunk in self._chunks(place, entry, FileProgress()):
                values = chunk.values.slice(0, max(0, until - count))
                if len(fresh := values.slice(max(0, begin - count))):
                    yield fresh
                count += len(values)
                if count >= until:
                    return
        except Broken as broken:
            if broken.chunk is not None and count < until:
                values = broken.chunk.values.slice(0, until - count)
                yield values.slice(max(0, begin - count))

    def lag(self, stored: StoredOffset) -> Iterator[tuple[SourcePartition, int]]:
        """See :class:`~semel.sources.base.Measurable`: the files that are not finished."""
        for entry in self._listing.files() or ():
            partition = {FILE_NAME: entry.name}
            offset = stored(partition)
            if offset is None or not (files.is_of(offset, entry) and self._progress(offset).state):
                yield partition, 1

    def committed(self, partition: SourcePartition, offset: SourceOffset) -> None:
        """Once a file is done, apply the cleanup policy."""
        self._finish(str(partition[FILE_NAME]), offset)

    def _read_files(
        self, ready: Sequence[FoundFile], stored: StoredOffset, uncommitted: dict[str, SourceOffset]
    ) -> Iterator[SourceBatch]:
        gathered = PendingBatch(self._config.batch_size)
        for entry in ready:
            partition = {FILE_NAME: entry.name}
            offset = uncommitted.get(entry.name)
            if offset is None and (offset := stored(partition)) is not None:
                uncommitted[entry.name] = offset
                self._finish(entry.name, offset)  # a crash came between the commit and this
            for records, reached in self._on(entry, offset):
                uncommitted[entry.name] = reached.offset(entry)
                gathered.add(records, partition, uncommitted[entry.name])
                halts = reached.state == BROKEN and self._config.halt
                if halts or gathered.is_full:
                    yield gathered.batch()
                    gathered = PendingBatch(self._config.batch_size)
                if halts:
                    raise ServiceError(self._broken)
        if gathered.reached:
            yield gathered.batch()

    def _on(
        self, entry: FoundFile, offset: SourceOffset | None
    ) -> Iterator[tuple[ConnectRecords | None, FileProgress]]:
        """The records of a file after its offset."""
        reached = FileProgress()
        if offset is not None and self._versions.same(offset, entry):
            reached = self._progress(offset)
        elif offset is not None:
            self._warn(
                f"file {named(entry.name, PATH)} is not the same as before ({told(entry.facts)} "
                f"instead of {told(offset)}): reading it from its beginning"
            )
        if reached.state:
            return
        self._versions.begin(entry)
        try:
            for chunk in self._chunks(_INPUT, entry, reached):
                records = self._of(chunk, entry)
                reached = chunk.reached
                yield records, reached
        except FileNotFoundError:
            self._warn(
                f"file {named(entry.name, PATH)} was moved or replaced before it could be read"
            )
            return
        except Broken as broken:
            with contextlib.suppress(Broken):  # the records before lack a field that is needed
                if broken.chunk is not None:
                    records = self._of(broken.chunk, entry)
                    reached = broken.chunk.reached
                    yield records, reached
            for end in self._end(entry, replace(reached, state=BROKEN)):
                self._note(entry, broken)
                yield end
            return
        yield from self._end(entry, replace(reached, state=DONE))

    def _chunks(self, place: str, entry: FoundFile, reached: FileProgress) -> Iterator[Chunk]:
        """Raises Broken, or FileNotFoundError."""
        with self._places.open(place, entry) as file:
            chunks = self._formats.format().read(file, entry.name, reached)
            while True:
                with self._places.reading():
                    chunk = next(chunks, None)
                if chunk is None:
                    return
                if len(chunk.values):
                    yield chunk

    def _end(self, entry: FoundFile, reached: FileProgress) -> Iterator[tuple[None, FileProgress]]:
        """The end of a file, if it is still the one that was listed. If not, reading continues."""
        checksum = self._places.checksum(_INPUT, entry.name)
        now = self._places.find(_INPUT, entry.name)
        if now is None or now == entry:
            yield None, replace(reached, checksum=checksum)

    def _of(self, chunk: Chunk, entry: FoundFile) -> ConnectRecords:
        return self._records(chunk.values, entry, chunk.reached.records - len(chunk.values))

    def _records(self, values: pa.Array, entry: FoundFile, begin: int) -> ConnectRecords:
        """Records for values of a file, of which the first one is number ``begin``."""
        config = self._config
        keys = stamps = None
        if self._line_field:
            values = pa.StructArray.from_arrays([values], names=[self._line_field])
        names = self._formats.key_fields
        if names:
            fields = [self._field(values, n, entry) for n in names]
            columns = [pc.struct_field(values, f.name) for f in fields]
            keys = pa.StructArray.from_arrays(columns, fields=fields)
        if config.timestamp_mode == "file_time":
            stamps = pa.repeat(pa.scalar(entry.modified_ms, pa.int64()), len(values))
            stamps = stamps.cast(TIMESTAMP)
        elif config.timestamp_mode == "field":
            field = self._field(values, config.timestamp_field, entry)
            if not pa.types.is_timestamp(field.type):
                raise ConfigError(
                    f"connector {self._name}: file {named(entry.name, PATH)}: "
                    f"timestamp.field={field.name} is {field.type}, but must be a timestamp"
                )
            stamps = pc.struct_field(values, field.name)
        headers = None
        if config.metadata_location != "none":
            metadata = Metadata(config.input_path, entry, self._formats.name)
        if config.metadata_location == "headers":
            headers = metadata.headers(begin, len(values))
        elif config.metadata_location == "field":
            if not pa.types.is_struct(values.type):
                raise ConfigError(
                    f"connector {self._name}: metadata.location=field: the records of file "
                    f"{named(entry.name)} have no fields. Set metadata.location to headers or none"
                )
            values = metadata.added(values, config.metadata_field, begin)
        return source_records(config.topic, values, keys=keys, timestamps=stamps, headers=headers)

    def _field(self, values: pa.Array, name: str, entry: FoundFile) -> pa.Field:
        kind = values.type
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            if not self._config.halt:
                raise Broken(
                    0, f"its records have no field {named(name)}, which the configuration names"
                )
            raise ConfigError(
                f"connector {self._name}: file {named(entry.name, PATH)}: its records have no "
                f"field {named(name)}, from which the key or timestamp is made. Correct "
                "schema.generation.key.fields, key.schema or timestamp.field"
            )
        return kind.field(name)

    # Files

    def _listed(self, shard: int) -> tuple[bool, list[FoundFile]]:
        """Whether some files of a shard are too young to be read, and the files that are not."""
        listed = self._listing.files()
        if listed is None:
            self._warn(f"{_INPUT}={self._config.input_path} is not there: waiting for it")
            return False, []
        shard_files = [f for f in listed if zlib.crc32(os.fsencode(f.name)) % self._tasks == shard]
        ready = self._listing.ready(shard_files)
        return len(ready) < len(shard_files), ready

    def _finish(self, name: str, offset: SourceOffset) -> None:
        """Move or delete a file whose end is committed. It may have been replaced since."""
        reached = self._progress(offset)
        if not reached.state or not self._moves(reached):
            return
        entry = self._places.find(_INPUT, name)
        if entry is None or not self._versions.same(offset, entry, unread=False):
            return
        with contextlib.suppress(FileNotFoundError):  # an earlier run does the same
            self._clean(entry, reached)

    def _clean(self, entry: FoundFile, reached: FileProgress) -> None:
        if reached.state == BROKEN:
            self._places.move(entry, reached.checksum, _INPUT, _ERROR)
        elif self._config.cleanup == DELETE:
            self._places.delete(_INPUT, entry, reached.checksum)
        else:
            by_date = self._config.cleanup == MOVE_BY_DATE
            folder = entry.modified.date().isoformat() if by_date else ""
            self._places.move(entry, reached.checksum, _INPUT, _FINISHED, folder)

    def _moves(self, reached: FileProgress) -> bool:
        if reached.state == BROKEN:
            return bool(self._config.error_path)
        return self._config.cleanup != NONE

    def _note(self, entry: FoundFile, broken: Broken) -> None:
        """Report what is wrong with a file, and what happens to it."""
        where = f"is moved to {_ERROR}" if self._config.error_path else "stays where it is"
        message = (
            f"file {named(entry.name, PATH)}: record {broken.record + 1}: {broken}. The file "
            f"{where}"
        )
        self._broken = (
            f"connector {self._name}: {message}; the records before are written. Correct the rest "
            "and put it into input.path under another name, then start the connector again; "
            "halt.on.error=false continues with other files"
        )
        if not self._config.halt:
            log.warning("connector %s: %s", self._name, message)

    def _progress(self, offset: SourceOffset) -> FileProgress:
        try:
            return files.reached(offset)
        except ValueError as error:
            raise ConfigError(
                f"connector {self._name}: source offset {dict(offset)}: {error}. Correct it with "
                "semel offsets set, or forget it with semel offsets reset"
            ) from None

    def _warn(self, message: str) -> None:
        """Log a warning once."""
        if message not in self._warned:
            log.warning("connector %s: %s", self._name, message)
        self._warned.add(message)


_BYTES = 8 * 1024 * 1024
_FILES = 1000


@dataclass(slots=True)
class PendingBatch:
    """What was read since the last batch."""

    most: int
    records: list[ConnectRecords] = field(default_factory=list)
    reached: dict[str, tuple[SourcePartition, SourceOffset]] = field(default_factory=dict)
    size: int = 0
    count: int = 0

    def add(
        self, records: ConnectRecords | None, partition: SourcePartition, offset: SourceOffset
    ) -> None:
        if records is not None and len(records):
            self.records.append(records)
            self.size += int(records.values.nbytes)
            self.count += len(records)
        self.reached[str(partition)] = partition, offset

    @property
    def is_full(self) -> bool:
        many = len(self.reached) >= _FILES
        return many or self.size >= _BYTES or self.count >= self.most

    def batch(self) -> SourceBatch:
        """Everything, in as few columns as types allow."""
        parts = [_joined(list(g)) for _, g in groupby(self.records, _kind)]
        return SourceBatch(parts, {}, reached=tuple(self.reached.values()))


def _kind(records: ConnectRecords) -> tuple[pa.DataType, pa.DataType, pa.Schema]:
    return records.values.type, records.keys.type, records.origin.schema


def _joined(several: list[ConnectRecords]) -> ConnectRecords:
    first = several[0]
    if len(several) == 1:
        return first
    return ConnectRecords(
        first.topic,
        pa.concat_tables([r.origin for r in several]),
        pa.concat_arrays([r.keys for r in several]),
        pa.concat_arrays([r.values for r in several]),
        None if first.headers is None else pa.concat_arrays([r.headers for r in several]),
    )
