"""Opens the store that a URL or a directory names, and tells whether a ledger there can fence."""

from __future__ import annotations

import difflib
import inspect
import io
import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import fsspec

from semel.core.errors import ConfigError, Problem, misconfigured
from semel.storage.store import LOCAL, WEBHDFS, Store, protocol_of, split_url

_EXCLUSIVE = frozenset({*LOCAL, "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", WEBHDFS})
"""Stores that create a file only if there is none, in one step: ``If-None-Match`` on S3 and
Azure, ``ifGenerationMatch=0`` on GCS, a rename that replaces nothing in HDFS."""

_S3 = ("s3", "s3a")
_GCS = ("gs", "gcs")
_AZURE = ("abfs", "abfss", "az", "adl")
_HANDED_ON = frozenset(
    {"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache"}
)
"""Options that drivers pass on to fsspec."""

_DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", WEBHDFS: "requests"} | (
    dict.fromkeys(_AZURE, "adlfs")
)
"""The package that fsspec needs for a protocol."""

_BOTO = (
    " Options of boto3's client are in storage.options.client_kwargs, of its Config in "
    "storage.options.config_kwargs, as JSON"
)

_WHY_NOT = {
    "memory": "each process has a memory of its own",
    "hdfs": "libhdfs offers no exclusive creation, and Arrow's rename replaces an existing file",
}


def cannot_create_exclusively(where: str) -> str | None:
    """Why a store cannot hold a ledger that fences; None if it can. Contacts no store."""
    protocol = protocol_of(where)
    if protocol in _EXCLUSIVE:
        return None
    why = _WHY_NOT.get(protocol, "its driver does not promise exclusive creation")
    return f"{protocol}:// cannot create a file exclusively: {why}"


def instead_of(where: str) -> str:
    """What to set if a store cannot hold a ledger that fences."""
    if protocol_of(where) == "hdfs":
        parts = split_url(where)
        return (
            f"Set path to webhdfs://{parts.hostname or 'namenode'}:9870{parts.path} (the "
            "NameNode's dfs.namenode.http-address), which renames exclusively"
        )
    return "Use a local directory, S3, GCS, Azure or webhdfs://"


def open_store(
    where: str, options: Mapping[str, Any], timeout: float = 60.0, key: str = "path"
) -> Store:
    """The store of a URL or directory; ``timeout`` is the seconds for which its driver waits for an
    answer, and ``key`` the one that names the URL.

    Raises:
        ConfigError: no installed driver knows it.
    """
    protocol = protocol_of(where)
    if protocol in LOCAL:
        return LocalStore(where)
    try:
        driver = fsspec.get_filesystem_class(protocol)
    except ImportError as missing:
        driver = _DRIVERS.get(protocol, "")
        install = f". pip install {driver}" if driver and driver not in str(missing) else ""
        lacking = f"{key}={where}: {missing}{install}"
        raise ConfigError(Problem(key, lacking, not_installed=True)) from None
    except ValueError:
        raise misconfigured(
            key,
            f"{key}={where}: {protocol}:// is not a store that fsspec knows; use s3://, gs://, "
            "abfs://, webhdfs:// or a directory",
        ) from None
    if protocol in _S3:
        _check_names(where, driver, options.keys() - {"profile"}, _BOTO)
        options = {**options, "config_kwargs": _boto(timeout) | options.get("config_kwargs", {})}
    if protocol in _GCS:
        options = {"requests_timeout": _aiohttp(timeout), **options}
    if protocol in _AZURE:
        options = {"connection_timeout": int(timeout), "read_timeout": int(timeout), **options}
    if protocol == WEBHDFS:
        _check_names(where, driver, options)
        from semel.storage.webhdfs import WebHdfsStore  # it needs requests

        return WebHdfsStore(where, options, timeout, key)
    return Store(where, options, key)


def _boto(timeout: float) -> dict[str, Any]:
    """Timeouts, and no retries by botocore: s3fs makes five attempts itself, so its five would take
    25 times as long."""
    return {
        "connect_timeout": timeout,
        "read_timeout": timeout,
        "retries": {"total_max_attempts": 1},
    }


def _aiohttp(timeout: float) -> Any:
    """A limit on silence. As a plain number, aiohttp would apply it to whole requests."""
    from aiohttp import ClientTimeout

    return ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)


def _check_names(where: str, driver: Any, options: Iterable[str], hint: str = "") -> None:
    """Raises ConfigError for unknown options: s3fs fails when first used; WebHDFS ignores them."""
    taken = inspect.signature(driver.__init__).parameters.keys() - {"self", "kwargs"}
    accepted = taken | _HANDED_ON
    for name in sorted(options):
        if name not in accepted:
            near = difflib.get_close_matches(name, accepted, n=1)
            raise misconfigured(
                f"storage.options.{name}",
                f"storage.options.{name} is not an option of the driver of {where}"
                + (f": did you mean storage.options.{near[0]}?" if near else ".")
                + hint,
            )


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
