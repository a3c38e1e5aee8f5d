"""FileStreamSource: the lines of a file that grows, as Kafka Connect's connector reads them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from semel.config import HIGH, LOW, MEDIUM, SourceConnectorConfig, Type, key, read
from semel.delivery import Support
from semel.errors import ConfigError, Problem, ServiceError, TransientError
from semel.sources.base import Source, SourceBatch, SourceOffset, SourcePartition
from semel.sources.lines import ENDS, split, text

log = logging.getLogger(__name__)

CLASSES = (
    "org.apache.kafka.connect.file.FileStreamSourceConnector",
    "FileStreamSourceConnector",
    "FileStreamSource",
)

_FILENAME, _POSITION = "filename", "position"
"""Kafka Connect's names in the source partition and offset."""

_BLOCK = 8 * 1024 * 1024
_QUIET = 1.0
"""Seconds without a byte after which a file that was replaced is taken to be finished: a program
that has not noticed yet may still write to it."""


@dataclass(frozen=True)
class FileStreamConfig:
    """Which file goes to which topic."""

    file: str = key(
        "file",
        doc="The file to read.",
        importance=HIGH,
        group="File",
    )
    directory: str = key(
        "file.directory",
        "",
        "The directory of a relative file; where semel was started if empty.",
        importance=LOW,
        group="File",
    )
    topic: str = key(
        "topic",
        doc="The topic to write to.",
        importance=HIGH,
        group="File",
    )
    batch_size: int = key(
        "batch.size",
        100_000,
        "Most lines of one batch.",
        at_least=1,
        type=Type.INT,
        importance=MEDIUM,
        group="File",
    )

    def __post_init__(self) -> None:
        if "," in self.topic:
            raise ConfigError(
                Problem("topic", f"topic={self.topic} must be one topic, without commas")
            )


class FileStreamSource(Source):
    """One source partition, the file; its offset is the position behind the last line in bytes."""

    section = FileStreamConfig

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._name = connector.name
        self._config = read(FileStreamConfig, connector.originals)
        self._path = Path(self._config.directory, self._config.file)

    def describe(self) -> dict[str, str]:
        return {"reads": f"lines of {self._path}", "writes": f"topic {self._config.topic}"}

    def exactly_once(self) -> Support:
        return Support(
            True,
            "lines and the position behind them are committed in one Kafka transaction; the file "
            "must only be appended to, or replaced by another one",
        )

    @classmethod
    def anchored(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        # Not the file itself: its name as it was given is part of Kafka Connect's offsets.
        return {"file.directory": str(Path(raw.get("file.directory", "").strip()).absolute())}

    def topics(self) -> Sequence[str]:
        return [self._config.topic]

    def partitions(self) -> Sequence[SourcePartition]:
        return [{_FILENAME: self._config.file}]

    def check_offset(self, partition: SourcePartition, offset: SourceOffset) -> None:
        if partition.keys() != {_FILENAME}:
            raise ConfigError(
                f"connector {self._name}: source partition {dict(partition)} must be a "
                f'{_FILENAME}, such as {{"{_FILENAME}": "{self._config.file}"}}'
            )
        self._position(offset)

    def read(
        self, partition: SourcePartition, offset: SourceOffset | None
    ) -> Iterator[SourceBatch | None]:
        position = 0 if offset is None else self._position(offset)
        while True:
            file = yield from self._opened()
            with file:
                if position:
                    position = yield from self._checked(file, position)
                file.seek(position)
                yield from self._lines(file, position)
            position = 0

    def _position(self, offset: SourceOffset) -> int:
        found = offset.get(_POSITION, 0)
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            raise ConfigError(
                f"connector {self._name}: source offset {dict(offset)} of file {self._path} must "
                f"have a {_POSITION} of 0 or more. Correct it with semel offsets set, or forget it "
                "with semel offsets reset"
            )
        return found

    def _opened(self) -> Generator[None, None, BinaryIO]:
        """Wait for the file to be there."""
        said = False
        while True:
            try:
                return self._path.open("rb", buffering=0)
            except FileNotFoundError:
                if not said:
                    log.warning(
                        "connector %s: file %s is not there: waiting for it",
                        *(self._name, self._path),
                    )
                said = True
            except IsADirectoryError:
                raise ConfigError(
                    f"connector {self._name}: file={self._path} is a directory. Name a file in it"
                ) from None
            except PermissionError as error:
                raise ServiceError(
                    f"connector {self._name}: file {self._path} cannot be read: {error.strerror}. "
                    "Grant read permission to the user that runs the tasks"
                ) from None
            except OSError as error:
                raise self._failed(error) from None
            yield None

    def _checked(self, file: BinaryIO, position: int) -> Generator[SourceBatch, None, int]:
        """Where to read on, in a file of which only the position is known.

        Raises:
            ConfigError: it is not the file that the position was reached in.
        """
        size = os.fstat(file.fileno()).st_size
        if size < position:
            yield self._from_the_beginning(
                f"has {size} bytes, fewer than the position {position}: it was cut or replaced"
            )
            return 0
        file.seek(position - 1)
        if file.read(1) not in ENDS:
            raise ConfigError(
                f"connector {self._name}: file {self._path}: no line begins at position "
                f"{position}. Was the file replaced, or has Kafka Connect stored the position, "
                "which counts characters instead of bytes? Set the right one with semel offsets "
                "set, or forget it with semel offsets reset"
            )
        return position

    def _lines(self, file: BinaryIO, position: int) -> Iterator[SourceBatch | None]:
        """The lines of a file from a position on, until it is cut or another one has its name."""
        rest, size, quiet_since = b"", _BLOCK, 0.0
        while True:
            try:
                block = file.read(size)
            except OSError as error:
                raise self._failed(error) from None
            if block:
                quiet_since = time.monotonic()
                rest += block
                used = 0
                for lines, length in split(rest, self._config.batch_size):
                    used += length
                    yield self._batch(lines, position + used)
                position += used
                rest = rest[used:]
                size = _BLOCK if used else 2 * size  # a long line is not looked through each time
                continue
            there = self._there()
            here = os.fstat(file.fileno())
            read_until = position + len(rest)
            if here.st_size < read_until:
                yield self._from_the_beginning(
                    f"has {here.st_size} bytes, but {read_until} were read: it was cut"
                )
                return
            replaced = there is not None and not os.path.samestat(there, here)
            if replaced and time.monotonic() - quiet_since > _QUIET:
                yield self._from_the_beginning("was replaced by another one", rest)
                return
            yield None

    def _there(self) -> os.stat_result | None:
        """What has the file's name now."""
        try:
            return self._path.stat()
        except OSError:
            return None  # renamed; another one may come

    def _from_the_beginning(self, why: str, rest: bytes = b"") -> SourceBatch:
        """What ends one file and begins the next: a last line without its end, and position 0. If
        it were not committed now, a larger new file would be read from the old position after a
        crash."""
        log.warning(
            "connector %s: file %s %s: reading it from its beginning",
            *(self._name, self._path, why),
        )
        if not rest:
            return SourceBatch((), {_POSITION: 0})
        return self._batch(pa.array([text(rest.removesuffix(b"\r"))], pa.string()), 0)

    def _batch(self, lines: pa.Array, position: int) -> SourceBatch:
        return SourceBatch.of(self._config.topic, lines, {_POSITION: position})

    def _failed(self, error: OSError) -> TransientError:
        return TransientError(
            f"connector {self._name}: file {self._path} cannot be read: {error.strerror}"
        )
