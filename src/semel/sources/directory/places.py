"""Finds, opens, moves and deletes files below a directory or a URL.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from semel.config.allowed import is_below
from semel.config.extras import needs
from semel.core.errors import ServiceError, misconfigured

with needs("the directory source", "files"):
    from semel.storage.drivers import open_store
    from semel.storage.store import LOCAL, Store, protocol_of

ASIDE = ".semel-"
"""The prefix of files that are about to be deleted."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999."""
_COARSE_MS = 2_000
"""The times of a file and its copy differ by less: FAT rounds them to two seconds."""


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
    def modified(self) -> datetime:
        """When it was modified, in UTC; the nearest time that Python has, for file systems that go
        beyond."""
        return _EPOCH + timedelta(milliseconds=min(max(self.modified_ms, _FIRST_MS), _LAST_MS))

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


def _local_file(name: str, stat: os.stat_result) -> FoundFile:
    """A local file."""
    modified_ms, changed = stat.st_mtime_ns // 1_000_000, stat.st_ctime_ns // 1000
    return FoundFile(name, stat.st_size, modified_ms, "", changed, stat.st_ino)


def _stored_object(name: str, info: Mapping[str, Any]) -> FoundFile:
    """A file as fsspec describes it."""
    tag = str(info.get("ETag") or info.get("etag") or info.get("md5Hash") or "").strip('"')
    changed = info.get("LastModified") or info.get("last_modified") or info.get("mtime")
    changed = info.get("modificationTime", 0) / 1000 if changed is None else changed
    seconds = changed.timestamp() if hasattr(changed, "timestamp") else float(changed or 0)
    return FoundFile(name, int(info["size"]), int(seconds * 1000), tag)


def _is_same(now: FoundFile, entry: FoundFile) -> bool:
    """Whether a local file is the one that was found, even after chmod or with new hard links."""
    return now == entry or (now.version, now.inode) == (entry.version, entry.inode)


class Places:
    """The input, finished and error paths of a connector, all in one store. ``allowed`` are the
    folders that links may lead to; None for any."""

    def __init__(
        self,
        paths: Mapping[str, str],
        options: Mapping[str, Any],
        allowed: Sequence[str] | None = None,
    ) -> None:
        self._allowed = allowed
        roots = {name: _split(path) for name, path in paths.items() if path}
        stores = {store for store, _ in roots.values()}
        if len(stores) > 1:
            raise misconfigured(
                "input.path",
                f"{', '.join(f'{n}={paths[n]}' for n in roots)}: must be in one store, since "
                "files are moved between them",
            )
        (where,) = stores
        self._folders = {name: folder for name, (_, folder) in roots.items()}
        self._is_local = protocol_of(where) in LOCAL
        self._store: Store = open_store(where, options, key="input.path")

    def files(self, place: str, *, recursive: bool) -> list[FoundFile] | None:
        """The files of a place; None if the place does not exist."""
        folder = self._folders[place]
        if self._is_local:
            with self._store.translated():
                files = _local(Path(folder), recursive)
            if files is None or self._allowed is None:
                return files
            return [f for f in files if is_below(Path(folder, f.name), self._allowed)]
        prefix = f"{self._store.path(folder).rstrip('/')}/"
        with self._store.translated():
            self._store.filesystem.invalidate_cache()
            try:
                listed = self._store.listed(prefix, recursive=recursive)
            except FileNotFoundError:
                return None
        return [
            _stored_object(path.removeprefix(prefix), info)
            for path, info in listed.items()
            if info.get("type") == "file"
        ]

    def find(self, place: str, name: str) -> FoundFile | None:
        """A file of a place."""
        with self._store.translated():
            if self._is_local:
                try:
                    return _local_file(name, Path(self._folders[place], name).stat())
                except (FileNotFoundError, NotADirectoryError):
                    return None
            self._store.filesystem.invalidate_cache()
            try:
                info = self._store.filesystem.info(self._store.path(self._name(place, name)))
            except FileNotFoundError:
                return None
            return _stored_object(name, info)

    def open(self, place: str, entry: FoundFile) -> BinaryIO:
        """Open a file.

        Raises:
            FileNotFoundError: it is gone, or another file has taken its name.
        """
        file = self._opened(place, entry.name)
        with contextlib.ExitStack() as failing:
            failing.callback(file.close)
            if not self._is_open(file, entry):
                raise FileNotFoundError(errno.ENOENT, "another file has its name", entry.name)
            failing.pop_all()
        return file

    def _is_open(self, file: BinaryIO, entry: FoundFile) -> bool:
        with self._store.translated():
            if self._is_local:
                return _is_same(_local_file(entry.name, os.fstat(file.fileno())), entry)
            details = getattr(file, "details", None)  # most of fsspec's files know their object
        return not details or _stored_object(entry.name, details).version == entry.version

    def checksum(self, place: str, name: str) -> int | None:
        """The CRC-32 of a local file; None for other files, or if it is gone or may not be read."""
        if not self._is_local:
            return None
        with self._store.translated():
            try:
                return _checksum_of(Path(self._folders[place], name))
            except (FileNotFoundError, PermissionError):
                return None

    def reading(self) -> Any:
        """A context in which the store's errors become semel's."""
        return self._store.translated()

    def delete(self, place: str, entry: FoundFile, checksum: int | None) -> None:
        """Delete a file. Another local file that takes its name meanwhile stays."""
        if not self._is_local:
            self._store.delete([self._name(place, entry.name)])
            return
        with self._store.translated():
            _delete_file(Path(self._folders[place], entry.name), entry, checksum)

    def move(
        self, entry: FoundFile, checksum: int | None, source: str, target: str, folder: str = ""
    ) -> None:
        """Move a file to another place, into a folder there, without replacing another file.
        ``checksum`` is that of its content, if known. Another local file that takes its name
        meanwhile stays."""
        below = f"{folder}/{entry.name}" if folder else entry.name
        name, number = below, 0
        while (other := self.find(target, name)) is not None:
            if self._is_copy(other, entry) and self._same(source, entry.name, target, name):
                break  # an earlier move did not complete
            number += 1
            name = f"{below}.{number}"
        if not self._is_local:
            paths = self._name(source, entry.name), self._name(target, name)
            self._store.move(*paths, entry.size)
            return
        of, to = Path(self._folders[source], entry.name), Path(self._folders[target], name)
        with self._store.translated():
            if other is None:
                _move_file(of, to, entry, checksum)
            else:
                _delete_file(of, entry, checksum)

    def _is_copy(self, other: FoundFile, entry: FoundFile) -> bool:
        """Whether a file may be a copy. Local copies keep the time, which an audit looks for."""
        is_another = self._is_local and abs(other.modified_ms - entry.modified_ms) >= _COARSE_MS
        return other.size == entry.size and not is_another

    def _same(self, source: str, name: str, target: str, other: str) -> bool:
        with (
            self._store.translated(),
            self._opened(source, name) as first,
            self._opened(target, other) as second,
        ):
            while True:
                block = first.read(1 << 20)
                if block != second.read(1 << 20):
                    return False
                if not block:
                    return True

    def _opened(self, place: str, name: str) -> BinaryIO:
        with self._store.translated():
            if self._is_local:
                return Path(self._folders[place], name).open("rb")
            path = self._store.path(self._name(place, name))
            stream: BinaryIO = self._store.filesystem.open(path, "rb")
            return stream

    def _name(self, place: str, name: str) -> str:
        """A file's path, relative to the store's root."""
        return f"{self._folders[place].strip('/')}/{name}".lstrip("/")


