"""FileStreamSource: the lines of files that grow, are cut or rotated, as Kafka Connect's connector
reads them."""

from __future__ import annotations

import codecs
import glob
import gzip
import logging
import os
import re
import time
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from semel.config import HIGH, LOW, SourceConnectorConfig, Type, key, read
from semel.config.allowed import PATHS, is_below, roots_of
from semel.core.delivery import Support
from semel.core.errors import ConfigError, Problem, ServiceError, TransientError, misconfigured
from semel.core.problems import refuse
from semel.core.quoting import PATH, named
from semel.sources.base import (
    Source,
    SourceBatch,
    SourceOffset,
    SourcePartition,
    StoredOffset,
    is_storable,
)
from semel.sources.lines import ENDS, LARGEST, split, text

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

_BLOCK = 8 * 1024 * 1024
_QUIET = 1.0
"""Seconds without a byte after which a file that was replaced is taken to be finished: a program
that has not noticed yet may still write to it."""
_BEHIND = 256
"""Bytes before a position, which distinguish the file that it was reached in from another one."""


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
        self._files: dict[str, None] = {}
        self._left_out: set[str] = set()
        self._warned = False
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
        if self._config.file:
            _check_kind(self._name, Path(self._config.directory, self._config.file))

    def topics(self) -> Sequence[str]:
        return [self._config.topic]

    def partitions(self) -> Sequence[SourcePartition]:
        if not self._config.pattern:
            return [{_FILENAME: self._config.file}]
        root = Path(self._config.directory)
        # Path.glob takes no absolute pattern.
        paths = glob.glob(self._config.pattern, root_dir=root, recursive=True)  # noqa: PTH207
        # A file that is gone may have been renamed, and is read to its end.
        found = sorted(f for f in paths if (root / f).is_file())
        self._files |= dict.fromkeys(filter(is_storable, found))
        for name in {*found} - {*self._files} - self._left_out:
            log.warning(
                "connector %s: file %s is left out, because its name is not UTF-8: rename it",
                *(self._name, named(name, PATH)),
            )
            self._left_out.add(name)
        if not self._files and not self._warned:
            log.warning(
                "connector %s: no file matches file.pattern=%s: waiting for one",
                *(self._name, self._config.pattern),
            )
        self._warned = True
        return [{_FILENAME: name} for name in self._files]

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
        place = _BytePosition() if offset is None else self._place(partition, offset)
        config = self._config
        path = Path(config.directory, str(partition[_FILENAME]))
        roots = roots_of(self._originals)
        if roots is not None and not is_below(path, roots):
            raise ConfigError(
                f"connector {self._name}: file {named(path, PATH)} is a link to {path.resolve()}, "
                f"which is not in the folders of the worker's {PATHS}: {', '.join(roots)}"
            )
        file = _GrowingFile(self._name, path, config.charset, config.batch_size)
        for lines in file.read(place):
            if lines is None:
                yield None
            elif not len(lines.values):
                yield SourceBatch((), _offset(lines.place))
            else:
                yield SourceBatch.of(config.topic, lines.values, _offset(lines.place))

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

    def _place(self, partition: SourcePartition, offset: SourceOffset) -> _BytePosition:
        position, tail = offset.get(_POSITION, 0), offset.get(_TAIL)
        if isinstance(position, bool) or not isinstance(position, int) or position < 0:
            raise ConfigError(
                f"connector {self._name}: source offset {dict(offset)} of file "
                f"{named(partition.get(_FILENAME))} must have a {_POSITION} of 0 or more. Correct "
                "it with semel offsets set, or forget it with semel offsets reset"
            )
        return _BytePosition(position, tail if isinstance(tail, int) else None)


def _offset(place: _BytePosition) -> dict[str, Any]:
    if place.tail is None:
        return {_POSITION: place.position}
    return {_POSITION: place.position, _TAIL: place.tail}


@dataclass(frozen=True, slots=True)
class _BytePosition:
    """A position in bytes, and the checksum of the bytes before it; None if it is not known."""

    position: int = 0
    tail: int | None = None


@dataclass(frozen=True, slots=True)
class _Lines:
    """Lines, and the place after them."""

    values: pa.Array
    place: _BytePosition


_BEGINNING = _BytePosition()
_NONE = pa.array([], pa.string())
_LineStream = Iterator[_Lines | None]
_Beside = tuple[Path, os.stat_result]
"""A file next to another one, and what it was when it was listed."""


