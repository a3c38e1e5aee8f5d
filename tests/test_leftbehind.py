"""Calls that do not end, and how they are counted."""

from __future__ import annotations

import threading

import pytest

from semel.leftbehind import MOST, Left, TooManyLeft, check, left, within
from tests.engine.harness import wait_until


def test_what_a_call_returns_or_raises_is_its_callers() -> None:
    assert within(60, "adding", lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        within(60, "dividing", lambda: 1 / 0)
    assert not left()


def test_a_call_that_does_not_end_is_counted_until_it_does() -> None:
    end = threading.Event()
    with pytest.raises(Left, match="closing a client has not ended within 0 s"):
        within(0.01, "closing a client", end.wait)
    assert left() == ["closing a client"]
    end.set()
    wait_until(lambda: not left())


def test_a_process_that_left_too_much_behind_is_to_be_replaced() -> None:
    end = threading.Event()
    for _ in range(MOST):
        check()
        with pytest.raises(Left):
            within(0.01, "closing a client", end.wait)
    with pytest.raises(TooManyLeft, match=r"3 calls have not returned \(closing a client\)"):
        check()
    end.set()
    wait_until(lambda: not left())
    assert check() == []
