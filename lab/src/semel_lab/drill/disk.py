"""A store's own disk, which can be full."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from semel.core.errors import ServiceError

_ROOM = "4g"
_TRIES = 50


class Disk:
    """A file system in memory if this process may mount one, otherwise a directory.

    For a directory, a limit on the size of the files that processes write makes the same writes
    fail, with another reason (EFBIG instead of ENOSPC).
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._mounted = False

    def open(self, *, mount: bool) -> None:
        """Create the directory. Mount the file system there if ``mount`` is set and possible."""
        self.directory.mkdir(parents=True)
        self._mounted = mount and self._mount(f"size={_ROOM}", "-t", "tmpfs", "tmpfs")

    def close(self) -> None:
        """Unmount it, and keep its contents in the directory."""
        if self._mounted:
            copy = self.directory.with_name(f".{self.directory.name}")
            shutil.copytree(self.directory, copy, dirs_exist_ok=True)
            subprocess.run(["umount", "--lazy", str(self.directory)], check=True)
            self._mounted = False
            self.directory.rmdir()
            copy.rename(self.directory)

    def _mount(self, options: str, *source: str) -> bool:
        command = ["mount", "-o", options, *source, str(self.directory)]
        with suppress(OSError):
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        return False

    @contextmanager
    def full(self, pages: int, writers: Callable[[], list[psutil.Process]]) -> Iterator[None]:
        """Leave room for only some pages or, if nothing is mounted, none for these writers."""
        try:
            if self._mounted:
                self._shrink(pages)
            else:
                _limit(writers, full=True)
            yield
        finally:
            if self._mounted:
                self._mount(f"remount,size={_ROOM}")
            else:
                _limit(writers, full=False)

    def _shrink(self, pages: int) -> None:
        for _ in range(_TRIES):
            now = os.statvfs(self.directory)
            used = now.f_blocks - now.f_bfree
            # A size of 0 means no limit, and a size below what others have written is refused.
            if self._mount(f"remount,size={max(1, used + pages) * now.f_frsize}"):
                return
        raise ServiceError(f"The file system {self.directory} cannot be made smaller")


def _limit(writers: Callable[[], list[psutil.Process]], *, full: bool) -> None:
    for _ in range(2):  # a process forked meanwhile has its parent's limit
        for writer in writers():
            with suppress(psutil.NoSuchProcess):
                hard = writer.rlimit(psutil.RLIMIT_FSIZE)[1]
                writer.rlimit(psutil.RLIMIT_FSIZE, (0 if full else hard, hard))
