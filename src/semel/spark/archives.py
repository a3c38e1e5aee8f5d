"""Class data sharing archives: a JVM maps the classes that an earlier one has loaded.

An archive only saves time. It is in semel's cache directory, under a name that changes with the
JVM, the jars and the way semel starts them, so a stale one is never found. An archive that is
incomplete, or that another user could have written, is not used; one whose modification time has
changed since it was made is used only if its checksums are right.

Java 19's ``-XX:+AutoCreateSharedArchive`` is no substitute: it writes the archive when a JVM ends,
which would make the user wait, and writes none if the JVM is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from semel.spark.jars import cache_directory, own

log = logging.getLogger(__name__)

SWITCH = "SEMEL_ARCHIVE"
"""The environment variable that turns archives off if it is ``off``."""

QUIET = "-Xlog:cds=off,cds+dynamic=off"
"""Users need not be told that an archive does not fit: the JVM starts without it."""

_FORMAT = "4"
"""Increase this when the training, or what is remembered of it, changes."""
_MODE = 0o600
"""Regardless of the umask: a file that the user's group may write is not used."""
_UNUSED = 30 * 86400.0
_AGAIN = 86400.0
"""Seconds after a failure until making the archive is tried again."""
_TOUCHED = 3600.0
_ROOM = 1536 * 1024 * 1024
"""Bytes of memory that must be free for an archive to be made in the background."""


@dataclass(frozen=True)
class Archive:
    """The archive of one kind of JVM, whether it is there or not."""

    name: str
    key: str
    directory: Path = field(default_factory=lambda: cache_directory() / "archives")

    @property
    def file(self) -> Path:
        """What the JVM maps."""
        return self.directory / f"{self.name}-{self.key}.jsa"

    @property
    def _facts(self) -> Path:
        return self.directory / f"{self.name}-{self.key}.json"

    @property
    def _failed(self) -> Path:
        return self.directory / f"{self.name}-{self.key}.failed"

    def facts(self) -> dict[str, Any] | None:
        """What was remembered when it was made; None if it cannot be used."""
        if os.environ.get(SWITCH) == "off":
            return None
        try:
            facts: dict[str, Any] = json.loads(self._facts.read_text())
            if not (own(self._facts) and own(self.file)):
                return None
            if self.file.stat().st_size != facts["size"]:  # a JVM may crash over a truncated one
                return None
            self._touch()
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            log.debug("no class data archive: %s", error)
            return None
        return facts

    def options(self) -> list[str]:
        """The JVM's options to use it: none if it cannot be used."""
        facts = self.facts()
        return self.mapped(facts) if facts is not None else []

    def mapped(self, facts: Mapping[str, Any]) -> list[str]:
        """The JVM's options to use it, given its facts. Only a changed archive is verified: the JVM
        has to read all of it to compute its checksums, which takes a third of its startup time."""
        try:
            changed = int(self.file.stat().st_mtime) != facts.get("written")
        except OSError:
            changed = True
        return [
            f"-XX:SharedArchiveFile={self.file}",
            "-Xshare:auto",
            f"-XX:{'+' if changed else '-'}VerifySharedSpaces",
            QUIET,
        ]

    def make(self, train: Callable[[Path], dict[str, Any]]) -> bool:
        """Let ``train`` write the archive to the path that it is passed, and store what it returns
        with the archive. False if another process is making it, or it already exists.

        Raises:
            OSError: the cache directory cannot be written to.
        """
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone(self.directory / f"{self.name}-{self.key}.lock") as alone:
            if not alone or self.facts() is not None:
                return False
            for stale in self.directory.glob(f"{self.name}-{self.key}.*.part"):
                stale.unlink(missing_ok=True)  # a JVM that still writes it does so for nothing
            part = self.directory / f"{self.name}-{self.key}.{os.getpid()}.part"
            try:
                facts = train(part)
                with part.open("rb") as written:
                    os.fsync(written.fileno())
                status = part.stat()
                self._facts.unlink(missing_ok=True)
                part.chmod(_MODE)
                part.replace(self.file)
                half = self._facts.with_suffix(".half")
                half.write_text(
                    json.dumps({**facts, "size": status.st_size, "written": int(status.st_mtime)})
                )
                half.chmod(_MODE)
                half.replace(self._facts)
                self._failed.unlink(missing_ok=True)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._failed.touch()
                raise
            finally:
                with contextlib.suppress(OSError):
                    part.unlink(missing_ok=True)
        self.prune()
        return True

    def spoilt(self) -> None:
        """Remove an archive that a JVM failed to start with."""
        with contextlib.suppress(OSError):
            self._failed.touch()
        for path in (self._facts, self.file):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def prune(self) -> None:
        """Remove what no JVM has used for a long time, and what killed processes have left."""
        now = time.time()
        with contextlib.suppress(OSError):
            for path in self.directory.iterdir():
                facts = path.with_suffix(".json")
                dated = facts if path.suffix == ".jsa" and facts.exists() else path
                longest = _AGAIN if path.suffix == ".part" else _UNUSED
                with contextlib.suppress(OSError):
                    if dated.stat().st_mtime < now - longest:
                        path.unlink(missing_ok=True)

    def wanted(self) -> bool:
        """Whether it is missing, and worth making now."""
        if os.environ.get(SWITCH) == "off" or self.facts() is not None:
            return False
        with contextlib.suppress(OSError):
            if time.time() - self._failed.stat().st_mtime < _AGAIN:
                return False
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            log.debug("no class data archive: %s", error)
            return False
        return os.access(self.directory, os.W_OK) and _memory() > _ROOM

    def _touch(self) -> None:
        """Mark it as used."""
        with contextlib.suppress(OSError):
            if time.time() - self._facts.stat().st_mtime > _TOUCHED:
                os.utime(self._facts)


def key(java: Path, jars: Iterable[Path], facts: Iterable[str] = ()) -> str:
    """A key that changes with the JVM, its jars and whatever else an archive depends on.

    Raises:
        OSError: a file is not there.
    """
    home = java.resolve().parent.parent
    named = [_FORMAT, str(java.resolve()), _stamp(java.resolve())]
    for path in (home / "release", home / "lib" / "server" / "libjvm.so"):
        with contextlib.suppress(OSError):
            named.append(_stamp(path))
    named += sorted(f"{jar} {_stamp(jar)}" for jar in jars)
    named += facts
    return hashlib.sha256("\n".join(named).encode()).hexdigest()[:20]


def in_background(module: str, *arguments: str) -> None:
    """Run a module that makes an archive, in a process of its own that yields to all others.

    It outlives this process, but not its own limit (see :func:`yielding`)."""
    try:
        subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        log.debug("no class data archive: %s", error)


def yielding() -> None:
    """Give this process the lowest priority for processors, disks and memory."""
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError, psutil.Error, AttributeError):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _stamp(path: Path) -> str:
    status = path.stat()  # whole seconds: the layers of an image keep no more
    return f"{status.st_size} {int(status.st_mtime)}"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Try to hold this lock for the ``with`` block; yields False if another process holds it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def _memory() -> float:
    """The available memory in bytes, within a container's limit."""
    free = float(psutil.virtual_memory().available)
    for limit, used in _CONTAINERS:
        with contextlib.suppress(OSError, ValueError):
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
    return free


_CONTAINERS: Sequence[tuple[str, str]] = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)
