"""What a record says about its file, as spooldir writes it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.core.records import HEADERS_TYPE
from semel.sources.directory.found import Found
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


class Metadata:
    """The facts about a file of ``root``, and the places of its records."""

    def __init__(self, root: str, found: Found, kind: str) -> None:
        root = root.rstrip("/") if "://" in root else str(Path(root).absolute())
        self._path = f"{root}/{found.name}"
        self._folder, _, self._name = found.name.rpartition("/")
        self._found = found
        self._first = int(kind in _FROM_ONE)

    def headers(self, begin: int, count: int) -> pa.Array:
        """The headers of records, of which the first one is number ``begin`` of its file."""
        found, parent = self._found, self._path.split("/")[-2]
        changed = datetime.fromtimestamp(found.modified_ms / 1000, UTC)
        texts = {
            _NAME: self._name,
            _STEM: self._name.rpartition(".")[0] if "." in self._name else self._name,
            _PATH: self._path,
            _PARENT: parent,
            _LENGTH: str(found.size),
            _OFFSET: "",
            _MODIFIED: f"{changed:%Y-%m-%dT%H:%M:%S}.{found.modified_ms % 1000:03}Z",
            **({_RELATIVE: self._folder} if self._folder else {}),
        }
        names, values = pa.array([*texts], pa.string()), pa.array([*texts.values()], pa.string())
        places = self._places(begin, count).cast(pa.string())
        each = np.tile(np.arange(len(names)), count)
        index = each.copy()
        index[[*texts].index(_OFFSET) :: len(names)] = len(names) + np.arange(count)
        pairs = pa.StructArray.from_arrays(
            [
                names.take(pa.array(each)),
                pa.concat_arrays([values, places]).take(pa.array(index)).cast(pa.binary()),
            ],
            fields=list(HEADERS_TYPE.value_type),
        )
        ends = np.arange(count + 1, dtype=np.int32) * len(names)
        return pa.ListArray.from_arrays(pa.array(ends), pairs).cast(HEADERS_TYPE)

    def added(self, values: pa.Array, name: str, begin: int) -> pa.Array:
        """Objects with the facts as one more field."""
        count, found = len(values), self._found
        facts = {
            "name": pa.repeat(pa.scalar(self._name), count),
            "path": pa.repeat(pa.scalar(self._path), count),
            "last_modified": pa.repeat(pa.scalar(found.modified_ms, pa.int64()), count).cast(
                TIMESTAMP
            ),
            "length": pa.repeat(pa.scalar(found.size, pa.int64()), count),
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
