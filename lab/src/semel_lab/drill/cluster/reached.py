"""A Kafka that each worker reaches through a proxy of its own, which can be cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semel_lab.embedded import Kafka
from semel_lab.embedded.process import LOOPBACK, free_port
from semel_lab.embedded.proxy import Proxy


class ProxiedKafka(Kafka):
    """Has one more listener for each of ``ways`` proxies, advertised under the proxy's port."""

    def __init__(self, directory: Path, ways: int, *, session: float = 9.0) -> None:
        super().__init__(directory, session=session)
        self._ports_behind = [free_port() for _ in range(ways)]
        self.ways = [Proxy(LOOPBACK, port) for port in self._ports_behind]

    def close(self) -> None:
        """End Kafka and the proxies."""
        for way in self.ways:
            way.close()
        self.kill()

    def _settings(self) -> dict[str, Any]:
        settings = super()._settings()
        names = [f"WAY{n}" for n in range(len(self.ways))]
        behind = [f"{n}://{LOOPBACK}:{p}" for n, p in zip(names, self._ports_behind, strict=True)]
        before = [f"{n}://{LOOPBACK}:{w.port}" for n, w in zip(names, self.ways, strict=True)]
        protocols = [f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", *names)]
        return settings | {
            "listeners": ",".join([settings["listeners"], *behind]),
            "advertised.listeners": ",".join([settings["advertised.listeners"], *before]),
            "listener.security.protocol.map": ",".join(protocols),
            "inter.broker.listener.name": "PLAINTEXT",
        }
