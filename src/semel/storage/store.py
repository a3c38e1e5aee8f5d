"""Where the files are: a directory, or a store that fsspec knows.

Three things are asked of a store. A file that is being written is visible only to those who know
its name. An entry of the ledger can be created exclusively, whole or not at all. And a complete
file can be given its final name at once: by renaming it, or by a copy that the store makes itself.
"""

from __future__ import annotations

import contextlib
import io
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeVar
from urllib.parse import SplitResult, urlsplit

import fsspec
from fsspec.core import split_protocol

from semel.core.answers import MOST, too_large
from semel.core.errors import ConfigError, ServiceError, TransientError, misconfigured
from semel.core.quoting import named
from semel.core.watchdog import waiting
from semel.storage.errors import comes_from, is_of, judged

T = TypeVar("T")

LOCAL = ("file", "local")
WEBHDFS = "webhdfs"
_FLAT = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Stores that list all files below a folder with one request."""
_RENAMING = ("hdfs", WEBHDFS)
"""Stores with folders, where a file is renamed in one step."""

_LONGEST_PART, _LONGEST_KEY = 255, 1024
"""Limits in bytes: of a name on disk and in HDFS, and of an object's name with all its folders."""

_AT_ONCE = 8

_FOREIGN = {
    *("botocore", "aiobotocore", "aiohttp", "azure", "google", "requests"),
    *("fsspec", "s3fs", "gcsfs", "adlfs"),
}
"""Packages whose errors are the store's."""


