"""Source offsets in Kafka Connect's own format: a compacted topic, one record for each partition.

A key is ``["<connector>",{<source partition>}]``, a value ``{<source offset>}``, both JSON without
schema; a tombstone forgets a partition. So a connector can move from Kafka Connect to semel, and
back. A file or a table of a database may take the topic's place (``outside.py``). These are no part
of a Kafka transaction: they are written after the records, with a compare-and-set, so that a run
that was replaced cannot move an offset.

One more record, with the key ``["<connector>",null]``, says which run of semel owns the connector,
who has started it, how many tasks it has, and its ``group.id``. Kafka Connect silently ignores such
a key. A run writes it before it fences the producers of all tasks; a task reads it after it has
created its own producer. So a task of an older run, however late Spark starts it again, either is
fenced or finds out that it has been replaced.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from confluent_kafka import Producer

from semel.config import SourceConnectorConfig
from semel.config.source_connector import OFFSETS, topic_settings, transactional_id
from semel.core.context import this_run
from semel.core.errors import Fenced, SemelError, ServiceError, TransientError
from semel.core.ledger import OWNERS_FORMAT, check_format
from semel.core.quoting import named
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.compacted import CompactedTopic, Values, partition_of
from semel.kafka.transactions import PlainProducer, RecordsRefused, Transactions, confirmed
from semel.sources.base import Source, StoredOffset
from semel.sources.offsets.outside import OffsetFile, OffsetTable, OutsideStore, Record

_AHEAD = 60_000
"""Milliseconds by which the clocks of two hosts may differ without being noticed."""
_LAST = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Owner:
    """The run that owns a connector, and its number of tasks. Where several processes share the
    tasks, ``parts`` are the source partitions of each: one process divides them for all. ``group``
    is the run's ``group.id``. ``groups`` are those in the transactional ids of tasks that may still
    be running: the run's own if it has transactions, and those of earlier runs until they are
    fenced. ``by`` is who has started the run, for people."""

    run: str = ""
    tasks: int = 0
    parts: Sequence[Sequence[Mapping[str, Any]]] = field(default=(), compare=False)
    group: str = field(default="", compare=False)
    groups: Sequence[str] = field(default=(), compare=False)
    by: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """What the topic holds for one connector. ``keys`` maps each partition, by :func:`canonical`,
    to the keys of its records as they are written there, that of the last record last."""

    connector: str
    offsets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = ()
    owner: Owner = Owner()
    keys: Mapping[str, Sequence[bytes]] = field(default_factory=dict)

    def offset(self, partition: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The last offset of a source partition; None if none is known."""
        key = canonical(partition)
        return next((o for p, o in self.offsets if canonical(p) == key), None)

    def lookup(self) -> Callable[[Mapping[str, Any]], Mapping[str, Any] | None]:
        """A function like :meth:`offset`, faster for many partitions."""
        by_name = {canonical(p): o for p, o in self.offsets}
        return lambda partition: by_name.get(canonical(partition))

    def record(self, partition: Mapping[str, Any], offset: Mapping[str, Any] | None) -> Record:
        """The record that stores an offset or, with None, forgets it, once it is committed. A known
        partition keeps its key, byte for byte: the order of fields may differ between writers."""
        return self._keys(partition)[-1], None if offset is None else _dumped(dict(offset))

    def forgetting(self, partition: Mapping[str, Any]) -> list[Record]:
        """The records that forget a partition under all keys that writers have given it."""
        return [(key, None) for key in self._keys(partition)]

    def _keys(self, partition: Mapping[str, Any]) -> Sequence[bytes]:
        keys = self.keys.get(canonical(partition))
        return keys or [_dumped([self.connector, dict(partition)])]

    def owned_by(self, owner: Owner) -> Record:
        """The record that says who owns the connector."""
        parts = [[dict(partition) for partition in part] for part in owner.parts]
        facts = {"format": OWNERS_FORMAT, **asdict(replace(owner, parts=parts))}
        return _dumped([self.connector, None]), _dumped(facts)