def _split(path: str) -> tuple[str, str]:
    """The root of a path's store, and the folder below."""
    if protocol_of(path) in LOCAL:
        return "/", str(Path(path.removeprefix("file://").removeprefix("local://")).absolute())
    parts = urlsplit(path)
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def _local(root: Path, recursive: bool) -> list[FoundFile] | None:
    files: list[FoundFile] = []
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # another task has moved it
                        if entry.is_dir(follow_symlinks=False):
                            folders += [Path(entry.path)] if recursive else []
                        elif entry.is_file():
                            name = Path(entry.path).relative_to(root).as_posix()
                            files.append(_local_file(name, entry.stat()))
        except FileNotFoundError:
            if folder == root and not root.exists():
                return None
    return files


# Moving and deleting local files


def _checksum_of(path: Path) -> int:
    """The CRC-32 of a file."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _move_file(source: Path, target: Path, entry: FoundFile, checksum: int | None) -> None:
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
        _delete_file(source, entry, checksum)


def _delete_file(path: Path, entry: FoundFile, checksum: int | None) -> None:
    """Delete a file, if it is the one that was found. See ``_move_file``."""
    aside = path.with_name(f"{ASIDE}{uuid.uuid4().hex}")
    try:
        _rename(path, aside, entry, checksum)
    except FileNotFoundError:
        raise
    except OSError:
        if aside.exists():
            raise
        if not _is_same(_local_file(entry.name, path.stat()), entry):
            raise _another(entry) from None
        path.unlink()  # the directory allows no new names, or the disk is full
    else:
        aside.unlink(missing_ok=True)


def _rename(source: Path, target: Path, entry: FoundFile, checksum: int | None) -> None:
    if not _is_same(_local_file(entry.name, source.stat()), entry):
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
    now = _local_file(entry.name, path.stat())
    if now.version == entry.version:
        return True
    if now.size != entry.size:
        return False
    # some mounted stores change a file's time when it is renamed
    return now.inode == entry.inode if checksum is None else _checksum_of(path) == checksum


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
                if not _is_same(_local_file(entry.name, now), entry):
                    raise _another(entry)
        part.replace(target)
        failing.pop_all()


def _another(entry: FoundFile) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "another file has its name", entry.name)
