"""Records on the worker's page: dead letters, and what a configuration would make of the first
ones."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from semel.config import ConnectorConfig, read
from semel.core.ledger import TopicPartition
from semel.core.records import DeadLetter
from semel.driver.letters import Letter, LetterView, ResendResult, _refusal, of_message
from semel.driver.letters import Page as Letters
from semel.driver.rehearsal import Column, RefusedRecord, Rehearsal, Row, TargetRows
from semel.kafka.cluster import Cluster
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure
from tests.engine.harness import records, wait_until
from tests.rest.conftest import Worker
from tests.rest.still import POSTGRES, StillWorker, still_worker
from tests.rest.test_page import HOSTILE, Page, page, send
from tests.rest.test_security import users  # noqa: F401
from tests.sinks.target import Target

RECORD = DeadLetter(
    *("orders", 1, 7, b"key 1", b"{bad", [("trace", b"abc"), ("none", None)]),
    *(1_000, "VALUE_CONVERTER", "DataException", "no JSON: {bad"),
)
LETTER = Letter(RECORD, ["orders", 1, 7], "orders")
NO_SCRIPTS = [{"src": "/ui/live.js?v=0.1.0", "defer": ""}]


@pytest.fixture(name="still")
def make_still() -> StillWorker:
    return still_worker()


def with_letters(worker: StillWorker, *letters: LetterView, older: Any = None) -> None:
    worker.herder.has("orders")
    worker.herder.records["browse"] = Letters("table letters", letters, older)


def shown(letter: Letter = LETTER, **fate: Any) -> LetterView:
    return LetterView.of(letter, **fate)


# Dead letters


def test_a_letter_is_shown_with_its_reason_headers_and_content(still: StillWorker) -> None:
    with_letters(still, shown(), older=["orders", 1, 7])
    found = page(still, "/ui/letters", name="orders")
    for text in (
        "In table letters",
        "orders-1@7",
        "no JSON: {bad",
        "VALUE_CONVERTER , DataException",
        "Key key 1",
        "Value {bad",
        "Header trace abc",
        "Header none null",
    ):
        assert text.replace(" ,", ",") in found.text.replace(" ,", ","), text
    older = [a["href"] for a in found.all("a") if "older=" in a["href"]]
    assert Page(still.client.get(older[0])).status == 200
    assert still.herder.told[-1] == ("browse", "orders", ["orders", 1, 7], 20)


def test_bytes_are_shown_in_hexadecimal_and_large_values_are_cut(still: StillWorker) -> None:
    large = replace(LETTER, record=replace(RECORD, key=b"\xff\x01", value=b"x" * 100_000))
    with_letters(still, shown(large))
    text = page(still, "/ui/letters", name="orders").text
    assert "Key ff 01" in text
    assert "… (100,000 bytes)" in text
    assert len(text) < 10_000


def test_a_letter_from_anybody_is_cut_where_it_is_read() -> None:
    headers = [("n" * 10_000_000, "ü".encode() * 5_000_000)] * 20_000
    long, never = "x" * 1_000_000, 2**62
    record = DeadLetter(long, 0, 1, None, b"v" * 10_000_000, headers, never, long, long, long)
    cut = shown(Letter(record, [long[:249], 0, 1]), refusal=long)
    assert len(pickle.dumps(cut)) < 1_000_000
    assert cut.more_headers == 19_950
    assert cut.headers[0][1] == f"{'ü' * 1000}… (10,000,000 bytes)"


@pytest.mark.parametrize(("offset", "why"), [(7, None), (10**20, "no record can be at orders-1")])
def test_a_letter_of_an_offset_that_cannot_be_is_not_sent_again(
    offset: int, why: str | None
) -> None:
    raw = {"name": "orders", "connector.class": "postgresql", "topics": "orders"}
    connector = read(ConnectorConfig, {**raw, "bootstrap.servers": "none:1"})
    facts = {"topic": "orders", "partition": "1", "offset": str(offset)}
    message = SimpleNamespace(
        headers=lambda: [(f"__connect.errors.{n}", v.encode()) for n, v in facts.items()],
        key=lambda: None,
        value=lambda: b"{bad",
        timestamp=lambda: (1, 1000),
        partition=lambda: 0,
        offset=lambda: 3,
    )
    refusal = _refusal(of_message(cast(Any, message)), connector, [TopicPartition("orders", 1)])
    assert refusal is None if why is None else str(refusal).startswith(why)


def test_a_time_that_is_none_is_a_number(still: StillWorker) -> None:
    never = replace(LETTER, record=replace(RECORD, timestamp=2**62))
    with_letters(still, shown(never))
    assert "Time of the record 4611686018427388" in page(still, "/ui/letters", name="orders").text


def test_letters_are_sent_again_one_by_one_or_all(still: StillWorker) -> None:
    other = replace(LETTER, at=["orders", 1, 8])
    with_letters(still, shown(), shown(other, sent=True))
    still.herder.records["resend"] = ResendResult(1)
    form = page(still, "/ui/letters", name="orders")
    assert [f["value"] for f in form.all("input") if f["name"] == "at"] == ['["orders", 1, 7]']
    answer = Page(send(still, "/ui/letters", name="orders", do="one", at='["orders", 1, 7]'))
    assert "1 record has been sent again" in answer.text
    assert ("resend", "orders", ["orders", 1, 7]) in still.herder.told
    still.herder.told.clear()
    assert send(still, "/ui/letters", name="orders", do="all").status_code == 400
    assert still.herder.told == []
    still.herder.records["resend"] = ResendResult(9, 2, ["topic orders is gone"], more=True)
    answer = Page(send(still, "/ui/letters", name="orders", do="all", sure="on"))
    assert "9 records have been sent again. There are more" in answer.text
    assert "2 cannot be sent again: topic orders is gone" in answer.text


def test_what_cannot_be_sent_again_has_no_button_but_a_reason(still: StillWorker) -> None:
    with_letters(still, shown(refusal="topic orders is gone"))
    found = page(still, "/ui/letters", name="orders")
    assert "It cannot be sent again: topic orders is gone." in found.text
    assert "at" not in found.values()


@pytest.mark.parametrize("at", ["", "{", "[" * 100_000, "1e999999"])
def test_a_place_that_is_none_is_refused(still: StillWorker, at: str) -> None:
    with_letters(still)
    still.herder.records["resend"] = ResendResult(0)
    answer = send(still, "/ui/letters", name="orders", do="one", at=at)
    assert answer.status_code in (200, 400)
    assert "Traceback" not in answer.text


# Who may do it


def test_a_reader_sees_letters_but_sends_none_and_tries_nothing(
    users: dict[str, str],  # noqa: F811
) -> None:
    worker = still_worker(**{k: v for k, v in users.items() if k.startswith(("rest.", "semel."))})
    with_letters(worker, shown())
    worker.client.auth = ("grace", "hop:per")
    found = page(worker, "/ui/letters", name="orders")
    assert "orders-1@7" in found.text
    assert not [form for form in found.all("form") if form["method"] == "post"]
    assert "button" not in [tag for tag, _ in found.elements]
    worker.herder.told.clear()
    for path, fields in (
        ("/ui/letters", {"do": "one", "at": "[]"}),
        ("/ui/letters", {"do": "all", "sure": "on"}),
        ("/ui/edit", {"do": "try", "json": json.dumps(POSTGRES)}),
        ("/ui/new", {"do": "try", "json": json.dumps(POSTGRES)}),
    ):
        assert send(worker, path, name="orders", **fields).status_code == 403
    assert worker.herder.told == []


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_origin_sends_no_letters_and_tries_nothing(still: StillWorker, site: str) -> None:
    with_letters(still, shown())
    headers = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": site}
    for path, fields in (
        ("/ui/letters", {"do": "all", "sure": "on"}),
        ("/ui/edit", {"do": "try", "json": json.dumps(POSTGRES)}),
    ):
        query = {"name": "orders"}
        answer = still.client.post(path, params=query, data=fields, headers=headers)
        assert (answer.status_code, still.herder.told) == (403, [])


# What is shown is from outside


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_records_stay_text(still: StillWorker, text: str) -> None:
    raw = text.encode()
    record = DeadLetter(text, 0, 1, raw, raw, [(text, raw)], 5, text, text, text)
    with_letters(still, shown(Letter(record, [text, 0, 1], text), refusal=text))
    still.herder.records["browse"] = replace(still.herder.records["browse"], kept=text)
    columns = [Column(text, text)]
    written = [TargetRows(text, columns, [Row(text, [text])], [Row(text)])]
    tried = Rehearsal(2, written, [RefusedRecord(text, text, text)], 0, [text])
    still.herder.records["rehearse"] = tried
    found = page(still, "/ui/letters", name="orders")
    config = {**POSTGRES, "connection.password": "[hidden]"}
    form = {"name": "orders", "json": json.dumps(config)}
    dry = Page(send(still, "/ui/edit", do="try", **form))
    assert "The first records" in dry.text
    for made in (found, dry):
        assert made.status == 200
        assert made.all("script") == NO_SCRIPTS
        assert not made.all("img")
        if "7*7" in text:
            assert "{{ 7*7 }}" in made.text


# The first records


def test_a_dry_run_shows_columns_deletes_and_bad_records(still: StillWorker) -> None:
    still.herder.has("orders")
    written = TargetRows(
        "orders",
        [Column("id", "int64"), Column("note", "string")],
        [Row("orders-0@1", ["1", "first"]), Row("orders-0@2", ["2", None])],
        [Row("orders-0@5")],
    )
    bad = [RefusedRecord("orders-0@3", "VALUE_CONVERTER", "no JSON")]
    still.herder.records["rehearse"] = Rehearsal(5, [written], bad, 1, ["field x has no column"])
    config = json.dumps({**POSTGRES, "connection.password": "[hidden]", "topics": "t"})
    found = Page(send(still, "/ui/edit", name="orders", json=config, do="try"))
    for text in (
        "What would become of 5 records. Nothing has been written.",
        "Transforms leave 1 of them out.",
        "Record id int64 note string",
        "orders-0@2 2 null",
        "1 would delete a row: orders-0@5",
        "orders-0@3 , VALUE_CONVERTER : no JSON",
        "field x has no column",
        "This would change",
    ):
        assert text.replace(" ,", ",").replace(" :", ":") in found.text, text
    assert still.herder.told == [("rehearse", "orders", 20)]
    assert "open sesame" not in found.text


def test_a_configuration_with_mistakes_is_not_tried(still: StillWorker) -> None:
    still.herder.has("orders")
    wrong = json.dumps({**POSTGRES, "connection.password": "[hidden]", "tasks.max": "many"})
    found = Page(send(still, "/ui/edit", name="orders", json=wrong, do="try"))
    assert "1 mistake" in found.text
    assert still.herder.told == []


# With real services


@pytest.fixture(name="open_page")
def make_open_page(worker: Worker) -> Callable[[str], Any]:
    """What a person does on a connector's pages."""
    api = worker()

    class Open:
        def __init__(self, name: str) -> None:
            self.name, self.api = name, api

        def get(self, path: str, **more: str) -> Page:
            return Page(api.get(f"/ui{path}", params={"name": self.name, **more}))

        def post(self, path: str, **fields: str) -> httpx.Response:
            host = f"{api.base_url.scheme}://{api.base_url.netloc.decode()}"
            query, own = {"name": self.name}, {"Origin": host}
            return api.post(f"/ui{path}", params=query, data=fields, headers=own)

    return Open


