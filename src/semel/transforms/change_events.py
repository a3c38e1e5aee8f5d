"""Debezium's change events as rows and deletes, for sinks that take them as Debezium's sink does.

A change event holds a row before and after a change, and what happened to it: ``op`` is ``c``
(create), ``u`` (update), ``r`` (read by a snapshot), ``d`` (delete) or ``t`` (truncate). The
event becomes the row after the change, or null after a delete, like the tombstone that usually
follows. Truncations and events without a row become null, too.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.base import Failure
from semel.converters.json.columns import CONNECT
from semel.converters.json.envelope import PayloadReaders
from semel.converters.json.text import place
from semel.core.errors import misconfigured
from semel.core.records import DATA_EXCEPTION

_FIELDS = frozenset({"before", "after", "source", "op"})
_WITH_A_ROW = ("c", "u", "r")


def are_change_events(values: pa.Array) -> bool:
    return pa.types.is_struct(values.type) and {f.name for f in values.type} >= _FIELDS


class Unwrapper:
    """Remembers how the rows of a schema are read."""

    def __init__(self, connector: str) -> None:
        self._connector = connector
        self._readers = PayloadReaders()

    def unwrap(self, events: pa.StructArray) -> tuple[pa.Array, list[Failure]]:
        """The row after each change, null where there is none.

        Raises:
            ConfigError: the events have no schemas, so what a row consists of is not known.
        """
        fields = dict(zip([f.name for f in events.type], events.flatten(), strict=True))
        operations, after = fields["op"], fields["after"]
        known = events.type.field("after").metadata or {}
        has_types = pa.types.is_struct(after.type)
        if CONNECT not in known and not has_types:
            raise misconfigured(
                "value.converter.schemas.enable",
                f"connector {self._connector}: the values are Debezium change events (before, "
                "after, op) without schemas. Let the source write them with schemas "
                "(value.converter.schemas.enable=true there and here), or unwrap them there: "
                "transforms.unwrap.type=io.debezium.transforms.ExtractNewRecordState",
            )
        failures = [
            Failure(i, DATA_EXCEPTION, "the change event has no op")
            for i in pc.indices_nonzero(
                pc.and_(events.is_valid(), operations.is_null())
            ).to_pylist()
        ]
        if has_types:
            given = pc.and_(pc.is_in(operations, pa.array(_WITH_A_ROW)), after.is_valid())
            return pc.if_else(given, after, pa.scalar(None, after.type)), failures
        text = after.storage if isinstance(after, pa.ExtensionArray) else after
        wanted = pc.and_(pc.is_in(operations, pa.array(_WITH_A_ROW)), text.is_valid())
        rows = pc.indices_nonzero(wanted)
        block, refused = self._readers[known[CONNECT]].read(text.take(rows).cast(pa.string()))
        at = rows.to_numpy()
        failures += [Failure(int(at[f.index]), f.exception, f"after: {f.message}") for f in refused]
        return place(block, rows, len(events)), sorted(failures, key=lambda f: f.index)