def _check_kind(connector: str, path: Path) -> None:
    """Raises ConfigError: a path is there but is no regular file. A pipe has no positions, and to
    open one may last forever."""
    if path.exists() and not path.is_file():
        what = "a directory. Name a file in it" if path.is_dir() else "not a regular file"
        raise misconfigured("file", f"connector {connector}: file={path} is {what}")


class _GrowingFile:
    """One file of a connector."""

    def __init__(self, connector: str, path: Path, charset: str, most: int) -> None:
        self._connector = connector
        self._path = path
        self._charset = charset
        self._most = most
        self._packed = path.suffix == ".gz"
        self._opened_early: BinaryIO | None = None

    def read(self, place: _BytePosition) -> _LineStream:
        """The lines after a place; None while there are no new ones."""
        while True:
            file = yield from self._opened()
            with file:
                if place.position:
                    place = yield from self._checked(file, place)
                if self._packed:
                    yield from self._unpacked(file, place)
                else:
                    yield from self._lines(file, place)
            place = _BEGINNING

    def _opened(self) -> Generator[None, None, BinaryIO]:
        """Wait until the file exists."""
        warned, early = False, self._opened_early
        self._opened_early = None
        if early is not None:
            return early
        while True:
            try:
                _check_kind(self._connector, self._path)
                return self._path.open("rb", buffering=0)
            except FileNotFoundError:
                if not warned:
                    self._warn("is not there: waiting for it")
                warned = True
            except PermissionError as error:
                raise ServiceError(
                    f"connector {self._connector}: file {named(self._path, PATH)} cannot be read: "
                    f"{error.strerror}. Grant read permission to the user that runs the tasks"
                ) from None
            except OSError as error:
                raise self._failed(error) from None
            yield None

    def _checked(
        self, file: BinaryIO, place: _BytePosition
    ) -> Generator[_Lines | None, None, _BytePosition]:
        """Where to resume in a file when only a place is known.

        Raises:
            ConfigError: the place was reached in another file.
        """
        behind, size = self._before(file, place.position)
        if size < place.position:
            what = f"has {size} bytes, fewer than the position {place.position}"
        elif place.tail is not None and zlib.crc32(behind) != place.tail:
            what = f"differs from what was read before position {place.position}"
        elif place.tail is None and behind[-1:] not in ENDS:
            raise ConfigError(
                f"connector {self._connector}: file {named(self._path, PATH)}: no line begins at "
                f"position {place.position}. Was the file replaced, or has Kafka Connect stored "
                "the position, which counts characters instead of bytes? Set the right one with "
                "semel offsets set, or forget it with semel offsets reset"
            )
        else:
            return place
        yield from self._moved_on(f"{what}: it was cut or replaced", place)
        return _BEGINNING

    def _before(self, file: BinaryIO, position: int) -> tuple[bytes, int]:
        """The bytes before a position, and the size of the file (if gzip, only up to there)."""
        if self._packed:
            try:
                return _skipped(gzip.GzipFile(fileobj=file), position)
            except (EOFError, OSError, zlib.error) as error:
                self._check_disk(error)
                return b"", 0
            finally:
                file.seek(0)
        begin = max(0, position - _BEHIND)
        file.seek(begin)
        try:
            return file.read(position - begin), os.fstat(file.fileno()).st_size
        except OSError as error:
            raise self._failed(error) from None

    # Files that no longer have the name

    def _moved_on(
        self, why: str, place: _BytePosition = _BEGINNING, read: os.stat_result | None = None
    ) -> _LineStream:
        """Another file has the name, or the file was truncated: read the rest of the old file after
        the place, if it is found and was not ``read`` to its end; then any files that had the name
        since; then start over."""
        begin, done = place, [] if read is None else [read]
        while found := self._following(done) if done else self._earlier(place):
            path, listed = found
            with suppress(FileNotFoundError), self._old(path) as file:
                if not os.path.samestat(os.fstat(file.fileno()), listed):
                    continue  # rotated once more
                self._warn(f"{why}: reading {path} to its end first")
                yield from self._lines(file, begin, ends=True)
                done.append(os.fstat(file.fileno()))
                begin = _BEGINNING
        yield self._from_the_beginning(why)

    def _earlier(self, place: _BytePosition) -> _Beside | None:
        """The file that a place was reached in, under its new name."""
        if place.tail is None or self._packed:
            return None
        return next((found for found in self._beside() if self._is_of(found[0], place)), None)

    def _following(self, done: Sequence[os.stat_result]) -> _Beside | None:
        """The file that had the name after those that were read, and has been renamed, too. If
        there is none, the file that has the name now is opened: it was, before the last look."""
        early = None
        with suppress(OSError):
            early = self._path.open("rb", buffering=0) if self._path.is_file() else None
        now = None if early is None else os.fstat(early.fileno())
        known = [*done, *([] if now is None else [now])]
        beside, then = self._beside(), self._path_stat()
        # A program that has not noticed the rotation may still write to a file, so that it is later
        # than the one that has the name now. But once that is renamed, a later one has followed it.
        is_current = now is not None and then is not None and os.path.samestat(now, then)
        for path, stat in beside:
            is_new = not any(os.path.samestat(stat, other) for other in known)
            is_later = stat.st_mtime_ns > done[-1].st_mtime_ns
            is_before = now is None or is_current or stat.st_mtime_ns <= now.st_mtime_ns
            if is_new and is_later and is_before and self._was_rotated(path):
                if early is not None:
                    early.close()
                return path, stat
        self._opened_early = early
        return None

    def _beside(self) -> Sequence[_Beside]:
        """The files whose names begin alike, in the order in which they were last written to."""
        found = []
        try:
            for path in self._path.parent.iterdir():
                if not path.name.startswith(self._path.stem) or path == self._path:
                    continue
                with suppress(FileNotFoundError):
                    if path.is_file() and path.suffix != ".gz":
                        found.append((path, path.stat()))
        except OSError as error:
            raise self._failed(error) from None
        return sorted(found, key=lambda beside: beside[1].st_mtime_ns)

    def _is_of(self, path: Path, place: _BytePosition) -> bool:
        try:
            with path.open("rb", buffering=0) as file:
                behind, size = self._before(file, place.position)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._failed(error) from None
        return size >= place.position and zlib.crc32(behind) == place.tail

    def _old(self, path: Path) -> BinaryIO:
        """Open a file that no longer has the name. Raises FileNotFoundError."""
        try:
            return path.open("rb", buffering=0)
        except FileNotFoundError:
            raise  # it was renamed or deleted
        except OSError as error:
            raise self._failed(error) from None

    def _was_rotated(self, path: Path) -> bool:
        """Whether log rotation could have given the file this name."""
        stem, ending = re.escape(self._path.stem), re.escape(self._path.suffix)
        number = r"[.-]\d[-\d._T:]*"
        return re.fullmatch(f"{stem}({ending}{number}|{number}{ending})", path.name) is not None

    # Lines

    def _lines(self, file: BinaryIO, place: _BytePosition, *, ends: bool = False) -> _LineStream:
        """The lines of a file from a place on, until it is truncated or another file has its name.
        If it ``ends``, another file has its name from the start."""
        position = place.position
        behind, _ = self._before(file, position)
        file.seek(position)
        age = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
        rest, size, quiet_since, idle = b"", _BLOCK, time.monotonic() - age, False
        while True:
            try:
                block = file.read(size)
            except OSError as error:
                raise self._failed(error) from None
            if block and idle and not _continues(file, position + len(rest), behind + rest):
                reached = _BytePosition(position, zlib.crc32(behind))
                yield from self._moved_on(
                    "no longer has the bytes that were read: it was cut", reached
                )
                return
            if block:
                quiet_since, idle = time.monotonic(), False
                rest += block
                before = len(rest)
                rest, behind, position = yield from self._split(rest, behind, position)
                # Read more at a time, so that a long line is not searched again for every block.
                size = _BLOCK if len(rest) < before else min(2 * size, LARGEST)
                continue
            idle = True
            path_stat, open_stat = self._path_stat(), os.fstat(file.fileno())
            read_until = position + len(rest)
            if open_stat.st_size < read_until:
                reached = _BytePosition(position, zlib.crc32(behind) if position else None)
                yield from self._moved_on(
                    f"has {open_stat.st_size} bytes, but {read_until} were read: it was cut",
                    reached,
                )
                return
            other = path_stat is not None and not os.path.samestat(path_stat, open_stat)
            if (ends or other) and time.monotonic() - quiet_since > _QUIET:
                if rest:
                    yield self._end(rest, behind, position)
                if not ends:
                    yield from self._moved_on("was replaced by another one", read=open_stat)
                return
            yield None

    def _unpacked(self, file: BinaryIO, place: _BytePosition) -> _LineStream:
        """The lines of a gzip file, whose positions count its contents. Its end is the end of the
        last line; what is appended later is read, too."""
        while True:
            open_stat = os.fstat(file.fileno())
            try:
                for lines in self._content(file, place):
                    place = lines.place
                    yield lines
            except EOFError:
                self._warn("ends too early for a gzip file: waiting for the rest")
            except (OSError, zlib.error) as error:
                self._check_disk(error)
                raise ServiceError(
                    f"connector {self._connector}: file {named(self._path, PATH)} is not a gzip "
                    f"file: {error}. Name another file, or drop .gz from its name if it is plain "
                    "text"
                ) from None
            while _same(self._path_stat(), open_stat) and _same(os.fstat(file.fileno()), open_stat):
                yield None
            path_stat = self._path_stat()
            if path_stat is not None and not os.path.samestat(path_stat, open_stat):
                yield self._from_the_beginning("was replaced by another one")
                return
            file.seek(0)
            if place.position and (yield from self._checked(file, place)) != place:
                place = _BEGINNING
            yield None

    def _content(self, file: BinaryIO, place: _BytePosition) -> Iterator[_Lines]:
        file.seek(0)
        with closing(gzip.GzipFile(fileobj=file)) as content:
            behind, position = _skipped(content, place.position)
            rest = b""
            for block in _blocks(content):
                rest += block
                rest, behind, position = yield from self._split(rest, behind, position)
            if rest:
                yield self._end(rest, behind, position)

    def _split(
        self, block: bytes, behind: bytes, position: int
    ) -> Generator[_Lines, None, tuple[bytes, bytes, int]]:
        """The whole lines of the bytes after a position; then the rest of them, the last bytes
        before it, and its position.

        Raises:
            ServiceError: a line does not end.
        """
        used, before = 0, behind
        for values, length in split(block, self._most, self._charset):
            used += length
            behind = (before + block[max(0, used - _BEHIND) : used])[-_BEHIND:]
            yield _Lines(values, _BytePosition(position + used, zlib.crc32(behind)))
        if len(block) - used > LARGEST:
            raise ServiceError(
                f"connector {self._connector}: file {named(self._path, PATH)}: the line at "
                f"position {position + used} has no end within {LARGEST:,} bytes, and is held in "
                "memory. Is this a text file? Divide the line, or skip it with semel offsets set"
            )
        return block[used:], behind, position + used

    def _end(self, rest: bytes, behind: bytes, position: int) -> _Lines:
        """The last line after a position, which has no line end, and the place at the end of the
        file."""
        behind = (behind + rest)[-_BEHIND:]
        line = text(rest.removesuffix(b"\r"), self._charset)
        place = _BytePosition(position + len(rest), zlib.crc32(behind))
        return _Lines(pa.array([line], pa.string()), place)

    def _path_stat(self) -> os.stat_result | None:
        """The file that has the name now."""
        try:
            return self._path.stat()
        except OSError:
            return None  # renamed; another one may come

    def _from_the_beginning(self, why: str) -> _Lines:
        """The beginning of the next file. If it were not committed now, a larger new file would be
        read from the old position after a crash."""
        self._warn(f"{why}: reading it from its beginning")
        return _Lines(_NONE, _BEGINNING)

    def _warn(self, what: str) -> None:
        log.warning("connector %s: file %s %s", self._connector, self._path, what)

    def _check_disk(self, error: Exception) -> None:
        """Raises TransientError: an error is the disk's; those of gzip's format have no number."""
        if isinstance(error, OSError) and error.errno:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> TransientError:
        path = error.filename or self._path
        return TransientError(
            f"connector {self._connector}: file {named(path, PATH)} cannot be read: "
            f"{error.strerror}"
        )


def _continues(file: BinaryIO, position: int, read: bytes) -> bool:
    """Whether the bytes read last are still those before a position."""
    last = read[-_BEHIND:]
    return os.pread(file.fileno(), len(last), position - len(last)) == last


def _skipped(content: Any, position: int) -> tuple[bytes, int]:
    """Skip to a position. Returns the last bytes before it, and how many bytes were skipped."""
    behind, passed = b"", 0
    while passed < position and (block := content.read1(min(position - passed, _BLOCK))):
        behind = (behind + block)[-_BEHIND:]
        passed += len(block)
    return behind, passed


def _blocks(content: Any) -> Iterator[bytes]:
    """The contents of a gzip file, as far as they can be read if it ends too early."""
    buffer = b""
    try:
        while block := content.read1(_BLOCK):
            buffer += block
            if len(buffer) >= _BLOCK:
                yield buffer
                buffer = b""
    except EOFError:
        if buffer:
            yield buffer
        raise
    if buffer:
        yield buffer


def _same(current: os.stat_result | None, other: os.stat_result) -> bool:
    """Whether a file is unchanged, or its name is gone for now."""
    if current is None:
        return True
    facts = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
    return all(getattr(current, f) == getattr(other, f) for f in facts)
