"""The contract between the engine and a system that records are read from.

A source divides its system into *source partitions* (a file, a table, a shard): mappings of strings
to plain values, which name them forever. How far one has been read is a *source offset*, again a
mapping (a byte position, an id, a timestamp), which only the source understands. Choose partitions
that can be read in parallel, and offsets from which reading can resume exactly: records come in the
same order each time, and no later arrival belongs before an offset that was already reached.

The engine stores an offset in the Kafka transaction that holds the records before it. A source
keeps no state of its own: after a crash, an error or a restart it is given the last committed
offset, and nothing else.

=================================  ==========================================================
the process dies                   Kafka holds
=================================  ==========================================================
before the commit                  nothing new that a ``read_committed`` consumer sees; the
                                   records are read again
after the commit                   the records and the offset after them; reading resumes there
between records and offset         only with at-least-once: the records, which come again
=================================  ==========================================================

A source is plain Python and Arrow: no Spark, no Kafka. It is made from configuration alone (so that
``semel validate`` touches no service), lives in one process, connects when first used and is used
by one thread at a time. The driver has one to ask for partitions; each task has one to read.

Warnings that it logs with :mod:`logging`, under its package's name, appear in the driver's log.
Every method that reaches the system may raise :class:`~semel.core.errors.TransientError` (the
failure may be temporary: the engine waits, then reads on from the last committed offset), or any
other :class:`~semel.core.errors.SemelError` (the failure is permanent).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa

from semel.core.delivery import Support
from semel.core.records import PARTITION, TIMESTAMP, TIMESTAMP_TYPE, ConnectRecords

if TYPE_CHECKING:
    from semel.config import SourceConnectorConfig

SourcePartition = Mapping[str, Any]
SourceOffset = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UnreadRecord:
    """A record that the source cannot give as it is: with ``errors.tolerance=all`` it is left out,
    otherwise it stops the connector. ``message`` names the record, the value and the fix;
    ``place`` is where it was found, such as a column. Each place is logged at least once."""

    topic: str
    message: str
    place: str


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Records read from one source partition, and the offset reached after the last of them.

    They are committed together, or not at all: an offset inside a batch is never stored. A batch
    may hold records for several topics, or none if only the offset has moved.

    With ``transaction.boundary=connector``, a batch that does not end a transaction is committed
    together with the batches of its partition that follow, up to one that does. A transaction is
    held in memory until then.

    A batch of a :class:`Sharded` source may cover several source partitions: ``reached`` lists them
    with their offsets, and ``offset`` is ignored. ``unread`` are the records before ``offset`` that
    are not in the batch because they cannot be read.
    """

    records: Sequence[ConnectRecords]
    offset: SourceOffset
    ends_transaction: bool = True
    reached: Sequence[tuple[SourcePartition, SourceOffset]] = ()
    unread: Sequence[UnreadRecord] = ()

    @classmethod
    def of(
        cls,
        topic: str,
        values: pa.Array,
        offset: SourceOffset,
        *,
        keys: pa.Array | None = None,
        headers: pa.Array | None = None,
        timestamps: pa.Array | None = None,
        partitions: pa.Array | None = None,
    ) -> SourceBatch:
        """A batch for one topic; see :func:`source_records`."""
        records = source_records(
            topic, values, keys=keys, headers=headers, timestamps=timestamps, partitions=partitions
        )
        return cls((records,), offset)

    def __len__(self) -> int:
        return sum(map(len, self.records))


