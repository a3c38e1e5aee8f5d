"""Flatten: lifts the fields of nested structs to the top level, under joined names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.converters.json.columns import JSON
from semel.converters.json.facts import described, facts_in
from semel.core.quoting import named
from semel.transforms.base import Batch, Contents, ContentsTransform
from semel.transforms.structs import (
    Column,
    Columns,
    Opener,
    columns,
    connect_type,
    refuse_all,
    required,
    struct,
)


@dataclass(frozen=True)
class FlattenConfig:
    """The keys of Flatten."""

    delimiter: str = key("delimiter", ".", "The separator between the names of two levels.")


class Flatten(ContentsTransform):
    """See Kafka Connect's Flatten. Arrays stay as they are."""

    section = FlattenConfig

    def __init__(self, config: FlattenConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._delimiter = config.delimiter
        self._opener = Opener()

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        array = required(contents, "flattening", nulls=True)
        found: Columns = {}
        self._flatten(array, "", contents, found, array, contents.facts.get("default"))
        own = {n: v for n, v in contents.facts.items() if n not in ("optional", "default")}
        return Contents(struct(found, array), contents.has_schema, own)

    def _flatten(
        self,
        array: pa.Array,
        before: str,
        contents: Contents,
        found: Columns,
        top: pa.Array,
        default: Mapping[str, Any] | None,
    ) -> None:
        """``default`` is that of the whole struct."""
        for name, inside in columns(array, defaults=True).items():
            whole = f"{before}{self._delimiter}{name}" if before else name
            if contents.has_schema and connect_type(inside, has_schema=True) == "MAP":
                refuse_all(
                    top,
                    "Flatten transformation does not support MAP for record with schemas (for "
                    f"field {named(whole)}).",
                )
            opened = self._opener.opened(inside, whole)
            if opened is None:
                found[whole] = _with_default(inside.named(whole), (default or {}).get(name))
                continue
            own = facts_in(inside.field).get("default") or (default or {}).get(name)
            self._flatten(opened.array, whole, contents, found, top, own)
            rest = pc.and_(inside.array.is_valid(), opened.array.is_null())
            if pc.any(rest).as_py():  # other values than objects
                text = pc.if_else(rest, inside.array.storage, None)
                kept = pa.ExtensionArray.from_storage(JSON, text)
                found[whole] = Column(inside.field.with_name(whole), kept)


def _with_default(found: Column, default: Any) -> Column:
    """A field that takes its default from the struct around it, if it has none of its own."""
    facts = facts_in(found.field)
    if default is None or "default" in facts or found.type == JSON:
        return found
    return Column(described(found.field, {**facts, "default": default}), found.array)
