"""A directory on a local disk."""

from __future__ import annotations

import io
import os
import uuid
from pathlib import Path
from typing import BinaryIO

from semel.storage.store import Store

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
            for left in reversed(range(_TIMES)):
                self._make_room(name)
                try:
                    with _Lasting(whole) as stream:
                        stream.write(content)
                    os.link(whole, target)
                    _sync(target.parent)
                    return
                except FileNotFoundError as gone:  # others have cleaned up meanwhile
                    if not left:
                        raise OSError(str(gone)) from None
                finally:
                    whole.unlink(missing_ok=True)

    def open(self, name: str) -> BinaryIO:
        path = Path(self.path(name))
        with self.writing():
            self._make_room(name)
            return _Lasting(path)

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
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            _sync(each.parent)


class _Lasting(io.BufferedWriter):
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
