"""Source connectors end to end: nothing lost and nothing twice for a read_committed consumer."""

from __future__ import annotations

import json
import re
import threading
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from semel.audit import audit_source
from semel.audit.source import TopicAudit, _Auditor
from semel.cli.commands import app
from semel.config import SourceConnectorConfig
from semel.core import failpoints
from semel.core.errors import (
    BadRecord,
    ConfigError,
    Fenced,
    LedgerConflict,
    NothingToAudit,
    ServiceError,
    TransientError,
)
from semel.driver import run as runs
from semel.driver import source as engine
from semel.driver.base import RunControl, State, TaskAssignment
from semel.driver.planning import SourcePlan, plan_source
from semel.driver.runtime import Runtime
from semel.driver.source import SourceEngine, SourceRun
from semel.kafka import transactions
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.transactions import Transactions
from semel.sources.offsets import Owner, SourceOffsets, StoredOffsets, own
from semel.sources.offsets import producer as owner_producer
from semel.sources.offsets.outside import parsed, serialized
from semel.tasks.control import Address
from semel.tasks.source.task import SourceSpec
from semel.tasks.source.topics import Topics
from semel_lab.embedded import Kafka, Postgres
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Start
from tests.engine.harness import (
    LocalSpark,
    Running,
    drive,
    name,
    no_transaction_is_open,
    sql,
    wait_until,
)
from tests.patience import PATIENCE
from tests.sinks.kafka.copying import consume

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "semel-folder"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lines.txt"


@pytest.fixture(scope="module")
def offsets_topic() -> str:
    return f"connect-offsets-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def source(kafka: Kafka, path: Path, topic: MakeTopic, offsets_topic: str) -> Configure:
    """A connector from the test's file to a topic of its own, with keys of the test's own."""

    def make(**keys: str) -> Config:
        config = {
            "name": name(),
            "connector.class": "FileStreamSource",
            "file": str(path),
            "topic": keys.get("topic") or topic(),
            "bootstrap.servers": kafka.bootstrap_servers,
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offsets.storage.topic": offsets_topic,
            "offset.storage.partitions": "3",
            "batch.size": "10",
            "retry.backoff.ms": "100",
        }
        return config | {k.replace("_", "."): v for k, v in keys.items()}

    return make


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the source of docs/write-a-source.md, which is found by its entry point."""
    site = tmp_path / "site"
    info = site / "semel_folder-1.0.0.dist-info"
    info.mkdir(parents=True)
    found = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: semel-folder\nVersion: 1.0.0\n")
    entry = found["entry-points"]["semel.sources"]["folder"]
    (info / "entry_points.txt").write_text(f"[semel.sources]\nfolder = {entry}\n")
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.syspath_prepend(str(site))
    made = tmp_path / "folder"
    made.mkdir()
    return made


@pytest.fixture
def ask_offsets(written: Callable[[Config], Path]) -> Callable[..., Any]:
    """Runs ``semel offsets``, and gives what it prints as JSON."""

    def ask(config: Config, command: str, *more: str) -> Any:
        arguments = ["offsets", command, str(written(config)), *more, "--json"]
        told = CliRunner().invoke(app, arguments)
        assert told.exit_code == 0, told.output
        return json.loads(told.stdout)

    return ask


def grow_until_it_stops(path: Path, running: Running) -> None:
    """Append lines until the run ends, and raise why. A replaced run finds out when it commits."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        append(path, lines(1, len(path.read_text().splitlines())))
        running._thread.join(0.2)
        if not running.alive:
            running.wait()


def lines(count: int, start: int = 0) -> list[str]:
    return [f"line {n}" for n in range(start, start + count)]


def append(path: Path, new: list[str]) -> None:
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in new))


def seen(config: Config) -> list[str]:
    """What a read_committed consumer sees."""
    records = consume(config["bootstrap.servers"], config["topic"])
    return [(record.value or b"").decode() for record in records]


def stored(config: Config) -> StoredOffsets:
    connector = plan_source(config).connector
    return SourceOffsets(connector, Cluster(client_config(connector, "admin"))).read()


def test_lines_are_written_once_and_reading_goes_on_after_a_restart(
    path: Path, source: Configure, start: Start
) -> None:
    config = source()
    append(path, lines(25))
    assert start(config, until_caught_up=True).wait().records == 25
    offset = stored(config).offset({"filename": str(path)})
    assert offset is not None
    assert offset["position"] == path.stat().st_size
    append(path, lines(5, 25))
    running = start(config)
    running.until(lambda p: p.records == 5)
    append(path, lines(5, 30))
    running.stop_when(lambda p: p.records == 10)
    assert seen(config) == lines(35)


@pytest.mark.parametrize(
    "place",
    [
        "sink.before_commit",
        pytest.param("sink.after_commit", marks=pytest.mark.long),
        pytest.param("task.after_convert", marks=pytest.mark.long),
        pytest.param("sink.after_positions", marks=pytest.mark.long),
    ],
)
def test_a_task_that_is_killed_anywhere_loses_and_repeats_nothing(
    place: str, path: Path, points: Path, source: Configure, start: Start
) -> None:
    config = source()
    append(path, lines(60))
    failpoints.arm(points, place, "kill-worker", 2)
    running = start(config, spark=LocalSpark(points), until_caught_up=True)
    running.wait()
    assert failpoints.fired(points)
    assert seen(config) == lines(60)


