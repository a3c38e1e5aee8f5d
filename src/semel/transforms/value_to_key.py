"""ValueToKey: makes a key from fields of the value."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from semel.config import key
from semel.core.quoting import named
from semel.transforms.base import Batch, Contents, Transform
from semel.transforms.fields import Defaults
from semel.transforms.structs import column, columns, refuse_all, required, struct


@dataclass(frozen=True)
class ValueToKeyConfig(Defaults):
    """The keys of ValueToKey."""

    fields: tuple[str, ...] = key("fields", doc="The fields that make the key.")


class ValueToKey(Transform):
    """See Kafka Connect's ValueToKey."""

    section = ValueToKeyConfig

    def __init__(self, config: ValueToKeyConfig) -> None:
        self._config = config
        self.fields = config.fields

    @property
    def changes_key(self) -> bool:
        return True

    def apply(self, batch: Batch) -> Batch:
        values = batch.values
        array = required(values, "copying fields from value to key", nulls=False)
        found = columns(array, defaults=self._config.replace_nulls)
        for name in self.fields:
            if name not in found and values.has_schema:
                refuse_all(array, f"Field does not exist: {named(name)}")
        missing = pa.nulls(len(array))
        chosen = {n: (found.get(n) or column(n, missing)).everywhere() for n in self.fields}
        return replace(batch, keys=Contents(struct(chosen, array), values.has_schema))