class SourceOffsets:
    """The offsets of one connector in its offsets topic, or in a store that no transaction of Kafka
    holds."""

    def __init__(self, connector: SourceConnectorConfig, cluster: Cluster) -> None:
        self._connector = connector
        client = client_config(connector, "consumer")
        topic = partial(
            CompactedTopic,
            connector.name,
            "offsets topic",
            connector.offsets_topic,
            cluster,
            client,
        )
        self._outside = outside_of(connector)
        self._known: dict[bytes, bytes] = {}
        self._topic = topic()
        self._uncommitted = topic(committed=False)
        self._places: dict[bytes, Sequence[int]] = {}
        self._newest = 0
        self._partitions = 0

    @property
    def where(self) -> str:
        """What holds them."""
        return _place(self._connector, self._outside)

    @property
    def in_transactions(self) -> bool:
        """Whether they can be stored in the transaction that holds the records."""
        return self._outside is None

    def prepare(self) -> None:
        """Create the topic if it is missing, and refuse one that deletes old records.

        Raises:
            ConfigError: its cleanup.policy is not compact; the file is something else.
            ServiceError: it cannot be created.
        """
        if self._outside is not None:
            self._outside.prepare()
            return
        config = self._connector
        settings = topic_settings(config.originals, OFFSETS)
        self._topic.prepare(config.offsets_partitions, config.offsets_replication, settings)

    def read(self, timeout: float = 60.0, *, expected: bool = True) -> StoredOffsets:
        """Everything committed so far. Other connectors' open transactions may hide some of it, so
        it waits for them.

        Raises:
            ServiceError: the topic is gone, or a record in it cannot be read.
            TransientError: a transaction does not end, or no answer has come.
        """
        if self._outside is not None:
            self._known = dict(self._outside.read(expected=expected))
            return self._parsed(self._known)
        self._places.clear()
        values = self._values(self._topic, timeout, expected=expected)
        if not values.is_complete:
            raise TransientError(
                f"connector {self._connector.name}: {self.where}: an open "
                f"transaction of another producer has not ended for {timeout:.0f} s; the offsets "
                "after it cannot be read yet"
            )
        return self._parsed(values.records)

    def owner(self) -> Owner:
        """Who owns the connector. The record is written without a transaction, so no open
        transaction can delay the answer."""
        return self.uncommitted().owner

    def uncommitted(self) -> StoredOffsets:
        """What is there now, including what open and aborted transactions have written."""
        if self._outside is not None:
            return self._parsed(self._outside.read(expected=True))
        return self._parsed(self._values(self._uncommitted, 0.0, expected=True).records)

    def _values(self, topic: CompactedTopic, timeout: float, *, expected: bool) -> Values:
        values = topic.read(self._is_mine, None, timeout, expected=expected)
        self._places.update(values.places)
        self._newest = max(self._newest, values.newest)
        self._partitions = values.partitions
        return values

    def _is_mine(self, key: bytes) -> bool:
        return _dumped(self._connector.name) in key

    def send(
        self, producer: Producer, records: Sequence[Record], failed: Callable[..., None]
    ) -> None:
        """Queue records; ``failed`` is called for those that are not delivered. The topic must have
        been read.

        A key stays in the partition that holds it, and a new one goes where Kafka Connect would
        write it, whatever ``producer.override.partitioner`` says. A tombstone goes to every
        partition that holds the key: it does not last, and an older offset elsewhere would come
        back.

        New records are dated after all that were read, even if the clock here is slow: if a key has
        several partitions or spellings, its latest record counts.
        """
        timestamp = max(int(time.time() * 1000), self._newest + 1)
        for key, value in records:
            places = self._places.get(key) or [partition_of(key, self._partitions)]
            for partition in places if value is None else places[:1]:
                producer.produce(
                    self._topic.name, value, key, partition, on_delivery=failed, timestamp=timestamp
                )

    def store(self, producer: PlainProducer, records: Sequence[Record]) -> None:
        """Store records outside of any transaction. In a store outside Kafka, the owner and these
        offsets must still be as they were last read, or stored since; a new owner is stored
        unconditionally.

        Raises:
            LedgerConflict: they are not; nothing was stored.
            ServiceError: the store cannot be written.
            TransientError: it may or may not have them.
        """
        if self._outside is not None:
            owner, _ = StoredOffsets(self._connector.name).owned_by(Owner())
            keys = {key for key, _ in records}
            known = {} if owner in keys else {k: self._known.get(k) for k in {owner, *keys}}
            self._outside.write(records, known)
            for key, value in records:
                if value is None:
                    self._known.pop(key, None)
                else:
                    self._known[key] = value
            return
        try:
            producer.send([lambda p, failed: self.send(p, records, failed)], lambda: None)
        except RecordsRefused:
            raise self.refused() from None

    def refused(self) -> ServiceError:
        """The error for source offsets that the brokers do not take."""
        return ServiceError(
            f"connector {self._connector.name}: the brokers refuse a record for {self.where}."
            f"{self.clock or ' Does its max.message.bytes allow for source offsets?'}"
        )

    @property
    def clock(self) -> str:
        """Why the brokers may refuse source offsets: the last ones were stored by a host whose
        clock was ahead. Empty if it was not."""
        if self._newest < time.time() * 1000 + _AHEAD:
            return ""
        newest = datetime.fromtimestamp(min(self._newest, _LAST) / 1000, UTC)
        return (
            f" The last record of {self.where} is dated {newest:%Y-%m-%d %H:%M} UTC, and new ones "
            "are dated after it. Raise message.timestamp.after.max.ms of the topic until then"
        )

    def check_writable(self) -> None:
        """In a store outside Kafka, write once more the owner that was read last: if offsets could
        be read but not stored, each attempt would send the same records again.

        Raises:
            LedgerConflict: it has another owner by now.
            ServiceError, TransientError: the store cannot be written.
        """
        key, _ = StoredOffsets(self._connector.name).owned_by(Owner())
        if self._outside is not None and (value := self._known.get(key)) is not None:
            self._outside.write([(key, value)], {key: value})

    def close(self) -> None:
        """Drop connections. May be called twice."""
        if self._outside is not None:
            self._outside.close()

    def _parsed(self, records: Mapping[bytes, bytes | None]) -> StoredOffsets:
        name = self._connector.name
        latest: dict[str, tuple[Mapping[str, Any], Mapping[str, Any] | None]] = {}
        owner = Owner()
        keys: dict[str, list[bytes]] = {}
        for key, value in records.items():
            match _loaded(key):
                case [str(connector), dict(partition)] if connector == name:
                    # A tombstone counts, too: it forgets what older spellings of its key have.
                    offset = None if value is None else self._offset(key, value)
                    latest[canonical(partition)] = partition, offset
                    keys.setdefault(canonical(partition), []).append(key)
                case [str(connector), None] if connector == name and value is not None:
                    owner = self._owner(key, value)
        in_order = (latest[text] for text in sorted(latest))  # not as they were consumed
        offsets = tuple((p, o) for p, o in in_order if o is not None)
        return StoredOffsets(name, offsets, owner, keys)

    def _offset(self, key: bytes, value: bytes) -> dict[str, Any]:
        offset = _loaded(value)
        if not isinstance(offset, dict):
            raise self._garbage(key, value, "source offset")
        return offset

    def _owner(self, key: bytes, value: bytes) -> Owner:
        facts = _loaded(value)
        with suppress(AttributeError, KeyError, TypeError):
            what = f"connector {self._connector.name}: its owner in {self.where}"
            check_format(what, facts.pop("format"), OWNERS_FORMAT)
            return Owner(**{**facts, "groups": tuple(facts["groups"])})
        raise self._garbage(key, value, "run of semel")

    def _garbage(self, key: bytes, value: bytes, what: str) -> ServiceError:
        return ServiceError(
            f"connector {self._connector.name}: {self.where}: the record with "
            f"key {key.decode(errors='replace')} is not a {what}: "
            f"{value.decode(errors='replace')[:200]}. Does another program write there? Stop "
            "it, remove the record (in a topic, by one with this key and no value), and set the "
            "offset with semel offsets set"
        )


