"""InsertField: adds the record's origin, its time, or a constant as a field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from semel.config import key
from semel.core.errors import ConfigError, Problem
from semel.core.records import TIMESTAMP_TYPE
from semel.transforms.base import Batch, Contents, ContentsTransform
from semel.transforms.fields import Defaults
from semel.transforms.structs import column, columns, refuse_all, refuse_duplicate, required, struct

_OPTIONALITY = "A name that ends with ! makes the field required, with ? optional (the default)."


@dataclass(frozen=True)
class InsertFieldConfig(Defaults):
    """The keys of InsertField."""

    topic: str = key("topic.field", "", f"Field for the Kafka topic. {_OPTIONALITY}")
    partition: str = key("partition.field", "", f"Field for the Kafka partition. {_OPTIONALITY}")
    offset: str = key("offset.field", "", f"Field for the Kafka offset. {_OPTIONALITY}")
    timestamp: str = key("timestamp.field", "", f"Field for the timestamp. {_OPTIONALITY}")
    static: str = key("static.field", "", f"Field for a constant. {_OPTIONALITY}")
    value: str | None = key("static.value", None, "The constant.")

    def __post_init__(self) -> None:
        names = (self.topic, self.partition, self.offset, self.timestamp, self.static)
        if not any(names):
            raise ConfigError(Problem("topic.field", "No field insertion configured"))
        if self.static and self.value is None:
            raise ConfigError(
                Problem("static.value", f"No value specified for static field: {self.static}")
            )


class InsertField(ContentsTransform):
    """See Kafka Connect's InsertField."""

    section = InsertFieldConfig

    def __init__(self, config: InsertFieldConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._config = config

    @property
    def needs_timestamp(self) -> bool:
        return bool(self._config.timestamp)

    def changed(self, batch: Batch, contents: Contents) -> Contents:
        config = self._config
        array = required(contents, "field insertion", nulls=True)
        found = columns(array, defaults=config.replace_nulls)
        inserted: Sequence[tuple[str, Callable[[], pa.Array]]] = (
            (config.topic, lambda: batch.topics),
            (config.partition, lambda: batch.partitions),
            (config.offset, lambda: self._offsets(batch, array)),
            (config.timestamp, lambda: self._timestamps(batch, contents)),
            (config.static, lambda: pa.repeat(pa.scalar(config.value, pa.string()), len(batch))),
        )
        for spec, values in inserted:
            if spec:
                name = spec[:-1] if spec[-1] in "?!" else spec
                refuse_duplicate(name, found, contents, array)
                made = values()
                new = column(name, made, nullable=not spec.endswith("!"))
                if contents.has_schema:
                    found[name] = new
                elif made.null_count < len(made):  # a map gets no null
                    absent = made.is_null() if made.null_count else None
                    found[name] = replace(new, absent=absent).over(found.get(name))
        return contents.holding(struct(found, array))

    def _offsets(self, batch: Batch, array: pa.Array) -> pa.Array:
        if batch.offsets is not None:
            return batch.offsets
        refuse_all(
            array,
            "Only SinkRecord supported for [field insertion], found: "
            "org.apache.kafka.connect.source.SourceRecord",
        )
        return pa.nulls(len(batch), pa.int64())

    def _timestamps(self, batch: Batch, contents: Contents) -> pa.Array:
        stamps = batch.timestamps.cast(TIMESTAMP_TYPE)
        return stamps if contents.has_schema else stamps.cast(pa.int64())
