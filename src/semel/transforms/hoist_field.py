"""HoistField: wraps the whole key or value in a struct of one field."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semel.config import key
from semel.transforms.base import Batch, Contents, ContentsTransform
from semel.transforms.structs import column, struct


@dataclass(frozen=True)
class HoistFieldConfig:
    """The keys of HoistField."""

    field: str = key("field", doc="The name of the field.")


class HoistField(ContentsTransform):
    """See Kafka Connect's HoistField. A null becomes a field that is null, too."""

    section = HoistFieldConfig

    def __init__(self, config: HoistFieldConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._field = config.field

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        whole = pa.array(np.zeros(len(contents.array), np.int8))
        inside = column(
            self._field,
            contents.array,
            nullable=not contents.has_schema
            or bool(contents.facts.get("optional") or contents.array.null_count),
            facts=contents.facts,
        )
        return Contents(struct({self._field: inside}, whole), contents.has_schema)
