"""Values that reach no column: fields of records for which the target has none.

``fields.unknown`` says what becomes of them. Fields that the configuration leaves out are not among
them, nor are those that the sink may add to the target.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import ConnectorConfig
from semel.converters.json.plain import none_taken
from semel.core.errors import ConfigError
from semel.core.quoting import named
from semel.core.records import Records, absences, value_columns
from semel.sinks.base import Sink

log = logging.getLogger(__name__)

Counts = Mapping[tuple[str, str], int]
"""The number of values by topic and field."""
OTHERS = "more fields"
"""What fields are counted as once a topic has too many of them."""

_MOST, _REMEMBERED = 100, 10_000
"""How many fields of a topic are counted by name, and how many are known at all: their names may be
data."""


def sum_of(counts: Iterable[Counts]) -> dict[tuple[str, str], int]:
    """All counts together."""
    total: Counter[tuple[str, str]] = Counter()
    for part in counts:
        total.update(part)
    return dict(total)


class FieldCheck:
    """Judges the fields of a connector's records. ``lacking`` is that of the sink."""

    def __init__(
        self,
        connector: ConnectorConfig,
        sink: Sink,
        lacking: Callable[[str, Collection[str]], Collection[str]] | None = None,
    ) -> None:
        self._connector = connector
        self._sink = sink
        self._ask = lacking or sink.lacking
        self._placed: dict[str, set[str]] = {}
        self._lacking: dict[str, dict[str, str]] = {}
        """By topic: the fields that its target lacks, and what each is counted as."""

    @property
    def counts(self) -> bool:
        """Whether such values are of interest."""
        return self._connector.fields_unknown != "ignore"

    def unread(self, topic: str, counts: Mapping[str, int]) -> Counter[tuple[str, str]]:
        """Judge fields that the converter has left out, with the number of their values.

        Raises:
            ConfigError: the connector must stop.
        """
        lacking = self._among(topic, counts)
        return self._judged(topic, {n: counts[n] for n in counts if n in lacking}, typed=False)

    def without(self, records: Records, *, typed: bool) -> tuple[Records, Counter[tuple[str, str]]]:
        """The records without fields that the target lacks, and how many values these hold.
        ``typed`` says that the values have a schema.

        Raises:
            ConfigError: the connector must stop.
        """
        rows, lacking = records.rows, self.lacking(records)
        if not lacking:
            return records, Counter()
        counts = {n: rows.num_rows - rows.column(n).null_count for n in lacking}
        if typed and self._stops(typed=True):
            counts |= {n: 1 for n in counts if not pa.types.is_null(rows.schema.field(n).type)}
        judged = self._judged(records.topic, counts, typed=typed)
        return replace(records, rows=rows.drop_columns(list(counts))), judged

    def lacking(self, records: Records) -> list[str]:
        """The fields of records that the target lacks."""
        rows = records.rows
        names = value_columns(rows.column_names) if records.has_fields and rows.num_rows else []
        lacking = self._among(records.topic, names)
        return [n for n in names if n in lacking]

    def useless(
        self, records: Records, target: Callable[[str], pa.Schema | None], *, told: bool
    ) -> dict[int, str]:
        """The rows, of values without a schema, that have fields, but none that the target takes:
        each with the reason. ``told`` says that rows tell which fields they lack; otherwise a null
        counts as none."""
        lacking = [] if self._stops(typed=False) else self.lacking(records)
        columns = target(records.topic) if lacking else None
        if columns is None or not columns.names:
            return {}
        rows = records.rows
        lacks = absences(rows)
        names = value_columns(rows.column_names)
        has = {n: _has(rows.column(n), lacks.get(n), told) for n in names}
        some, taken = np.zeros((2, rows.num_rows), np.bool_)
        for name, there in has.items():
            some |= there
            taken |= there & (name in columns.names)
        return {
            at: none_taken([n for n in has if has[n][at]], columns.names)
            for at in np.flatnonzero(some & ~taken).tolist()
        }

    def _stops(self, *, typed: bool) -> bool:
        """Whether an unknown field stops the connector. By default it does so where values have a
        schema, as in Kafka Connect's sinks; plain JSON often holds more than is wanted."""
        return (self._connector.fields_unknown or ("stop" if typed else "warn")) == "stop"

    def _judged(
        self, topic: str, counts: Mapping[str, int], *, typed: bool
    ) -> Counter[tuple[str, str]]:
        present = {name: count for name, count in counts.items() if count}
        if present and self._stops(typed=typed):
            raise self._error(topic, present)
        judged: Counter[tuple[str, str]] = Counter()
        labels = self._lacking.get(topic, {})
        for name, count in present.items() if self.counts else ():
            judged[topic, labels.get(name, OTHERS)] += count
        return judged

    def _error(self, topic: str, counts: Mapping[str, int]) -> ConfigError:
        name = next(n for n in counts if counts[n])
        return ConfigError(
            f"connector {self._connector.name}: {self._sink.no_column(topic, name)}. "
            "fields.unknown=warn or ignore leaves its values out"
        )

    def _among(self, topic: str, names: Collection[str]) -> set[str]:
        """Those of the fields that the target lacks. The sink is asked about each field once."""
        placed = self._placed.setdefault(topic, set())
        labels = self._lacking.setdefault(topic, {})
        new = [n for n in names if n not in placed and n not in labels]
        lacking = set(self._ask(topic, new)) if new else set()
        placed.update(n for n in new if n not in lacking)
        for name in sorted(lacking)[: max(0, _REMEMBERED - len(labels))]:
            labels[name] = name if len(labels) < _MOST else OTHERS
        return lacking.union(n for n in names if n in labels)


def _has(values: pa.ChunkedArray, lacks: pa.ChunkedArray | None, told: bool) -> np.ndarray:
    """Which rows have a field."""
    if not told:
        return np.asarray(values.is_valid())
    return np.ones(len(values), np.bool_) if lacks is None else np.asarray(pc.invert(lacks))


class UnplacedLog:
    """Logs each field when it is first seen in a run."""

    def __init__(self, connector: ConnectorConfig, sink: Sink) -> None:
        self._connector = connector
        self._sink = sink
        self._told: set[tuple[str, str]] = set()

    def tell(self, fields: Collection[tuple[str, str]]) -> None:
        """Log those of the fields that are new."""
        for topic, name in sorted(set(fields) - self._told):
            self._told.add((topic, name))
            log.warning("%s", sentence(self._sink, topic, name), extra=self._about)

    @property
    def _about(self) -> dict[str, str]:
        return {"connector": self._connector.name}


def sentence(sink: Sink, topic: str, field: str) -> str:
    """What to say about a field whose values are left out."""
    if field == OTHERS:
        what = f"more fields of topic {named(topic)} have no column. Their"
    else:
        what = f"{sink.no_column(topic, field)}. Its"
    return f"{what} values reach no column and are counted (fields.unknown; ignore accepts that)"
