"""Confluent's transforms: Drop, ExtractTopic, Filter, NullFilter and TombstoneHandler."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.core.quoting import named
from semel.transforms.base import (
    Batch,
    Contents,
    ContentsTransform,
    ReadingTransform,
    Transform,
    flags,
    refuse,
    valid,
)
from semel.transforms.jsonpath import Path, condition
from semel.transforms.structs import Column, Opener, column, columns, connect_type, required
from semel.transforms.texts import java_text

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExtractTopicConfig:
    """The keys of Confluent's ExtractTopic."""

    field: str = key("field", "", "The field; empty for the whole key or value.")
    format: str = key("field.format", "plain", "How it is named.", choices=("plain",))
    skip: bool = key("skip.missing.or.null", False, "Whether records without it keep their topic.")


class ExtractTopic(ReadingTransform):
    """See Confluent's transform of this name."""

    section: ClassVar[type] = ExtractTopicConfig
    config: ExtractTopicConfig
    routes = True

    @property
    def fields_by_type(self) -> Sequence[str]:
        return (self.config.field,)

    def apply(self, batch: Batch) -> Batch:
        contents = batch.contents(self.of_key)
        child, where = self._topic_field(batch)
        kind = connect_type(child, has_schema=contents.has_schema)
        texts = pa.nulls(len(batch), pa.string()) if kind else java_text(child.array)
        lacking = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(texts), ""), True)
        if not self.config.skip:
            why = f"is of type {kind}" if kind else "is null, missing or empty"
            refuse(flags(lacking), f"{where}, which is to name the topic, {why}")
        return replace(batch, topics=pc.if_else(lacking, batch.topics, texts))

    def _topic_field(self, batch: Batch) -> tuple[Column, str]:
        contents = batch.contents(self.of_key)
        where = "key" if self.of_key else "value"
        if not self.config.field:
            return column(where, contents.array), f"the {where}"
        array = required(contents, "topic extraction", nulls=self.config.skip)
        child = columns(array).get(self.config.field)
        missing = column(self.config.field, pa.nulls(len(batch)))
        return child or missing, f"field {named(self.config.field)} of the {where}"


def _readable(text: str) -> None:
    condition(text)


@dataclass(frozen=True)
class FilterConfig:
    """The keys of Confluent's Filter."""

    condition: str = key(
        "filter.condition",
        doc="A JSON path with a predicate, such as $[?(@.amount > 10)].",
        validator=_readable,
    )
    type: str = key(
        "filter.type",
        doc="Whether records for which it holds are kept (include) or dropped (exclude).",
        choices=("include", "exclude"),
    )
    missing: str = key(
        "missing.or.null.behavior",
        "fail",
        "What happens to records without the object that the condition names: fail refuses them.",
        choices=("fail", "include", "exclude"),
    )


class Filter(ReadingTransform):
    """See Confluent's transform of this name."""

    section = FilterConfig
    config: FilterConfig

    def __init__(self, config: FilterConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._condition = condition(config.condition)
        self._opener = Opener()

    def apply(self, batch: Batch) -> Batch:
        objects = self._objects(batch.contents(self.of_key).array)
        there = np.zeros(len(batch), bool) if objects is None else valid(objects)
        if self.config.missing.lower() == "fail":
            where = ".".join(("key" if self.of_key else "value", *self._condition.path))
            refuse(~there, f"{where} is missing or null: nothing to filter by")
        holds = self._condition.test(lambda path: self._at(objects, path), len(batch))
        stays = flags(holds) == (self.config.type.lower() == "include")
        return batch.only(np.where(there, stays, self.config.missing.lower() == "include"))

    def _objects(self, array: pa.Array) -> pa.Array | None:
        """What the condition is about, objects as structs; None if no record has it."""
        path = self._condition.path
        child = self._field(array, path) if path else column("", array)
        return child and (self._opener.opened(child, ".".join(path)) or child).array

    def _at(self, array: pa.Array | None, path: Path) -> pa.Array | None:
        """The values of a field; None if there is none."""
        child = self._field(array, path) if path else None
        return array if not path else child and child.array

    def _field(self, array: pa.Array | None, path: Path) -> Column | None:
        if array is None or not pa.types.is_struct(array.type):
            return None
        return self._opener.field(array, path)


@dataclass(frozen=True)
class TombstoneHandlerConfig:
    """The keys of Confluent's TombstoneHandler."""

    behavior: str = key(
        "behavior",
        "warn",
        "ignore: drop tombstones; warn: drop them and say so; fail: refuse them.",
        choices=("ignore", "warn", "fail"),
    )


class TombstoneHandler(Transform):
    """See Confluent's transform of this name."""

    section: ClassVar[type] = TombstoneHandlerConfig
    config: TombstoneHandlerConfig
    moves_numbers = True
    changes_contents = False

    def apply(self, batch: Batch) -> Batch:
        there = valid(batch.values.array)
        if self.config.behavior == "fail":
            refuse(~there, "Tombstone record encountered, failing due to behavior")
        if self.config.behavior.endswith("warn") and not there.all():
            log.warning("%d tombstones were dropped", np.count_nonzero(~there))
        return batch.only(there)


class NullFilter(Transform):
    """See the transform of this name in Confluent's examples: drops tombstones."""

    moves_numbers = True
    changes_contents = False

    def apply(self, batch: Batch) -> Batch:
        return batch.only(valid(batch.values.array))


@dataclass(frozen=True)
class DropConfig:
    """The keys of Confluent's Drop."""

    behavior: str = key(
        "schema.behavior",
        "nullify",
        "What becomes of the schema. A null has none here.",
        choices=("nullify", "retain", "validate", "force_optional"),
    )


class Drop(ContentsTransform):
    """See Confluent's transform of this name: the key or the value becomes null."""

    section = DropConfig
    moves_numbers = True
    needs_key = False

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        return Contents(pa.nulls(len(batch), contents.array.type), contents.has_schema)
