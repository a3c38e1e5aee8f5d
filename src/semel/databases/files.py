"""What databases in a file share: finding the file, and locks beside it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar

from semel.core.errors import ConfigError, ServiceError, TransientError, Unavailable, misconfigured
from semel.core.problems import may_read
from semel.core.quoting import PATH, named
from semel.databases import base
from semel.databases.base import Session
from semel.databases.login import Login, Timeouts

_PAUSE = 0.002
"""Seconds between two attempts to take a lock."""
_YIELD = 0.01
"""Seconds that an owner waits between two turns, so that others get theirs. A busy owner would
otherwise keep them out forever."""


_OPTIONS = {"sqlite": "[?]", "duckdb": r"[?]|;(?=\s*[\w.]+\s*=)"}
"""What the options of a URL begin with."""
_NO_FILE = {
    "sqlite": re.compile(r"/*:(?:memory|resource):|(?:file|resource|https?|s3):"),
    "duckdb": re.compile(r"/*:memory:|\w{2,}:"),  # an extension's, such as md: and ducklake:
}
"""How other addresses begin."""
_URI = re.compile("file:(?://(?:localhost)?(?=/)|(?!//))(?=[^%#]*$)")
"""The beginning of a URI that SQLite takes for the path of a file."""


def database_path(url: str, system: str) -> Path:
    """The file that ``jdbc:SYSTEM:PATH``, ``SYSTEM:///PATH`` or ``SYSTEM:PATH`` names, without the
    options of its JDBC driver; for SQLite also ``jdbc:sqlite:file:PATH``.

    Raises:
        ConfigError: another system's URL, or no file.
    """
    scheme, _, rest = url.strip().removeprefix("jdbc:").partition(":")
    path = re.split(_OPTIONS[system], rest)[0].removeprefix("//").rstrip()
    uri = _URI.match(rest)
    if system == "sqlite" and uri and "mode=memory" not in rest:
        path = path[uri.end() :]
    if scheme != system or not path or _NO_FILE[system].match(path):
        raise misconfigured(
            "connection.url",
            f"connection.url does not name a {system} file. Set jdbc:{system}:/path/to/file",
        )
    return Path(re.sub("^/+", "/", path)).absolute()


def normalized(raw: Mapping[str, str], system: str, key: str = "connection.url") -> dict[str, str]:
    """The URL of a file, which ``key`` holds, with the whole path; nothing if it is wrong."""
    try:
        path = database_path(raw.get(key, ""), system)
    except ConfigError:  # it is reported later
        return {}
    return {key: f"jdbc:{system}:{path}"}


def check_directory(path: Path) -> None:
    """Raises ConfigError if the file can never be created."""
    if not may_read():
        return
    if not path.parent.is_dir():
        raise misconfigured(
            "connection.url",
            f"connection.url: the directory {path.parent} does not exist. Create it",
        )
    if path.is_dir():
        raise misconfigured(
            "connection.url", f"connection.url: {path} is a directory. Name a file in it"
        )


def room(path: Path) -> str:
    """How much is free on the disk that holds a file, for a message."""
    try:
        stats = os.statvfs(path.parent)
    except OSError:
        return ""
    return f" ({stats.f_bavail * stats.f_frsize} bytes are free there)"


def is_read_only(path: Path) -> bool:
    """Whether the disk that holds a file takes no writes, as after an error of the disk itself."""
    try:
        return bool(os.statvfs(path.parent).f_flag & os.ST_RDONLY)
    except OSError:
        return False


class LockFile:
    """A lock on a file, which is released when the process that holds it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._next_turn = 0.0

    def acquire(self, *, shared: bool, timeout: float) -> bool:
        """Take the lock, waiting for it; False if that takes too long."""
        if self._file is None:
            try:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                message = f"cannot open the lock file {named(self.path, PATH)}: {error}"
                if error.errno in (errno.EROFS, errno.ENOSPC):
                    raise Unavailable(message) from None
                raise ServiceError(message) from None
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        deadline = time.monotonic() + timeout
        time.sleep(max(0.0, self._next_turn - time.monotonic()))
        while True:
            try:
                fcntl.flock(self._file, how | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_PAUSE)
            else:
                return True

    def release(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)
            self._next_turn = time.monotonic() + _YIELD


class RunLock:
    """A shared lock that each run of a connector holds while it writes into a file."""

    def __init__(self, database: Path, connector: str) -> None:
        name = hashlib.blake2s(connector.encode(), digest_size=6).hexdigest()
        self._path = database.with_name(f".{database.name}.semel-{name}")
        self._lock = LockFile(self._path)

    def claim(self) -> None:
        # A change of positions holds it for a moment.
        if not self._lock.acquire(shared=True, timeout=10):
            raise TransientError(f"{self._path} is locked: positions are being changed")

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no run is alive; none can begin meanwhile."""
        lock = LockFile(self._path)
        try:
            yield lock.acquire(shared=False, timeout=base.RELEASE_TIME)
        finally:
            lock.release()

    def release(self) -> None:
        self._lock.release()


class FileDatabase(Session):
    """A database in a file, in which at most one transaction writes at a time."""

    scheme: ClassVar[str]
    """What follows ``jdbc:`` in its URL."""

    def __init__(self, login: Login, connector: str, timeouts: Timeouts) -> None:
        self._path = database_path(login.url, self.scheme)
        self._lock_timeout = timeouts.lock
        self._runs = RunLock(self._path, connector)

    @property
    def where(self) -> str:
        return f"{self.system} in {self._path}"

    def _check_there(self) -> None:
        """Raises ServiceError: there is no file to read."""
        if not self._path.exists():
            raise ServiceError(f"{self.where}: there is no such file. Check connection.url")

    def claim(self) -> None:
        check_directory(self._path)
        self._runs.claim()

    def alone(self) -> AbstractContextManager[bool]:
        check_directory(self._path)
        return self._runs.alone()

    def close(self) -> None:
        self._leave()
        self._runs.release()


def holder(*paths: Path) -> str:
    """Who holds a lock for writing on one of these files, for a message."""
    inodes = set()
    for path in paths:
        try:
            inodes.add(path.stat().st_ino)
        except OSError:
            continue
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return ""
    pids = {
        int(h[4])
        for h in locks
        if len(h) > 5
        and h[1] != "->"
        and h[3] == "WRITE"
        and int(h[5].rsplit(":", 1)[-1]) in inodes
    } - {os.getpid(), 0, -1}  # 0 and -1: of another namespace
    names = ", ".join(map(str, sorted(pids)))
    return f" (held by process {names}: end it if it is frozen)" if names else ""
