"""The first contact with Kafka: mistakes are reported, brokers that are away are waited for."""

from __future__ import annotations

import itertools
import socket
import threading
from types import SimpleNamespace

import pytest

from semel.core.errors import ServiceError
from semel.databases.postgresql.connection import _reason
from semel.kafka import cluster
from semel.kafka.cluster import wait_for_brokers


def test_a_host_that_does_not_exist_is_reported_at_once() -> None:
    """After some seconds of silence, the error would be that no broker answers."""
    with pytest.raises(ServiceError, match=r"^Kafka at .*Failed to resolve '.*invalid:9092': Name"):
        wait_for_brokers({"bootstrap.servers": "no-such-host.invalid:9092,nor-this.invalid:9092"})


def test_brokers_that_are_waited_for_are_logged_once_and_named_in_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    ticks = itertools.count(0.0, 0.5)  # a look takes half a second, however long it takes
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    with pytest.raises(ServiceError, match=r"no Kafka broker answers at 127\.0\.0\.1:1: Connect"):
        wait_for_brokers({"bootstrap.servers": "127.0.0.1:1"}, 3.0, said.append)
    (line,) = said
    assert "Connection refused. Retrying for 3 s" in line


def test_one_host_that_does_not_exist_beside_others_is_no_mistake() -> None:
    servers = "no-such-host.invalid:9092,127.0.0.1:1"
    with pytest.raises(ServiceError, match="no Kafka broker answers"):
        wait_for_brokers({"bootstrap.servers": servers}, 1.0)


def test_a_login_to_a_broker_without_tls_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                client.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ServiceError, match="security settings"):
            wait_for_brokers(
                {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": "ssl"}, 5.0
            )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "IO: [libpq] Failed to execute query 'BEGIN; SET LOCAL x = '1s'; SELECT 1': no "
            "connection to the server",
            "no connection to the server",
        ),
        (
            "IO: Failed to prepare query: no connection to the server\n\nQuery was: SELECT 1",
            "no connection to the server",
        ),
        ("server closed the connection", "server closed the connection"),
    ],
)
def test_errors_do_not_show_semels_own_statements(text: str, reason: str) -> None:
    assert _reason(text) == reason
