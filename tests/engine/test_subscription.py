"""What a task's consumer says of its place in the group."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from semel.engine.subscription import Subscription
from semel.ledger import TopicPartition
from semel.run import plan
from tests.conftest import MakeTopic
from tests.engine.conftest import Configure

pytestmark = pytest.mark.integration

PATIENCE = 60


def _sleeper(config: Mapping[str, Any], topic: str, told: Connection[str, None]) -> None:
    """Takes its partitions, falls asleep, and assigns before it hears what the group has to say."""

    def assigned(consumer: Consumer, owned: frozenset[TopicPartition]) -> None:
        consumer.assign([KafkaPartition(*tp) for tp in owned])
        told.send("assigned")

    def gone(word: str) -> None:
        subscription.consumer.unassign()
        told.send(word)

    planned = plan(config)
    subscription = Subscription(
        planned.connector,
        config,
        0,
        told.send,
        on_assign=assigned,
        on_revoke=lambda away: gone("away" if away else "revoked"),
        on_lost=lambda: gone("lost"),
    )
    subscription.ask([topic])
    deadline = time.monotonic() + PATIENCE
    while not subscription.consumer.assignment() and time.monotonic() < deadline:
        subscription.find_back((), {})
        subscription.consumer.poll(0.1)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1)  # by now the consumer has noticed
    subscription.consumer.assign([])
    subscription.close()


def test_a_task_that_slept_for_longer_than_its_session_is_told_that_it_may_be_over(
    topic: MakeTopic, configure: Configure
) -> None:
    """librdkafka forgets it when partitions are assigned meanwhile. A task that thinks that it has
    still its place would take it from the one that has replaced it."""
    source = topic()
    config = configure(source, {"consumer.override.session.timeout.ms": 1500})
    ours, theirs = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    sleeper = spawn.Process(target=_sleeper, args=(config, source, theirs))
    sleeper.start()
    try:
        assert ours.poll(PATIENCE)
        assert ours.recv() == "assigned"
        time.sleep(3)  # its session is over
        assert sleeper.pid is not None
        os.kill(sleeper.pid, signal.SIGCONT)
        assert ours.poll(PATIENCE)
        assert ours.recv() == "away"
        sleeper.join(PATIENCE)
        assert sleeper.exitcode == 0
    finally:
        sleeper.kill()
