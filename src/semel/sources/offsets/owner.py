"""Taking over a source connector: each new owner fences all earlier ones."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from semel.config import SourceConnectorConfig
from semel.config.source_connector import transactional_id
from semel.core.context import this_run
from semel.core.errors import Fenced, SemelError, ServiceError
from semel.kafka.clients import client_config
from semel.kafka.transactions import PlainProducer, RecordsRefused, Transactions, confirmed
from semel.sources.offsets.outside import Record
from semel.sources.offsets.store import Owner, SourceOffsets, StoredOffsets, where

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
