"""The Datagen source connector."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.config import SourceConnectorConfig, absolute, read
from semel.core.delivery import Support
from semel.core.errors import ConfigError, misconfigured
from semel.core.quoting import all_named, named
from semel.sources.base import Source, SourceBatch, SourceOffset, SourcePartition, StoredOffset
from semel.sources.datagen.config import DatagenConfig
from semel.sources.datagen.schema import Unusable, records_of
from semel.sources.datagen.values import Block, salt

log = logging.getLogger(__name__)

_TASK, _NUMBER, _SEED = "task.id", "current.iteration", "random.seed"
"""Confluent's names in the source partition and offset."""
_OF_CONFLUENT = "task.generation"
"""Present in offsets stored by Confluent's connector, whose seed changes with each record."""
_MOST = 20_000
"""Records of one batch."""
_HIGHEST = 1 << 62
"""No record has this number."""
_LARGEST = 1 << 22
"""The characters, bytes and members of one batch, unless a record has more."""


class DatagenSource(Source):
    """One source partition for each task; its offset is the number of the next record."""

    section = DatagenConfig
    headers = ()
    tombstones = False

    def __init__(self, connector: SourceConnectorConfig) -> None:
        self._name = connector.name
        self._tasks = connector.tasks_max
        self._config = read(DatagenConfig, connector.originals)
        self.unit = "records" if self._config.iterations > 0 else None
        self._seed = salt(self._name) >> 1 if self._config.seed is None else self._config.seed
        schema = self._config.schema()
        of = self._config.origin.partition("=")[0]
        try:
            self._records = records_of(schema.avro)
        except Unusable as error:
            raise misconfigured(of, f"{self._config.origin}: the schema {error}") from None
        self._most = min(_MOST, max(1, _LARGEST // max(1, self._records.most)))
        self._key = schema.keyfield
        self.keyed = bool(self._key)
        if self._key and self._records.type.get_field_index(self._key) < 0:
            names = all_named(f.name for f in self._records.type)
            raise misconfigured(
                "schema.keyfield",
                f"schema.keyfield={self._key} must be a field of the records: {names}",
            )

    def describe(self) -> dict[str, str]:
        config = self._config
        count = f"{config.iterations:,} records" if config.iterations > 0 else "records"
        return {
            "reads": f"{count} per task, made by {config.origin} and random.seed={self._seed}",
            "writes": f"topic {named(config.topic)}",
        }

    def exactly_once(self) -> Support:
        return Support(
            True,
            "each record follows from the seed and its number, which is committed with it in one "
            "Kafka transaction",
        )

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        return absolute(raw, "schema.filename")

    def topics(self) -> Sequence[str]:
        return [self._config.topic]

    def partitions(self) -> Sequence[SourcePartition]:
        return [{_TASK: n} for n in range(self._tasks)]

    def check_offset(self, partition: SourcePartition, offset: SourceOffset) -> None:
        task = partition.get(_TASK)
        if partition.keys() != {_TASK} or isinstance(task, bool) or not isinstance(task, int):
            raise ConfigError(
                f"connector {self._name}: source partition {dict(partition)} must be a {_TASK}, "
                f'such as {{"{_TASK}": 0}}'
            )
        self._number(offset)

    def read(
        self, partition: SourcePartition, offset: SourceOffset | None
    ) -> Iterator[SourceBatch | None]:
        number = 0 if offset is None else self._number(offset)
        pace = _Pace(self._config.max_interval_ms / 1000)
        end = self._config.iterations
        while end < 1 or number < end:
            count = pace.due(self._most if end < 1 else min(self._most, end - number))
            if not count:
                yield None
                continue
            yield self._batch(partition, number, number + count)
            number += count
        log.info("connector %s: all %d records of task %s are made", self._name, end, partition)

    def before(self, partition: SourcePartition, offset: SourceOffset) -> Iterator[SourceBatch]:
        """See :class:`~semel.sources.base.Repeatable`."""
        return self.between(partition, 0, self._number(offset))

    def lag(self, stored: StoredOffset) -> Iterator[tuple[SourcePartition, int]]:
        """See :class:`~semel.sources.base.Measurable`."""
        for partition in self.partitions():
            offset = stored(partition)
            number = 0 if offset is None else self._number(offset)
            yield partition, max(0, self._config.iterations - number)

    def between(self, partition: SourcePartition, first: int, until: int) -> Iterator[SourceBatch]:
        """The records of these numbers."""
        for number in range(first, until, self._most):
            yield self._batch(partition, number, min(number + self._most, until))

    def _batch(self, partition: SourcePartition, number: int, until: int) -> SourceBatch:
        numbers = np.arange(number, until, dtype=np.uint64)
        records = self._records.values(Block(numbers, salt(self._seed, partition[_TASK])))
        offset = {_NUMBER: until, _SEED: self._seed}
        keys: pa.Array | None = pc.struct_field(records, self._key) if self._key else None
        return SourceBatch.of(self._config.topic, records, offset, keys=keys)

    def _number(self, offset: SourceOffset) -> int:
        number: Any = offset.get(_NUMBER)
        if type(number) is not int or not 0 <= number < _HIGHEST:
            raise ConfigError(
                f"connector {self._name}: source offset {dict(offset)} must have a {_NUMBER} of 0 "
                f"or more, below {_HIGHEST:,}. Correct it with semel offsets set, or forget it "
                "with semel offsets reset"
            )
        seed = offset.get(_SEED, self._seed)
        if seed != self._seed and _OF_CONFLUENT not in offset:
            raise ConfigError(
                f"connector {self._name}: source offset {dict(offset)} was reached with "
                f"random.seed={seed}, but it is {self._seed} now: the records before it would "
                "differ. Set random.seed back, or forget the offset with semel offsets reset"
            )
        return number


class _Pace:
    """When records are due: at random intervals, up to a limit."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._next = self._now() + self._wait()

    def due(self, most: int) -> int:
        """How many records are due now."""
        if self._limit <= 0:
            return most
        now, count = self._now(), 0
        while self._next <= now and count < most:
            count += 1
            self._next += self._wait()
        return count

    def _now(self) -> float:
        return time.monotonic()

    def _wait(self) -> float:
        return random.random() * self._limit
