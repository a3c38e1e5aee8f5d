"""A file or object, and which version of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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


def local_file(name: str, stat: os.stat_result) -> Found:
    """A local file."""
    modified_ms, changed = stat.st_mtime_ns // 1_000_000, stat.st_ctime_ns // 1000
    return Found(name, stat.st_size, modified_ms, "", changed, stat.st_ino)


def stored_object(name: str, info: Mapping[str, Any]) -> Found:
    """A file as fsspec describes it."""
    tag = str(info.get("ETag") or info.get("etag") or info.get("md5Hash") or "").strip('"')
    changed = info.get("LastModified") or info.get("last_modified") or info.get("mtime")
    changed = info.get("modificationTime", 0) / 1000 if changed is None else changed
    seconds = changed.timestamp() if hasattr(changed, "timestamp") else float(changed or 0)
    return Found(name, int(info["size"]), int(seconds * 1000), tag)


def is_same(now: Found, found: Found) -> bool:
    """Whether a local file is the one that was found, even after chmod or with new hard links."""
    return now == found or (now.version, now.inode) == (found.version, found.inode)