@pytest.mark.long
def test_a_driver_that_is_killed_between_records_and_commit_repeats_nothing(
    path: Path, points: Path, source: Configure, start: Start
) -> None:
    config = source()
    append(path, lines(60))
    failpoints.arm(points, "sink.before_commit", "kill-driver", 2)
    assert drive(config, points) == -9
    assert start(config, until_caught_up=True).wait().records == 40
    assert seen(config) == lines(60)


def test_a_frozen_task_that_was_replaced_cannot_commit(
    path: Path, points: Path, source: Configure, start: Start
) -> None:
    config = source()
    append(path, lines(60))
    failpoints.arm(points, "sink.before_commit", "freeze", 2)
    running = start(config, spark=LocalSpark(points))
    wait_until(lambda: bool(failpoints.fired(points)))
    frozen = running.spark.replace(0)
    running.until(lambda p: p.records >= 40)
    failpoints.thaw(points, frozen)
    append(path, lines(10, 60))
    wait_until(lambda: len(seen(config)) >= 70)
    running.stop()
    assert seen(config) == lines(70)


@pytest.mark.parametrize("group", [pytest.param("", marks=pytest.mark.long), "another-cluster"])
def test_the_later_of_two_simultaneous_runs_continues(
    group: str, path: Path, source: Configure, start: Start
) -> None:
    """Also where the later one has another group.id, and its producers other transactional ids."""
    config = source()
    append(path, lines(10))
    first = start(config)
    first.until(lambda p: p.records == 10)
    second = start(config | {"group.id": group} if group else config)
    with pytest.raises(Fenced, match="another run of it has taken over"):
        grow_until_it_stops(path, first)
    written = path.read_text().splitlines()
    wait_until(lambda: len(seen(config)) >= len(written))
    second.stop()
    assert seen(config) == written


@pytest.mark.long
def test_in_a_cluster_a_source_begins_again_after_a_fence(
    path: Path, source: Configure, start: Start
) -> None:
    """It may come from an older process on a worker that was cut off and will be told to stop."""
    config = source()
    append(path, lines(5))
    with Runtime(LocalSpark()) as runtime:  # type: ignore[arg-type]
        connector = runtime.start(config, moves=True)
        wait_until(lambda: len(seen(config)) == 5)
        older = start(config)
        with pytest.raises(Fenced, match="another run of it has taken over"):
            grow_until_it_stops(path, older)
        assert connector.tally.fences > 0
        written = path.read_text().splitlines()
        wait_until(lambda: len(seen(config)) >= len(written))
        assert connector.error is None
    assert seen(config) == written


@pytest.mark.long
def test_in_a_cluster_another_worker_may_be_given_tasks_of_a_source_that_runs(
    tmp_path: Path, source: Configure
) -> None:
    """A worker may see a new configuration before it sees that the tasks are divided again."""
    config = source(file="", file_pattern=str(tmp_path / "*.log"), tasks_max="2")
    written = [f"{name} {n}" for name in "ab" for n in range(6)]

    def write(some: Sequence[str]) -> None:
        for line in some:
            append(tmp_path / f"{line[0]}.log", [line])

    write(written[::2])
    with (
        Runtime(LocalSpark()) as here,  # type: ignore[arg-type]
        Runtime(LocalSpark()) as there,  # type: ignore[arg-type]
    ):
        first = here.start(config, moves=True)
        wait_until(lambda: len(seen(config)) == 6)
        first.assign({0})
        there.start(config, tasks={1}, moves=True)
        write(written[1::2])
        wait_until(lambda: len(seen(config)) >= 12)
    assert sorted(seen(config)) == written


def test_a_run_that_is_stopped_before_it_takes_over_fences_nobody(source: Configure) -> None:
    planned = plan_source(source())
    orders = RunControl()
    orders.stop.set()
    runs.drive(planned, lambda: None, None, orders)
    assert stored(dict(planned.connector.originals)).owner == Owner()


OffsetsOf = Callable[[SourceConnectorConfig], SourceOffsets]


@pytest.fixture
def offsets_of() -> Iterator[OffsetsOf]:
    """A connector's offsets, ready to be read."""
    made: list[SourceOffsets] = []

    def make(connector: SourceConnectorConfig) -> SourceOffsets:
        made.append(SourceOffsets(connector, Cluster(client_config(connector, "admin"))))
        made[-1].prepare()
        return made[-1]

    yield make
    for each in made:
        each.close()


def opened(connector: SourceConnectorConfig, task: int) -> Transactions:
    """A producer with the place of a task."""
    producer = Transactions(f"connector {connector.name}", client_config(connector, "producer"))
    producer.open(connector.transactional_id(task))
    return producer


def is_fenced(producer: Transactions, topic: str) -> bool:
    try:
        producer.run(lambda p, _failed: p.produce(topic, b"late"), [], None)
    except LedgerConflict:
        return True
    return False


