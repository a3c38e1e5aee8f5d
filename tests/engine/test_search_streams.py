"""Data streams of a search server: appended at least once, whatever dies when."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.audit import audit
from semel.core import failpoints
from semel.core.errors import ConfigError
from semel_lab.embedded import Kafka
from semel_lab.embedded.opensearch import OpenSearch
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Start
from tests.engine.harness import LocalSpark, caught_up, name, records, wait_until
from tests.searching import ask, documents

pytestmark = pytest.mark.integration

PLACE = "sink.after_commit"
"""Where documents are written, and positions are not."""


@pytest.fixture
def streams(opensearch: OpenSearch) -> Iterator[str]:
    """A template for data streams; their address."""
    template = {"index_patterns": ["logs-shop-*"], "data_stream": {}, "priority": 100}
    _put(opensearch.url, "_index_template/shop", template)
    yield opensearch.url
    _request(opensearch.url, "DELETE", "_data_stream/logs-shop-*")
    _request(opensearch.url, "DELETE", "_index_template/shop")


@pytest.fixture
def configure(kafka: Kafka, streams: str) -> Configure:
    """A connector from the session's Kafka to data streams."""

    def make(topics: str, keys: dict[str, Any] | None = None) -> Config:
        return {
            "name": name(),
            "connector.class": "io.confluent.connect.elasticsearch.ElasticsearchSinkConnector",
            "topics": topics,
            "bootstrap.servers": kafka.bootstrap_servers,
            "connection.url": streams,
            "read.timeout.ms": "600000",
            "key.ignore": "true",
            "schema.ignore": "true",
            "data.stream.type": "LOGS",
            "data.stream.dataset": "shop",
            "delivery": "at-least-once",
            "provenance": "true",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "retry.backoff.ms": "200",
            **(keys or {}),
        }

    return make


def _put(url: str, path: str, body: object) -> None:
    _request(url, "PUT", path, json.dumps(body).encode())


def _request(url: str, method: str, path: str, content: bytes | None = None) -> None:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/{path}", content, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        answer.read()


@pytest.mark.long
def test_each_document_has_the_time_of_a_field_or_of_its_record(
    topic: MakeTopic, produce: Produce, configure: Configure, streams: str
) -> None:
    source = topic()
    lines = [{"id": 0, "at": "2024-05-06T07:08:09Z"}, {"id": 1, "seen": 1_700_000_000_000}]
    produce(
        source,
        [json.dumps(line) for line in [*lines, {"id": 2}]],
        timestamps=[1_600_000_000_000] * 3,
    )
    config = configure(source, {"data.stream.timestamp.field": "at,seen"})
    caught_up(config)
    found = {d["id"]: d for d in documents(streams, f"logs-shop-{source}")}
    assert [found[n]["@timestamp"] for n in range(3)] == [
        "2024-05-06T07:08:09.000000Z",
        "1700000000000",
        "2020-09-13T12:26:40.000Z",
    ]
    assert found[0]["_id"] == f"{source}+0+0"
    assert audit(config).kept


@pytest.mark.long
def test_a_replay_changes_nothing_until_the_stream_rolls_over(
    topic: MakeTopic, produce: Produce, configure: Configure, start: Start, points: Path
) -> None:
    source = topic(values=records(20))
    config = configure(source)
    stream = f"logs-shop-{source}"
    failpoints.arm(points, PLACE, "kill-worker")
    start(config, spark=LocalSpark(points), until_caught_up=True).wait()
    assert failpoints.fired(points)
    assert len(documents(config["connection.url"], stream)) == 20
    report = audit(config)
    assert (report.lost, report.duplicated) == (0, 0)

    produce(source, records(10, start=20))
    failpoints.arm(points, PLACE, "freeze")
    running = start(config, spark=LocalSpark(points), until_caught_up=True)
    wait_until(lambda: len(failpoints.fired(points)) == 2)
    ask(config["connection.url"], f"/{stream}/_rollover")
    os.kill(failpoints.fired(points)[-1].pid, signal.SIGKILL)
    running.wait()
    times = Counter(d["id"] for d in documents(config["connection.url"], stream))
    assert times == {n: 1 if n < 20 else 2 for n in range(30)}
    report = audit(config)
    assert (report.lost, report.duplicated, report.kept) == (0, 10, True)


def test_a_stream_without_a_template_is_refused(topic: MakeTopic, configure: Configure) -> None:
    source = topic(values=records(1))
    with pytest.raises(ConfigError, match=r'Create an index template with "data_stream": \{\}'):
        caught_up(configure(source, {"data.stream.dataset": "none"}))


def test_an_index_of_a_streams_name_is_refused(
    topic: MakeTopic, configure: Configure, streams: str
) -> None:
    source = topic(values=records(1))
    _put(streams, f"logs-x-{source}", {})
    with pytest.raises(ConfigError, match="is an index, but data streams are to be written"):
        caught_up(configure(source, {"data.stream.dataset": "x"}))
