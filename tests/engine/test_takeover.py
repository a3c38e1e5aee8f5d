"""Source connectors that Kafka Connect 4.3.1 has run continue here, and the other way round."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semel.core.ledger import TopicPartition
from semel.kafka.cluster import Cluster
from semel_lab.embedded import Kafka
from semel_lab.embedded.connect import ConnectorFailed, ConnectWorker, DistributedConnect
from tests.conftest import MakeTopic
from tests.engine.conftest import Config, Start
from tests.engine.harness import name, wait_until
from tests.sinks.kafka.copying import consume

pytestmark = [pytest.mark.integration, pytest.mark.long]

_LINES = 20_000
_MORE = 500


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lines.txt"


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def exactly_once(request: pytest.FixtureRequest) -> bool:
    """The worker's exactly.once.source.support."""
    return bool(request.param)


@pytest.fixture
def connect(tmp_path: Path, kafka: Kafka, exactly_once: bool) -> Iterator[DistributedConnect]:
    worker = DistributedConnect(
        tmp_path / "connect",
        kafka.bootstrap_servers,
        f"connect-{uuid.uuid4().hex[:8]}",
        exactly_once=exactly_once,
    )
    try:
        yield worker.start()
    finally:
        worker.kill()


@pytest.fixture
def config(connect: DistributedConnect, path: Path, topic: MakeTopic) -> Config:
    """A connector as Kafka Connect takes it."""
    return {
        "name": name(),
        "connector.class": "FileStreamSource",
        "tasks.max": "1",
        "file": str(path),
        "topic": topic(partitions=1),
        "batch.size": "100",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    }


@pytest.fixture
def ours(kafka: Kafka, connect: DistributedConnect, config: Config) -> Config:
    """The same connector here, with what Kafka Connect's worker knows."""
    return {
        **config,
        "bootstrap.servers": kafka.bootstrap_servers,
        "offset.storage.topic": connect.offsets_topic,
        "group.id": connect.group,
    }


@pytest.fixture
def write(path: Path) -> Callable[[int], list[str]]:
    """Appends so many lines to the file, and returns all that are in it."""

    def append(count: int) -> list[str]:
        first = len(path.read_text().splitlines()) if path.exists() else 0
        with path.open("a") as file:
            file.write("".join(f"line {n} of the file\n" for n in range(first, first + count)))
        return path.read_text().splitlines()

    return append


def seen(config: Config) -> list[str]:
    """What a read_committed consumer sees."""
    records = consume(config["bootstrap.servers"], config["topic"])
    return [(record.value or b"").decode() for record in records]


def begin(connect: DistributedConnect, config: Config) -> None:
    """Let Kafka Connect run the connector."""
    connect.create(config["name"], config)
    wait_until(lambda: connect.check(config["name"]))


def stop_connector(connect: DistributedConnect, config: Config) -> None:
    connect.stop_connector(config["name"])
    wait_until(lambda: not connect.has_tasks(config["name"]))


def test_a_stopped_connector_continues_here_and_then_in_kafka_connect_again(
    connect: DistributedConnect,
    config: Config,
    ours: Config,
    write: Callable[[int], list[str]],
    start: Start,
) -> None:
    written = write(_LINES)
    begin(connect, config)
    wait_until(lambda: len(seen(ours)) >= _LINES)
    stop_connector(connect, config)
    written = write(_MORE)
    assert start(ours, until_caught_up=True).wait().records == _MORE
    assert seen(ours) == written
    written = write(_MORE)
    connect.resume_connector(config["name"])
    wait_until(lambda: len(seen(ours)) >= len(written))
    stop_connector(connect, config)
    assert seen(ours) == written
    [found] = connect.offsets(config["name"])
    size = Path(config["file"]).stat().st_size
    assert found == {"partition": {"filename": config["file"]}, "offset": {"position": size}}


def test_semel_and_a_standalone_worker_continue_from_each_others_offsets_file(
    tmp_path: Path,
    kafka: Kafka,
    path: Path,
    topic: MakeTopic,
    write: Callable[[int], list[str]],
    start: Start,
) -> None:
    written = write(_LINES)
    config = {
        "name": name(),
        "connector.class": "FileStreamSource",
        "tasks.max": "1",
        "file": str(path),
        "topic": topic(partitions=1),
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    }
    folder = tmp_path / "standalone"
    ours = {
        **config,
        "bootstrap.servers": kafka.bootstrap_servers,
        "offset.storage.file.filename": str(folder / "offsets"),
    }
    worker = ConnectWorker(folder, kafka.bootstrap_servers, plugin=None)
    try:
        for _ in range(2):
            worker.start()
            worker.create(config["name"], config)
            wait_until(lambda: len(seen(ours)) >= len(path.read_text().splitlines()))
            worker.stop()
            assert seen(ours) == written
            written = write(_MORE)
            assert start(ours, until_caught_up=True).wait().records == _MORE
            assert seen(ours) == written
            written = write(_MORE)
    finally:
        worker.kill()


@pytest.mark.parametrize("exactly_once", [True], indirect=True)
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "running"])
def test_a_connector_is_taken_over_in_the_middle_of_a_file(
    killed: bool,
    connect: DistributedConnect,
    config: Config,
    ours: Config,
    write: Callable[[int], list[str]],
    start: Start,
) -> None:
    """Kafka Connect is killed while it commits, or lives on and is fenced."""
    written = write(10 * _LINES)
    begin(connect, config)
    partition = TopicPartition(config["topic"], 0)
    cluster = Cluster({"bootstrap.servers": ours["bootstrap.servers"]})
    wait_until(lambda: cluster.latest([partition])[partition] > 0)
    if killed:
        connect.kill()
    assert start(ours, until_caught_up=True).wait().records > 0
    if not killed:
        # If it is fenced between its last record and its commit, no transaction is open any more.
        fenced = r"Fenced|InvalidProducerEpoch|InvalidTxnState"
        with pytest.raises(ConnectorFailed, match=fenced):
            wait_until(lambda: not connect.check(config["name"]))
    assert seen(ours) == written
