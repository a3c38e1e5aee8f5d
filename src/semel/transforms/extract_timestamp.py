"""Aiven's ExtractTimestamp: takes the record's timestamp from a field."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import key
from semel.core.quoting import named
from semel.core.records import TIMESTAMP_TYPE
from semel.transforms.base import Batch, Reading, Refused, reasons
from semel.transforms.structs import columns, required
from semel.transforms.texts import milliseconds


def _named(text: str) -> None:
    if not text:
        raise ValueError("must not be empty")


@dataclass(frozen=True)
class ExtractTimestampConfig:
    """The keys of ExtractTimestamp."""

    field: str = key("field.name", doc="The field that holds the time.", validator=_named)
    resolution: str = key(
        "timestamp.resolution",
        "milliseconds",
        "The unit of a time that is a number.",
        choices=("milliseconds", "seconds"),
    )


class ExtractTimestamp(Reading):
    """See Aiven's transform of this name. Kafka's own timestamp is kept beside the new one."""

    section = ExtractTimestampConfig

    def __init__(self, config: ExtractTimestampConfig, *, of_key: bool) -> None:
        super().__init__(config, of_key=of_key)
        self._config = config

    @property
    def sets_timestamp(self) -> bool:
        return True

    def apply(self, batch: Batch) -> Batch:
        contents = batch.contents(self.of_key)
        array = required(contents, "timestamp extraction", nulls=False)
        found = columns(array).get(self._config.field)
        times = pa.nulls(len(array)) if found is None else found.array
        where = f"field {named(self._config.field)}, which is to be the record's timestamp,"
        missing = np.flatnonzero(np.asarray(times.is_null()))
        if len(missing):
            raise Refused(reasons(missing, f"{where} is null or missing"))
        if pa.types.is_int64(times.type):
            factor = 1000 if self._config.resolution.lower() == "seconds" else 1
            made = pc.multiply(times, factor)
        elif pa.types.is_temporal(times.type):
            made = milliseconds(times)
        else:
            every = np.arange(len(times))
            raise Refused(reasons(every, f"{where} is {times.type}, not int64 or a timestamp"))
        return replace(batch, times=made.cast(TIMESTAMP_TYPE))
