"""A store that falls silent, and one that is away, while the micro-batch engine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from semel.lab.embedded.proxy import Proxy
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import assert_nothing_lost_nothing_twice, some, wait_until
from tests.engine.microbatch.conftest import MakeConfig, Running
from tests.engine.microbatch.transforms import passing, rows, shuffled
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    with Proxy.before(database) as made:
        yield made


@pytest.mark.parametrize("transform", some([passing, shuffled], [passing]))
def test_a_store_that_is_silent_or_away_is_left_and_waited_for(
    transform: Callable[..., Any],
    proxy: Proxy,
    database: str,
    topic: MakeTopic,
    produce: Produce,
    configure: MakeConfig,
    launch: Callable[..., Running],
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = topic(partitions=2)
    produce(source, rows(10))
    keys = {"connection.url": proxy.url(database), "store.timeout.ms": "2000"}
    keys |= {"table.name.format": "${topic}"}
    config = configure(source, **keys)
    running = launch(config, transform)
    running.reach(lambda p: p.rows == 10)
    assert proxy.silence() >= 1
    produce(source, rows(10, 10))
    running.reach(lambda p: p.rows == 20, timeout=PATIENCE)

    proxy.refuse()
    produce(source, rows(10, 20))
    # Ten retries of 50 ms would be over after half a second.
    wait_until(lambda: "waiting until that is over" in caplog.text)
    with pytest.raises(AssertionError):
        running.reach(lambda p: p.rows == 30, timeout=2)
    assert not running.over, running.error
    proxy.accept()
    running.reach(lambda p: p.rows == 30)
    running.stop.set()
    assert running.end() is None
    assert_nothing_lost_nothing_twice({**config, "connection.url": database}, range(30))
