"""Calls that do not end, and how they are counted."""

from __future__ import annotations

import threading

import pytest

from semel.core.abandoned import MOST, Abandoned, TooManyAbandoned, abandoned, check, within
from tests.engine.harness import wait_until


def test_what_a_call_returns_or_raises_is_its_callers() -> None:
    assert within(60, "adding", lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        within(60, "dividing", lambda: 1 / 0)
    assert not abandoned()


def test_a_call_that_does_not_end_is_counted_until_it_does() -> None:
    end = threading.Event()
    with pytest.raises(Abandoned, match="closing a client has not ended within 0 s"):
        within(0.01, "closing a client", end.wait)
    assert abandoned() == ["closing a client"]
    end.set()
    wait_until(lambda: not abandoned())


def test_a_process_that_left_too_much_behind_is_to_be_replaced() -> None:
    end = threading.Event()
    for _ in range(MOST):
        check()
        with pytest.raises(Abandoned):
            within(0.01, "closing a client", end.wait)
    with pytest.raises(TooManyAbandoned, match=r"3 calls have not returned \(closing a client\)"):
        check()
    end.set()
    wait_until(lambda: not abandoned())
    assert check() == []
