"""Records as columns that are handed over to a producer.

In a transaction, records that have no more than keys and values go to librdkafka in one call.
Otherwise Kafka's client takes one record per call. The calls are mapped over columns, so that no
Python code runs for a record whose bytes pass through; only headers are put together one by one.

The client's call holds the interpreter's lock, needs an object for each key and value, and takes
the lock once more for each record that is delivered. librdkafka itself takes an array of C
structures (``rd_kafka_produce_batch``), which can point into Arrow's buffers. The client does not
offer that call, so semel bypasses the client and uses its handle.

Only records without headers, timestamps and partitions of their own can be handed over like this.
(With partitions, librdkafka 2.16 adds partition -1 to the transaction if it does not know the topic
yet.) Nothing reports which of them were not delivered; a transaction does not need that, because it
fails as a whole.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer, cimpl

from semel.core.quoting import named
from semel.core.records import HEADERS, TIMESTAMP
from semel.kafka.dead_letters import Headers

T = TypeVar("T")

ANY = -1
"""Stands for the partition that the partitioner chooses."""


class Message(NamedTuple):
    """One record: its place in the source, and what is sent."""

    partition: int
    offset: int
    value: bytes | None
    key: bytes | None
    target: int
    timestamp: int
    headers: Headers | None

    def sent(self, callback: Callable[..., None]) -> tuple[Any, ...]:
        """What a producer's call takes after the topic."""
        return (
            self.value,
            self.key,
            self.target,
            callback,
            callback,
            self.timestamp,
            self.headers,
        )


@dataclass(frozen=True, slots=True)
class Messages:
    """What goes to one topic, by column. ``source``, ``partitions`` and ``offsets`` are its
    origin.

    ``keys`` and ``values`` are binary. Without ``targets``, the partitioner chooses the partitions;
    without ``timestamps``, records have the time of sending.
    """

    topic: str
    source: str
    keys: pa.ChunkedArray
    values: pa.ChunkedArray
    targets: Sequence[int] | None = None
    timestamps: Sequence[int] | None = None
    headers: Sequence[Headers | None] | None = None
    partitions: Sequence[int] = field(default=())
    offsets: Sequence[int] = field(default=())

    def __len__(self) -> int:
        return len(self.values)

    @property
    def largest(self) -> int:
        """The size of the largest record in bytes, without headers."""
        keys, values = (pc.binary_length(column) for column in (self.keys, self.values))
        sizes = pc.add(pc.fill_null(keys, 0), pc.fill_null(values, 0))
        return pc.max(sizes).as_py() or 0

    def send(self, producer: Producer, callback: Callable[..., None]) -> None:
        """Queue everything; ``callback`` is called for what is not delivered.

        Raises:
            KafkaException: one of them cannot be sent; those before it are queued.
        """
        calls = map(
            producer.produce,
            itertools.repeat(self.topic),
            objects(self.values),
            objects(self.keys),
            _each(self.targets, ANY),
            itertools.repeat(callback),
            itertools.repeat(callback),  # the same argument under its other name
            _each(self.timestamps, 0),
            _each(self.headers, None),
        )
        deque(calls, maxlen=0)

    def send_in_transaction(self, producer: Producer, callback: Callable[..., None]) -> None:
        """Queue everything in a transaction, whose end tells whether all was delivered.
        ``callback`` is called for the first record if that is not, and perhaps for others.

        Raises:
            KafkaException: one of them cannot be sent; others may be queued.
        """
        others = (self.targets, self.timestamps, self.headers)
        if library() is None or any(column is not None for column in others):
            self.send(producer, callback)
            return
        # Whatever stops one record usually stops them all: the report of one tells why.
        first = replace(self, keys=self.keys.slice(0, 1), values=self.values.slice(0, 1))
        first.send(producer, callback)
        send_columns(producer, self.topic, self.keys.slice(1), self.values.slice(1))

    def each(self) -> Iterable[Message]:
        """One record at a time."""
        return map(
            Message,
            self.partitions or itertools.repeat(-1),
            self.offsets or itertools.repeat(-1),
            objects(self.values),
            objects(self.keys),
            _each(self.targets, ANY),
            _each(self.timestamps, 0),
            _each(self.headers, None),
        )


def _each(column: Sequence[T] | None, default: T) -> Iterable[T]:
    return itertools.repeat(default) if column is None else column


def objects(column: pa.ChunkedArray) -> list[bytes | None]:
    values: list[bytes | None] = column.to_numpy().tolist()
    return values


def timestamps(rows: pa.Table) -> Sequence[int] | None:
    """The times of records, in milliseconds, with 0 for those without one; None if none has one."""
    if TIMESTAMP not in rows.column_names:
        return None
    column = rows.column(TIMESTAMP)
    if column.null_count == len(column):
        return None
    stamps = pc.fill_null(column.cast(pa.int64()), 0)
    times: list[int] = pc.max_element_wise(stamps, 0).to_numpy().tolist()
    return times


def headers(rows: pa.Table) -> list[Headers] | None:
    """The headers that each record came with; None when no record has any."""
    if HEADERS not in rows.column_names:
        return None
    column = rows.column(HEADERS).combine_chunks()
    flat = column.flatten()
    if not len(flat):
        return None
    # Many records share most of their headers: each different one becomes one object.
    names, values = (c.dictionary_encode("encode") for c in flat.flatten())
    places = names.indices.to_numpy().astype(np.int64) * len(values.dictionary)
    different = pa.array(places + values.indices.to_numpy()).dictionary_encode()
    name, value = np.divmod(different.dictionary.to_numpy(), len(values.dictionary))
    chosen = (d.dictionary.take(pa.array(n)) for d, n in ((names, name), (values, value)))
    tuples = np.empty(len(name), object)
    tuples[:] = list(zip(*(c.to_pylist() for c in chosen), strict=True))
    pairs = tuples[different.indices.to_numpy()].tolist()
    ends = np.cumsum(pc.fill_null(column.value_lengths(), 0).to_numpy()).tolist()
    return [pairs[a:b] for a, b in itertools.pairwise([0, *ends])]


_FIRST, _END = (2, 11), (2, 17)
"""The client's releases whose producer objects are known to begin with librdkafka's handle. With
any other release, records are sent one by one."""

_COPIES = 0x2
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


def send_columns(
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
                of_topic, ANY, _COPIES, messages.ctypes.data, len(messages)
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