def where(connector: SourceConnectorConfig) -> str:
    """What holds a connector's source offsets."""
    return _place(connector, outside_of(connector))


def _place(connector: SourceConnectorConfig, outside: OutsideStore | None) -> str:
    return f"offsets topic {named(connector.offsets_topic)}" if outside is None else outside.where


def outside_of(connector: SourceConnectorConfig) -> OutsideStore | None:
    """The store outside Kafka that a connector names. Reaches nothing.

    Raises:
        ConfigError: there is no such store.
    """
    if connector.offsets_file:
        return OffsetFile(connector.name, connector.offsets_file)
    return OffsetTable(connector) if connector.offsets_url else None


def canonical(partition: Mapping[str, Any]) -> str:
    """The same text for the same partition, in whatever order its fields were written."""
    return json.dumps(dict(partition), sort_keys=True)


def _dumped(facts: Any) -> bytes:
    """As Kafka Connect's JsonConverter writes it."""
    return json.dumps(facts, separators=(",", ":"), ensure_ascii=False).encode()


def _loaded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def stored_offset(
    source: Source, partition: Mapping[str, Any], known: StoredOffset
) -> Mapping[str, Any] | None:
    """Where reading continues: the partition's offset, or one under a name that it had before."""
    offset = known(partition)
    if offset is None:
        offset = next((o for p in source.former(partition) if (o := known(p)) is not None), None)
    return offset


# Taking over a connector: each new owner fences all earlier ones

Change = tuple[Mapping[str, Any], Mapping[str, Any] | None]
"""A source partition, and the offset to give it."""

_AT_ONCE = 8
"""Producers that are fenced concurrently."""