def source_records(
    topic: str,
    values: pa.Array,
    *,
    keys: pa.Array | None = None,
    headers: pa.Array | None = None,
    timestamps: pa.Array | None = None,
    partitions: pa.Array | None = None,
) -> ConnectRecords:
    """Records for a topic, in columns of equal length.

    Args:
        topic: where they go, unless a transform says otherwise.
        values: of any type; a struct array for objects. Null is a tombstone.
        keys: of any type; none by default.
        headers: see :data:`~semel.core.records.HEADERS_TYPE`.
        timestamps: of any timestamp type; by default the time of sending.
        partitions: int32, the partitions of the topic; by default the hash of the key decides, and
            records without a key are spread. A null means the same for one record.
    """
    columns = {}
    if timestamps is not None:
        columns[TIMESTAMP] = timestamps.cast(TIMESTAMP_TYPE, safe=False)
    if partitions is not None:
        columns[PARTITION] = partitions.cast(pa.int32())
    # Without any column, a table would not know how many rows it has.
    origin = pa.table(columns or {PARTITION: pa.nulls(len(values), pa.int32())})
    keys = pa.nulls(len(values)) if keys is None else keys
    return ConnectRecords(topic, origin, keys, values, headers)


def is_storable(name: str) -> bool:
    """Whether a file's name can be part of a source partition, which is stored as UTF-8; to Linux,
    names are any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@runtime_checkable
class Repeatable(Protocol):
    """A source that can read again exactly the records before an offset. ``semel audit`` reads any
    other source twice, once from its beginning and once from the offset, which requires an end that
    both reads reach, and records that do not change in between."""

    def before(
        self, partition: SourcePartition, offset: SourceOffset
    ) -> Iterator[SourceBatch] | None:
        """The records before a stored offset; None if they cannot be read with this
        configuration. They come in order if the source is ``ordered``."""


@runtime_checkable
class Revising(Protocol):
    """A source that revises records, and can return at once everything that it has after an offset,
    even what is too new to be read yet. A record that ``semel audit`` no longer finds before the
    offset must be among these."""

    def after(self, partition: SourcePartition, offset: SourceOffset) -> Iterator[SourceBatch]:
        """The records after a stored offset."""


StoredOffset = Callable[[SourcePartition], SourceOffset | None]
"""The last committed offset of a source partition; None if none is known."""


@runtime_checkable
class Sharded(Protocol):
    """A source whose partitions come and go too often to divide them among the tasks again each
    time, such as the files of a directory. What its ``partitions`` returns are *shards*, which
    never change and have no offsets; a task finds the source partitions of its shards itself."""

    def read_shard(
        self, shard: SourcePartition, stored: StoredOffset
    ) -> Iterator[SourceBatch | None]:
        """Called instead of ``read``: read on from the stored offset of each source partition in a
        shard. Batches name their partitions in ``reached``; a batch that names none means that more
        will come soon."""


@runtime_checkable
class TopicEach(Protocol):
    """A source with one topic for each partition, such as for each table of a database. These
    topics, too, are checked at the start: each must exist, or be one that may be created when its
    first record comes. If they hold records although no source offset is stored, a warning says
    what will be repeated."""

    def topic_of(self, partition: SourcePartition) -> str:
        """The topic of a partition's records."""


@runtime_checkable
class Measurable(Protocol):
    """A source that can tell cheaply how much is left to read: by the size of a file or the largest
    value of an indexed column, not by counting rows. A worker uses an instance of its own for this,
    in addition to those that the driver and the tasks are using; it is closed, and asked again
    later."""

    @property
    def unit(self) -> str | None:
        """What is counted, such as ``bytes``, ``rows``, ``files`` or ``records``; None if that
        cannot be measured with this configuration. Reaches no service."""

    def lag(self, stored: StoredOffset) -> Iterable[tuple[SourcePartition, int | None]]:
        """How much is left to read of each source partition after its stored offset; None if that
        is not known. Partitions with nothing left may be omitted. Not called without a ``unit``."""


