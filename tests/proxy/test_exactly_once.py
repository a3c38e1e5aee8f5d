"""Requests with an Idempotency-Key take effect once, whatever happens to their answers; and reads
without a consumer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from semel.core import failpoints
from semel.kafka.cluster import Cluster
from semel.proxy import keyed, reading
from semel_lab.embedded import Kafka
from semel_lab.embedded.process import LOOPBACK, free_port
from tests.conftest import MakeTopic, Produce
from tests.engine.harness import wait_until
from tests.patience import PATIENCE
from tests.proxy.conftest import OwnProxy, threads, v2
from tests.proxy.test_v2 import refused

REPLAYED = "idempotency-replayed"
SHARDS = {
    "semel_rest_idempotency_partitions": "4",
    "semel_rest_idempotency_topic": "keys-in-4-partitions",
}


def body_of(*values: Any) -> bytes:
    return json.dumps({"records": [{"value": value} for value in values]}).encode()


def post(
    client: httpx.Client, topic: str, key: str, *values: Any, path: str = ""
) -> httpx.Response:
    headers = {"content-type": v2("json"), "idempotency-key": key}
    return client.post(f"/topics/{topic}{path}", content=body_of(*values), headers=headers)


def committed(servers: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """All values of a topic with one partition, up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "committed",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(PATIENCE)) is not None and message.error() is None:
        found.append(json.loads(message.value() or b"null"))
    consumer.close()
    return found


def test_a_repeated_request_gets_the_first_answer(
    own_proxy: OwnProxy, kafka: Kafka, topic: MakeTopic
) -> None:
    proxy, name = own_proxy(**SHARDS), topic()
    headers = {"content-type": v2("json"), "idempotency-key": "a"}
    first = post(proxy, name, "a", 1, 2)
    assert first.status_code == 200
    assert [each["offset"] for each in first.json()["offsets"]] == [0, 1]
    assert REPLAYED not in first.headers
    for _ in range(2):
        again = post(proxy, name, "a", 1, 2)
        assert (again.content, again.headers[REPLAYED]) == (first.content, "true")
        assert again.headers["content-type"] == first.headers["content-type"]
    assert post(proxy, name, "b", 1, 2).json() != first.json()
    for other in (
        post(proxy, name, "a", 1, 3),
        post(proxy, topic(), "a", 1, 2),
        post(proxy, name, "a", 1, 2, path="/partitions/0"),
        proxy.post(f"/topics/{name}", content=body_of(1, 2) + b" ", headers=headers),
    ):
        refused(other, 409, 40904)
    assert committed(kafka.bootstrap_servers, name) == [1, 2, 1, 2]
    for wrong in ("", "x" * 256, "\x7f"):
        refused(post(proxy, name, wrong, 1), 400, 400)


def test_a_key_is_forgotten_after_its_retention(
    own_proxy: OwnProxy, kafka: Kafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, name = own_proxy(**SHARDS), topic()
    assert post(proxy, name, f"key-{name}", 1).status_code == 200
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=time.sleep)
    clock.time = lambda: time.time() + 86_400
    monkeypatch.setattr(keyed, "time", clock)
    again = post(proxy, name, f"key-{name}", 1)
    assert (again.status_code, REPLAYED in again.headers) == (200, False)
    assert committed(kafka.bootstrap_servers, name) == [1, 1]


def test_another_proxy_gives_the_first_answer_too(
    own_proxy: OwnProxy, kafka: Kafka, topic: MakeTopic
) -> None:
    one, two, name = own_proxy(**SHARDS), own_proxy(**SHARDS), topic()
    for number in range(6):  # each takes the keys over from the other
        first = post(one, name, f"key-{number}", number)
        again = post(two, name, f"key-{number}", number)
        assert (again.status_code, again.content) == (200, first.content), again.text
        assert again.headers[REPLAYED] == "true"
        refused(post(one, name, f"key-{number}", -1), 409, 40904)
    assert committed(kafka.bootstrap_servers, name) == [*range(6)]


def test_two_proxies_write_one_request_once(
    own_proxy: OwnProxy, kafka: Kafka, topic: MakeTopic
) -> None:
    proxies, name = (own_proxy(**SHARDS), own_proxy(**SHARDS)), topic()
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(post, proxies[turn % 2], name, f"k{number}", number)
            for number in range(10)
            for turn in range(4)
        ]
        answers = [each.result() for each in asked]
    assert {each.status_code for each in answers} == {200}
    assert len({each.content for each in answers}) == 10
    assert sorted(committed(kafka.bootstrap_servers, name)) == [*range(10)]


