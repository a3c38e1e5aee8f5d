"""What leaves a step: messages for topics, and records for the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from semel.config import ConnectorConfig
from semel.converters.base import Converter
from semel.core import records as core
from semel.kafka.cluster import Cluster
from semel.kafka.compacted import partition_of
from semel.kafka.messages import ANY, Messages
from semel.streams import codec
from semel.streams.changelog import Topics
from semel.streams.records import Records
from semel.streams.topology import SubTopology
from semel.tasks.streams.unit import converter_of


class Encoders:
    """Makes messages of what leaves for topics."""

    def __init__(self, connector: ConnectorConfig, topics: Topics, cluster: Cluster) -> None:
        self._connector = connector
        self._topics = topics
        self._cluster = cluster
        self._counts: Mapping[str, int] = {}
        self._converters: dict[tuple[str, str], Converter] = {}

    def messages(self, sub: SubTopology, name: str, records: Records) -> Messages | None:
        """The messages of a sink's records; None if they go to the target."""
        sink = sub.sinks[name]
        if sink.topic is None or not len(records):
            return None
        topic, targets = self._topics.real(sink.topic), None
        if sink.is_repartition:
            keys, values = codec.to_wire(records)
            if (beside := self._topics.beside(sink.topic)) is not None:
                as_there = self._encoded(beside.topic, "key", beside.config, records.keys)
                targets = self._places(topic, as_there)
        else:
            keys = self._encoded(sink.topic, "key", sink.config, records.keys)
            values = self._encoded(sink.topic, "value", sink.config, records.values)
        return Messages(
            topic,
            "",
            pa.chunked_array([keys]),
            pa.chunked_array([values]),
            targets,
            records.times.to_pylist(),
        )

    def _places(self, topic: str, keys: pa.Array) -> list[int]:
        """The partition of each key of a topic."""
        if topic not in self._counts:
            self._counts = self._cluster.topics()
        count = self._counts[topic]
        encoded = keys.dictionary_encode()
        places = pa.array([partition_of(key, count) for key in encoded.dictionary.to_pylist()])
        partitions: list[int] = places.take(encoded.indices).fill_null(ANY).to_pylist()
        return partitions

    def _encoded(
        self, topic: str, what: str, config: Mapping[str, Any], values: pa.Array
    ) -> pa.Array:
        """Keys or values as a topic has them."""
        if (topic, what) not in self._converters:
            connector = self._connector
            default = connector.key_converter if what == "key" else connector.value_converter
            raw = {**connector.originals, **config}
            converter = converter_of(raw, f"{what}.converter", default)
            self._converters[topic, what] = converter.for_topic(topic)
        return _bytes(self._converters[topic, what], values)


def _bytes(converter: Converter, values: pa.Array) -> pa.Array:
    if pa.types.is_binary(values.type) or pa.types.is_null(values.type):
        return values.cast(pa.binary())
    return converter.encode(values)


def leaving(name: str, records: Records, partition: int) -> core.ConnectRecords:
    """Records on their way to the target. Their order counts, not where they come from."""
    count = len(records)
    origin = {
        core.TOPIC: pa.repeat(pa.scalar(name), count),
        core.PARTITION: pa.repeat(pa.scalar(partition, pa.int32()), count),
        core.OFFSET: pa.array(np.arange(count)),
        core.TIMESTAMP: records.times.cast(core.TIMESTAMP_TYPE),
    }
    return core.ConnectRecords(name, pa.table(origin), records.keys, records.values)
