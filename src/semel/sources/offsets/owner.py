"""Taking a source connector over: whoever does it fences all who had it before."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from semel.config import SourceConnectorConfig
from semel.kafka.clients import client_config
from semel.kafka.transactions import PlainProducer, Transactions
from semel.sources.offsets.outside import Record
from semel.sources.offsets.store import Owner, SourceOffsets, StoredOffsets

Change = tuple[Mapping[str, Any], Mapping[str, Any] | None]
"""A source partition, and the offset that it is to have."""

_AT_ONCE = 8
"""Producers that are fenced side by side."""


def own(
    connector: SourceConnectorConfig,
    offsets: SourceOffsets,
    parts: Sequence[Sequence[Mapping[str, Any]]],
    *,
    fences: bool,
    shared: bool = False,
) -> Owner:
    """Take the connector over for a new run whose tasks have these ``parts``; with ``fences``,
    which exactly-once needs, end what the tasks of all earlier runs still do. The parts are written
    only where the tasks are ``shared`` with other processes.

    The record that names the new owner comes first. It keeps the largest number of tasks until all
    of them are fenced, so that a crash in between leaves none unfenced. Until then it has no parts,
    so that no other process starts tasks.
    """
    tasks = len(parts)
    most = max(tasks, offsets.owner().tasks)
    owner = Owner(uuid.uuid4().hex, tasks, parts)
    plain = _plain(connector)
    _write(plain, connector, offsets, Owner(owner.run, most))
    if fences:
        _fence(connector, range(most))
    if most != tasks or shared:
        told = owner if shared else Owner(owner.run, tasks)
        _write(plain, connector, offsets, told)
    plain.drop()
    return owner


def alter(
    connector: SourceConnectorConfig, offsets: SourceOffsets, wanted: Sequence[Change] | None
) -> None:
    """Store offsets by hand, all or none; None forgets a partition, or all that there are. A run
    that is at work finds out that it has been replaced, and stops."""
    own(connector, offsets, [()] * offsets.owner().tasks, fences=True)
    stored = offsets.read()
    records: list[Record] = []
    for partition, offset in [(p, None) for p, _ in stored.offsets] if wanted is None else wanted:
        if offset is None:
            records += stored.forgetting(partition)
        else:
            records.append(stored.record(partition, offset))
    if not offsets.in_transactions:
        offsets.store(_plain(connector), records)
        return
    transactions = Transactions(f"connector {connector.name}", client_config(connector, "producer"))
    transactions.open(connector.transactional_id(0))
    transactions.run(lambda p, failed: offsets.send(p, records, failed), [], None)
    transactions.drop()


def _fence(connector: SourceConnectorConfig, tasks: Iterable[int]) -> None:
    """End the transactions of these tasks' producers, and their right to begin new ones."""
    transactions = Transactions(f"connector {connector.name}", client_config(connector, "producer"))
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(transactions.fence, map(connector.transactional_id, tasks)))


def _write(
    producer: PlainProducer,
    connector: SourceConnectorConfig,
    offsets: SourceOffsets,
    owner: Owner,
) -> None:
    offsets.store(producer, [StoredOffsets(connector.name).owned_by(owner)])


def _plain(connector: SourceConnectorConfig) -> PlainProducer:
    return PlainProducer(f"connector {connector.name}", client_config(connector, "producer"))
