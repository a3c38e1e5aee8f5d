"""The proxy's own keys beside those that it passes on to its clients."""

from __future__ import annotations

import pytest

from semel.config import read
from semel.config.proxy import ProxyConfig
from semel.core.errors import ConfigError
from semel.kafka.clients import proxy_client


@pytest.mark.parametrize("text", ["", "localhost:8082", "http://localhost", "ftp://localhost:1"])
def test_a_malformed_listener_is_refused_by_its_key(text: str) -> None:
    with pytest.raises(ConfigError, match="listeners="):
        read(ProxyConfig, {"listeners": text})


def test_a_key_of_the_proxy_does_not_hide_a_setting_of_its_clients() -> None:
    raw = {"client.request.timeout.ms": "20000", "consumer.request.timeout.ms": "500"}
    assert proxy_client(read(ProxyConfig, raw), "consumer")["socket.timeout.ms"] == "20000"
