"""What the base class of sinks with transactions does for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from semel.config import ConnectorConfig, read
from semel.core.ledger import (
    DAMAGED,
    Advance,
    Hole,
    LedgerEntry,
    OffsetRange,
    TopicPartition,
    firsts,
)
from semel.core.records import Commit
from semel.sinks.base import Snapshot
from semel.sinks.transactional import TransactionalSink
from tests.sinks.otherlogs import check_refuses_another_log

ORDERS = TopicPartition("orders", 0)


class Holes(TransactionalSink[None]):
    """Keeps the ledger, and its holes, in memory."""

    @dataclass(frozen=True)
    class Keys:
        """None of its own."""

    section = Keys

    def __init__(self) -> None:
        raw = {"name": "c", "connector.class": "x", "topics": "t", "bootstrap.servers": "n:1"}
        super().__init__(read(ConnectorConfig, raw))
        self.held: dict[TopicPartition, LedgerEntry] = {}
        self.holes: list[Hole] = []

    @contextmanager
    def transaction(self, *, writing: bool) -> Iterator[None]:
        yield

    def read_entries(self, transaction: None) -> Mapping[TopicPartition, LedgerEntry]:
        return self.held

    def write_entries(self, transaction: None, entries: Collection[LedgerEntry]) -> None:
        self.held |= {e.topic_partition: e for e in entries}

    def write_holes(self, transaction: None, holes: Collection[Hole]) -> None:
        self.holes += holes

    def forget_entries(self, transaction: None) -> None:
        self.held.clear()

    def put(self, transaction: None, commit: Commit) -> None: ...

    def snapshot(self, topics: Collection[str]) -> Snapshot:
        return Snapshot(list(self.held.values()), self.holes)


def test_offsets_that_could_not_be_read_are_recorded_as_a_hole() -> None:
    sink = Holes()
    sink.start(firsts({ORDERS: 0}))
    lost = Advance(OffsetRange(*ORDERS, 0, 5), lost=5, cause=DAMAGED)
    sink.commit([lost], Commit([]))
    sink.commit([lost], Commit([]))  # a replay
    sink.write(Commit([]), [replace(lost, range=OffsetRange(*ORDERS, 5, 9))])
    assert sink.holes == [Hole(*ORDERS, 0, 5, DAMAGED)]
    sink.advance([Advance(OffsetRange(*ORDERS, 5, 9), read=4)])
    assert sink.holes == [Hole(*ORDERS, 0, 5, DAMAGED)]
    assert sink.held[ORDERS].position == 9


def test_records_of_the_former_log_are_refused_at_the_same_position() -> None:
    sink = Holes()
    sink.start(firsts({ORDERS: 0}))
    check_refuses_another_log(sink, ORDERS)