class Source(ABC):
    """A system that records are read from. The module docstring says how it is used."""

    section: ClassVar[type]
    """The dataclass of the source's own configuration keys."""

    ignored: ClassVar[Mapping[str, str]] = {}
    """Keys of equivalent connectors that have no effect here, with the reason."""

    defaults: ClassVar[Mapping[str, str]] = {}
    """Common connector keys whose default is different for this source."""

    address: ClassVar[str] = ""
    """The key that names the system, for the message if it cannot be reached at the start."""

    prefixes: ClassVar[tuple[str, ...]] = ()
    """Keys under these are the source's own, whatever they are called."""

    defines_transactions: ClassVar[bool] = False
    """Whether batches say where a transaction ends: ``transaction.boundary=connector`` needs it."""

    revises: bool = False
    """Whether a record that was read may come again in a later version, under the same key. The
    audit then finds earlier versions in Kafka which the source no longer has."""

    ordered: bool = True
    """Whether records that are read again come in their original order. The audit then compares the
    order, too."""

    local: bool = False
    """Whether only one machine has what is read: all tasks then run on one worker of a cluster."""

    headers: Sequence[str] | None = None
    """The names of the headers that its records may have; None if they are not known. A predicate
    that waits for another one is warned of at the start."""

    keyed: bool = True
    """Whether its records may have keys. A transform of keys that there are none of is warned of at
    the start."""

    tombstones: bool = True
    """Whether its records may be tombstones, for the same reason."""

    refresh: float = 60.0
    """Seconds between two calls of :meth:`partitions`."""

    @abstractmethod
    def __init__(self, connector: SourceConnectorConfig) -> None:
        """Read the source's keys from ``connector.originals``. Raises ConfigError; reaches no
        service."""

    def describe(self) -> dict[str, str]:
        """The facts that ``semel describe`` shows, by short names; ``reads`` and ``writes`` among
        them."""
        return {}

    @abstractmethod
    def exactly_once(self) -> Support:
        """Whether this configuration can resume at an offset without losing or repeating a record,
        and why (not)."""

    @classmethod
    def normalized(cls, raw: Mapping[str, str]) -> Mapping[str, str]:
        """The keys that name a place relative to the driver's working directory, made absolute:
        executors have another one."""
        return {}

    def check(self) -> None:  # noqa: B027
        """Connect to the system for the first time: called by the driver at the start, while Spark
        starts.

        Raises:
            SemelError: what would stop or hold up the tasks, such as a refused login, or a query
                that cannot be run.
        """

    def topics(self) -> Sequence[str]:
        """The topics that the configuration names. They are checked, and created if that is
        allowed, before anything is read; others when their first record comes."""
        return ()

    @abstractmethod
    def partitions(self) -> Sequence[SourcePartition]:
        """The source partitions that exist now. The driver asks at the start, and again every
        ``refresh`` seconds; when they have changed, it divides them again and restarts the
        tasks."""

    def former(self, partition: SourcePartition) -> Sequence[SourcePartition]:
        """Other names that Kafka Connect has given a partition. If no offset
        is stored under its own name, reading resumes at the first one stored under these."""
        return ()

    def divide(
        self, partitions: Sequence[SourcePartition], tasks: int
    ) -> Sequence[Sequence[SourcePartition]]:
        """The partitions of each task: at most ``tasks`` parts, with each partition in one of
        them."""
        return [partitions[n::tasks] for n in range(min(tasks, len(partitions)))]

    @abstractmethod
    def read(
        self, partition: SourcePartition, offset: SourceOffset | None
    ) -> Iterator[SourceBatch | None]:
        """Read onwards from an offset; None starts at the beginning.

        Each step yields what is there, in batches of a few megabytes, and does not wait: if there
        is nothing now, it yields None, and the engine reads other partitions, pauses, and asks
        again. The iterator ends when the partition will never have more. A generator is closed when
        the task stops, so it can free what it holds in ``finally``.

        Raises:
            ConfigError: the offset makes no sense, and starting over would be wrong.
        """

    def committed(self, partition: SourcePartition, offset: SourceOffset) -> None:  # noqa: B027
        """Everything up to this offset is committed. Called once per transaction and partition; not
        after a crash, so nothing may depend on it."""

    def check_offset(self, partition: SourcePartition, offset: SourceOffset) -> None:  # noqa: B027
        """Called by ``semel offsets set``. Raises ConfigError: the source cannot begin there."""

    def close(self) -> None:  # noqa: B027
        """Drop connections. May be called twice."""
