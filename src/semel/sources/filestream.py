"""FileStreamSource: the lines of files that grow, as Kafka Connect's connector reads them."""

from __future__ import annotations

import codecs
import glob
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semel.config import HIGH, LOW, SourceConnectorConfig, Type, key, read
from semel.config.allowed import PATHS, is_below, roots_of
from semel.core.delivery import Support
from semel.core.errors import ConfigError, Problem, TransientError
from semel.core.problems import refuse
from semel.core.quoting import PATH, named
from semel.sources.base import Source, SourceBatch, SourceOffset, SourcePartition, StoredOffset
from semel.sources.growing import BytePosition, GrowingFile, is_directory

log = logging.getLogger(__name__)

CLASSES = (
    "org.apache.kafka.connect.file.FileStreamSourceConnector",
    "FileStreamSourceConnector",
    "FileStreamSource",
)

_FILENAME, _POSITION = "filename", "position"
"""Kafka Connect's names in the source partition and offset."""
_TAIL = "tail"
"""A checksum of the bytes before the position. Kafka Connect ignores it."""


def _charset(name: str) -> None:
    ascii_text = "".join(map(chr, range(9, 127)))
    try:
        codecs.lookup(name)
        if ascii_text.encode(name) == ascii_text.encode("ascii"):
            return
    except LookupError:
        raise ValueError("is not a character set, such as UTF-8 or ISO-8859-1") from None
    except UnicodeError:
        pass
    raise ValueError("must write line ends as ASCII does. Use the directory source")


@dataclass(frozen=True)
class FileStreamConfig:
    """Which file goes to which topic."""

    file: str = key("file", "", "The file to read.", importance=HIGH, group="File")
    pattern: str = key(
        "file.pattern",
        "",
        "Read all files whose paths match this instead, such as /var/log/app/*.log.",
    )
    directory: str = key(
        "file.directory",
        "",
        "The directory that a relative file is in. If empty, the one in which semel was started.",
        importance=LOW,
    )
    charset: str = key(
        "file.charset",
        "UTF-8",
        "The character set of the files.",
        validator=_charset,
        importance=LOW,
    )
    topic: str = key("topic", doc="The topic to write to.")
    batch_size: int = key(
        "batch.size", 100_000, "Maximum number of lines in one batch.", at_least=1, type=Type.INT
    )

    def __post_init__(self) -> None:
        refuse(self._problems())

    def _problems(self) -> Iterator[Problem]:
        if not self.file.strip() and not self.pattern.strip():
            yield Problem("file", "file is required. The file to read; or set file.pattern")
        if self.file.strip() and self.pattern.strip():
            yield Problem("file", "file and file.pattern exclude each other: set one")
        if "," in self.topic:
            yield Problem("topic", f"topic={self.topic} must be one topic, without commas")


