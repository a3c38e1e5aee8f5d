"""Aiven's KeyToValue: copies fields of the key, or the whole key, into the value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from semel.config import key
from semel.core.errors import ConfigError, Problem
from semel.transforms.base import Batch, Contents, Refused, Transform, reasons
from semel.transforms.structs import Column, Columns, column, columns, required, struct

_ALL, _WHOLE = "*", "_key"


@dataclass(frozen=True)
class KeyToValueConfig:
    """The keys of KeyToValue."""

    key_fields: tuple[str, ...] = key(
        "key.fields", doc="The fields of the key to copy; * stands for the whole key."
    )
    value_fields: tuple[str, ...] = key(
        "value.fields",
        (),
        "Their names in the value, in the same order. A missing name is _key for the whole key, "
        "and otherwise the field's own name.",
    )

    def __post_init__(self) -> None:
        names = [name for name, _ in self.pairs()]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    Problem(
                        "value.fields",
                        f"value.fields: more than one field of the key is copied to {name}",
                    )
                )

    def pairs(self) -> Iterator[tuple[str, str]]:
        """The name of each field in the value, and in the key."""
        for number, name in enumerate(self.key_fields):
            given = self.value_fields[number] if number < len(self.value_fields) else ""
            chosen = given or name
            yield (_WHOLE if chosen == _ALL else chosen), name


class KeyToValue(Transform):
    """See Aiven's transform of this name."""

    section = KeyToValueConfig

    def __init__(self, config: KeyToValueConfig) -> None:
        self._pairs = list(config.pairs())

    @property
    def needs_key(self) -> bool:
        return True

    def apply(self, batch: Batch) -> Batch:
        values = required(batch.values, "copying fields from key to value", nulls=False)
        keys = batch.keys
        fields: Columns | None = None
        if any(name != _ALL for _, name in self._pairs):
            fields = columns(required(keys, "copying fields from key to value", nulls=False))
        found = columns(values)
        for name, copied in self._pairs:
            if copied == _ALL:
                found[name] = column(name, keys.array)
            elif fields is not None:
                found[name] = self._field(fields, copied, keys).named(name)
        return replace(batch, values=batch.values.holding(struct(found, values)))

    def _field(self, fields: Columns, name: str, keys: Contents) -> Column:
        """A field of the key. If the key is a map, unknown fields are null."""
        if name in fields:
            return fields[name].everywhere()
        if not keys.has_schema:
            return column(name, pa.nulls(len(keys.array)))
        every = np.arange(len(keys.array))
        raise Refused(reasons(every, f"Key field '{name}' not found in key schema"))
