"""What wakes up a run that is calm."""

from __future__ import annotations

import threading

from semel.engine.control import ControlServer
from semel.engine.orders import Bell
from tests.patience import PATIENCE


def test_the_bell_ends_a_wait_for_reports() -> None:
    server, bell = ControlServer("127.0.0.1"), Bell()
    try:
        with bell.heard_by(server.wake):
            bell.ring()
        bell.ring()
        assert server.reports.get(timeout=PATIENCE).kind == "awake"
        assert server.reports.empty()
    finally:
        server.close()


def test_an_order_that_nobody_rings_for_is_heard() -> None:
    """Whoever runs a connector may hold the event that stops it."""
    heard, stop, bell = threading.Event(), threading.Event(), Bell()
    with bell.heard_by(heard.set), bell.rung_by(stop):
        assert not heard.is_set()
        stop.set()
        assert heard.wait(PATIENCE)