class FileStreamSource(Source):
    """A source partition for each file; its offset is the position after the last line, in
    bytes."""

    section = FileStreamConfig
    headers = ()
    keyed = tombstones = False
    local = True
    unit = "bytes"

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._name = connector.name
        self._config = read(FileStreamConfig, connector.originals)
        self._originals = connector.originals
        self._known: dict[str, None] = {}
        self._said = False
        if self._config.pattern:
            self.refresh = 5.0

    def describe(self) -> dict[str, str]:
        config = self._config
        which = Path(config.directory, config.file or config.pattern)
        return {"reads": f"lines of {which}", "writes": f"topic {named(config.topic)}"}

    def exactly_once(self) -> Support:
        return Support(
            True,
            "lines and the position after them are committed in one Kafka transaction; the file "
            "must only be appended to, or replaced by another one",
        )

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        # The name is not made absolute: as given, it is part of Kafka Connect's offsets.
        return {"file.directory": str(Path(raw.get("file.directory", "").strip()).absolute())}

    def check(self) -> None:
        path = Path(self._config.directory, self._config.file)
        if self._config.file and path.is_dir():
            raise is_directory(self._name, path)

    def topics(self) -> Sequence[str]:
        return [self._config.topic]

    def partitions(self) -> Sequence[SourcePartition]:
        if not self._config.pattern:
            return [{_FILENAME: self._config.file}]
        root = Path(self._config.directory)
        # Path.glob takes no absolute pattern.
        found = glob.glob(self._config.pattern, root_dir=root, recursive=True)  # noqa: PTH207
        # A file that is gone may have been renamed, and is read to its end.
        self._known |= dict.fromkeys(sorted(f for f in found if (root / f).is_file()))
        if not self._known and not self._said:
            log.warning(
                "connector %s: no file matches file.pattern=%s: waiting for one",
                *(self._name, self._config.pattern),
            )
        self._said = True
        return [{_FILENAME: name} for name in self._known]

    def check_offset(self, partition: SourcePartition, offset: SourceOffset) -> None:
        if partition.keys() != {_FILENAME} or not isinstance(partition[_FILENAME], str):
            raise ConfigError(
                f"connector {self._name}: source partition {dict(partition)} must be a "
                f'{_FILENAME}, such as {{"{_FILENAME}": "{self._config.file}"}}'
            )
        if _POSITION not in offset:  # Kafka Connect reads one without it from the beginning
            raise ConfigError(
                f"connector {self._name}: source offset {dict(offset)} must have a {_POSITION}, "
                f'such as {{"{_POSITION}": 0}}'
            )
        self._place(partition, offset)

    def read(
        self, partition: SourcePartition, offset: SourceOffset | None
    ) -> Iterator[SourceBatch | None]:
        place = BytePosition() if offset is None else self._place(partition, offset)
        config = self._config
        path = Path(config.directory, str(partition[_FILENAME]))
        roots = roots_of(self._originals)
        if roots is not None and not is_below(path, roots):
            raise ConfigError(
                f"connector {self._name}: file {named(path, PATH)} is a link to {path.resolve()}, "
                f"which is not in the folders of the worker's {PATHS}: {', '.join(roots)}"
            )
        file = GrowingFile(self._name, path, config.charset, config.batch_size)
        for found in file.read(place):
            if found is None:
                yield None
            elif not len(found.values):
                yield SourceBatch((), _offset(found.place))
            else:
                yield SourceBatch.of(config.topic, found.values, _offset(found.place))

    def lag(self, stored: StoredOffset) -> Iterator[tuple[SourcePartition, int | None]]:
        """See :class:`~semel.sources.base.Measurable`. Positions in ``.gz`` files refer to the
        uncompressed contents, whose size is not known."""
        for partition in self.partitions():
            offset = stored(partition)
            position = 0 if offset is None else self._place(partition, offset).position
            path = Path(self._config.directory, str(partition[_FILENAME]))
            yield partition, None if path.suffix == ".gz" else self._behind(path, position)

    def _behind(self, path: Path, position: int) -> int:
        """The bytes after a position; all of them if the file was truncated since, because it is
        then read from its beginning."""
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise TransientError(
                f"connector {self._name}: file {named(path, PATH)} cannot be read: {error.strerror}"
            ) from None
        return size - position if position <= size else size

    def _place(self, partition: SourcePartition, offset: SourceOffset) -> BytePosition:
        found, tail = offset.get(_POSITION, 0), offset.get(_TAIL)
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            raise ConfigError(
                f"connector {self._name}: source offset {dict(offset)} of file "
                f"{named(partition.get(_FILENAME))} must have a {_POSITION} of 0 or more. Correct "
                "it with semel offsets set, or forget it with semel offsets reset"
            )
        return BytePosition(found, tail if isinstance(tail, int) else None)


def _offset(place: BytePosition) -> dict[str, Any]:
    if place.tail is None:
        return {_POSITION: place.position}
    return {_POSITION: place.position, _TAIL: place.tail}
