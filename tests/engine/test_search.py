"""Exactly once into a search server: killed, frozen, started twice, restarted at every moment."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from semel.audit import audit
from semel.core import failpoints
from semel.core.errors import BadRecord
from semel.driver.planning import plan
from semel_lab.embedded import Kafka
from semel_lab.embedded.opensearch import OpenSearch
from tests.conftest import MakeTopic, Produce, started_apart
from tests.engine.conftest import Configure, Start, connector
from tests.engine.harness import (
    MANY_COMMITS,
    SHORT_SESSION,
    LocalSpark,
    assert_nothing_lost_nothing_twice,
    caught_up,
    drive,
    one_takes_the_place,
    records,
    some,
    wait_until,
)
from tests.searching import ask, documents

pytestmark = pytest.mark.integration


@pytest.fixture
def configure(kafka: Kafka, opensearch: OpenSearch) -> Configure:
    """A connector to the run's OpenSearch."""
    own = {
        "connector.class": "opensearch",
        "connection.url": opensearch.url,
        "read.timeout.ms": "600000",
        "key.ignore": "true",
        "behavior.on.null.values": "delete",
    }
    return connector(kafka, own)


@pytest.fixture
def own_opensearch(services_directory: Path, jdk: None) -> Iterator[Callable[[], OpenSearch]]:
    """Starts an OpenSearch of the test's own."""
    yield from started_apart(services_directory, lambda at: OpenSearch(at, heap="256m"))


@pytest.mark.long
@pytest.mark.parametrize("place", ["sink.before_commit", "sink.after_commit", "deliver.between"])
def test_a_driver_that_dies_leaves_nothing_undone(
    place: str, topic: MakeTopic, configure: Configure, points: Path
) -> None:
    source = topic(partitions=2, values=records(300))
    config = configure(source, {"consumer.override.max.poll.records": 40, "batch.size": 7})
    failpoints.arm(points, place, "kill-driver", skip=2)
    assert drive(config, points) == -signal.SIGKILL
    assert drive(config, points) == 0
    assert_nothing_lost_nothing_twice(config, range(300))


@pytest.mark.long
def test_of_two_runs_one_stops_as_fenced_and_nothing_is_written_twice(
    topic: MakeTopic, produce: Produce, configure: Configure, start: Start
) -> None:
    source = topic(partitions=2, values=records(500))
    config = configure(source, MANY_COMMITS)
    first = start(config)
    first.until(lambda p: p.rows > 0)
    second = start(config)
    winner = one_takes_the_place(first, second)
    produce(source, records(100, start=500))
    winner.stop_when(lambda p: sum(p.positions.values()) >= 600)
    assert_nothing_lost_nothing_twice(config, range(600))


@pytest.mark.parametrize(
    ("place", "keyed"),
    some(
        product(("task.after_convert", "sink.after_positions", "deliver.between"), (False, True)),
        {("sink.after_positions", True)},
    ),
)
def test_a_task_that_wakes_up_after_its_partitions_were_taken_over_harms_nothing(
    place: str,
    keyed: bool,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
    points: Path,
) -> None:
    """Where it holds older values of keys that have been written and deleted meanwhile."""
    names = [f"k{i % 40}" for i in range(400)] if keyed else None
    source = topic(partitions=2, values=records(400), keys=names)
    keys: dict[str, Any] = {
        "tasks.max": 2,
        "max.retries": 100,
        **SHORT_SESSION,
        "key.ignore": not keyed,
    }
    config = configure(source, keys)
    failpoints.arm(points, place, "freeze", skip=3)
    running = start(config, spark=LocalSpark(points))
    wait_until(lambda: bool(failpoints.fired(points)))
    frozen = failpoints.fired(points)[-1].pid
    running.until(lambda p: sum(p.positions.values()) >= 400)
    if keyed:
        produce(source, [None] * 10, keys=[f"k{i}" for i in range(10)])
        running.until(lambda p: sum(p.positions.values()) >= 410)
    failpoints.thaw(points, frozen)
    more = [f"more{i}" for i in range(200)] if keyed else None
    produce(source, records(200, start=400), keys=more)
    running.stop_when(lambda p: sum(p.positions.values()) >= (610 if keyed else 600))
    expected = [*range(370, 400), *range(400, 600)] if keyed else range(600)
    report = assert_nothing_lost_nothing_twice(config, expected)
    assert report.exact


@pytest.mark.long
def test_the_server_dies_and_comes_back_while_the_connector_runs(
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    start: Start,
    own_opensearch: Callable[[], OpenSearch],
) -> None:
    server = own_opensearch()
    source = topic(partitions=2, values=records(2000))
    keys = {
        "connection.url": server.url,
        "max.retries": 5000,
        "consumer.override.max.poll.records": 20,
    }
    config = configure(source, keys)
    running = start(config)
    running.until(lambda p: p.rows > 100)
    server.kill()
    produce(source, records(500, start=2000))
    server.start()
    running.stop_when(lambda p: sum(p.positions.values()) >= 2500)
    assert_nothing_lost_nothing_twice(config, range(2500))