def test_a_request_is_written_whole_or_not_at_all(
    own_proxy: OwnProxy, kafka: Kafka, topic: MakeTopic
) -> None:
    proxy, name = own_proxy(**SHARDS), topic(config={"max.message.bytes": "1000"})
    refused(post(proxy, name, "large", 1, "x" * 2000, 3), 413, 413)
    with ThreadPoolExecutor(8) as pool:  # others share its transaction
        asked = [pool.submit(post, proxy, name, f"{n}", n) for n in range(20)]
        wrong = [pool.submit(post, proxy, name, f"w{n}", "x" * 2000) for n in range(5)]
    assert {each.result().status_code for each in asked} == {200}
    assert {each.result().status_code for each in wrong} == {413}
    assert sorted(committed(kafka.bootstrap_servers, name)) == [*range(20)]
    refused(post(proxy, "no-such-topic", "a", 1), 404, 40401)
    assert post(proxy, name, "large", 1).status_code == 200


def test_v3_takes_keys_too(own_proxy: OwnProxy, kafka: Kafka, topic: MakeTopic) -> None:
    proxy, name = own_proxy(**SHARDS), topic()
    cluster = proxy.get("/v3/clusters").json()["data"][0]["cluster_id"]
    path = f"/v3/clusters/{cluster}/topics/{name}/records"
    value = {"value": {"type": "JSON", "data": 1}}
    for where, body, status in (
        (path, value, 200),
        (f"{path}:batch", {"entries": [{"id": "1", **value}]}, 207),
    ):
        headers = {"idempotency-key": where[-8:]}
        first, again = (proxy.post(where, json=body, headers=headers) for _ in range(2))
        assert (first.status_code, again.content) == (status, first.content), first.text
        assert again.headers[REPLAYED] == "true"
    bad = {"id": "2", "value": {"type": "BINARY", "data": "="}}
    whole = {"entries": [{"id": "1", **value}, bad]}
    answer = proxy.post(f"{path}:batch", json=whole, headers={"idempotency-key": "whole"})
    assert "Nothing was written" in refused(answer, 400, 400)
    headers = {"idempotency-key": "s", "content-type": "application/json"}
    refused(proxy.post(path, content=iter([b"{}"]), headers=headers), 422, 42206)
    assert committed(kafka.bootstrap_servers, name) == [1, 1]


def test_the_topic_of_the_keys_must_keep_them(
    own_proxy: OwnProxy, kafka: Kafka, topic: MakeTopic
) -> None:
    name = topic()
    short = topic(4, {"cleanup.policy": "compact,delete", "retention.ms": "1000"})
    other = topic(3, {"cleanup.policy": "compact"})
    for keys, why in ((short, "retention.ms"), (other, "3 partitions")):
        proxy = own_proxy(**SHARDS | {"semel_rest_idempotency_topic": keys})
        assert why in refused(post(proxy, name, "a", 1), 503, 50303)
    proxy = own_proxy(**SHARDS | {"semel_rest_idempotency_topic": f"{name}-keys"})
    assert post(proxy, name, "a", 1).status_code == 200
    config = Cluster({"bootstrap.servers": kafka.bootstrap_servers}).topic_config(f"{name}-keys")
    assert config is not None
    assert (config["cleanup.policy"], config["retention.ms"]) == ("compact,delete", "86400000")


