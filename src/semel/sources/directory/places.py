"""Finds and moves files below a directory or a URL."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from semel.errors import ConfigError, Problem, ServiceError

try:
    from semel.sinks.files.places import open_store
    from semel.sinks.files.store import LOCAL, Store, protocol_of
except ModuleNotFoundError as missing:
    package = str(missing.name).partition(".")[0]
    raise ConfigError(
        f"the directory source needs the package {package}: pip install 'semel[files]'"
    ) from missing

ASIDE = ".semel-"
"""How names of files begin that are about to be deleted."""


@dataclass(frozen=True, slots=True)
class Found:
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


class Places:
    """The input, finished and error paths of a connector, all in one store."""

    def __init__(self, paths: Mapping[str, str], options: Mapping[str, Any]) -> None:
        roots = {name: _split(path) for name, path in paths.items() if path}
        stores = {store for store, _ in roots.values()}
        if len(stores) > 1:
            raise ConfigError(
                Problem(
                    "input.path",
                    f"{', '.join(f'{n}={paths[n]}' for n in roots)}: must be in one store, since "
                    "files are moved between them",
                )
            )
        (where,) = stores
        self._folders = {name: folder for name, (_, folder) in roots.items()}
        self._is_local = protocol_of(where) in LOCAL
        self._store: Store = open_store(where, options)

    def files(self, place: str, *, recursive: bool) -> list[Found] | None:
        """The files of a place; None if the place does not exist."""
        folder = self._folders[place]
        if self._is_local:
            with self._store.translated():
                return _local(Path(folder), recursive)
        prefix = f"{self._store.path(folder).rstrip('/')}/"
        with self._store.translated():
            self._store.filesystem.invalidate_cache()
            try:
                listed = self._store.listed(prefix, recursive=recursive)
            except FileNotFoundError:
                return None
        return [
            _object(path.removeprefix(prefix), info)
            for path, info in listed.items()
            if info.get("type") == "file"
        ]

    def find(self, place: str, name: str) -> Found | None:
        """A file of a place."""
        with self._store.translated():
            if self._is_local:
                try:
                    return _found(name, Path(self._folders[place], name).stat())
                except (FileNotFoundError, NotADirectoryError):
                    return None
            self._store.filesystem.invalidate_cache()
            try:
                info = self._store.filesystem.info(self._store.path(self._name(place, name)))
            except FileNotFoundError:
                return None
            return _object(name, info)

    def open(self, place: str, found: Found) -> BinaryIO:
        """Open a file.

        Raises:
            FileNotFoundError: it is gone, or it is local and another file has taken its name.
        """
        file = self._opened(place, found.name)
        if self._is_local:
            with contextlib.ExitStack() as failing:
                failing.callback(file.close)
                with self._store.translated():
                    now = _found(found.name, os.fstat(file.fileno()))
                # chmod or a hard link make it no other file
                if now != found and (now.version, now.inode) != (found.version, found.inode):
                    raise FileNotFoundError(errno.ENOENT, "another file has its name", found.name)
                failing.pop_all()
        return file

    def checksum(self, place: str, name: str) -> int | None:
        """The CRC-32 of a local file; None for other files, or if it is gone or may not be read."""
        if not self._is_local:
            return None
        found = 0
        with self._store.translated():
            try:
                with Path(self._folders[place], name).open("rb") as file:
                    while block := file.read(1 << 20):
                        found = zlib.crc32(block, found)
            except (FileNotFoundError, PermissionError):
                return None
        return found

    def reading(self) -> Any:
        """A context in which the store's errors become semel's."""
        return self._store.translated()

    def delete(self, place: str, found: Found) -> None:
        """Delete a file. Another local file that takes its name meanwhile stays."""
        if not self._is_local:
            self._store.delete([self._name(place, found.name)])
            return
        with self._store.translated():
            _delete(Path(self._folders[place], found.name), found)

    def move(self, found: Found, source: str, target: str, folder: str = "") -> str:
        """Move a file to another place, into a folder there, without replacing another file.
        Returns its name there. Another local file that takes its name meanwhile stays."""
        below = f"{folder}/{found.name}" if folder else found.name
        name, number = below, 0
        while (other := self.find(target, name)) is not None:
            if other.size == found.size and self._same(source, found.name, target, name):
                break  # an earlier move did not complete
            number += 1
            name = f"{below}.{number}"
        if self._is_local:
            with self._store.translated():
                of, to = self._folders[source], self._folders[target]
                _move(Path(of, found.name), Path(to, name), found)
        else:
            paths = self._name(source, found.name), self._name(target, name)
            self._store.move(*paths, found.size)
        return name

    def _same(self, source: str, name: str, target: str, other: str) -> bool:
        with (
            self._store.translated(),
            self._opened(source, name) as one,
            self._opened(target, other) as two,
        ):
            while True:
                block = one.read(1 << 20)
                if block != two.read(1 << 20):
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


def _local(root: Path, recursive: bool) -> list[Found] | None:
    found: list[Found] = []
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
                            found.append(_found(name, entry.stat()))
        except FileNotFoundError:
            if folder == root and not root.exists():
                return None
    return found


def _found(name: str, stat: os.stat_result) -> Found:
    modified_ms, changed = stat.st_mtime_ns // 1_000_000, stat.st_ctime_ns // 1000
    return Found(name, stat.st_size, modified_ms, "", changed, stat.st_ino)


def _object(name: str, info: Mapping[str, Any]) -> Found:
    tag = str(info.get("ETag") or info.get("etag") or info.get("md5Hash") or "").strip('"')
    changed = info.get("LastModified") or info.get("last_modified") or info.get("mtime")
    changed = info.get("modificationTime", 0) / 1000 if changed is None else changed
    seconds = changed.timestamp() if hasattr(changed, "timestamp") else float(changed or 0)
    return Found(name, int(info["size"]), int(seconds * 1000), tag)


def _move(source: Path, target: Path, found: Found) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _rename(source, target, found)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        whole = target.with_name(f".{target.name}.part")  # another file system
        shutil.copy2(source, whole)
        whole.replace(target)
        _delete(source, found)


def _delete(path: Path, found: Found) -> None:
    aside = path.with_name(f"{ASIDE}{uuid.uuid4().hex}")
    try:
        renamed = _rename(path, aside, found)
    except OSError:
        if aside.exists():
            raise
        path.unlink(missing_ok=True)  # the directory may allow no renames
    else:
        if renamed:
            aside.unlink()


def _rename(source: Path, target: Path, found: Found) -> bool:
    """Rename this very file; False if it is gone. No call does that only if it is this file, so
    look afterwards, and give another one its name back."""
    try:
        source.rename(target)
    except FileNotFoundError:
        return False
    now = _found(found.name, target.stat())
    if now.version == found.version or now.inode == found.inode:
        with contextlib.suppress(FileNotFoundError):
            if source.samefile(target):  # rename leaves two links to one file alone
                source.unlink()
        return True
    try:
        os.link(target, source)  # unlike a rename, it replaces nothing
        target.unlink()
    except OSError:  # a third file has the name, or the file system has no links
        if source.exists():
            raise ServiceError(
                f"{source} was replaced twice while it was moved: {target} is one of these files, "
                f"and has not been read. Move it to {source.parent} under a new name, then start "
                "the connector again"
            ) from None
        target.rename(source)
    return False
