"""A store that is silent, away or read-only while the micro-batch engine runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import adbc_driver_postgresql.dbapi as adbc
import pytest

from semel_lab.embedded.proxy import Proxy
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import (
    assert_nothing_lost_nothing_twice,
    outlast_retries,
    some,
    wait_until,
)
from tests.engine.microbatch.conftest import Launch, MakeConfig
from tests.engine.microbatch.transforms import passing, rows, shuffled
from tests.patience import PATIENCE

pytestmark = pytest.mark.integration

READ_ONLY = "ALTER DATABASE {} SET default_transaction_read_only = {}"


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    with Proxy.before(database) as made:
        yield made


@pytest.mark.parametrize("transform", some([passing, shuffled], []))
def test_a_store_that_is_silent_away_or_read_only_is_left_and_waited_for(
    transform: Callable[..., Any],
    proxy: Proxy,
    database: str,
    topic: MakeTopic,
    produce: Produce,
    configure: MakeConfig,
    launch: Launch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = topic(partitions=2, values=rows(10))
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
    wait_until(lambda: "waiting for it to recover" in caplog.text)
    outlast_retries(config)
    assert not running.over, running.error
    assert running.progress.rows == 20
    proxy.accept()
    running.reach(lambda p: p.rows == 30)

    name = urlsplit(database).path[1:]
    with adbc.connect(database, autocommit=True) as mine, mine.cursor() as cursor:
        cursor.executemany(READ_ONLY.format(name, "on"), None)
        proxy.cut()  # new sessions can only read
        caplog.clear()
        produce(source, rows(10, 30))
        refused = re.compile("read-only transaction.*waiting for it to recover")
        wait_until(lambda: refused.search(caplog.text) is not None)
        cursor.executemany(READ_ONLY.format(name, "off"), None)
    running.reach(lambda p: p.rows == 40)
    running.stop.set()
    assert running.end() is None
    assert_nothing_lost_nothing_twice({**config, "connection.url": database}, range(40))
