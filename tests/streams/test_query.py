"""What stores answer, from the changes that their changelogs have."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pytest

from semel.core.errors import ConfigError, TransientError
from semel.streams import Context, Streams, hopping, query, session, sliding, tumbling
from semel.streams.operators.state import FIRST
from semel.streams.query import Entry, NoStore, Page, Stores, stores
from semel.streams.testing import TestDriver

CONFIG = {"name": "app", "bootstrap.servers": "nowhere:1"}


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stores of an application that has processed records. Their changelogs hold each entry
    after a former value, and some that are gone."""

    def make(streams: Streams, records: Sequence[tuple[Any, ...]], parts: int = 3) -> Stores:
        driver = TestDriver(streams)
        for record in records:
            driver.pipe("in", *record)

        def changes(_self: Any, _where: str, _sub: Any, store: str, _patience: float) -> Any:
            return changed(driver, store, parts)

        monkeypatch.setattr(Stores, "_changes", changes)
        return stores(streams)

    return make


def changed(driver: TestDriver, store: str, parts: int) -> Iterator[tuple[int, dict[bytes, Any]]]:
    there = list(driver._stores[store].range(FIRST, None))
    draw = random.Random(len(there))
    names = [name for name, _ in there]
    for _ in range(2):
        draw.shuffle(names)
        for at in range(0, len(names), 3):
            yield 0, {name: None if draw.random() < 0.3 else b"\0" * 9 for name in names[at:]}
    draw.shuffle(there)
    size = -(-len(there) // parts) or 1
    for at in range(0, len(there), size):
        yield 0, dict(there[at : at + size])


def plain(page: Page) -> list[tuple[Any, Any]]:
    return [(entry.key, entry.value) for entry in page.entries]


def counts() -> Streams:
    streams = Streams(CONFIG)
    streams.stream("in").group_by_key().count(store="counts")
    return streams


WORDS = ["ann", "bob", "bo", "a", "zoe", "b"]


def test_a_key_has_its_value_and_an_absent_key_has_none(ask: Any) -> None:
    asked = ask(counts(), [(word, 1, n) for n, word in enumerate([*WORDS, "ann"])])
    assert asked.get("counts", "ann") == 2
    assert asked.get("counts", "nobody") is None
    assert asked.entries("counts", key="bob").entries == [Entry("bob", 1, 1, None, 0)]


def test_texts_and_numbers_are_in_their_order(ask: Any) -> None:
    asked = ask(counts(), [(word, 1) for word in WORDS])
    assert plain(asked.entries("counts")) == [(word, 1) for word in sorted(WORDS)]
    found = asked.entries("counts", first="ann", last="bob")
    assert [entry.key for entry in found.entries] == ["ann", "b", "bo", "bob"]
    asked = ask(counts(), [(n, 1) for n in (10, 9, -5, 100)])
    assert [key for key, _ in plain(asked.entries("counts", first=-5, last=10))] == [-5, 9, 10]


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_pages_follow_one_another(ask: Any, limit: int) -> None:
    asked = ask(counts(), [(f"k{n}", 1) for n in range(23)])
    found, after = [], None
    while True:
        page = asked.entries("counts", limit=limit, after=after)
        assert len(page.entries) <= limit
        found += [entry.key for entry in page.entries]
        after = page.after
        if after is None:
            break
    assert found == sorted(f"k{n}" for n in range(23))


def test_a_key_is_a_struct_whatever_the_order_of_its_fields(ask: Any) -> None:
    keys = [{"country": "NO", "id": 1}, {"country": "NO", "id": 2}, {"country": "DE", "id": 1}]
    asked = ask(counts(), [(key, 1) for key in keys])
    (entry,) = asked.entries("counts", key={"id": 2, "country": "NO"}).entries
    assert entry.key == keys[1]
    found = asked.page(
        "counts",
        query.entry_filter('{"id": 1, "country": "DE"}', None, None, None, None),
        show=query.json_texts,
    )
    assert [json.loads(entry.key) for entry in found.entries] == [keys[2]]


def test_a_key_in_a_request_may_be_a_text_or_json(ask: Any) -> None:
    streams = Streams(CONFIG)

    def keep(key: Any, value: Any, context: Context) -> None:
        context.store("kept").put(key, value)

    streams.stream("in").process(keep, ["kept"])
    asked = ask(streams, [("5", "text"), (5, "number"), (True, "yes"), (date(2026, 1, 2), 7)])

    def found(key: str) -> list[str]:
        wanted = query.entry_filter(key, None, None, None, None)
        return [e.value for e in asked.page("kept", wanted, show=query.json_texts).entries]

    assert found("5") == ['"number"', '"text"']
    assert found('"5"') == ['"text"']
    assert found("true") == ['"yes"'] and found("2026-01-02") == ["7"]
    assert asked.get("kept", 5) == "number" and asked.get("kept", date(2026, 1, 2)) == 7
    assert [entry.timestamp for entry in asked.entries("kept").entries] == [None] * 4


@pytest.mark.parametrize(
    "windows", [tumbling(10, grace=99), hopping(10, advance=5, grace=99), sliding(10, grace=99)]
)
def test_windows_are_asked_for_by_when_they_begin(ask: Any, windows: Any) -> None:
    streams = Streams(CONFIG)
    streams.stream("in").group_by_key().windowed_by(windows).count(store="counts")
    given = [(key, 1, time) for time in range(100, 200, 7) for key in ("a", "b")]
    driver = TestDriver(streams)
    for record in given:
        driver.pipe("in", *record)
    asked = ask(streams, given)
    every = {
        (e.key["key"], e.key["window_start"].timestamp() * 1000, e.value)
        for e in driver.entries("counts")
    }
    starts = sorted({start for _, start, _ in every})
    low, high = starts[2], starts[-3]
    for key in (None, "a"):
        page = asked.entries("counts", key=key, since=int(low), until=int(high), limit=1000)
        assert {(e.key, e.window[0], e.value) for e in page.entries} == {
            (k, start, v) for k, start, v in every if low <= start <= high and key in (None, k)
        }
        order = [(e.key, e.window[0]) for e in page.entries]
        assert order == sorted(order)


def test_sessions_have_their_ends(ask: Any) -> None:
    streams = Streams(CONFIG)
    streams.stream("in").group_by_key().windowed_by(session(5, grace=0)).count(store="counts")
    asked = ask(streams, [("a", 1, time) for time in (10, 13, 30)])
    assert [(e.window, e.value) for e in asked.entries("counts", key="a").entries] == [
        ((10, 13), 2),
        ((30, 30), 1),
    ]
    assert asked.get("counts", "a") == 1
    since = datetime.fromtimestamp(0.02, UTC)
    assert [e.value for e in asked.entries("counts", since=since).entries] == [1]


def test_what_cannot_be_asked_is_refused(ask: Any) -> None:
    asked = ask(counts(), [(word, 1) for word in WORDS])
    with pytest.raises(NoStore, match="no store others"):
        asked.entries("others")
    with pytest.raises(ConfigError, match="no keys of this kind"):
        asked.entries("counts", key=5)
    with pytest.raises(ConfigError, match="no windows"):
        asked.entries("counts", since=5)
    with pytest.raises(ConfigError, match="not both"):
        asked.entries("counts", key="ann", first="a")
    with pytest.raises(ConfigError, match="from 1 to"):
        asked.entries("counts", limit=0)
    for after in ("", "!", "W10=", "é", "bnVsbA==", "WyJb", "WyIxIiwgMSwgIjAwIiwgWzFdXQ=="):
        with pytest.raises(ConfigError, match="not what a page"):
            asked.entries("counts", after=after)
    with pytest.raises(ConfigError, match="no time"):
        query.entry_filter(None, None, None, "yesterday", None)


def test_large_values_end_a_page(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_BYTES", 100)
    streams = Streams(CONFIG)
    streams.table("in", store="latest")
    asked = ask(streams, [(f"k{n}", "x" * 60) for n in range(4)])
    page = asked.entries("latest")
    assert len(page.entries) == 1 and page.after
    assert asked.entries("latest", after=page.after).entries[0].key == "k1"


def test_a_key_has_the_value_of_its_last_window(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "MOST", 2)
    streams = Streams(CONFIG)
    windows = tumbling(10, grace=0)
    streams.stream("in").group_by_key().windowed_by(windows, retention=1000).max("value", store="s")
    asked = ask(streams, [("ann", time, time) for time in range(0, 70, 10)])
    assert asked.get("s", "ann") == 60
    with pytest.raises(TransientError, match="windows of the key were not all read in 0 s"):
        asked.get("s", "ann", patience=0)


def test_stores_of_operators_only_are_not_listed() -> None:
    streams = counts()
    streams.table("in", store="latest").suppress(10).to_stream().to_topic("out")
    assert [(info.name, info.kind, info.changelog) for info in stores(streams).listed()] == [
        ("counts", "keys", "app-counts-changelog"),
        ("latest", "keys", "app-latest-changelog"),
    ]