@pytest.mark.long
def test_brokers_that_go_away_before_the_source_is_owned_are_waited_for(
    path: Path,
    source: Configure,
    own_kafka: Callable[[], Kafka],
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They answered when the source was divided."""
    kafka = own_kafka()
    kafka.create_topic("lines")
    path.write_text("one\ntwo\n")
    attempts: list[Owner] = []

    def owns(*arguments: Any, **keys: Any) -> Owner:
        if not attempts:
            attempts.append(Owner())
            kafka.stop()
        attempts.append(own(*arguments, **keys))
        return attempts[-1]

    monkeypatch.setattr(engine, "own", owns)
    config = source(topic="lines") | {"bootstrap.servers": kafka.bootstrap_servers}
    running = start(config, until_caught_up=True)
    running.until(lambda _: "trying again (1 of" in caplog.text or "waiting for it" in caplog.text)
    kafka.start()
    assert running.wait().records == 2
    assert len(attempts) == 2
    assert len(consume(kafka.bootstrap_servers, "lines")) == 2


@pytest.mark.long
def test_fewer_tasks_than_before_fence_those_beyond(
    source: Configure, offsets_of: OffsetsOf
) -> None:
    """A task that lives on from a run with more tasks cannot commit what it holds."""
    connector = plan_source(source()).connector
    offsets = offsets_of(connector)
    assert own(connector, offsets, [()] * 3, fences=True).tasks == 3
    producer = opened(connector, 2)
    found = own(connector, offsets, [()], fences=True)
    assert offsets.read().owner == found == Owner(found.run, 1)
    with pytest.raises(LedgerConflict, match="Does another run"):
        producer.run(lambda p, _failed: p.produce(connector.originals["topic"], b"late"), [], None)
    assert seen(dict(connector.originals)) == []


@pytest.mark.long
def test_a_run_with_another_group_id_fences_the_former_ones_even_after_a_crash(
    source: Configure, offsets_of: OffsetsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = source()
    first, second, third = (
        plan_source(config | {"group.id": group}).connector for group in ("a", "b", "c")
    )
    offsets = offsets_of(first)
    own(first, offsets, [()] * 2, fences=True)
    producer = opened(first, 1)

    def crash(self: Transactions, transactional_id: str) -> None:
        if transactional_id.startswith("a-"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Transactions, "fence", crash)
        with pytest.raises(KeyboardInterrupt):
            own(second, offsets, [()], fences=True)
    assert offsets.owner().groups == ("b", "a")
    own(second, offsets, [()], fences=False)  # at-least-once: fences nobody, and forgets nobody
    own(third, offsets, [()], fences=True)
    assert is_fenced(producer, config["topic"])
    assert offsets.read().owner.groups == ("c",)


def test_a_former_group_id_whose_producers_may_not_be_fenced_is_named(
    source: Configure, offsets_of: OffsetsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, later = (
        plan_source(source(name="moved", group_id=group)).connector for group in ("a", "b")
    )
    own(former, offsets_of(former), [()], fences=True)

    def refuse(self: Transactions, transactional_id: str) -> None:
        if transactional_id.startswith("a-"):
            raise ServiceError(f"Grant DESCRIBE and WRITE on {transactional_id}")

    monkeypatch.setattr(Transactions, "fence", refuse)
    with pytest.raises(ServiceError, match=r"Grant .* on a-moved-0\. .*earlier run.*group\.id=a"):
        own(later, offsets_of(later), [()], fences=True)


@pytest.mark.long
def test_a_start_with_a_group_id_that_this_user_may_not_use_leaves_no_trace(
    source: Configure, offsets_of: OffsetsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the right one would have to fence its producers, which this user may not either."""
    config = source()
    right, wrong = (plan_source(config | {"group.id": group}).connector for group in ("a", "b"))
    offsets = offsets_of(right)
    before = own(right, offsets, [()], fences=True)
    fence = Transactions.fence

    def refuse(self: Transactions, transactional_id: str) -> None:
        if transactional_id.startswith("b-"):
            raise ServiceError(f"Grant DESCRIBE and WRITE on {transactional_id}")
        fence(self, transactional_id)

    monkeypatch.setattr(Transactions, "fence", refuse)
    with pytest.raises(ServiceError, match=r"Grant .* on b-"):
        own(wrong, offsets, [()], fences=True)
    assert offsets.owner() == before
    own(wrong, offsets, [()], fences=False)  # at-least-once: it has no transactional ids
    assert (offsets.owner().group, offsets.owner().groups) == ("b", ("a",))
    assert own(right, offsets, [()], fences=True).groups == ["a"]


def engine_of(planned: SourcePlan, orders: RunControl) -> SourceEngine:
    cluster = Cluster(client_config(planned.connector, "admin"))
    run = SourceRun(planned.connector, planned.guarantee, planned.source, cluster, orders)
    return SourceEngine(run, lambda: None)  # type: ignore[arg-type,return-value]


def test_a_worker_of_another_cluster_takes_over_what_was_divided_the_same_way(
    source: Configure, offsets_of: OffsetsOf
) -> None:
    """Its tasks have other transactional ids, so they do not fence the ones that read the same."""
    config = source()
    planned = [plan_source(config | {"group.id": group}) for group in ("a", "b")]
    first, second = (
        engine_of(each, RunControl(assignment=TaskAssignment([0]))) for each in planned
    )
    offsets_of(planned[0].connector)
    partitions = planned[0].source.partitions()
    former = first._divided(partitions, Owner(), Owner())
    assert former is not None
    assert first._divided(partitions, former, former) == former
    producer = opened(planned[0].connector, 0)
    assert second._divided(partitions, Owner(), Owner()) != former
    assert is_fenced(producer, config["topic"])
    with pytest.raises(Fenced, match="another run of it has taken over"):
        first._divided(partitions, former, former)
    with pytest.raises(Fenced, match="another run of it has taken over"):  # while no task commits
        first._divided([*partitions, {"filename": "new"}], Owner(), former)


def test_tasks_that_kafka_connect_may_have_had_are_fenced(
    source: Configure, offsets_of: OffsetsOf
) -> None:
    """It divides a source in another way, so it may have had more of them."""
    connector = plan_source(source(tasks_max="3")).connector
    producer = opened(connector, 2)
    own(connector, offsets_of(connector), [()], fences=True)
    assert is_fenced(producer, connector.originals["topic"])


@pytest.mark.long
def test_of_two_runs_that_begin_at_once_the_one_that_was_replaced_does_not_come_back(
    source: Configure, offsets_of: OffsetsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It notes that it has fenced all others; its tasks would then mistake it for the owner."""
    connector = plan_source(source(tasks_max="2")).connector
    own(connector, offsets_of(connector), [()], fences=True)
    fence, later = Transactions.fence, list[Owner]()

    def replaced(self: Transactions, transactional_id: str) -> None:
        monkeypatch.setattr(Transactions, "fence", fence)
        later.append(own(connector, offsets_of(connector), [()], fences=True))
        fence(self, transactional_id)

    monkeypatch.setattr(Transactions, "fence", replaced)
    monkeypatch.setattr("semel.sources.offsets._AT_ONCE", 1)
    offsets = offsets_of(connector)
    with pytest.raises(Fenced, match="another run of it has taken over"):
        own(connector, offsets, [()], fences=True)
    assert offsets.owner() == later[-1]


def test_the_owner_is_confirmed_by_all_replicas_whatever_the_producers_acks(
    source: Configure,
) -> None:
    """A record that a broker loses would let an earlier run continue."""
    given = {f"producer.override.{k}": v for k, v in (("acks", "1"), ("linger.ms", "7"))}
    producer = owner_producer(plan_source(source() | given).connector)
    assert "acks" not in producer._client
    assert (producer._client["enable.idempotence"], producer._client["linger.ms"]) == (True, "7")


def test_a_run_that_was_replaced_does_not_come_back_when_its_partitions_change(
    source: Configure, offsets_of: OffsetsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_STUCK", PATIENCE)  # a slow broker may take its time
    planned = plan_source(source())
    engine = engine_of(planned, RunControl())
    offsets_of(planned.connector)
    first = engine._own([], Owner())
    assert engine._own([], first).run != first.run
    with pytest.raises(Fenced, match="another run of it has taken over"):
        engine._own([], first)


def test_offsets_that_are_gone_while_a_run_lives_stop_it_and_it_says_what_a_start_would_repeat(
    kafka: Kafka, path: Path, source: Configure, topic: MakeTopic, start: Start
) -> None:
    """In a cluster, too, where a fence would only begin the run again."""
    mine = topic(config={"cleanup.policy": "compact"})
    config = source(offsets_storage_topic=mine)
    append(path, lines(5))
    with Runtime(LocalSpark()) as runtime:  # type: ignore[arg-type]
        connector = runtime.start(config, moves=True)
        wait_until(lambda: len(seen(config)) == 5)
        kafka.delete_topic(mine)
        kafka.create_topic(mine, config={"cleanup.policy": "compact"})
        connector.restart_task(0)
        wait_until(lambda: connector.status().tasks[0].state is State.FAILED)
        error = connector.status().tasks[0].trace
    assert "names no run any more" in error
    assert "from its beginning" in error
    assert "semel offsets set" in error
    assert seen(config) == lines(5)


@pytest.mark.long
def test_a_start_without_offsets_warns_of_records_that_are_in_its_topics_already(
    path: Path,
    source: Configure,
    topic: MakeTopic,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    ask_offsets: Callable[..., Any],
) -> None:
    renamed = {
        "transforms": "r",
        "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.r.regex": ".*",
        "transforms.r.replacement": topic(),
    }
    config = source() | renamed
    append(path, lines(5))
    start(config, until_caught_up=True).wait()
    start(config, until_caught_up=True).wait()
    assert "records are in topic" not in caplog.text
    other = config | {"name": name()}
    start(other, until_caught_up=True).wait()
    assert f"records are in topic {renamed['transforms.r.replacement']}:" in caplog.text
    assert "semel offsets set" in caplog.text
    caplog.clear()
    ask_offsets(config, "reset", "--yes")  # the user has said what is wanted
    start(config, until_caught_up=True).wait()
    assert "records are in topic" not in caplog.text


@pytest.mark.long
def test_a_transactional_id_that_expires_while_the_source_is_idle_changes_nothing(
    services_directory: Path, path: Path, source: Configure, start: Start
) -> None:
    """Brokers forget it after a week (transactional.id.expiration.ms)."""
    settings = {
        "transactional.id.expiration.ms": 1000,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 200,
    }
    directory = services_directory / f"kafka-{uuid.uuid4().hex[:8]}"
    with Kafka(directory, heap="256m", settings=settings, short_lived=True) as forgetful:
        forgetful.create_topic("lines", config={"retention.ms": "-1"})
        config = source(topic="lines", bootstrap_servers=forgetful.bootstrap_servers)
        connector = plan_source(config).connector
        mine = connector.transactional_id(0).encode()

        def is_forgotten() -> bool:
            known = consume(forgetful.bootstrap_servers, "__transaction_state")
            return [r.value for r in known if (r.key or b"").endswith(mine)][-1:] == [None]

        append(path, lines(5))
        running = start(config)
        running.until(lambda p: p.records == 5)
        for count in (10, 15):
            wait_until(is_forgotten)
            append(path, lines(5, count - 5))
            wait_until(lambda count=count: len(seen(config)) >= count)
        running.stop()
        assert seen(config) == lines(15)


def spec_of(planned: SourcePlan, owner: Owner) -> SourceSpec:
    """What the tasks of a run are started with."""
    return SourceSpec(
        connector=planned.connector,
        control=Address("nowhere", 0, b""),
        environment={},
        guarantee=planned.guarantee,
        owner=owner,
        parts=[planned.source.partitions()],
    )


def test_a_task_of_an_earlier_run_that_starts_again_finds_itself_replaced(
    source: Configure, path: Path
) -> None:
    """Spark may start it after the new run has fenced its place, and before the new task takes it:
    it would read a source partition that another task of the new run has by now."""
    planned = plan_source(source())
    append(path, lines(10))
    connector = planned.connector
    offsets = SourceOffsets(connector, Cluster(client_config(connector, "admin")))
    offsets.prepare()
    owner = own(connector, offsets, [()], fences=True)
    own(connector, offsets, [()] * 2, fences=True)
    spec = spec_of(planned, owner)
    line: Any = SimpleNamespace(
        stop=threading.Event(), paused=threading.Event(), send=lambda _report: None
    )
    with pytest.raises(Fenced, match="another run of it has taken over"):
        spec.task(0, 0, line).run()
    assert seen(dict(connector.originals)) == []


@pytest.mark.long
def test_partitions_are_read_side_by_side_and_divided_anew_when_there_are_more(
    folder: Path, source: Configure, start: Start
) -> None:
    """The source of docs/write-a-source.md: a file each, two tasks, and a third file later."""
    config = source(connector_class="folder", folder_path=str(folder), tasks_max="2")
    expected = {}
    for letter in "ab":
        expected[letter] = [f"{letter}{n}" for n in range(30)]
        append(folder / letter, expected[letter])
    running = start(config)
    running.until(lambda p: p.records == 60)
    assert set(running.progress.states) == {0, 1}
    expected["c"] = [f"c{n}" for n in range(30)]
    append(folder / "c", expected["c"])
    append(folder / "a", ["a30"])
    expected["a"].append("a30")
    running.stop_when(lambda p: p.records == 91)
    records = consume(config["bootstrap.servers"], config["topic"])
    by_key: dict[str, list[str]] = {}
    for record in records:
        by_key.setdefault((record.key or b"").decode(), []).append((record.value or b"").decode())
    assert by_key == expected


@pytest.mark.long
def test_files_that_appear_and_match_a_pattern_are_read(
    path: Path, source: Configure, start: Start
) -> None:
    config = source(file_pattern=f"{path.parent}/*.log", tasks_max="2")
    del config["file"]
    running = start(config)
    for n in range(3):
        append(path.with_name(f"{n}.log"), lines(5, 5 * n))
        wait_until(lambda n=n: len(seen(config)) == 5 * n + 5)
    running.stop()
    assert sorted(seen(config)) == sorted(lines(15))


@pytest.mark.long
def test_a_source_is_not_divided_again_while_kafka_does_not_answer(
    path: Path, source: Configure, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = source(file_pattern=f"{path.parent}/*.log")
    del config["file"]
    append(path.with_name("0.log"), lines(5))
    running = start(config)
    running.until(lambda p: p.records == 5)
    owner = SourceOffsets.owner
    asked: list[int] = []

    def unanswered(self: SourceOffsets) -> Owner:
        asked.append(len(asked))
        if len(asked) < 3:
            raise TransientError("no Kafka broker answers")
        return owner(self)

    monkeypatch.setattr(SourceOffsets, "owner", unanswered)
    append(path.with_name("1.log"), lines(5, 5))
    running.stop_when(lambda p: p.records == 10)
    assert len(asked) >= 3
    assert sorted(seen(config)) == sorted(lines(10))


def test_an_interval_commits_many_batches_at_once(
    path: Path, source: Configure, start: Start
) -> None:
    config = source(transaction_boundary="interval", transaction_boundary_interval_ms="60000")
    append(path, lines(95))
    progress = start(config, until_caught_up=True).wait()
    assert (progress.records, progress.commits) == (95, 1)
    assert seen(config) == lines(95)


LEDGERS = """
from dataclasses import replace

import semel_folder

semel_folder.MOST = 1  # one line a batch


class LedgerSource(semel_folder.FolderSource):
    defines_transactions = True

    def read(self, partition, offset):
        for batch in super().read(partition, offset):
            ends = batch is not None and batch.records[0].values[0].as_py() == "commit"
            yield batch and replace(batch, ends_transaction=ends)
"""


@pytest.mark.long
def test_a_source_may_say_where_its_transactions_end(
    folder: Path, source: Configure, start: Start
) -> None:
    """A transaction is neither divided nor committed before its end, and others wait for it."""
    site = folder.parent / "site"
    (site / "semel_ledgers.py").write_text(LEDGERS)
    entry_points = site / "semel_folder-1.0.0.dist-info" / "entry_points.txt"
    entry_points.write_text("[semel.sources]\nledgers = semel_ledgers:LedgerSource\n")
    config = source(
        connector_class="ledgers", folder_path=str(folder), transaction_boundary="connector"
    )
    append(folder / "a", ["a0", "a1", "commit", "a2"])
    append(folder / "b", ["b0", "commit"])
    assert start(config, until_caught_up=True).wait().commits == 1
    assert sorted(seen(config)) == ["a0", "a1", "b0", "commit", "commit"]
    assert stored(config).offset({"file": "a"}) == {"line": 3}
    append(folder / "a", ["commit"])
    assert start(config, until_caught_up=True).wait().commits == 1
    assert sorted(seen(config))[:4] == ["a0", "a1", "a2", "b0"]


def test_a_transaction_that_the_brokers_abort_again_and_again_is_not_called_another_run(
    source: Configure, path: Path
) -> None:
    planned = plan_source(source())
    connector = planned.connector
    offsets = SourceOffsets(connector, Cluster(client_config(connector, "admin")))
    offsets.prepare()
    line: Any = SimpleNamespace(
        stop=SimpleNamespace(wait=lambda _seconds: False), send=lambda _report: None
    )
    spec = spec_of(planned, own(connector, offsets, [()], fences=True))
    task = spec.task(0, 0, line)
    for _ in range(5):
        task._conflict(LedgerConflict("fenced"))
    with pytest.raises(ServiceError, match=r"no other run .* Raise producer\.override\.transact"):
        task._conflict(LedgerConflict("fenced"))


@pytest.mark.long
def test_at_least_once_repeats_after_a_crash_but_loses_nothing(
    path: Path, points: Path, source: Configure, start: Start
) -> None:
    config = source(delivery="at-least-once")
    append(path, lines(30))
    failpoints.arm(points, "deliver.between", "kill-worker", 1)
    start(config, spark=LocalSpark(points), until_caught_up=True).wait()
    found = seen(config)
    assert sorted(set(found)) == sorted(lines(30))
    assert len(found) == 40


@pytest.mark.long
def test_offsets_in_a_table_repeat_after_a_crash_but_lose_nothing(
    path: Path,
    points: Path,
    database: str,
    source: Configure,
    start: Start,
    ask_offsets: Callable[..., Any],
) -> None:
    config = {**source(), "offset.storage.jdbc.connection.url": database}
    append(path, lines(30))
    failpoints.arm(points, "deliver.between", "kill-worker", 1)
    start(config, spark=LocalSpark(points), until_caught_up=True).wait()
    found = seen(config)
    assert sorted(set(found)) == sorted(lines(30))
    assert len(found) == 40
    append(path, lines(5, 30))
    assert start(config, until_caught_up=True).wait().records == 5
    place = json.dumps({"filename": str(path)})
    ask_offsets(config, "set", f'{place}={{"position":63}}')
    (shown,) = ask_offsets(config, "show")
    assert shown["offset"] == {"position": 63}
    ask_offsets(config, "reset", "--yes")
    start(config, until_caught_up=True).wait()
    assert seen(config)[45:] == lines(35)


def refused(postgres: Postgres) -> int:
    """How often the server has refused to write."""
    log = (postgres.directory / Postgres.log_name).read_text(errors="replace")
    return log.count("in a read-only transaction")


@pytest.mark.long
def test_a_table_that_can_be_read_but_not_written_repeats_one_batch_and_no_more(
    path: Path,
    database: str,
    postgres: Postgres,
    source: Configure,
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a server that has become a standby: each attempt would send the same records again."""
    keys = {"offset.storage.jdbc.connection.url": database, "retry.backoff.ms": "10"}
    config = {**source(), **keys}
    append(path, lines(5))
    running = start(config)
    running.until(lambda p: p.records == 5)
    turned = f'ALTER DATABASE "{database.rpartition("/")[2]}" SET default_transaction_read_only = '
    sql(postgres.url, turned + "on")
    sql(
        postgres.url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE datname = '{database.rpartition('/')[2]}'",
    )
    append(path, lines(5, 5))
    wait_until(lambda: "read-only" in caplog.text)
    before = refused(postgres)
    wait_until(lambda: refused(postgres) >= before + 3)
    assert len(seen(config)) <= 15
    sql(postgres.url, turned + "off")
    wait_until(lambda: set(seen(config)) == set(lines(10)))
    running.stop()
    assert len(seen(config)) <= 15


@pytest.mark.long
def test_the_later_of_two_runs_with_offsets_in_a_table_continues(
    path: Path, database: str, source: Configure, start: Start
) -> None:
    config = {**source(), "offset.storage.jdbc.connection.url": database}
    append(path, lines(5))
    first = start(config)
    first.until(lambda p: p.records == 5)
    second = start(config)
    with pytest.raises(Fenced, match=r"another run of it has taken over, .*: offsets table"):
        grow_until_it_stops(path, first)
    written = path.read_text().splitlines()
    wait_until(lambda: set(seen(config)) == set(written))
    second.stop()


@pytest.mark.long
def test_a_source_continues_at_least_once_from_kafka_connects_offsets_file(
    path: Path, tmp_path: Path, source: Configure, start: Start, ask_offsets: Callable[..., Any]
) -> None:
    file = tmp_path / "connect.offsets"
    config = source(offset_storage_file_filename=str(file))
    append(path, lines(5))
    key = json.dumps([config["name"], {"filename": str(path)}], separators=(",", ":")).encode()
    other = (b'["other",{"filename":"f"}]', b'{"position":1}')
    file.write_bytes(serialized({key: b'{"position":14}', other[0]: other[1]}))
    start(config, until_caught_up=True).wait()
    assert seen(config) == lines(3, 2)
    append(path, lines(5, 5))
    assert start(config, until_caught_up=True).wait().records == 5
    assert seen(config) == lines(8, 2)
    held = parsed(file.read_bytes())
    assert json.loads(held[key])["position"] == path.stat().st_size
    assert held[other[0]] == other[1]
    place = json.dumps({"filename": str(path)})
    ask_offsets(config, "set", f'{place}={{"position":63}}')
    (shown,) = ask_offsets(config, "show")
    assert shown["offset"] == {"position": 63}
    start(config, until_caught_up=True).wait()
    assert seen(config) == [*lines(8, 2), "line 9"]


def test_a_topic_is_created_as_configured_and_never_by_accident(
    kafka: Kafka, path: Path, source: Configure, start: Start
) -> None:
    missing = f"missing-{uuid.uuid4().hex[:8]}"
    config = source(topic=missing)
    append(path, lines(3))
    with pytest.raises(ConfigError, match=rf"topic {missing} does not exist .*enable=false"):
        start({**config, "topic.creation.enable": "false"}).wait()
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap_servers})
    assert missing not in cluster.topics()
    creation = {
        "topic.creation.default.partitions": "2",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.retention.ms": "-1",
    }
    start({**config, **creation}, until_caught_up=True).wait()
    assert cluster.topics()[missing] == 2
    assert (cluster.topic_config(missing) or {})["retention.ms"] == "-1"
    assert sorted(seen(config)) == lines(3)


