"""The listening sockets of the REST API."""

from __future__ import annotations

import socket

from semel.rest.server import _bound


def test_answers_do_not_wait_for_a_delayed_acknowledgement() -> None:
    """Head and body of an answer are two small writes."""
    with (
        _bound("http://127.0.0.1:0") as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
