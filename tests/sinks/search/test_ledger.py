"""The ledger in an index: compare-and-set by sequence number, on a real server."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from semel.core.errors import ConfigError, LedgerConflict, TransientError
from semel.core.ledger import Advance, Outcome, TopicPartition, firsts
from semel.core.records import Commit
from semel.sinks.search import sink as module
from semel.sinks.search.sink import SearchSink
from tests.sinks.search.conftest import Cluster
from tests.sinks.target import advance, at_first, records

pytestmark = pytest.mark.integration


def values(cluster: Cluster, first: int, until: int) -> Commit:
    offsets = range(first, until)
    batch = records([{"id": i} for i in offsets], topic=cluster.topic, offsets=offsets)
    return Commit([batch])


def moved(cluster: Cluster, first: int, until: int, **facts: int) -> list[Advance]:
    return [advance(first, until, topic=cluster.topic, **facts)]


def deliver(sink: SearchSink, advances: Sequence[Advance], commit: Commit) -> Outcome:
    """As the engine does for exactly-once."""
    if sink.write(commit, advances) is Outcome.REPLAYED:
        return Outcome.REPLAYED
    return sink.advance(advances)


def position(sink: SearchSink) -> int:
    (entry,) = sink.entries()
    return entry.position


def test_a_replay_sends_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = cluster.sink()
    deliver(sink, moved(cluster, 0, 10), values(cluster, 0, 10))
    monkeypatch.setattr(sink, "_send", None)
    assert deliver(sink, moved(cluster, 0, 10), values(cluster, 0, 10)) is Outcome.REPLAYED
    assert sink.advance(moved(cluster, 0, 10)) is Outcome.REPLAYED
    (entry,) = sink.entries()
    assert entry.records_read == 10


def test_of_two_that_judge_at_once_one_moves_the_position(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, other = cluster.sink(), cluster.sink()
    write = sink._ledger._write

    def race(lines: Sequence[str]) -> int:
        if position(other) == 0:
            other.advance(moved(cluster, 0, 7))
        return write(lines)

    monkeypatch.setattr(sink._ledger, "_write", race)
    with pytest.raises(LedgerConflict, match="the ledger is at 7"):
        sink.advance(moved(cluster, 0, 10))
    assert position(sink) == 7


def test_the_same_step_by_another_task_is_a_replay(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, other = cluster.sink(), cluster.sink()
    write = sink._ledger._write

    def race(lines: Sequence[str]) -> int:
        if position(other) == 0:
            other.advance(moved(cluster, 0, 10))
        return write(lines)

    monkeypatch.setattr(sink._ledger, "_write", race)
    assert sink.advance(moved(cluster, 0, 10)) is Outcome.REPLAYED
    (entry,) = sink.entries()
    assert (entry.position, entry.records_read) == (10, 10)


def test_the_rule_holds_for_each_partition(cluster: Cluster) -> None:
    """Their documents are moved one by one, so a crash may leave some of a batch moved."""
    second = TopicPartition(cluster.topic, 1)
    sink = cluster.sink()
    sink.start(firsts({second: 0}))
    both = [*moved(cluster, 0, 10), *moved(cluster, 0, 20, partition=1)]
    sink.advance(both[:1])
    assert sink.write(values(cluster, 0, 10), both) is Outcome.APPLIED
    assert sink.advance(both) is Outcome.APPLIED
    assert [(e.position, e.records_read) for e in sink.entries()] == [(10, 10), (20, 20)]
    assert sink.advance(both) is Outcome.REPLAYED


def test_new_partitions_stop_a_connector_whose_ids_are_keys(cluster: Cluster) -> None:
    second = TopicPartition(cluster.topic, 1)
    sink = cluster.keyed()
    sink.start(firsts({second: 0}))  # nothing has been read yet
    sink.advance(moved(cluster, 0, 10))
    third = TopicPartition(cluster.topic, 2)
    with pytest.raises(ConfigError, match=r"has a new partition, 2\..*cannot be compared"):
        sink.start(firsts({third: 0}))
    assert cluster.keyed({"behavior.on.new.partitions": "continue"}).start(firsts({third: 0})) == {
        third: 0
    }
    assert cluster.sink().start(firsts({TopicPartition(cluster.topic, 3): 0}))


def test_a_process_that_was_frozen_asks_the_ledger_again_before_it_sends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, other = cluster.sink(), cluster.sink()
    clock = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def freeze() -> None:
        deliver(other, moved(cluster, 0, 10), values(cluster, 0, 10))
        clock[0] += 3600

    frozen = at_first(module, "sink.after_positions", freeze)
    with frozen, pytest.raises(LedgerConflict, match="the ledger is at 10"):
        sink.write(values(cluster, 0, 20), moved(cluster, 0, 20))
    assert len(cluster.documents()) == 10


def test_a_ledger_that_is_away_is_not_an_empty_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = cluster.sink()
    request = sink._client.request

    def half(method: str, path: str, *arguments: Any, **keys: Any) -> Any:
        answer = request(method, path, *arguments, **keys)
        if path.endswith("_search"):
            answer.body["_shards"]["failed"] = 1  # type: ignore[index]
        return answer

    monkeypatch.setattr(sink._client, "request", half)
    with pytest.raises(TransientError, match="is down"):
        sink.entries()
