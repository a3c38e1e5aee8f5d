"""The files of a place: which are to be read, how far each was read, what its records say about it,
and where those that were read are now."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.errors import ServiceError
from semel.core.patterns import compiled
from semel.core.quoting import PATH, named
from semel.core.records import HEADERS_TYPE
from semel.sources.base import SourceOffset, is_storable
from semel.sources.directory.config import DirectoryConfig
from semel.sources.directory.places import ASIDE, FoundFile, Places
from semel.sources.directory.schemas import TIMESTAMP

FILE_NAME, OFFSET = "fileName", "offset"
"""The names of kafka-connect-spooldir in the source partition and offset."""
_POSITION, _STATE = "position", "state"
_CHANGED, _CHECKSUM = "changed", "checksum"
DONE, BROKEN = "done", "broken"
_VERSION = ("size", "modified", "etag")


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far a file was read: the number of records and, for formats with byte positions, the
    position in its content; once its end was reached, also the checksum of the file."""

    records: int = 0
    position: int = 0
    state: str = ""
    checksum: int | None = None

    def offset(self, entry: FoundFile) -> dict[str, Any]:
        """As a source offset."""
        offset: dict[str, Any] = {OFFSET: self.records, **entry.version}
        if self.position:
            offset[_POSITION] = self.position
        if self.state:
            offset[_STATE] = self.state
        if entry.changed:
            offset[_CHANGED] = entry.changed
        if self.checksum is not None:
            offset[_CHECKSUM] = self.checksum
        return offset


def reached(offset: Mapping[str, Any]) -> FileProgress:
    """Read an offset.

    Raises:
        ValueError: it makes no sense.
    """
    for name in (OFFSET, _POSITION, _CHANGED, _CHECKSUM):
        value = offset.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} must be a whole number of 0 or more")
    if OFFSET not in offset:
        raise ValueError(f"{OFFSET} is missing: the number of records that were read")
    state = offset.get(_STATE, "")
    if state not in ("", DONE, BROKEN):
        raise ValueError(f"{_STATE} must be {DONE} or {BROKEN}")
    return FileProgress(offset[OFFSET], offset.get(_POSITION, 0), state, offset.get(_CHECKSUM))


def is_of(offset: Mapping[str, Any], entry: FoundFile) -> bool:
    """Whether an offset belongs to a file of this size and time, wherever it is now. Offsets stored
    by spooldir hold neither, so they fit any file."""
    version = {n: offset[n] for n in _VERSION if n in offset}
    return not version or version == entry.version


class Versions:
    """Distinguishes a file from another one that took its name in the same place, even with the
    same size and time (``cp -p``)."""

    def __init__(self, places: Places, place: str) -> None:
        self._places = places
        self._place = place
        self._unchanged: dict[str, int] = {}
        """The times of change, by name, of files whose content is known to be the same."""
        self._inodes: dict[tuple[str, int], int] = {}
        """The inodes of the files that this process reads, by name and time of change."""

    def begin(self, entry: FoundFile) -> None:
        """Remember which file is read."""
        self._inodes[entry.name, entry.changed] = entry.inode

    def same(self, offset: Mapping[str, Any], entry: FoundFile, *, unread: bool = True) -> bool:
        """Whether an offset belongs to this very file. What the kernel records as a change may have
        been ``chmod`` or a copy to another disk, so the content decides then; for a partly read
        file, the inode decides, as long as this process lives. ``unread`` is the answer if the
        content cannot be read."""
        if not is_of(offset, entry):
            return False
        changed = offset.get(_CHANGED, entry.changed)
        if entry.changed in (changed, self._unchanged.get(entry.name)):
            return True
        if _CHECKSUM not in offset:  # it is partly read
            return self._inodes.get((entry.name, changed), entry.inode) == entry.inode
        checksum = self._places.checksum(self._place, entry.name)
        if checksum is None:
            return unread
        if checksum != offset[_CHECKSUM]:
            return False
        self._unchanged[entry.name] = entry.changed
        return True