def own(
    connector: SourceConnectorConfig,
    offsets: SourceOffsets,
    parts: Sequence[Sequence[Mapping[str, Any]]],
    *,
    fences: bool,
    shared: bool = False,
    run: str = "",
) -> Owner:
    """Take over the connector for a new ``run`` whose tasks have these ``parts``. With ``fences``,
    which exactly-once needs, also stop whatever the tasks of earlier runs are still doing. The
    parts are written only if the tasks are ``shared`` with other processes.

    The record that names the new owner comes first. Until all tasks are fenced, it keeps the
    largest number of tasks, and all groups that they may belong to, so that a crash in between
    leaves none unfenced. Until then it has no parts, so that no other process starts tasks. A new
    group is fenced before that, too: if this user may not do so, no record names it, and no later
    run of another user has to fence it.

    Kafka Connect may have run the connector before, with up to ``tasks.max`` tasks.

    Raises:
        Fenced: meanwhile, another run has done the same.
        ServiceError: this user may not fence the producers of a group.
    """
    tasks, before, group_id = len(parts), offsets.owner(), connector.group_id
    if fences and group_id not in before.groups:
        _fence(connector, group_id, max(tasks, before.tasks, connector.tasks_max))
        before = offsets.owner()
    most = max(tasks, before.tasks, connector.tasks_max)
    groups = list(dict.fromkeys([group_id, *before.groups] if fences else before.groups))
    name = run or new_run()
    owner = first = Owner(name, most, group=group_id, groups=groups, by=this_run())
    plain, record = producer(connector), StoredOffsets(connector.name).owned_by
    offsets.store(plain, [record(first)])
    if fences:
        for group in groups:
            _fence(connector, group, most)
        owner = replace(first, tasks=tasks, groups=[group_id])
    final = replace(owner, parts=parts) if shared else owner
    if record(final) != record(first):
        if (current := offsets.owner()).run != first.run:
            raise taken_over(connector, current, first)
        offsets.store(plain, [record(final)])
    plain.drop()
    return replace(owner, parts=parts)


def new_run() -> str:
    """A name for a run that is to own a connector."""
    return uuid.uuid4().hex


def alter(
    connector: SourceConnectorConfig, offsets: SourceOffsets, changes: Sequence[Change] | None
) -> None:
    """Store offsets by hand, all or none; None as an offset forgets its partition; None as
    ``changes`` forgets all. A run in progress finds out that it has been replaced, and stops."""
    own(connector, offsets, [()] * offsets.owner().tasks, fences=True)
    stored = offsets.read()
    records: list[Record] = []
    for partition, offset in [(p, None) for p, _ in stored.offsets] if changes is None else changes:
        if offset is None:
            records += stored.forgetting(partition)
        else:
            records.append(stored.record(partition, offset))
    if not offsets.in_transactions:
        offsets.store(producer(connector), records)
        return
    transactions = Transactions(f"connector {connector.name}", client_config(connector, "producer"))
    transactions.open(connector.transactional_id(0))
    try:
        transactions.run(lambda p, failed: offsets.send(p, records, failed), [], None)
    except RecordsRefused:
        raise offsets.refused() from None
    transactions.drop()


def _fence(connector: SourceConnectorConfig, group: str, tasks: int) -> None:
    """End the transactions of the producers of this many tasks, and keep those producers from
    beginning new ones.

    Raises:
        ServiceError: this user may not do so.
    """
    transactions = Transactions(f"connector {connector.name}", client_config(connector, "producer"))
    ids = [transactional_id(group, connector.name, task) for task in range(tasks)]
    try:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(transactions.fence, ids))
    except ServiceError as error:
        if group == connector.group_id:
            raise
        raise ServiceError(
            f"{error}. This id belongs to an earlier run, with group.id={group}, which may still "
            f"be active. If access cannot be granted, start the connector with group.id={group}"
        ) from None


def producer(connector: SourceConnectorConfig) -> PlainProducer:
    """The producer that writes the owner. It ignores the user's ``acks``, which might let a broker
    lose the record."""
    client = confirmed(client_config(connector, "producer"))
    return PlainProducer(f"connector {connector.name}", client)


def taken_over(connector: SourceConnectorConfig, owner: Owner, expected: Owner) -> SemelError:
    """The error for a run that is no longer the owner: :class:`Fenced`, or a ServiceError if no
    owner is stored. In that case a new run would start from the beginning, which only the user can
    decide."""
    if not owner.run:
        return ServiceError(
            f"connector {connector.name}: {where(connector)} names no run any more: it was deleted "
            "and created again, or records were removed there. Once the connector is started "
            "again, it reads each source partition whose offset is gone from its beginning, and "
            "writes its records once more. To avoid that, compare semel offsets show, and set the "
            "offsets with semel offsets set first"
        )
    by = f", started by {owner.by}" if owner.by else ""
    return Fenced(
        f"connector {connector.name}: another run of it has taken over{by}: {where(connector)} "
        f"names run {owner.run}, this one is {expected.run}. Run it in one place only"
    )