def test_bad_records_go_to_the_index_of_dead_letters_and_the_audit_counts_them(
    topic: MakeTopic, configure: Configure
) -> None:
    good = records(100)
    bad = [b"{", json.dumps({"id": 7, "text": {"an": "object"}}).encode()]
    source = topic(values=[*good[:50], *bad, *good[50:]])
    letters = f"{source}-letters"
    keys = {
        "schema.ignore": "true",
        "errors.tolerance": "all",
        "errors.deadletterqueue.table": letters,
    }
    config = configure(source, keys)
    caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(100))
    found = sorted(documents(config["connection.url"], letters), key=lambda d: d["offset"])
    stages = [(d["offset"], d["stage"]) for d in found]
    assert stages == [(50, "VALUE_CONVERTER"), (51, "TASK_PUT")]


def test_a_document_that_the_server_refuses_stops_the_connector_after_what_came_before(
    topic: MakeTopic, configure: Configure
) -> None:
    bad = json.dumps({"id": 50, "text": {"an": "object"}}).encode()
    source = topic(values=[*records(50), bad, *records(50, start=51)])
    config = configure(source, {"schema.ignore": "true"})
    with pytest.raises(BadRecord, match=f"{source}-0 offset 50 failed in TASK_PUT"):
        caught_up(config)
    sink = plan(config).sink
    assert [e.position for e in sink.entries()] == [50]
    found = sink.snapshot([source]).records[source]
    assert sorted(found.column("offset").to_pylist()) == list(range(50))
    sink.close()


def test_documents_are_left_out_by_the_users_choice_and_counted(
    topic: MakeTopic, configure: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    bad = json.dumps({"id": 50, "text": {"an": "object"}}).encode()
    source = topic(values=[*records(50), bad, *records(50, start=50)])
    keys = {"schema.ignore": "true", "behavior.on.malformed.documents": "warn"}
    config = configure(source, keys)
    caught_up(config)
    report = assert_nothing_lost_nothing_twice(config, range(100))
    assert [(p.filtered, p.failed) for p in report.partitions] == [(1, 0)]
    assert f"{source}-0 offset 50 is left out (behavior.on.malformed.documents=warn)" in caplog.text


@pytest.mark.long
def test_a_bad_record_stops_the_connector_where_documents_are_left_out_by_choice(
    topic: MakeTopic, produce: Produce, configure: Configure
) -> None:
    source = topic()
    refused = json.dumps({"id": 50, "text": {"an": "object"}}).encode()
    produce(source, [*records(20), refused, *records(5, start=20), b"{", *records(5, start=25)])
    keys = {"schema.ignore": "true", "behavior.on.malformed.documents": "ignore"}
    config = configure(source, keys)
    with pytest.raises(BadRecord, match=f"{source}-0 offset 26 failed in VALUE_CONVERTER"):
        caught_up(config)
    assert_nothing_lost_nothing_twice(config, range(25))


@pytest.mark.long
def test_without_provenance_the_audit_goes_by_counts(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(partitions=2, values=records(100))
    config = configure(source, {"provenance": "false"})
    caught_up(config)
    report = assert_nothing_lost_nothing_twice(config, range(100))
    assert not report.exact
    gone = {"query": {"range": {"id": {"lt": 3}}}}
    for document in ask(config["connection.url"], f"/{source}/_search", gone)["hits"]["hits"]:
        line = json.dumps({"delete": {"_id": document["_id"]}})
        _bulk(config["connection.url"], source, f"{line}\n")
    assert audit(config).lost == 3


def test_the_audit_names_what_is_missing_record_by_record(
    topic: MakeTopic, configure: Configure
) -> None:
    source = topic(partitions=2, values=records(100))
    config = configure(source)
    caught_up(config)
    line = json.dumps({"delete": {"_id": f"{source}+0+3"}})
    _bulk(config["connection.url"], source, f"{line}\n")
    report = audit(config)
    assert (report.exact, report.lost, report.kept) == (True, 1, False)


def test_keys_and_tombstones_end_as_the_last_change_of_each_key(
    topic: MakeTopic, configure: Configure
) -> None:
    values = [json.dumps({"v": i}).encode() for i in range(60)]
    keys = [f"k{i % 20}" for i in range(60)]
    source = topic(partitions=2, values=[*values, None, None], keys=[*keys, "k3", "k4"])
    config = configure(source, {"key.ignore": "false", "consumer.override.max.poll.records": 7})
    caught_up(config)
    found = {d["_id"]: d["v"] for d in documents(config["connection.url"], source)}
    assert found == {f"k{i}": 40 + i for i in range(20) if i not in (3, 4)}
    report = audit(config)
    assert report.exact and report.kept


def _bulk(url: str, index: str, lines: str) -> None:
    import urllib.request

    headers = {"content-type": "application/x-ndjson"}
    request = urllib.request.Request(f"{url}/{index}/_bulk", lines.encode(), headers)
    with urllib.request.urlopen(request) as answer:
        assert not json.loads(answer.read())["errors"]