class Listings:
    """Looks in all places of a connector, and lists each once."""

    def __init__(self, connector: str, places: Places, paths: Mapping[str, str]) -> None:
        self._connector = connector
        self._places = places
        self._paths = paths
        self._files: dict[str, list[FoundFile]] = {}

    def find(self, name: str, offset: SourceOffset) -> tuple[str, FoundFile]:
        """The place of a file, and the file.

        Raises:
            ServiceError: it is gone.
        """
        for _ in range(2):
            for place, entry in self._everywhere(name):
                if is_of(offset, entry):
                    return place, entry
            self.forget()  # it may have come since
        raise self.missing(name, offset)

    def forget(self) -> None:
        """List the places again next time."""
        self._files.clear()

    def missing(self, name: str, offset: SourceOffset) -> ServiceError:
        """The error for a file that is not found."""
        return ServiceError(
            f"connector {self._connector}: file {named(name, PATH)} ({told(offset)}) is gone, so "
            "its records cannot be read again. An audit needs cleanup.policy=none, move or "
            "movebydate"
        )

    def _everywhere(self, name: str) -> Iterator[tuple[str, FoundFile]]:
        """The files that may be the one of this name, moved or renamed since."""
        pattern = re.compile(rf"(.*/)?{re.escape(name)}(\.\d+)?")
        for place, path in self._paths.items():
            if path and place not in self._files:
                self._files[place] = self._places.files(place, recursive=True) or []
            for entry in self._files.get(place, ()):
                if pattern.fullmatch(entry.name):
                    yield place, entry


def told(version: Mapping[str, Any]) -> str:
    """A version of a file in words."""
    names = ("size", "modified", "changed", "etag")
    return ", ".join(f"{n} {version[n]}" for n in names if n in version)


_ASIDE_S = 60
"""Seconds after which a file that is still aside counts as left behind."""

_ORDERS: Mapping[str, Callable[[FoundFile], Any]] = {
    "Name": lambda entry: entry.name,
    "Length": lambda entry: entry.size,
    "LastModified": lambda entry: entry.modified_ms,
}


class Listing:
    """Chooses among the files of a place."""

    def __init__(
        self, places: Places, place: str, config: DirectoryConfig, warn: Callable[[str], None]
    ) -> None:
        self._places = places
        self._place = place
        self._config = config
        self._warn = warn
        self._aside: dict[str, float] = {}
        """When files that are about to be deleted were first seen."""
        self._pattern = compiled(config.pattern)

    def files(self) -> list[FoundFile] | None:
        """The files that the configuration names; None if the place does not exist."""
        listed = self._places.files(self._place, recursive=self._config.recursive)
        if listed is None:
            return None
        self._report([entry.name for entry in listed if _is_aside(entry)])
        return [entry for entry in listed if not _is_aside(entry) and self._takes(entry)]

    def ready(self, listed: Sequence[FoundFile]) -> list[FoundFile]:
        """Those that are old enough to be read, in the order in which they are read."""
        config, now = self._config, time.time() * 1000
        entries = [f for f in listed if not 0 <= now - f.modified_ms < config.minimum_age_ms]
        for attribute in reversed(config.sort):
            by = attribute.removesuffix("Asc").removesuffix("Desc")
            entries.sort(key=_ORDERS[by], reverse=attribute.endswith("Desc"))
        return entries

    def _takes(self, entry: FoundFile) -> bool:
        if not is_storable(entry.name):
            what = f"file {named(entry.name, PATH)}"
            self._warn(f"{what} is left out, because its name is not UTF-8: rename it")
            return False
        own_name = entry.name.rpartition("/")[2]
        if own_name.endswith(self._config.processing):
            return False
        return self._pattern.fullmatch(own_name)

    def _report(self, aside: Sequence[str]) -> None:
        """Warn of files that stay aside: normally, a file is there only for an instant."""
        now = time.monotonic()
        self._aside = {name: self._aside.get(name, now) for name in aside}
        for name, since in self._aside.items():
            if now - since >= _ASIDE_S:
                self._warn(
                    f"file {named(name, PATH)} was left in {self._place} by a crash or an error. "
                    "semel ignores it: before you delete it, check that its records were read"
                )


