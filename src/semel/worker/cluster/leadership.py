"""The leader's right to write the config topic: a transactional producer that fences the leader
before it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from semel.core.errors import LedgerConflict, SemelError
from semel.kafka.followed import FollowedTopic
from semel.kafka.transactions import Transactions
from semel.worker.cluster.records import Record


class Leadership:
    """Held from :meth:`take` until another worker takes it. Its ``transactional.id`` is that of
    Kafka Connect's leaders."""

    def __init__(self, group: str, client: Mapping[str, Any], configs: FollowedTopic) -> None:
        self._id = f"connect-cluster-{group}"
        self._configs = configs
        self._lock = threading.Lock()
        self._transactions = Transactions(f"group {group}", client)

    @property
    def is_held(self) -> bool:
        """Whether this worker leads, as far as it knows."""
        return self._transactions.is_open

    def take(self) -> None:
        """Fence the previous leader, then read all that it has written."""
        with self._lock:
            self._transactions.open(self._id)
            try:
                self._configs.catch_up(committed=False)
            except SemelError:
                self._transactions.drop()
                raise

    def write(self, records: Sequence[Record]) -> None:
        """Write records, all or none, and wait until this worker has read them.

        Raises:
            LedgerConflict: another worker leads.
            TransientError: it is unknown whether they were written.
        """

        def send(producer: Any, failed: Any) -> None:
            for key, value in records:
                producer.produce(self._configs.name, value, key, 0, on_delivery=failed)

        with self._lock:
            try:
                self._transactions.run(send, [], None)
            except LedgerConflict:
                self._transactions.drop()
                raise
            self._configs.catch_up(committed=False)

    def give_up(self) -> None:
        """Stop writing."""
        with self._lock:
            self._transactions.drop()