def test_a_missing_topic_is_not_created_where_the_brokers_create_none(
    kafka: Kafka, source: Configure
) -> None:
    missing = f"missing-{uuid.uuid4().hex[:8]}"
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap_servers})
    topics = Topics(plan_source(source(topic=missing)).connector, cluster)
    with pytest.raises(ConfigError, match=r"auto\.create\.topics\.enable=false\. Create it"):
        topics.ensure(missing)
    assert missing not in cluster.topics()


def test_a_line_that_the_topic_does_not_take_stops_the_connector(
    path: Path, source: Configure, topic: MakeTopic, start: Start, kafka: Kafka, offsets_topic: str
) -> None:
    config = source(topic=topic(config={"max.message.bytes": "2000"}))
    append(path, [*lines(10), "x" * 3000])
    with pytest.raises(
        BadRecord, match=r"has 3,000 bytes: is that more than max\.message\.bytes.* Is .* compacted"
    ):
        start(config).wait()
    assert seen(config) == lines(10)
    # Nobody has to wait until its transaction times out after a minute: other connectors share the
    # topic of offsets.
    places = [(config["topic"], 0), *((offsets_topic, partition) for partition in range(3))]
    wait_until(lambda: all(no_transaction_is_open(kafka, *place) for place in places), timeout=30)