def _is_aside(entry: FoundFile) -> bool:
    """Whether a file is about to be deleted. Only local files are renamed first."""
    return bool(entry.changed) and entry.name.rpartition("/")[2].startswith(ASIDE)


# What records say about their file

_NAME, _STEM, _PATH, _PARENT, _LENGTH, _OFFSET, _MODIFIED, _RELATIVE = HEADERS = (
    "file.name",
    "file.name.without.extension",
    "file.path",
    "file.parent.dir.name",
    "file.length",
    "file.offset",
    "file.last.modified",
    "file.relative.path",
)
_FROM_ONE = ("csv", "text")
"""The formats whose records spooldir counts from 1, as lines; others from 0."""


class Metadata:
    """What spooldir says about a file of ``root``, and about the places of its records."""

    def __init__(self, root: str, entry: FoundFile, kind: str) -> None:
        root = root.rstrip("/") if "://" in root else str(Path(root).absolute())
        self._path = f"{root}/{entry.name}"
        self._folder, _, self._name = entry.name.rpartition("/")
        self._entry = entry
        self._first = int(kind in _FROM_ONE)

    def headers(self, begin: int, count: int) -> pa.Array:
        """The headers of records, of which the first one is number ``begin`` of its file."""
        entry, parent = self._entry, self._path.split("/")[-2]
        texts = {
            _NAME: self._name,
            _STEM: self._name.rpartition(".")[0] if "." in self._name else self._name,
            _PATH: self._path,
            _PARENT: parent,
            _LENGTH: str(entry.size),
            _OFFSET: "",
            _MODIFIED: entry.modified.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            **({_RELATIVE: self._folder} if self._folder else {}),
        }
        names, values = pa.array([*texts], pa.string()), pa.array([*texts.values()], pa.string())
        places = self._places(begin, count).cast(pa.string())
        name_index = np.tile(np.arange(len(names)), count)
        index = name_index.copy()
        index[[*texts].index(_OFFSET) :: len(names)] = len(names) + np.arange(count)
        pairs = pa.StructArray.from_arrays(
            [
                names.take(pa.array(name_index)),
                pa.concat_arrays([values, places]).take(pa.array(index)).cast(pa.binary()),
            ],
            fields=list(HEADERS_TYPE.value_type),
        )
        ends = np.arange(count + 1, dtype=np.int32) * len(names)
        return pa.ListArray.from_arrays(pa.array(ends), pairs).cast(HEADERS_TYPE)

    def added(self, values: pa.Array, name: str, begin: int) -> pa.Array:
        """Objects with the facts as one more field."""
        count, entry = len(values), self._entry
        facts = {
            "name": pa.repeat(pa.scalar(self._name), count),
            "path": pa.repeat(pa.scalar(self._path), count),
            "last_modified": pa.repeat(pa.scalar(entry.modified_ms, pa.int64()), count).cast(
                TIMESTAMP
            ),
            "length": pa.repeat(pa.scalar(entry.size, pa.int64()), count),
            "offset": self._places(begin, count),
        }
        kept = [f for f in values.type if f.name != name]
        fact = pa.StructArray.from_arrays([*facts.values()], names=[*facts])
        return pa.StructArray.from_arrays(
            [*(pc.struct_field(values, f.name) for f in kept), fact],
            fields=[*kept, pa.field(name, fact.type)],
        )

    def _places(self, begin: int, count: int) -> pa.Array:
        first = begin + self._first
        return pa.array(np.arange(first, first + count), pa.int64())
