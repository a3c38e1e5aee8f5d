"""Hands columns over to librdkafka in one call.

The Python client takes one record per call. It holds the interpreter's lock meanwhile, needs an
object for each key and value, and takes the lock once more for each record that is delivered.
librdkafka itself takes an array of C structures (``rd_kafka_produce_batch``), which can point into
Arrow's buffers. The client does not offer that call, so semel bypasses the client and uses its
handle.

Only records without headers, timestamps and partitions of their own can be handed over like this.
(With partitions, librdkafka 2.16 adds partition -1 to the transaction if it does not know the topic
yet.) Nothing reports which of them were not delivered; a transaction does not need that, because it
fails as a whole.
"""

from __future__ import annotations

import ctypes
import functools
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer, cimpl

from semel.core.quoting import named

_FIRST, _END = (2, 11), (2, 17)
"""The client's releases whose producer objects are known to begin with librdkafka's handle. With
any other release, records are sent one by one."""

_COPIES = 0x2
_ANY_PARTITION = -1
_MESSAGE = np.dtype(
    [
        ("err", np.int32),
        ("rkt", np.uintp),
        ("partition", np.int32),
        ("payload", np.uintp),
        ("len", np.uintp),
        ("key", np.uintp),
        ("key_len", np.uintp),
        ("offset", np.int64),
        ("_private", np.uintp),
    ],
    align=True,
)
"""``rd_kafka_message_t``"""
_COLUMNS = pa.schema([("key", pa.binary()), ("value", pa.binary())])


@functools.cache
def library() -> Any:
    """The client's librdkafka; None if this release of the client is not known."""
    release = tuple(int(part) for part in version("confluent-kafka").split(".")[:2])
    if not _FIRST <= release < _END:
        return None
    try:
        librdkafka = ctypes.CDLL(cimpl.__file__)  # with the libraries that it is linked to
        librdkafka.rd_kafka_topic_new.restype = ctypes.c_void_p
        librdkafka.rd_kafka_topic_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        librdkafka.rd_kafka_topic_destroy.restype = None
        librdkafka.rd_kafka_topic_destroy.argtypes = [ctypes.c_void_p]
        librdkafka.rd_kafka_produce_batch.restype = ctypes.c_int
        librdkafka.rd_kafka_produce_batch.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int32,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_int,
        ]
    except (AttributeError, OSError):  # linked in another way
        return None
    return librdkafka


def handle(producer: Producer) -> int:
    """librdkafka's handle of a producer."""
    pointer = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__).value
    if not pointer:
        raise KafkaException(KafkaError(KafkaError._STATE, "the producer is closed"))
    return pointer


def send(
    producer: Producer,
    topic: str,
    keys: pa.ChunkedArray,
    values: pa.ChunkedArray,
) -> None:
    """Queue records, whose keys and values are binary columns; the partitioner chooses their
    partitions. :func:`library` must not be None.

    Raises:
        KafkaException: one of them cannot be queued; others may have been.
    """
    of_topic = library().rd_kafka_topic_new(handle(producer), topic.encode(), None)
    if not of_topic:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, f"topic {named(topic)}"))
    try:
        for batch in pa.table([keys, values], schema=_COLUMNS).to_batches():
            messages = np.zeros(len(batch), _MESSAGE)
            messages["key"], messages["key_len"] = _places(batch.column(0))
            messages["payload"], messages["len"] = _places(batch.column(1))
            queued = library().rd_kafka_produce_batch(
                of_topic, _ANY_PARTITION, _COPIES, messages.ctypes.data, len(messages)
            )
            if queued < len(messages):
                errors = messages["err"]
                raise KafkaException(KafkaError(int(errors[errors != 0][0])))
    finally:
        library().rd_kafka_topic_destroy(of_topic)


def _places(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The address and length of each value; address 0 for those that are null."""
    _, ends, data = column.buffers()
    if ends is None or column.null_count == len(column):
        return np.zeros(len(column), np.uintp), np.zeros(len(column), np.uintp)
    offsets = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
    # A value without bytes needs an address, too, or it would be null.
    start = data.address if data is not None and data.address else ends.address
    places = offsets[:-1].astype(np.uintp) + np.uintp(start)
    if column.null_count:
        places[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return places, np.diff(offsets).astype(np.uintp)
