"""Reads the first records of topics, in a process whose memory is limited.

librdkafka unpacks a batch as a whole, and a few hundred kilobytes of gzip may hold gigabytes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

import pyarrow as pa
from confluent_kafka import Message

from semel.config import ConnectorConfig
from semel.core.errors import BadRecord, SemelError, TransientError
from semel.core.ledger import TopicPartition
from semel.kafka.consumer import headers_of
from semel.kafka.damage import Damage
from semel.kafka.reader import read_ranges
from semel.tasks import expendable
from semel.tasks.poll import by_topic

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PATIENCE = 120.0
"""Seconds for an answer: Kafka may be silent for 30."""
_FIRST = 8
"""How many times the wanted bytes the first record may have."""


@dataclass(frozen=True, slots=True)
class RecordSample:
    """Records by topic, in raw batches. ``cut`` says that there are more than were wanted."""

    tables: Mapping[str, pa.Table]
    cut: bool = False


def read(
    connector: ConnectorConfig,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    most: int,
    patience: float = PATIENCE,
) -> RecordSample:
    """The committed records in ``[start, end)`` of each partition, up to ``most`` bytes, and up to
    damage of unknown extent: whoever gets there says so.

    Raises:
        OffsetOutOfRange: records at a start are gone.
        TransientError: Kafka sends nothing.
        SemelError: the process has died.
    """
    arguments = (connector, starts, ends, most)
    read, left_out = read_apart(connector, starts, _read, *arguments, patience=patience)
    for text in left_out:
        log.info("the sample leaves out %s", text)
    return read


def read_apart(
    connector: ConnectorConfig,
    starts: Mapping[TopicPartition, int],
    function: Callable[[*Ts], T],
    *arguments: *Ts,
    patience: float = PATIENCE,
) -> T:
    """What a function answers that reads the batches at these offsets.

    Raises:
        TransientError: it does not answer in time.
        SemelError: the process has died; or what it raises.
    """
    limits = expendable.Limits(memory=connector.task_memory, patience=patience)
    try:
        return expendable.call(limits, function, *arguments)
    except TimeoutError:
        raise TransientError(f"no records were read within {patience:.0f} s") from None
    except expendable.Died:
        where = ", ".join(f"{tp} from offset {at}" for tp, at in sorted(starts.items())[:3])
        raise SemelError(
            f"connector {connector.name}: the process that read {where} has died. It may use "
            f"{connector.task_memory:,} bytes; a batch that holds more once it is unpacked can be "
            "read with a larger task.max.memory.bytes"
        ) from None


def _read(
    connector: ConnectorConfig,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    most: int,
) -> tuple[RecordSample, list[str]]:
    left_out: list[str] = []

    def passed_over(damage: Damage) -> None:
        left_out.append(f"{damage.range}: {damage.reason}")

    polls = read_ranges(connector, starts, ends, damaged=passed_over)
    kept: list[Message] = []
    size, cut = 0, False
    with contextlib.closing(polls), contextlib.suppress(BadRecord):
        for poll in polls:
            for message in poll:
                more = _bytes_of(message)
                if size + more > (most if kept else _FIRST * most):
                    cut = True
                    break
                kept.append(message)
                size += more
            if cut:
                break
    if cut and not kept:
        left_out.append("a first record that is too large")
    tables = {
        part.topic: part.raw(key=True, timestamp=True, headers=True) for part in by_topic(kept)
    }
    return RecordSample(tables, cut), left_out


def _bytes_of(message: Message) -> int:
    headers = headers_of(message) or ()
    parts = [message.value(), message.key(), *(item for header in headers for item in header)]
    return sum(len(part) for part in parts if part)
