"""The stage of a source's drill: Kafka, the connector, its source, and a consumer."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa

from semel.core.delivery import Delivery
from semel.core.errors import ConfigError
from semel.core.ledger import TopicPartition
from semel.driver.planning import plan_source
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.reader import read_ranges
from semel.sources import full_name
from semel.sources.base import source_records
from semel.sources.datagen.config import CLASSES as DATAGEN
from semel.sources.datagen.source import DatagenSource
from semel.sources.directory.config import CLASSES as DIRECTORY
from semel.sources.filestream import CLASSES as FILE_STREAM
from semel.sources.jdbc.config import CLASSES as JDBC
from semel.tasks.source.encoder import Encoder
from semel_lab.drill.bursts import BURSTS, Bursts
from semel_lab.drill.plan import Kind
from semel_lab.drill.processes import BROKERS, QUICK, Processes, without_place
from semel_lab.drill.source.folder import Folder
from semel_lab.drill.source.generator import Generator, RecordNumbers, Watcher
from semel_lab.drill.source.lines import File
from semel_lab.drill.source.rows import Rows
from semel_lab.drill.source.system import System
from semel_lab.drill.source.tally import Findings, Observer, Tally
from semel_lab.drill.stores import TRANSACTION
from semel_lab.embedded import Kafka

BUILT_IN = {
    "name": "drill",
    "connector.class": "FileStreamSource",
    "topic": "drill",
    "batch.size": "100",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
}
"""The connector of a drill of FileStreamSource. Small batches make many transactions."""

PARTITIONS = 4

_QUICK = {
    **QUICK,
    "producer.override.transaction.timeout.ms": str(int(TRANSACTION * 1000)),
    "producer.override.reconnect.backoff.ms": "50",
    "producer.override.reconnect.backoff.max.ms": "500",
    "consumer.override.reconnect.backoff.ms": "50",
    "consumer.override.reconnect.backoff.max.ms": "500",
    "offset.storage.partitions": "5",
}
_OF_BROKERS = {Kind.BROKER_RESTART, Kind.BROKER_KILL}
_OF_FENCES = {Kind.ZOMBIE, Kind.REPLACED_ZOMBIE, Kind.SECOND_DRIVER, Kind.TIME_OUT}
"""What only exactly-once guards against."""
_CLUSTER = 3


class SourceStage(Processes):
    """The services and the connector of one drill, in one directory, for these ``kinds`` of
    faults."""

    def __init__(
        self, raw: Mapping[str, str], directory: Path, kinds: Collection[Kind], seed: int
    ) -> None:
        super().__init__(directory)
        self.system = system_of(raw, directory)
        self.kinds = [k for k in kinds if k in self.system.faults]
        if not self.kinds:
            raise ConfigError(
                f"connector {raw.get('name', '')}: the faults {', '.join(k.value for k in kinds)} "
                "cannot happen to it. Choose others with --only"
            )
        brokers = _CLUSTER if _OF_BROKERS & {*self.kinds} else 1
        self.kafka = Kafka(directory / "kafka", brokers=brokers, session=BROKERS)
        servers = {"bootstrap.servers": self.kafka.bootstrap_servers}
        own = without_place(raw, *self.system.replaced)
        self._raw = {**own, **_QUICK, **servers, **self.system.keys}
        self.planned = plan_source(self._raw)
        if self.planned.guarantee.delivery is not Delivery.EXACTLY_ONCE:
            self.kinds = [k for k in self.kinds if k not in _OF_FENCES]
        connector, source = self.planned.connector, self.planned.source
        self.topics: Sequence[str] = self.system.topics or source.topics()
        self._encoder = Encoder(connector)
        self.expected: dict[bytes | None, int] = {}
        if isinstance(source, DatagenSource):
            self.expected = RecordNumbers(source, self._encoder)
        self.tally = Tally(self.expected, self.system.lane)
        self.writer: Writer | Watcher
        if isinstance(source, DatagenSource):
            self.writer = Watcher(self.tally)
        else:
            self.writer = Writer(self, seed)
        self._client = client_config(connector, "consumer")
        self._observer = Observer(self._client, self.partitions, self.tally)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of the topics."""
        return [TopicPartition(t, p) for t in self.topics for p in range(PARTITIONS)]

    def settings(self) -> dict[str, str]:
        return self._raw

    def open(self) -> None:
        """Start the services, create the topics, and let the consumer read them."""
        self.kafka.start()
        self.system.open()
        source = self.planned.source
        self.tasks = len(source.divide(source.partitions(), self.planned.connector.tasks_max))
        source.close()  # drops its connections: the server may go
        for topic in self.topics:
            self.kafka.create_topic(topic, PARTITIONS)
        self._observer.start()

    def expect(self, numbers: Sequence[int], values: pa.Array) -> None:
        """Expect records that are about to be written."""
        _, _, encoded = self._encoder.encoded(source_records(self.topics[0], values), [])
        self.expected.update(zip(encoded.to_pylist(), numbers, strict=True))

    def findings(self) -> Findings:
        """The consumer's findings about the records that were written."""
        return self._judged(self.tally)

    def read_again(self) -> Findings:
        """The findings of another consumer, which reads everything again."""
        ends = Cluster(client_config(self.planned.connector, "admin")).latest(self.partitions)
        tally = Tally(self.expected, self.system.lane)
        for messages in read_ranges(self.planned.connector, dict.fromkeys(ends, 0), ends):
            tally.add(messages)
        return self._judged(tally)

    def _judged(self, tally: Tally) -> Findings:
        repeats = self.planned.guarantee.delivery is Delivery.AT_LEAST_ONCE
        return tally.findings(self.writer.sent, repeats=repeats)

    def close(self) -> None:
        """End all processes and services."""
        self._observer.close()
        self.end()
        with contextlib.ExitStack() as ending:
            ending.callback(self.kafka.kill)
            ending.callback(self.system.close)
            ending.callback(self.planned.close)