class Server:
    """``semel rest`` in a process of its own, which can be killed and started again."""

    def __init__(self, directory: Path, servers: str, keys_topic: str) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        self.file = directory / "rest.properties"
        self.file.write_text(
            f"bootstrap.servers={servers}\n"
            f"listeners={self.url}\n"
            f"semel.rest.idempotency.topic={keys_topic}\n"
            "semel.rest.authentication=none\n"
            "semel.rest.idempotency.partitions=2\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {**os.environ, failpoints.DIRECTORY: str(self.directory)}
        command = [sys.executable, "-m", "semel", "rest", str(self.file)]
        self.process = subprocess.Popen(command, env=environment)
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None
        with suppress(OSError):
            socket.create_connection((LOOPBACK, self.port), 1).close()
            return True
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def wait_killed(self) -> None:
        assert self.process is not None
        assert self.process.wait(PATIENCE) == -signal.SIGKILL


@contextmanager
def server(directory: Path, servers: str, keys_topic: str = "keys") -> Iterator[Server]:
    made = Server(directory, servers, keys_topic)
    made.start()
    try:
        yield made
    finally:
        made.kill()


def stubborn(url: str, topic: str, key: str, *values: Any) -> httpx.Response:
    """A client that repeats its request until it is answered."""
    until = time.monotonic() + PATIENCE
    while True:
        with suppress(httpx.HTTPError), httpx.Client(base_url=url, timeout=60) as client:
            answer = post(client, topic, key, *values)
            if answer.status_code < 500:
                return answer
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize("rounds", [1, 10])
def test_faults_lose_and_double_nothing(tmp_path: Path, rounds: int) -> None:
    """The proxy is killed before and after its transaction, connections are cut before the answer,
    and brokers are killed: one of three at a time, because a broker that is alone may lose the end
    of a transaction (docs/kafka.md)."""
    name = f"drill-{uuid.uuid4().hex[:6]}"
    faults = [
        *("sink.before_commit", "sink.after_commit", "source.after_records"),
        *("cut", "broker", "sink.after_commit", "cut"),
        *("sink.before_commit", "server", "broker"),
    ]
    sent: list[int] = []
    stop = threading.Event()
    with (
        Kafka(tmp_path / "kafka", heap="256m", brokers=3, session=2) as kafka,
        server(tmp_path, kafka.bootstrap_servers) as proxy,
        ThreadPoolExecutor(3) as pool,
    ):
        kafka.create_topic(name, 1)
        brokers = cycle(kafka.others)
        url = proxy.url

        def write(first: int) -> None:
            number = first
            while not stop.is_set():
                assert stubborn(url, name, f"key-{number}", number, -number).status_code == 200
                sent.append(number)
                number += 3

        writers = [pool.submit(write, first) for first in (1, 2, 3)]
        try:
            for fault in faults * rounds:
                before = len(sent)
                wait_until(lambda before=before: len(sent) > before + 3)
                if fault.startswith(("sink.", "source.")):
                    failpoints.arm(tmp_path, fault, "kill-worker")
                    proxy.wait_killed()
                    proxy.start()
                elif fault == "server":
                    proxy.kill()
                    proxy.start()
                elif fault == "broker":
                    broker = next(brokers)
                    broker.kill()
                    broker.start()
                else:
                    cut = 1_000_000 + len(sent)
                    _cut(proxy.port, name, f"key-{cut}", cut, -cut)
                    assert stubborn(url, name, f"key-{cut}", cut, -cut).status_code == 200
                    sent.append(cut)
            before = len(sent)
            wait_until(lambda: len(sent) > before + 3)
        finally:
            stop.set()
        for each in writers:
            each.result(PATIENCE)
        found = committed(kafka.bootstrap_servers, name)
    wanted = [value for number in sorted(sent) for value in (-number, number)]
    assert sorted(found) == sorted(wanted)
    place = {value: at for at, value in enumerate(found)}
    assert all(place[number] < place[-number] for number in sent)


@pytest.mark.parametrize(
    "place",
    [
        "source.after_records",
        pytest.param("sink.before_commit", marks=pytest.mark.long),
        pytest.param("sink.after_commit", marks=pytest.mark.long),
    ],
)
def test_a_proxy_that_was_frozen_writes_nothing_a_second_time(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path, place: str
) -> None:
    """Another proxy carries the request out meanwhile."""
    name, servers, keys = topic(), kafka.bootstrap_servers, f"keys-{uuid.uuid4().hex[:6]}"
    with (
        server(tmp_path / "one", servers, keys) as frozen,
        server(tmp_path / "two", servers, keys) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        failpoints.arm(frozen.directory, place, "freeze")
        pending = pool.submit(stubborn, frozen.url, name, "a", 1, 2)
        wait_until(lambda: bool(failpoints.fired(frozen.directory)))
        first = stubborn(other.url, name, "a", 1, 2)
        assert first.status_code == 200
        assert frozen.process is not None
        failpoints.thaw(frozen.directory, frozen.process.pid)
        for answer in (pending.result(PATIENCE), stubborn(frozen.url, name, "a", 1, 2)):
            assert (answer.status_code, answer.content) == (200, first.content)
        refused(stubborn(frozen.url, name, "a", 3), 409, 40904)
    assert committed(servers, name) == [1, 2]


def _cut(port: int, topic: str, key: str, *values: Any) -> None:
    """Send a request whose answer nobody waits for."""
    body = body_of(*values)
    head = (
        f"POST /topics/{topic} HTTP/1.1\r\nhost: {LOOPBACK}\r\nidempotency-key: {key}\r\n"
        f"content-type: {v2('json')}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((LOOPBACK, port)) as cut:
        cut.sendall(head.encode() + body)


def records(client: httpx.Client, topic: str, accept: str = "", **query: Any) -> httpx.Response:
    path = f"/topics/{topic}/partitions/0/records"
    return client.get(path, params=query, headers={"accept": accept or v2("json")})


def test_reads_need_no_consumer(proxy: httpx.Client, topic: MakeTopic, produce: Produce) -> None:
    name = topic()
    empty = records(proxy, name)
    assert empty.json() == {"records": [], "next_offset": 0, "leader_epoch": None, "is_end": True}
    produce(name, ["1", "{", "3"], keys=["a", '"k"', None], headers=[[("h", b"\1")], None, None])
    found = records(proxy, name, offset=1, max_records=1).json()
    assert (found["next_offset"], found["leader_epoch"], found["is_end"]) == (2, 0, False)
    (bad,) = found["records"]
    assert (bad["key"], bad["value"], "not json" in bad["error"]) == ("k", None, True)
    found = records(proxy, name, offset=2, leader_epoch=0).json()
    assert [(r["offset"], r["value"]) for r in found["records"]] == [(2, 3)]
    assert (found["next_offset"], found["is_end"]) == (3, True)
    first = records(proxy, name, "application/json").json()["records"][0]
    assert (first["value"], first["headers"]) == ("MQ==", [{"name": "h", "value": "AQ=="}])
    assert records(proxy, name, offset="latest").json()["next_offset"] == 3
    refused(records(proxy, name, offset=9), 416, 41601)
    for query in ({"offset": "x"}, {"offset": -1}, {"isolation": "x"}, {"format": "xml"}):
        refused(records(proxy, name, "application/json", **query), 400, 400)
    refused(records(proxy, name, "text/html"), 406, 406)
    refused(records(proxy, "no-such-topic"), 404, 40401)


def test_a_reader_that_nobody_uses_gives_its_memory_back(
    own_proxy: OwnProxy, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_IDLE", 0.5)
    proxy, name = own_proxy(), topic()
    proxy.get(f"/topics/{name}")
    before = threads()
    assert records(proxy, name).status_code == 200
    assert threads() > before
    wait_until(lambda: threads() <= before)


def test_reads_see_no_aborted_record(
    proxy: httpx.Client, kafka: Kafka, topic: MakeTopic, produce: Produce
) -> None:
    from confluent_kafka import Producer

    name = topic()
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": uuid.uuid4().hex}
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b"1")
    producer.flush()
    assert records(proxy, name).json()["next_offset"] == 0
    open_ = records(proxy, name, isolation="read_uncommitted").json()
    assert [each["value"] for each in open_["records"]] == [1]
    producer.abort_transaction()
    produce(name, ["2"])
    found = records(proxy, name).json()
    assert [each["value"] for each in found["records"]] == [2]


@pytest.mark.parametrize("kind", ["application/x-ndjson", "text/event-stream"])
def test_records_are_followed(
    proxy: httpx.Client, topic: MakeTopic, produce: Produce, kind: str
) -> None:
    name = topic(values=["1", "2"])
    path, query = f"/topics/{name}/partitions/0/records", {"format": "json"}
    seen: list[Any] = []
    with proxy.stream("GET", path, params=query, headers={"accept": kind}) as answer:
        assert answer.headers["content-type"].startswith(kind)
        for line in answer.iter_lines():
            if line.startswith(("{", "data: ")):
                seen.append(json.loads(line.removeprefix("data: "))["value"])
                if len(seen) == 2:
                    produce(name, ["3"])
            if len(seen) == 3:
                break
    assert seen == [1, 2, 3]
    query["follow"] = "false"
    headers = {"accept": kind, "last-event-id": "1"}
    text = proxy.get(path, params=query, headers=headers).text
    assert text.count('"value":3') == text.count('"value"') == 1
    assert kind != "text/event-stream" or text.startswith("id: 2\ndata: {")


@pytest.mark.parametrize(
    "value", [None, b"", b"\xff", b"1", b"{}", b'{"request": "a", "answer": 1, "type": "b"}']
)
def test_what_no_proxy_has_written_to_the_keys_is_passed_over(value: bytes | None) -> None:
    shard = object.__new__(keyed._Shard)
    shard._place, shard._known = keyed.TopicPartition("keys", 0), {}
    facts = {"key": b"k", "value": value, "timestamp": (1, 5), "offset": 0}
    shard._learn(Mock(**{name: Mock(return_value=fact) for name, fact in facts.items()}))
    assert shard._known == {}
