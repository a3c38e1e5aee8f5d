"""Sending the records of a commit, in one transaction with positions or without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition

from semel import converters
from semel.config import ConnectorConfig, under
from semel.core.failpoints import hit
from semel.core.records import Commit, by_target
from semel.kafka.messages import Messages
from semel.kafka.transactions import PlainProducer, RecordsRefused, Report, Transactions
from semel.sinks.kafka.config import KafkaConfig
from semel.sinks.kafka.messages import Encoder, dead_letters
from semel.sinks.kafka.refusals import find_refused
from semel.sinks.kafka.targets import Targets


class Sender:
    """Encodes and sends the records of one connector."""

    def __init__(
        self,
        connector: ConnectorConfig,
        config: KafkaConfig,
        client: Mapping[str, Any],
        targets: Targets,
        transactions: Transactions,
    ) -> None:
        self._connector = connector
        self._targets = targets
        self._transactions = transactions
        self._plain = PlainProducer(f"connector {connector.name}", client)
        self._encoder = Encoder(
            config,
            provenance=connector.provenance,
            key=_converter(connector.originals, "key.converter", connector.key_converter),
            value=_converter(connector.originals, "value.converter", connector.value_converter),
        )

    def messages(self, commit: Commit, task: int) -> list[Messages]:
        """The messages of a commit, by target topic."""
        found = [
            self._encoder.messages(parts, self._targets.of(topic))
            for (_, topic), parts in by_target(commit.records).items()
        ]
        if commit.dead_letters and self._connector.dead_letter_topic:
            found.append(dead_letters(self._connector, commit.dead_letters, task))
        return found

    def transact(
        self,
        messages: Sequence[Messages] | None,
        positions: Callable[[Producer, Report], None],
        offsets: list[KafkaPartition],
        generation: Any,
        confirm: Callable[[], None],
    ) -> None:
        """Messages, positions and the group's offsets in one transaction, which is aborted if
        ``confirm`` raises once the offsets are pending. If ``messages`` is None, no failpoint
        fires.

        Raises:
            RowsRejected: nothing was written; names the records that brokers will never take.
            SemelError: see :meth:`Transactions.run`.
        """
        reach = hit if messages is not None else _nowhere

        def send(producer: Producer, failed: Report) -> None:
            for one in messages or ():
                one.send_in_transaction(producer, failed)
            positions(producer, failed)
            reach("sink.after_positions")

        def before_commit() -> None:
            confirm()
            reach("sink.before_commit")

        try:
            self._transactions.run(
                send,
                offsets,
                generation,
                before_commit,
                topics=[one.topic for one in messages or ()],
            )
        except RecordsRefused:
            raise find_refused(self._connector.name, self._transactions, messages or ()) from None

    def send(self, messages: Sequence[Messages]) -> None:
        """Send without a transaction, and wait until the brokers have everything.

        Raises:
            TransientError: they may have some of it, all of it or nothing.
        """
        hit("sink.after_positions")
        try:
            self._plain.send([one.send for one in messages], lambda: hit("sink.before_commit"))
        except RecordsRefused:
            raise find_refused(self._connector.name, self._transactions, messages) from None
        hit("sink.after_commit")

    def drop(self) -> None:
        """Forget the producer without transactions, and what it has not sent yet."""
        self._plain.drop()


def _converter(raw: Mapping[str, str], where: str, name: str) -> converters.Converter:
    is_key = where.startswith("key")
    return converters.create(name, under(raw, f"{where}."), is_key=is_key, where=where)


def _nowhere(_place: str) -> None:
    """A failpoint that never fires."""
