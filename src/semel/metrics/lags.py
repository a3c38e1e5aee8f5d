"""Asks for lag in the background, so that scrapes do not wait for brokers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from semel.errors import SemelError
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.ledger import TopicPartition
from semel.metrics.observed import Observed

log = logging.getLogger(__name__)

_FRESH = 5.0
"""Seconds for which an answer is used again."""
_PATIENCE = 2.0
"""Seconds that a scrape waits for an answer."""
_KEPT = 60.0
"""Seconds after which an answer is too old to be told."""

Lag = Mapping[TopicPartition, int]


class Lags:
    """The last known lag of each sink connector."""

    def __init__(self) -> None:
        self._clusters: dict[str, Cluster] = {}
        self._found: dict[str, tuple[float, Lag]] = {}
        self._asking: threading.Thread | None = None
        self._asked = -_FRESH
        self._lock = threading.Lock()

    def of(self, connectors: Sequence[Observed]) -> Mapping[str, Lag]:
        """The lag of connectors, by name; without those whose brokers do not answer."""
        with self._lock:
            asking = self._asking
            if asking is None or not asking.is_alive():
                asking = None
                if time.monotonic() - self._asked >= _FRESH:
                    self._asked = time.monotonic()
                    asking = self._asking = threading.Thread(
                        target=self._ask, args=(connectors,), daemon=True, name="semel-lag"
                    )
                    asking.start()
        if asking is not None:
            asking.join(_PATIENCE)
        oldest = time.monotonic() - _KEPT
        names = {each.name for each in connectors}
        found = dict(self._found)
        return {name: lag for name, (at, lag) in found.items() if name in names and at > oldest}

    def _ask(self, connectors: Sequence[Observed]) -> None:
        for each in connectors:
            positions = {} if each.is_source else dict(each.progress.positions)
            try:
                ends = self._cluster(each).latest(positions, timeout=_KEPT / 2)
            except SemelError as error:
                log.debug("connector %s: lag: %s", each.name, error)
                continue
            lag = {tp: max(0, ends[tp] - at) for tp, at in positions.items() if tp in ends}
            self._found[each.name] = time.monotonic(), lag

    def _cluster(self, each: Observed) -> Cluster:
        """A client, shared by connectors with the same settings."""
        config = client_config(each.planned.connector, "admin")
        key = repr(sorted(config.items(), key=lambda item: item[0]))
        if key not in self._clusters:
            self._clusters[key] = Cluster(config)
        return self._clusters[key]