def at_once(call: Callable[..., T], *arguments: Iterable[Any]) -> list[T]:
    """Like ``map``, with several calls at a time, because stores are slow."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="semel-files") as pool:
        return list(pool.map(call, *arguments))


def protocol_of(where: str) -> str:
    return str(split_protocol(where)[0] or "file")


def split_url(where: str, key: str = "path") -> SplitResult:
    """A URL in its parts. ``key`` is the one that names it.

    Raises:
        ConfigError: the host or the port is not valid.
    """
    try:
        parts = urlsplit(where)
        _ = parts.port
    except ValueError as error:
        raise misconfigured(key, f"{key}={shown(where)} is not a URL: {_reason(error)}") from None
    return parts


def shown(where: str) -> str:
    """A URL without a password."""
    _, at, rest = where.rpartition("@")
    return f"...@{rest}" if at else where


class Store:
    """A store that fsspec reaches. Names are below its root, with ``/`` between their parts.
    ``key`` is the one that names its URL."""

    far: ClassVar[bool] = True
    """Whether each request takes a noticeable time."""

    def __init__(self, where: str, options: Mapping[str, Any], key: str = "path") -> None:
        self.where = where.rstrip("/")
        self._key = key
        self._renames = protocol_of(where) in _RENAMING
        self._has_folders = protocol_of(where) in (*_RENAMING, *LOCAL)
        self._options = dict(options)
        self._location: tuple[Any, str] | None = None

    @property
    def filesystem(self) -> Any:
        return self._resolved()[0]

    def path(self, name: str) -> str:
        """The full path of a name, as the file system wants it."""
        root = self._resolved()[1]
        return f"{root}/{name}" if name else root

    def too_long(self, folder: str, file: str) -> str | None:
        """Why the store cannot have a folder with such a file in it; None if it can."""
        if self._has_folders:
            longest = max(len(part.encode()) for part in folder.split("/"))
            limit, of = _LONGEST_PART, "a folder's name"
        else:
            key = self.path(f"{folder}/{file}").partition("/")[2]  # behind the bucket
            longest = len(key.encode())
            limit, of = _LONGEST_KEY, "an object's name"
        return f"{longest} bytes are too many for {of}: {limit}" if longest > limit else None

    def check_name(self, topic: str, file: str) -> None:
        """Raises ConfigError: there is no room for a topic's file of this name in any folder."""
        size = len(file.encode())
        if self._has_folders and size > _LONGEST_PART:
            raise ConfigError(
                f"{self._key}={self.where}: file names contain the name of topic {named(topic)}, "
                f"and {file[:40]}... has {size} bytes; at most {_LONGEST_PART} are allowed there. "
                "Use an object store, or a topic with a shorter name"
            )

    def _resolved(self) -> tuple[Any, str]:
        if self._location is None:
            with self.translated():
                filesystem, root = self._driver()
                self._location = filesystem, root.rstrip("/")
        return self._location

    def _driver(self) -> tuple[Any, str]:
        # Files of other processes must be visible at once.
        options = {"use_listings_cache": False, **self._options}
        try:
            location: tuple[Any, str] = fsspec.url_to_fs(self.where, **options)
        except (TypeError, ValueError) as error:  # from the driver, about what it is given
            raise misconfigured(
                self._key,
                f"{self._key}={self.where}: its driver does not take storage.options.* as they "
                f"are: {_reason(error)}",
            ) from None
        return location

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Translate the store's errors, except those about files that exist or do not."""
        try:
            with waiting(self.where):
                yield
        except (FileNotFoundError, FileExistsError):
            raise
        except PermissionError as error:
            raise ServiceError(f"{self.where}: access is denied: {_reason(error)}") from None
        except NotADirectoryError as error:
            raise ServiceError(
                f"{self.where}: a file is where a folder must be; move it away: {_reason(error)}"
            ) from None
        except Exception as error:
            text = f"{self.where}: {_reason(error)}"
            if isinstance(error, OSError) or is_of(error, _FOREIGN):
                raise judged(text, error) from None
            if comes_from(error, _FOREIGN):
                raise ServiceError(
                    f"{text}. Check {self._key}, store.url and storage.options.*"
                ) from None
            raise

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """The same while a file is created: FileNotFoundError then means no bucket or folder."""
        with self.translated():
            try:
                yield
            except FileNotFoundError as error:
                raise OSError(str(error)) from None

    # Looking

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder, without it."""
        return self._listed(folder, "file")

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder, without it."""
        return self._listed(folder, "directory")

    def _listed(self, folder: str, kind: str) -> list[str]:
        with self.translated():
            self.filesystem.invalidate_cache()
            try:
                entries = self.filesystem.ls(self.path(folder), detail=True)
            except FileNotFoundError:
                return []
        paths = (str(f["name"]).rstrip("/") for f in entries if f["type"] == kind)
        return [f.rpartition("/")[2] for f in paths]

    def below(self, folder: str) -> dict[str, int]:
        """All files below a folder: their names from the root on, and their bytes."""
        root = f"{self.path('').rstrip('/')}/"
        with self.translated():
            self.filesystem.invalidate_cache()
            try:
                files = self.listed(self.path(folder), recursive=True)
            except FileNotFoundError:
                return {}
        return {name.removeprefix(root): int(info["size"]) for name, info in files.items()}

    def listed(self, path: str, *, recursive: bool) -> dict[str, Mapping[str, Any]]:
        """The files of a folder with what the driver says of each, by their whole paths.

        Raises:
            FileNotFoundError: it is not there.
        """
        if recursive and protocol_of(self.where) in _FLAT:
            entries = list(self.filesystem.find(path, detail=True).values())
        else:
            entries = self._walked(path, recursive)
        files = {str(info["name"]): info for info in entries if info.get("type") != "directory"}
        return {
            name: info
            for name, info in files.items()
            if not name.endswith("/") and name != path.rstrip("/")
        }

    def _walked(self, path: str, recursive: bool) -> list[Mapping[str, Any]]:
        """Like fsspec's own ``find``, which would treat a folder that cannot be listed as empty."""
        entries: list[Mapping[str, Any]] = []
        folders = [path]
        while folders:
            folder = folders.pop()
            try:
                listed = self.filesystem.ls(folder, detail=True)
            except FileNotFoundError:
                if folder == path:
                    raise
                continue  # it has gone meanwhile
            entries += listed
            if recursive:
                folders += [str(i["name"]) for i in listed if i.get("type") == "directory"]
        return entries

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is none."""
        with self.translated():
            self.filesystem.invalidate_cache()
            try:
                return int(self.filesystem.info(self.path(name))["size"])
            except FileNotFoundError:
                return None

    def read(self, name: str) -> bytes:
        with self.translated():
            path = self.path(name)
            if int(self.filesystem.info(path)["size"]) > MOST:
                raise too_large(MOST, f"{self.where}/{name}")
            return bytes(self.filesystem.cat_file(path))

    # Writing

    def create(self, name: str, content: bytes) -> None:
        """Create a file with this content, unless there is one.

        Raises:
            FileExistsError: there is one; it stays as it is.
        """
        with self.writing():
            self._make_room(name)
            self.filesystem.pipe_file(self.path(name), content, mode="create")

    def open(self, name: str) -> BinaryIO:
        """A stream into a new file, which is durable once the stream is closed."""
        with self.writing():
            self._make_room(name)
            stream: BinaryIO = self.filesystem.open(self.path(name), "wb")
            return stream

    def move(self, source: str, target: str, size: int) -> bool:
        """Give a file its final name; False if it is no longer where it was.

        If the store copies, the source is deleted only once the copy is complete: some stores
        answer before that.
        """
        with self.translated():
            try:
                self._make_room(target)
                if self._renames:
                    self.filesystem.mv(self.path(source), self.path(target))
                    return True
                self.filesystem.cp_file(self.path(source), self.path(target))
            except FileNotFoundError:
                self._check_gone(source, target)
                return False
        copied = self.size(target)
        if copied != size:
            raise TransientError(
                f"{self.where}: the copy of {source} to {target} has {copied} bytes of {size}"
            )
        self.delete([source])
        return True

    def _check_gone(self, source: str, target: str) -> None:
        """Raises TransientError: the folder that the file is moved to is gone, not the file."""
        if self.exists(source):
            raise TransientError(f"{self.where}: others have removed the folder of {target}")

    def delete(self, names: Sequence[str]) -> None:
        """Delete files, as far as they are there."""
        for name in names:
            with self.translated(), contextlib.suppress(FileNotFoundError):
                self.filesystem.rm_file(self.path(name))

    def _make_room(self, name: str) -> None:
        """Make the folders of a file."""
        try:
            self._make_folder(self.path(name).rpartition("/")[0])
        except FileExistsError as error:
            raise NotADirectoryError(str(error)) from None
        except FileNotFoundError as error:  # others have removed one meanwhile
            raise OSError(str(error)) from None

    def _make_folder(self, path: str) -> None:
        if self._renames:
            self.filesystem.makedirs(path, exist_ok=True)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__


_TIMES = 5
"""How many times to write a file that others keep cleaning up."""


class LocalStore(Store):
    """A directory. Written files are on the disk, not only in the cache."""

    far = False

    def __init__(self, where: str) -> None:
        super().__init__(where, {})

    def create(self, name: str, content: bytes) -> None:
        """Create a file by a hard link, which is atomic and never replaces another file. A file
        that was opened exclusively could be left half written, and block the name forever."""
        whole = Path(self.path(f"{name.rpartition('/')[0]}/.{uuid.uuid4().hex}"))
        target = Path(self.path(name))
        with self.translated():
            for retries in reversed(range(_TIMES)):
                self._make_room(name)
                try:
                    with _DurableFile(whole) as stream:
                        stream.write(content)
                    os.link(whole, target)
                    _sync(target.parent)
                    return
                except FileNotFoundError as gone:  # others have cleaned up meanwhile
                    if not retries:
                        raise OSError(str(gone)) from None
                finally:
                    whole.unlink(missing_ok=True)

    def open(self, name: str) -> BinaryIO:
        path = Path(self.path(name))
        with self.writing():
            self._make_room(name)
            return _DurableFile(path)

    def move(self, source: str, target: str, size: int) -> bool:
        path = Path(self.path(target))
        with self.translated():
            self._make_room(target)
            try:
                Path(self.path(source)).replace(path)
            except FileNotFoundError:
                self._check_gone(source, target)
                return False
            _sync(path.parent)
        return True

    def _make_folder(self, path: str) -> None:
        """Make a directory that survives a power failure."""
        folder = Path(path)
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            _sync(directory.parent)


class _DurableFile(io.BufferedWriter):
    """A file that is on the disk once it is closed, including its directory entry."""

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        super().__init__(io.FileIO(path, "wb"))

    def close(self) -> None:
        if not self.closed:
            try:
                self.flush()
                os.fsync(self.fileno())
                _sync(self._folder)
            finally:
                super().close()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
