"""Flatten: lifts the fields of nested structs to the top level, under joined names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    column,
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
        self._flatten(column("", array), "", contents, found, array, contents.facts.get("default"))
        own = {n: v for n, v in contents.facts.items() if n not in ("optional", "default")}
        return Contents(struct(found, array), contents.has_schema, own)

    def _flatten(
        self,
        outer: Column,
        before: str,
        contents: Contents,
        found: Columns,
        top: pa.Array,
        default: Mapping[str, Any] | None,
    ) -> None:
        """``default`` is that of the whole struct. What is not in a map lacks its fields."""
        inside_map = before and not contents.has_schema and outer.array.null_count
        for name, found_ in columns(outer.array, defaults=True).items():
            inside = found_.lacked(outer.array.is_null()) if inside_map else found_
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
            self._flatten(opened, whole, contents, found, top, own)
            left = inside.lacked(opened.array.is_valid())
            rest = pc.and_not(top.is_valid(), left.absent)
            if contents.has_schema:
                rest = pc.and_(rest, inside.array.is_valid())
            if pc.any(rest).as_py():  # other values than objects
                found[whole] = left.holding(_without(inside.array, left.absent)).named(whole)


def _without(array: pa.Array, rows: pa.Array) -> pa.Array:
    """What is left of JSON and structs without the objects in some rows."""
    if array.type != JSON or pc.all(pc.or_(rows, array.is_null())).as_py():
        return pa.nulls(len(array))
    return pa.ExtensionArray.from_storage(JSON, pc.if_else(rows, None, array.storage))


def _with_default(found: Column, default: Any) -> Column:
    """A field that takes its default from the struct around it, if it has none of its own."""
    facts = facts_in(found.field)
    if default is None or "default" in facts or found.type == JSON:
        return found
    return replace(found, field=described(found.field, {**facts, "default": default}))
