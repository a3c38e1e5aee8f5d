"""Signals that come at any moment."""

from __future__ import annotations

import signal
import threading

from semel.cli import common
from tests.patience import PATIENCE


def test_a_signal_that_interrupts_the_wait_for_the_stop_sets_it_all_the_same() -> None:
    stop = threading.Event()
    before = signal.signal(signal.SIGUSR1, common.setting(stop))
    try:
        with stop._cond:  # type: ignore[attr-defined]  # as within stop.wait()
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stop.wait(PATIENCE)