class Writer(Bursts):
    """Writes numbered records to the stage's system, in a thread of its own until stopped."""

    def __init__(self, stage: SourceStage, seed: int) -> None:
        super().__init__({"writer": self._work}, seed)
        self._stage = stage
        self._own = random.Random(f"{seed} by hand")

    def by_hand(self, count: int) -> None:
        """Write records from the calling thread."""
        with self._lock:
            self._burst(count, self._own)

    def unwritten(self, count: int) -> pa.Array:
        """New records that are expected from now on, but not written."""
        return self._new(count, self._own)

    def no_burst(self) -> AbstractContextManager[object]:
        """A context in which no burst begins. Entering it waits for the one in progress."""
        return self._lock

    def _work(self, dice: random.Random) -> None:
        bursts: tuple[int, ...] = BURSTS
        while not self._stop.is_set():
            with self._lock:
                if not self._held:  # it may have been held back only just now
                    self._burst(dice.choice(bursts), dice)
            bursts = self._pause(dice)

    def _burst(self, count: int, dice: random.Random) -> None:
        self._stage.system.write(self._new(count, dice), dice)

    def _new(self, count: int, dice: random.Random) -> pa.Array:
        numbers = range(self._number, self._number + count)
        values = self._stage.system.values(numbers, dice)
        self._stage.expect(numbers, values)
        self._stage.system.begins(self._number)
        self._number += count
        return values


def system_of(raw: Mapping[str, str], directory: Path) -> System:
    """The system of a source connector, in the drill's directory.

    Raises:
        ConfigError: the drill has no such system.
    """
    name = raw.get("connector.class", "").strip()
    class_name = full_name(name)
    if class_name in FILE_STREAM:
        return File(directory)
    if class_name in DIRECTORY:
        return Folder(raw, directory)
    if class_name in DATAGEN:
        return Generator(raw)
    if class_name in JDBC:
        return Rows(raw, directory)
    raise ConfigError(
        f"connector {raw.get('name', '')}: the drill has no system for connector.class={name}. "
        "It drills FileStreamSource, the JDBC source, the directory source and Datagen"
    )