@pytest.mark.long
def test_with_tolerance_a_record_that_a_transform_refuses_is_skipped_and_counted(
    path: Path,
    source: Configure,
    start: Start,
    written: Callable[[Config], Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    number = {
        "transforms": "number",
        "transforms.number.type": "org.apache.kafka.connect.transforms.Cast$Value",
        "transforms.number.spec": "int32",
    }
    config = {**source(batch_size="2"), **number}
    append(path, ["1", "2", "three", "four", "5"])
    with pytest.raises(BadRecord, match="failed in TRANSFORMATION"):
        start(config, until_caught_up=True).wait()
    tolerant = {"errors.tolerance": "all", "errors.log.enable": "true"}
    config |= {**tolerant, "errors.log.include.messages": "true"}
    progress = start(config, until_caught_up=True).wait()
    assert (progress.records, progress.rows, progress.failed) == (3, 1, 2)
    assert seen(config) == ["1", "2", "5"]
    assert re.search(r"bad record for topic \S+ \(TRANSFORMATION\): .*: 'three'", caplog.text)
    assert start(config, until_caught_up=True).wait().records == 0
    told = CliRunner().invoke(app, ["audit", str(written(config))])
    assert told.exit_code == 0
    assert "3 records: 0 lost, 0 duplicated, 2 skipped" in told.output.replace("\n", " ")


@pytest.mark.long
def test_pause_resume_and_restart(path: Path, source: Configure) -> None:
    config = source()
    append(path, lines(5))
    with Runtime(LocalSpark()) as runtime:  # type: ignore[arg-type]
        connector = runtime.start(config)

        def written(count: int) -> bool:
            progress = connector.progress
            return progress is not None and progress.records == count

        wait_until(lambda: written(5))
        connector.pause()
        wait_until(lambda: connector.status().tasks[0].state is State.PAUSED)
        append(path, lines(5, 5))
        connector.resume()
        wait_until(lambda: written(10))
        connector.restart_task(0)
        append(path, lines(5, 10))
        wait_until(lambda: written(15))
        wait_until(lambda: connector.status().tasks[0].state is State.RUNNING)
        assert list(connector.status().tasks) == [0]
    assert seen(config) == lines(15)


def test_a_missing_file_is_reported_in_the_drivers_log(
    path: Path, source: Configure, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    config = source()
    running = start(config)
    wait_until(lambda: f"file {path} is not there: waiting for it" in caplog.text)
    append(path, lines(1))
    running.stop_when(lambda p: p.records == 1)
    assert seen(config) == lines(1)


def test_the_audit_of_a_source_finds_each_record_that_is_wrong(
    path: Path, source: Configure, start: Start, produce: Produce, written: Callable[[Config], Path]
) -> None:
    config = source()
    topic = config["topic"]
    append(path, [*lines(30), "line 7"])
    with pytest.raises(NothingToAudit):
        audit_source(plan_source(config))
    start(config, until_caught_up=True).wait()
    append(path, [*lines(5, 30), "line 7"])
    report = audit_source(plan_source(config))
    assert report.topics == [TopicAudit(topic, 31, 31, 0, 0, 0, 0, 6)]
    assert not report.broken
    skipped = {"position": len("".join(f"{line}\n" for line in [*lines(31), "line 7"]))}
    plan_source(config).offsets.set([({"filename": str(path)}, skipped)], "ann")
    report = audit_source(plan_source(config))
    assert report.topics == [TopicAudit(topic, 32, 31, 1, 0, 0, 0, 5)]
    assert report.broken
    produce(topic, ["line 3", "line 30"])
    for there, then in (("line 8\n", "LINE 8\n"), ("line 12\nline 13\n", "line 13\nline 12\n")):
        path.write_text(path.read_text().replace(there, then))
    report = audit_source(plan_source(config))
    assert report.topics == [TopicAudit(topic, 32, 33, 0, 1, 1, 1, 5)]
    assert report.broken
    [lacking, *others] = report.findings
    assert lacking == f'topic {topic} lacks record 9 of source partition {{"filename": "{path}"}}'
    again = next(f for f in others if f.endswith("comes once more"))
    assert again.startswith(f"{topic}-0 offset ")
    assert any(f.endswith("the source has no such record") for f in others)
    told = CliRunner().invoke(app, ["audit", str(written(config))])
    assert told.exit_code == 1
    summary = "33 records: 0 lost, 1 duplicated, 1 changed, 1 disordered (exactly-once"
    assert summary in told.output.replace("\n", " ")
    assert again in told.output


@pytest.mark.long
def test_offsets_are_shown_set_and_reset_from_the_command_line(
    path: Path, source: Configure, start: Start, written: Callable[[Config], Path]
) -> None:
    config = source()
    append(path, lines(3))
    file = written(config)

    def semel(*arguments: str) -> Any:
        found = CliRunner().invoke(app, ["offsets", *arguments, "--json"])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    assert semel("show", str(file)) == []
    running = start(config)
    running.until(lambda p: p.records == 3)
    place = {"filename": str(path)}
    [shown] = semel("show", str(file))
    assert (shown["partition"], shown["offset"]["position"]) == (place, 21)
    semel("set", str(file), f'{json.dumps(place)}={{"position":14}}')
    append(path, lines(1, 3))
    with pytest.raises(Fenced):  # what runs meanwhile cannot move them
        running.wait()
    start(config, until_caught_up=True).wait()
    assert seen(config) == [*lines(3), *lines(2, 2)]
    semel("reset", str(file), "--yes")
    assert semel("show", str(file)) == []
    for wrong in ("position=3", f'{json.dumps(place)}={{"position":-1}}'):
        found = CliRunner().invoke(app, ["offsets", "set", str(file), wrong])
        assert isinstance(found.exception, ConfigError)


@pytest.mark.long  # the broker looks for such transactions every 10 s
def test_a_transaction_that_the_broker_has_ended_is_begun_again(
    path: Path, points: Path, source: Configure, start: Start
) -> None:
    keys = {"producer.override.transaction.timeout.ms": "1000"}
    config = {**source(), **keys}
    append(path, lines(60))
    failpoints.arm(points, "sink.before_commit", "freeze", 2)
    running = start(config, spark=LocalSpark(points))
    wait_until(lambda: bool(failpoints.fired(points)))
    wait_until(lambda: seen(config) == lines(20))  # which waits for the open transaction's end
    failpoints.thaw(points, failpoints.fired(points)[0].pid)
    running.stop_when(lambda p: p.records == 60)
    assert running.spark.attempts[0] == 0
    assert seen(config) == lines(60)


@pytest.mark.long
def test_an_audit_counts_what_is_committed_meanwhile_as_neither_lost_nor_duplicated(
    path: Path, source: Configure, start: Start, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = source()
    append(path, lines(50))
    running = start(config)
    running.until(lambda p: p.records == 50)
    produce(config["topic"], ["line 4"])
    look = _Auditor.ends

    def ends(self: _Auditor) -> dict[Any, int]:
        # What was stored first, and the file, have been read.
        append(path, ["line 3", *lines(5, 50)])
        running.until(lambda p: p.records == 56)
        return look(self)

    monkeypatch.setattr(_Auditor, "ends", ends)
    report = audit_source(plan_source(config))
    assert report.topics == [TopicAudit(config["topic"], 56, 57, 0, 1, 0, 0, 0)]
    assert report.broken
    running.stop()
