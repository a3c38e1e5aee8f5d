"""Table names taken from the ``source`` of change events: ``${source.schema}_${source.table}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.transforms.base import Batch, Transform, refuse, valid
from semel.transforms.structs import Opener, columns
from semel.transforms.texts import java_text

KEYS = ("collection.name.format", "table.name.format")
_FIELD = re.compile(r"\$\{source\.(.*?)\}")


def key_of(raw: Mapping[str, str]) -> str:
    """The key whose value names fields of ``source``; empty if there is none."""
    return next((k for k in KEYS if _FIELD.search(raw.get(k, ""))), "")


def without_source(name: str) -> str:
    """A format of names without its fields of ``source``."""
    return _FIELD.sub("", name)


class SourceNames(Transform):
    """Sends change events to the table that ``name`` yields for their topic and ``source``. Like
    Debezium's sink, it leaves out records without ``source``, such as tombstones."""

    changes_contents = False
    routes = True

    def __init__(self, name: str) -> None:
        self._parts = _FIELD.split(name)  # text and fields in turn
        self._opener = Opener()

    def apply(self, batch: Batch) -> Batch:
        source = self._source(batch)
        if source is None:
            return batch.take(np.arange(0))
        there = valid(source)
        names = self._named(batch.topics, source)
        fields = ", ".join(f"source.{f}" for f in self._parts[1::2])
        refuse(there & ~valid(names), f"{fields} is to name the table, and is null or missing")
        return replace(batch, topics=names).only(there)

    def _source(self, batch: Batch) -> pa.Array | None:
        if not batch.values.is_struct:
            return None
        child = columns(batch.values.array).get("source")
        opened = child and self._opener.opened(child, "source")
        return opened.array if opened else None

    def _named(self, topics: pa.Array, source: pa.Array) -> pa.Array:
        fields = columns(source)
        pieces: list[pa.Array | str] = []
        for text, field in zip(self._parts[::2], [*self._parts[1::2], None], strict=True):
            for number, plain in enumerate(text.split("${topic}")):
                if number:
                    pieces.append(pc.replace_substring(topics, ".", "_"))
                pieces.append(plain)
            if field is not None:
                child = fields.get(field)
                missing = pa.nulls(len(source), pa.string())
                pieces.append(java_text(child.array) if child else missing)
        return pc.binary_join_element_wise(*pieces, "")
