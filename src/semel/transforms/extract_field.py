"""ExtractField: replaces the whole key or value with one of its fields."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from semel.config import key
from semel.converters.json.facts import facts_as_whole
from semel.core.quoting import named
from semel.transforms.base import ILLEGAL_ARGUMENT, Batch, Contents, ContentsTransform
from semel.transforms.fields import Defaults, Nesting
from semel.transforms.structs import Column, Opener, columns, refuse_all, required


@dataclass(frozen=True)
class ExtractFieldConfig(Defaults, Nesting):
    """The keys of ExtractField."""

    field: str = key("field", doc="The field to extract.")


class ExtractField(ContentsTransform):
    """See Kafka Connect's ExtractField. Without a schema, a missing field is null."""

    section = ExtractFieldConfig

    def __init__(self, config: ExtractFieldConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._defaults = config.replace_nulls
        self._name = config.field
        self.path = config.path(config.field)
        self._opener = Opener()

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        array = required(contents, "field extraction", nulls=True)
        found = self._found(array)
        if found is None:
            if contents.has_schema:
                refuse_all(array, f"Unknown field: {named(self._name)}", ILLEGAL_ARGUMENT)
            return Contents(pa.nulls(len(array)), contents.has_schema)
        opened = self._opener.opened(found, self._name)
        if opened is not None and opened.array.null_count == found.array.null_count:
            found = opened
        return Contents(found.array, contents.has_schema, facts_as_whole(found.field))

    def _found(self, array: pa.Array) -> Column | None:
        *before, last = self.path
        at: pa.Array | None = array
        for number, step in enumerate(before):
            inside = columns(at).get(step)
            opened = inside and self._opener.opened(inside, ".".join(self.path[: number + 1]))
            if not opened:
                return None
            at = opened.array
        return columns(at, defaults=self._defaults).get(last)
