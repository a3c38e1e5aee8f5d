"""Topics whose keys would meet in one index, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from semel.core.errors import ConfigError
from semel.core.ledger import LedgerEntry
from semel.driver.planning import plan
from semel.sinks.search.client import Answer
from semel.sinks.search.sink import SearchSink
from tests.sinks.search.test_config import BASE
from tests.sinks.target import records

ONE = {"topics": None, "topics.regex": "orders.*", "index.name.format": "orders"}
ALIASES = {"topics": None, "topics.regex": "orders.*"}


class Tasks:
    """Sinks of a connector that share indices, by all of their names, and a ledger."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> None:
        self._patch = monkeypatch
        self._names = names
        self._ledger: list[LedgerEntry] = []

    def sink(self, keys: dict[str, Any]) -> SearchSink:
        raw = {k: v for k, v in {**BASE, **keys}.items() if v is not None}
        made = plan(raw).sink
        assert isinstance(made, SearchSink)
        self._patch.setattr(made._client, "request", self._answer)
        self._patch.setattr(made._ledger, "entries", lambda: self._ledger)
        return made

    def writes(self, sink: SearchSink, topic: str) -> None:
        """What a task does that has been given a topic."""
        self._ledger.append(LedgerEntry(topic, 0, 0, 0))
        sink.accommodate(records([{"x": 1}], topic=topic, keys=["a"]))

    def _answer(self, _method: str, path: str, *_body: Any, **_keys: Any) -> Answer:
        own = self._names.get(path.strip("/"), "")
        aliases = {name: {} for name, index in self._names.items() if index == own != name}
        facts = {own: {"mappings": {"properties": {"x": {}}}, "aliases": aliases}}
        return Answer(200, facts if own else {})


ORDERS = {"orders": "orders"}
ALIASED = {"orders.b": "o-1", "orders.a": "o-1"}


@pytest.mark.parametrize(("keys", "names"), [(ONE, ORDERS), (ALIASES, ALIASED)])
@pytest.mark.parametrize("tasks", [1, 2])
def test_a_topic_that_appears_later_cannot_share_an_index(
    keys: dict[str, Any], names: dict[str, str], tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Tasks(monkeypatch, names)
    first = running.sink(keys)
    running.writes(first, "orders.b")
    running.writes(first, "orders.b")
    second = first if tasks == 1 else running.sink(keys)
    with pytest.raises(ConfigError, match=r"orders\.\w and orders\.\w both go to index o"):
        running.writes(second, "orders.a")


def test_aliases_of_one_index_are_found_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Tasks(monkeypatch, {**ALIASED, "semel_offsets": "semel_offsets"})
    sink = running.sink(ALIASES)
    sink.prepare(["orders.a"])
    with pytest.raises(ConfigError, match=r"both go to index o-1"):
        sink.prepare(["orders.b"])


@pytest.mark.parametrize(
    ("names", "holds"),
    [
        ({"orders.a": "semel_offsets"}, "the ledger"),
        ({"orders.a": "o-1", "letters": "o-1"}, "dead letters"),
    ],
)
def test_an_alias_of_the_ledger_or_of_dead_letters_takes_no_documents(
    names: dict[str, str], holds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Tasks(monkeypatch, names)
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": "letters"}
    with pytest.raises(ConfigError, match=f"topic orders.a goes to index .* which holds {holds}"):
        running.writes(running.sink({**ALIASES, **keys}), "orders.a")


def test_what_is_no_longer_read_or_has_no_keys_shares_an_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Tasks(monkeypatch, ORDERS)
    running.writes(running.sink(ONE), "orders.b")
    running.writes(running.sink({**ONE, "topics.regex": "orders.a"}), "orders.a")
    running = Tasks(monkeypatch, ORDERS)
    unkeyed = {**ONE, "key.ignore": "true"}
    running.writes(running.sink(unkeyed), "orders.b")
    running.writes(running.sink(unkeyed), "orders.a")
