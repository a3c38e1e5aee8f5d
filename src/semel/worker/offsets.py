"""Positions and source offsets as Kafka Connect's REST API writes them (KIP-875)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semel.config import Type, whole
from semel.config.definition import LARGEST
from semel.core.ledger import TopicPartition
from semel.worker.errors import BadRequest

_TOPIC, _PARTITION, _OFFSET = "kafka_topic", "kafka_partition", "kafka_offset"


def as_answer(positions: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """The body of an answer."""
    return {
        "offsets": [
            {"partition": {_TOPIC: tp.topic, _PARTITION: tp.partition}, "offset": {_OFFSET: at}}
            for tp, at in sorted(positions.items())
        ]
    }


def of_source(offsets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    """The body of an answer about a source connector."""
    return {"offsets": [{"partition": dict(p), "offset": dict(o)} for p, o in offsets]}


def parsed_of_source(offsets: Any) -> list[tuple[Mapping[str, Any], Mapping[str, Any] | None]]:
    """The source offsets of a request; None means forget.

    Raises:
        BadRequest: an entry has no partition.
    """
    for entry in _entries(offsets):
        if not isinstance(entry.get("partition"), Mapping):
            raise BadRequest("Partition objects cannot be null")
        _check_numbers(entry)
    return [(entry["partition"], entry.get("offset")) for entry in offsets]


def _check_numbers(facts: Any) -> None:
    """Raises BadRequest: a number is no ``long``, which offsets are."""
    if isinstance(facts, int) and not -(2**63) <= facts < 2**63:
        raise BadRequest(f"{facts} is out of range: offsets are numbers of 64 bits")
    for each in facts.values() if isinstance(facts, Mapping) else ():
        _check_numbers(each)
    for each in facts if isinstance(facts, list) else ():
        _check_numbers(each)


def parsed(offsets: Any) -> dict[TopicPartition, int | None]:
    """The positions of a request; None means reset.

    Raises:
        BadRequest: says what is wrong with it, in Kafka Connect's words.
    """
    return dict(_parsed(entry) for entry in _entries(offsets))


def _entries(offsets: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(offsets, list) or not all(isinstance(e, Mapping) for e in offsets):
        raise BadRequest("offsets must be a list of objects with partition and offset")
    for entry in offsets:
        if not isinstance(entry.get("offset"), Mapping | None):
            raise BadRequest(f"offset={entry['offset']!r} must be an object, or null")
    return offsets


def _parsed(entry: Mapping[str, Any]) -> tuple[TopicPartition, int | None]:
    partition = entry.get("partition")
    if not isinstance(partition, Mapping):
        raise BadRequest("The partition for a sink connector offset cannot be null or missing")
    if _TOPIC not in partition or _PARTITION not in partition:
        raise BadRequest(
            "The partition for a sink connector offset must contain the keys "
            f"'{_TOPIC}' and '{_PARTITION}'"
        )
    if partition[_TOPIC] is None:
        raise BadRequest("Kafka topic names must be valid strings and may not be null")
    if partition[_PARTITION] is None:
        raise BadRequest("Kafka partitions must be valid numbers and may not be null")
    number = _whole(
        partition[_PARTITION],
        "Failed to parse the following Kafka partition value in the provided offsets: '{}'. "
        "Partition values for sink connectors need to be integers.",
        most=LARGEST[Type.INT],
    )
    tp = TopicPartition(_text(partition[_TOPIC]), number)
    if number < 0:
        raise BadRequest(f"Kafka partitions may not be negative: {number}")
    offset = entry.get("offset")
    if offset is None:
        return tp, None
    if _OFFSET not in offset:
        raise BadRequest(
            f"The offset for a sink connector should either be null or contain the key '{_OFFSET}'"
        )
    position = _whole(
        offset[_OFFSET],
        "Failed to parse the following Kafka offset value in the provided offsets: '{}'. "
        "Offset values for sink connectors need to be integers.",
    )
    if position < 0:
        raise BadRequest(f"Kafka offsets may not be negative: {position}")
    return tp, position


def _whole(value: Any, otherwise: str, most: int = LARGEST[Type.LONG]) -> int:
    try:
        return whole(_text(value), -most - 1, most)
    except ValueError:
        raise BadRequest(otherwise.format(_text(value))) from None


def _text(value: Any) -> str:
    """A JSON value as Java shows it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
