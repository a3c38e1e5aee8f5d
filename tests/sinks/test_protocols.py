"""What a sink opts in to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from semel.config import ConnectorConfig, read
from semel.core.delivery import Mechanism, Support
from semel.core.errors import ConfigError
from semel.core.records import RowsRejected
from semel.driver.planning import plan, sink
from semel.sinks.protocols import FencesByGroup
from semel.sinks.search.sink import SearchSink

RAW = {
    "name": "c",
    "connector.class": "opensearch",
    "bootstrap.servers": "nowhere:9092",
    "topics": "t",
    "connection.url": "http://nowhere:9200",
    "key.ignore": "true",
}


class Boasting(SearchSink):
    """Offers transactions and has no commit."""

    def support(self) -> Mapping[Mechanism, Support]:
        return {Mechanism.TRANSACTIONAL: Support(True, "so it says")}


def test_a_sink_that_offers_transactions_without_commit_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink, "sink_class", lambda *_: Boasting)
    with pytest.raises(ConfigError, match=r"Boasting\.support\(\) offers .* no method commit"):
        plan(RAW)


def test_a_sink_that_derives_from_a_protocol_must_implement_all_of_it() -> None:
    class Half(SearchSink, FencesByGroup):
        def joining(self, task: int) -> None: ...

    half: Any = Half
    with pytest.raises(TypeError, match=r"abstract method '?assigned"):
        half(read(ConnectorConfig, RAW))


def test_a_sink_that_refuses_records_must_name_one() -> None:
    with pytest.raises(ValueError, match="names none"):
        RowsRejected([])
