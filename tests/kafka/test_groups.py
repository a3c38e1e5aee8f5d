"""Questions about a consumer group while brokers come and go."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from semel.core.abandoned import abandoned
from semel.core.errors import SemelError, TransientError
from semel.core.ledger import TopicPartition
from semel.kafka import groups as groups_module
from semel.kafka.groups import Groups
from semel.kafka.transactions import LEFT_BEHIND, Report, Transactions
from semel.sinks.kafka.offsets import nonmember
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic
from tests.engine.harness import wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration

ZERO = TopicPartition("t", 0)


def test_offsets_in_an_open_transaction_are_pending_and_do_not_hide_earlier_ones(
    kafka: Kafka, topic: MakeTopic
) -> None:
    source = topic(partitions=2)
    client = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
    groups, places = Groups(client), {TopicPartition(source, p) for p in range(2)}
    first = min(places)
    groups.set_offsets(source, [KafkaPartition(source, 0, 5, "note")])
    producer = Producer({**client, "transactional.id": source})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    moved = [KafkaPartition(source, 0, 9, "later")]
    producer.send_offsets_to_transaction(moved, nonmember(client, source), PATIENCE)
    assert groups.offsets(source, places, stable=True) == ({}, places)
    assert groups.offsets(source, places) == ({first: (5, "note")}, set())
    producer.abort_transaction(PATIENCE)
    expected = ({first: (5, "note")}, set())
    wait_until(lambda: groups.offsets(source, places, stable=True) == expected)


@pytest.mark.long  # three brokers
def test_offsets_come_from_whichever_broker_coordinates_the_group(tmp_path: Path) -> None:
    """librdkafka's admin client dies of it, and the process with it."""
    with Kafka(tmp_path, heap="256m", brokers=2, session=2, short_lived=True) as kafka:
        kafka.create_topic("t", 2)
        client = {"bootstrap.servers": kafka.bootstrap_servers}
        groups, broker = Groups(client), kafka.others[0]

        def coordinator(group: str) -> int:
            try:
                found = Groups(client).describe(group)
            except TransientError:
                return -1
            return -1 if found is None else int(found.coordinator.id)

        def known(group: str) -> bool:  # the topic may be new to the coordinator
            with suppress(SemelError):
                groups.set_offsets(group, [KafkaPartition("t", 0, 5, "note")])
                return True
            return False

        def created(group: str) -> str:
            wait_until(lambda: known(group))
            return group

        def told(position: int, note: str = "") -> bool:
            try:
                found = [groups.offsets(group, [ZERO], stable=stable) for stable in (False, True)]
            except TransientError:
                return False
            return found == [({ZERO: (position, note)}, set())] * 2

        names = (created(f"group-{number}") for number in range(50))
        group = next(name for name in names if coordinator(name) == broker.node)
        wait_until(lambda: told(5, "note"))
        transactions, generation = Transactions("connector t", client), nonmember(client, group)

        def commit(position: int, send: Callable[[Producer, Report], None]) -> None:
            if not transactions.is_open:
                transactions.open("mine")
            transactions.run(send, [KafkaPartition("t", 0, position)], generation)

        commit(6, lambda _producer, _report: None)
        broker.stop()
        wait_until(lambda: told(6))
        assert coordinator(group) != broker.node

        def after_all_know(producer: Producer, _report: Report) -> None:
            wait_until(lambda: len(producer.list_topics(timeout=PATIENCE).brokers) == 1)

        # Mostly librdkafka waits for the coordinator that it knew, and forever (its issue 5511):
        # that call is left behind. Sometimes it learns of the new one in time.
        try:
            commit(7, after_all_know)
        except TransientError:
            assert LEFT_BEHIND in abandoned()
        else:
            wait_until(lambda: told(7))
        commit(8, lambda _producer, _report: None)
        wait_until(lambda: told(8))
        broker.start()
        wait_until(lambda: coordinator(group) == broker.node)  # it leads again
        wait_until(lambda: told(8))


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
def test_a_group_whose_coordinator_moves_is_asked_for_again(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_module, "_PAUSE", 0)
    groups = Groups({"bootstrap.servers": "localhost:1"})
    refusals = [code, code]

    class Reader:
        def committed(self, asked: list[KafkaPartition], _timeout: float) -> list[KafkaPartition]:
            if refusals:
                raise KafkaException(KafkaError(refusals.pop()))
            return [KafkaPartition(p.topic, p.partition, 7) for p in asked]

    monkeypatch.setattr(groups, "_reader", lambda _group, _stable: Reader())
    assert groups.offsets("g", [ZERO]) == ({ZERO: (7, "")}, set())
    monkeypatch.setattr(groups_module, "_MOVES_FOR", 0)
    refusals.append(code)
    with pytest.raises(TransientError):
        groups.offsets("g", [ZERO])


@pytest.mark.parametrize(("silences", "is_told"), [(1, True), (2, False)])
def test_a_coordinator_that_does_not_answer_is_asked_once_more_with_a_new_client(
    monkeypatch: pytest.MonkeyPatch, silences: int, is_told: bool
) -> None:
    monkeypatch.setattr(groups_module, "_PAUSE", 0)
    groups = Groups({"bootstrap.servers": "localhost:1"})
    disconnected: list[bool] = []

    class Reader:
        def committed(self, asked: list[KafkaPartition], _timeout: float) -> list[KafkaPartition]:
            if len(disconnected) < silences:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return [KafkaPartition(p.topic, p.partition, 7) for p in asked]

    monkeypatch.setattr(groups, "_reader", lambda _group, _stable: Reader())
    monkeypatch.setattr(groups, "disconnect", lambda: disconnected.append(True))
    if is_told:
        assert groups.offsets("g", [ZERO]) == ({ZERO: (7, "")}, set())
    else:
        with pytest.raises(TransientError, match="Timed out"):
            groups.offsets("g", [ZERO])
