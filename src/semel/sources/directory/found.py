"""Files and objects: their versions, what their records say about them, and their removal from
the input.

No system call moves or deletes a file only if it is a given one. So a local file is checked before
it is renamed and once more afterwards, and put back if it is another one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.errors import ServiceError
from semel.core.records import HEADERS_TYPE
from semel.sources.directory.schemas import TIMESTAMP

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


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file. ``version`` tells it from another file of the same name. ``changed`` is when a local
    file, or only its permissions or links, last changed, in microseconds; 0 if that is unknown.
    ``inode`` is its inode number."""

    name: str
    size: int
    modified_ms: int
    tag: str
    changed: int = 0
    inode: int = field(default=0, compare=False)  # some network file systems renumber files

    @property
    def version(self) -> Mapping[str, Any]:
        """The version of the file that an offset was reached in."""
        if self.tag:
            return {"size": self.size, "etag": self.tag}
        return {"size": self.size, "modified": self.modified_ms}

    @property
    def facts(self) -> Mapping[str, Any]:
        """The version, and when the file changed if that is known."""
        return {**self.version, "changed": self.changed} if self.changed else self.version


def local_file(name: str, stat: os.stat_result) -> FoundFile:
    """A local file."""
    modified_ms, changed = stat.st_mtime_ns // 1_000_000, stat.st_ctime_ns // 1000
    return FoundFile(name, stat.st_size, modified_ms, "", changed, stat.st_ino)


def stored_object(name: str, info: Mapping[str, Any]) -> FoundFile:
    """A file as fsspec describes it."""
    tag = str(info.get("ETag") or info.get("etag") or info.get("md5Hash") or "").strip('"')
    changed = info.get("LastModified") or info.get("last_modified") or info.get("mtime")
    changed = info.get("modificationTime", 0) / 1000 if changed is None else changed
    seconds = changed.timestamp() if hasattr(changed, "timestamp") else float(changed or 0)
    return FoundFile(name, int(info["size"]), int(seconds * 1000), tag)


def is_same(now: FoundFile, entry: FoundFile) -> bool:
    """Whether a local file is the one that was found, even after chmod or with new hard links."""
    return now == entry or (now.version, now.inode) == (entry.version, entry.inode)


ASIDE = ".semel-"
"""The prefix of files that are about to be deleted."""


def checksum_of(path: Path) -> int:
    """The CRC-32 of a file."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def move_file(source: Path, target: Path, entry: FoundFile, checksum: int | None) -> None:
    """Move a file, if it is the one that was found. ``checksum`` is that of its content, if known.

    Raises:
        FileNotFoundError: it is gone, or another file has taken its name.
        ServiceError: another file has taken its name, and cannot be put back.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _rename(source, target, entry, checksum)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(source, target, entry)  # another file system
        delete_file(source, entry, checksum)


def delete_file(path: Path, entry: FoundFile, checksum: int | None) -> None:
    """Delete a file, if it is the one that was found. See ``move_file``."""
    aside = path.with_name(f"{ASIDE}{uuid.uuid4().hex}")
    try:
        _rename(path, aside, entry, checksum)
    except FileNotFoundError:
        raise
    except OSError:
        if aside.exists():
            raise
        if not is_same(local_file(entry.name, path.stat()), entry):
            raise _another(entry) from None
        path.unlink()  # the directory allows no new names, or the disk is full
    else:
        aside.unlink(missing_ok=True)


def _rename(source: Path, target: Path, entry: FoundFile, checksum: int | None) -> None:
    if not is_same(local_file(entry.name, source.stat()), entry):
        raise _another(entry)
    try:
        source.rename(target)
    except FileNotFoundError:
        if not target.exists():  # NFS reports this, too, if it has sent a request twice
            raise
    try:
        if not _is_renamed(target, entry, checksum):
            raise _another(entry)
    except OSError:
        _put_back(target, source)
        raise


def _is_renamed(path: Path, entry: FoundFile, checksum: int | None) -> bool:
    now = local_file(entry.name, path.stat())
    if now.version == entry.version:
        return True
    if now.size != entry.size:
        return False
    # some mounted stores change a file's time when it is renamed
    return now.inode == entry.inode if checksum is None else checksum_of(path) == checksum


def _put_back(moved: Path, path: Path) -> None:
    try:
        os.link(moved, path, follow_symlinks=False)  # unlike a rename, it replaces nothing
    except OSError:  # the name is taken, or the file system has no links
        if not path.exists():
            moved.rename(path)
            return
        if not path.samefile(moved):
            raise ServiceError(
                f"{path} was replaced twice while it was moved: {moved} is one of these files, "
                f"and has not been read. Move it to {path.parent} under a new name, then start "
                "the connector again"
            ) from None
    moved.unlink()


def _copy(source: Path, target: Path, entry: FoundFile) -> None:
    """Copy a file, unless it changes meanwhile."""
    part = target.with_name(f".{target.name}.part")
    with contextlib.ExitStack() as failing:
        failing.callback(part.unlink, missing_ok=True)
        with source.open("rb") as file:
            with part.open("wb") as copy:
                shutil.copyfileobj(file, copy, 1 << 20)
            shutil.copystat(source, part)
            for now in (os.fstat(file.fileno()), source.stat()):
                if not is_same(local_file(entry.name, now), entry):
                    raise _another(entry)
        part.replace(target)
        failing.pop_all()


def _another(entry: FoundFile) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "another file has its name", entry.name)


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
        changed = datetime.fromtimestamp(entry.modified_ms / 1000, UTC)
        texts = {
            _NAME: self._name,
            _STEM: self._name.rpartition(".")[0] if "." in self._name else self._name,
            _PATH: self._path,
            _PARENT: parent,
            _LENGTH: str(entry.size),
            _OFFSET: "",
            _MODIFIED: f"{changed:%Y-%m-%dT%H:%M:%S}.{entry.modified_ms % 1000:03}Z",
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
