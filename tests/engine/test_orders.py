"""What wakes up a run that is calm."""

from __future__ import annotations

import threading

from semel.driver.base import Notifier
from semel.tasks.control import ControlServer
from tests.patience import PATIENCE


def test_a_notification_ends_a_wait_for_reports() -> None:
    server, notifier = ControlServer("127.0.0.1"), Notifier()
    try:
        with notifier.subscribed(server.wake):
            notifier.notify()
        notifier.notify()
        assert server.reports.get(timeout=PATIENCE).kind == "awake"
        assert server.reports.empty()
    finally:
        server.close()


def test_an_event_that_is_set_without_a_notification_is_noticed() -> None:
    """Whoever runs a connector may hold the event that stops it."""
    heard, stop, notifier = threading.Event(), threading.Event(), Notifier()
    with notifier.subscribed(heard.set), notifier.notified_by(stop):
        assert not heard.is_set()
        stop.set()
        assert heard.wait(PATIENCE)
