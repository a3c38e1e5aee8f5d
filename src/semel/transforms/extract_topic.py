"""ExtractTopic of Confluent and of Aiven: a field, or a whole key or value, names the topic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.core.quoting import named
from semel.transforms.base import Batch, Reading, Refused, reasons
from semel.transforms.structs import Column, column, columns, connect_type, required
from semel.transforms.texts import java_text


@dataclass(frozen=True)
class ExtractTopicConfig:
    """The keys of Confluent's ExtractTopic."""

    field: str = key("field", "", "The field; empty for the whole key or value.")
    format: str = key("field.format", "plain", "How it is named.", choices=("plain",))
    skip: bool = key("skip.missing.or.null", False, "Whether records without it keep their topic.")


@dataclass(frozen=True)
class AivenExtractTopicConfig:
    """The keys of Aiven's ExtractTopic."""

    field: str = key("field.name", "", "The field; empty for the whole key or value.")
    skip: bool = key("skip.missing.or.null", False, "Whether records without it keep their topic.")


class ExtractTopic(Reading):
    """See Confluent's transform of this name."""

    section: ClassVar[type] = ExtractTopicConfig

    def __init__(
        self, config: ExtractTopicConfig | AivenExtractTopicConfig, *, of_key: bool
    ) -> None:
        super().__init__(config, of_key=of_key)
        self._config = config

    @property
    def routes(self) -> bool:
        return True

    def apply(self, batch: Batch) -> Batch:
        contents = batch.contents(self.of_key)
        found, where = self._found(batch)
        kind = connect_type(found, has_schema=contents.has_schema)
        there = pc.and_(found.array.is_valid(), kind is None)
        missing = np.flatnonzero(~np.asarray(there.to_numpy(zero_copy_only=False)))
        if len(missing) and not self._config.skip:
            why = "is null or missing" if kind is None else f"is of type {kind}"
            raise Refused(reasons(missing, f"{where}, which is to name the topic, {why}"))
        if kind is not None:
            return batch
        texts = java_text(found.array, has_schema=contents.has_schema)
        return replace(batch, topics=pc.if_else(texts.is_valid(), texts, batch.topics))

    def _found(self, batch: Batch) -> tuple[Column, str]:
        contents = batch.contents(self.of_key)
        where = "key" if self.of_key else "value"
        if not self._config.field:
            return column(where, contents.array), f"the {where}"
        array = required(contents, "topic extraction", nulls=self._config.skip)
        found = columns(array).get(self._config.field)
        missing = column(self._config.field, pa.nulls(len(batch)))
        return found or missing, f"field {named(self._config.field)} of the {where}"


class AivenExtractTopic(ExtractTopic):
    """See Aiven's transform ExtractTopic."""

    section: ClassVar[type] = AivenExtractTopicConfig