BAD = [b'{"id": 90, "v": 0}', b"{bad", b'{"id": 91, "v": 0}']
"""The first and the last are refused by the table's constraint, until that is dropped."""


@pytest.mark.integration
@pytest.mark.parametrize(
    "where",
    [
        "errors.deadletterqueue.table",
        pytest.param("errors.deadletterqueue.topic.name", marks=pytest.mark.long),
    ],
)
def test_a_letter_is_sent_again_once_and_its_row_is_there_once(
    where: str,
    open_page: Callable[[str], Any],
    kafka: Kafka,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    database: str,
) -> None:
    source = topic()
    target = Target(database)
    target.execute(f'CREATE TABLE "{source}" (id bigint, text text, v bigint CHECK (v > 0))')
    produce(source, [*records(3), *BAD])
    letters = {"errors.tolerance": "all", "provenance": "false", where: f"{source}-letters"}
    if "table" in where:
        letters[where] = f'"{source}-letters"'
    replication = "errors.deadletterqueue.topic.replication.factor"
    config = configure(source, {**letters, replication: "1"})
    at = open_page(config["name"])
    assert at.api.post("/connectors", json={"name": at.name, "config": config}).is_success

    def unsent() -> set[str]:  # a topic may have a letter twice
        labels = [button.get("aria-label", "") for button in at.get("/letters").all("button")]
        return {label.split()[1] for label in labels if label}

    def end() -> int:
        place = TopicPartition(source, 0)
        return Cluster({"bootstrap.servers": kafka.bootstrap_servers}).latest([place])[place]

    wait_until(lambda: unsent() == {f"{source}-0@{n}" for n in (3, 4, 5)})
    before = end()
    target.execute(f'ALTER TABLE "{source}" DROP CONSTRAINT "{source}_v_check"')
    first, *_ = [f["value"] for f in at.get("/letters").all("input") if f["name"] == "at"]
    sent = Page(at.post("/letters", do="one", at=first))
    assert "1 record has been sent again" in sent.text, sent.text
    wait_until(lambda: target.values(f'SELECT id FROM "{source}" WHERE id > 80') == [91])
    again = at.post("/letters", do="one", at=first)
    assert "has been sent again already" in again.text

    told = Page(at.post("/letters", do="all", sure="on"))
    assert "2 records have been sent again" in told.text, told.text
    wait_until(lambda: len(unsent()) == 1)  # what is no JSON has failed once more
    assert "__semel.resent" in at.get("/letters").text
    assert f"Header __semel.resent {source}-0@4" in at.get("/letters").text
    told = Page(at.post("/letters", do="all", sure="on"))
    assert "1 record has been sent again" in told.text, told.text
    rows = target.values(f'SELECT id FROM "{source}" WHERE id > 80 ORDER BY id')
    assert rows == [90, 91]
    assert end() > before
    at.post("/connector", do="delete", sure="on")


@pytest.mark.integration
def test_a_dry_run_writes_nothing_and_shows_what_would_be_written(
    open_page: Callable[[str], Any],
    kafka: Kafka,
    topic: MakeTopic,
    configure: Configure,
    database: str,
) -> None:
    source = topic(partitions=2, values=[*records(30), b"{bad"])
    config = configure(
        source,
        {
            "transforms": "stamp",
            "transforms.stamp.type": "org.apache.kafka.connect.transforms.InsertField$Value",
            "transforms.stamp.static.field": "origin",
            "transforms.stamp.static.value": "shop",
        },
    )
    at = open_page(config["name"])
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    found = Page(at.post("/new", json=json.dumps(config), do="try"))
    assert "What would become of 20 records" in found.text, found.text
    assert "origin string" in found.text
    assert "shop" in found.text
    assert "id int64" in found.text
    assert "This would be created" in found.text
    assert Target(database).values(tables) == [0]
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap_servers})
    assert cluster.groups(f"connect-{at.name}") == []
    assert at.api.get("/connectors").json() == []
