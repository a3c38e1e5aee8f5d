"""What the leader knows of workers that come and go."""

from __future__ import annotations

from typing import Any, cast

import pytest

from semel.connect.cluster import leading as module
from semel.connect.cluster.leading import Leading
from semel.connect.cluster.membership import Group
from tests.connect.cluster.test_membership import given

AWAY, HERE = "http://away:8083", "http://here:8083"


def test_a_worker_that_is_back_is_awaited_until_the_group_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    none = cast(Any, None)
    leading = Leading(given("127.0.0.1:1"), none, none, none)
    without, whole = Group(frozenset({HERE})), Group(frozenset({HERE, AWAY}))
    assert leading._returning([AWAY], without) == []  # it is still announced to be away
    now += 100
    assert leading._returning([AWAY], without) == []
    assert leading._returning([], without) == [AWAY]
    assert leading._returning([], whole) == []
    assert leading._returning([], without) == [], "it has died since"

    leading._returning([AWAY], without)
    now += 2.9
    assert leading._returning([], without) == [AWAY]
    now += 0.2
    assert leading._returning([], without) == [], "it has not joined for the length of a session"
