"""The drill: its plan, short runs of it, and that it fails when the ledger rule is switched off."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from semel.config import ConnectorConfig, read
from semel.core.delivery import Delivery, Guarantee, Mechanism
from semel.core.errors import ConfigError, Fenced
from semel.core.failpoints import OF_FILES, OF_STAGING, PLACES
from semel.sinks.files.config import FilesConfig
from semel.sinks.kafka import KafkaSink
from semel.sinks.search.config import SearchConfig
from semel.tasks import attempt
from semel.tasks.control import Report
from semel_lab.drill import run as drill
from semel_lab.drill.faults import Injector
from semel_lab.drill.plan import ANY_MOMENT, MEANING, Fault, Kind, plan
from semel_lab.drill.processes import RECORDS_PER_FAULT, DrillFailed, inject_all
from semel_lab.drill.stage import BUILT_IN, Stage
from semel_lab.drill.stores import store_of
from semel_lab.drill.traffic import Shape
from semel_lab.embedded import Postgres, mariadb
from semel_lab.embedded.hdfs import Hdfs
from semel_lab.embedded.mariadb import MariaDB
from semel_lab.embedded.server import Server
from tests.patience import PATIENCE

TRANSACTIONAL = Guarantee(Delivery.EXACTLY_ONCE, Mechanism.TRANSACTIONAL, "")
AT_LEAST_ONCE = Guarantee(Delivery.AT_LEAST_ONCE, None, "")
WITHOUT_RULE = Path(__file__).parents[2] / "tests" / "without_ledger_rule"


class TestPlan:
    def test_a_seed_gives_the_same_faults_again(self) -> None:
        assert plan(50, 7, TRANSACTIONAL) == plan(50, 7, TRANSACTIONAL)
        assert plan(50, 7, TRANSACTIONAL) != plan(50, 8, TRANSACTIONAL)

    def test_every_kind_comes_before_one_comes_again(self) -> None:
        for seed in range(5):
            assert {f.kind for f in plan(len(Kind), seed, TRANSACTIONAL)} == set(Kind)

    def test_every_place_that_is_reached_is_struck(self) -> None:
        faults = plan(300, 3, TRANSACTIONAL)
        places = {f.place for f in faults if f.kind is Kind.DRIVER_KILL}
        assert places == {*PLACES, ANY_MOMENT} - {"deliver.between"}

    def test_the_place_between_results_and_positions_belongs_to_the_weaker_guarantees(self) -> None:
        assert "deliver.between" in {f.place for f in plan(200, 3, AT_LEAST_ONCE)}

    def test_only_the_store_answers_with_errors(self) -> None:
        faults = plan(100, 1, AT_LEAST_ONCE, [Kind.ERROR])
        assert not any(f.place.startswith("task.") for f in faults)

    def test_faults_of_executors_come_last_so_that_the_cluster_changes_once(self) -> None:
        needs = [f.needs_executors for f in plan(50, 1, TRANSACTIONAL)]
        assert needs == sorted(needs)
        assert [f.number for f in plan(50, 1, TRANSACTIONAL)] == list(range(1, 51))

    def test_a_store_has_places_of_its_own(self) -> None:
        faults = plan(200, 3, TRANSACTIONAL, own=OF_FILES)
        assert {f.place for f in faults} >= set(OF_FILES)
        assert not {f.place for f in plan(200, 3, TRANSACTIONAL)} & set(OF_FILES)

    @pytest.mark.parametrize("kind", [Kind.ERROR, Kind.DISK_FULL])
    def test_a_store_fails_where_files_are_written_and_where_they_are_committed(
        self, kind: Kind
    ) -> None:
        places = {f.place for f in plan(100, 1, TRANSACTIONAL, [kind], OF_STAGING)}
        commit = {"sink.after_positions", "sink.before_commit", "sink.after_commit"}
        assert places == {*OF_STAGING, *commit}

    def test_another_writer_comes_between_the_judgement_and_the_commit(self) -> None:
        places = {f.place for f in plan(100, 1, TRANSACTIONAL, [Kind.CONCURRENT_WRITER])}
        assert places == {"sink.after_positions", "sink.before_commit"}

    def test_each_kind_is_explained(self) -> None:
        page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
        for kind in Kind:
            assert f"| `{kind.value}` | {MEANING[kind]} | " in page

    @pytest.mark.parametrize(
        ("brokers", "places"),
        [(1, {ANY_MOMENT}), (3, {"sink.after_positions", "sink.before_commit", ANY_MOMENT})],
    )
    def test_one_broker_of_several_dies_in_the_middle_of_transactions_too(
        self, brokers: int, places: set[str]
    ) -> None:
        kinds = [Kind.BROKER_RESTART, Kind.BROKER_KILL]
        assert {f.place for f in plan(30, 1, TRANSACTIONAL, kinds, brokers=brokers)} == places

    @pytest.mark.parametrize("kinds", [[Kind.ERROR], [Kind.ZOMBIE, Kind.DRIVER_KILL]])
    def test_kinds_can_be_chosen(self, kinds: list[Kind]) -> None:
        assert {f.kind for f in plan(20, 1, TRANSACTIONAL, kinds)} == set(kinds)


class TestStores:
    """Where a connector is drilled."""

    @pytest.mark.parametrize(
        ("name", "url", "expected"),
        [
            ("io.confluent.connect.jdbc.JdbcSinkConnector", "jdbc:postgresql://h/d", Postgres),
            ("io.aiven.connect.jdbc.JdbcSinkConnector", "jdbc:mariadb://h/d", MariaDB),
            ("io.debezium.connector.jdbc.JdbcSinkConnector", "jdbc:mysql://h/d", MariaDB),
            ("postgresql", "postgres://h/d", Postgres),
            ("postgresql", "", Postgres),
            ("mysql", "jdbc:mariadb://h/d", MariaDB),
            ("mariadb", "", MariaDB),
        ],
    )
    def test_a_database_is_drilled_on_a_server_of_its_kind(
        self, name: str, url: str, expected: type[Server], tmp_path: Path
    ) -> None:
        store = store_of({"connector.class": name, "connection.url": url}, tmp_path)
        assert type(store.server) is expected
        assert {Kind.STORE_RESTART, Kind.STORE_KILL} <= store.faults

    @pytest.mark.parametrize(
        ("name", "url"),
        [
            ("io.confluent.connect.jdbc.JdbcSinkConnector", "jdbc:oracle:thin:@h:1521;password=se"),
            ("io.confluent.connect.jdbc.JdbcSinkConnector", ""),
            ("postgresql", "jdbc:mysql://h/d?password=se"),
            ("duckdb", "jdbc:sqlite:/tmp/d"),
        ],
    )
    def test_another_database_is_refused(self, name: str, url: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"no database for connection\.url=") as refused:
            store_of({"connector.class": name, "connection.url": url}, tmp_path)
        assert "password" not in str(refused.value)

    @pytest.mark.parametrize(
        ("keys", "lake"),
        [
            ({"connector.class": "files"}, False),
            ({"connector.class": "delta", "delta.table.path": "s3://lake"}, True),
            ({"connector.class": "iceberg", "iceberg.catalog.type": "rest"}, True),
        ],
    )
    def test_files_and_lakes_have_faults_of_their_own(
        self, keys: dict[str, str], lake: bool, tmp_path: Path
    ) -> None:
        store = store_of(keys, tmp_path)
        assert store.possible([Kind.STORE_KILL, Kind.DISK_FULL], "c") == [Kind.DISK_FULL]
        assert ({Kind.CONCURRENT_WRITER, Kind.TABLE_OPTIMIZE} <= store.faults) is lake
        assert set(OF_STAGING) <= set(store.places)

    @pytest.mark.parametrize("name", ["sqlite", "duckdb"])
    def test_only_a_server_can_be_killed(self, name: str, tmp_path: Path) -> None:
        store = store_of({"connector.class": name}, tmp_path)
        assert store.server is None
        assert store.disk is not None
        url = f"jdbc:{name}:{store.disk.directory}/database"
        assert store.where == {"connection.url": url}
        assert store.possible([Kind.STORE_KILL, Kind.DISK_FULL], "c") == [Kind.DISK_FULL]
        with pytest.raises(ConfigError, match="store-kill cannot happen"):
            store.possible([Kind.STORE_KILL], "c")

    @pytest.mark.parametrize("name", ["sqlserver", "io.debezium.connector.jdbc.JdbcSinkConnector"])
    def test_a_store_that_the_drill_cannot_start_may_be_the_users_own(
        self, name: str, tmp_path: Path
    ) -> None:
        raw = {"connector.class": name, "connection.url": "jdbc:sqlserver://h;databaseName=d"}
        with pytest.raises(ConfigError, match="use --own-store"):
            store_of(raw, tmp_path)
        store = store_of(raw, tmp_path, own=True)
        assert (store.where, store.server) == ({}, None)
        assert store.keys["connection.lock.timeout.ms"]

    @pytest.mark.parametrize(
        "keys",
        [
            {"connector.class": "postgresql"},
            {"connector.class": "sqlite"},
            {"connector.class": "files"},
            {"connector.class": "delta", "delta.table.path": "s3://lake"},
            {"connector.class": "iceberg", "iceberg.catalog.type": "rest"},
            {"connector.class": "opensearch"},
        ],
    )
    def test_a_users_store_gets_no_faults(self, keys: dict[str, str], tmp_path: Path) -> None:
        store = store_of(keys, tmp_path, own=True)
        assert (store.where, store.server, store.lake, store.disk) == ({}, None, None, None)
        of_stores = {Kind.STORE_KILL, Kind.STORE_RESTART, Kind.DISK_FULL}
        assert not store.faults & {*of_stores, Kind.TABLE_OPTIMIZE, Kind.CONCURRENT_WRITER}
        assert {Kind.DRIVER_KILL, Kind.ZOMBIE, Kind.BROKER_KILL} <= store.faults

    def test_kafka_is_the_drills_own(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="Leave --own-store out"):
            store_of({"connector.class": "kafka"}, tmp_path, own=True)


class TestRecords:
    """Records that fit the connector's configuration."""

    def shape(self, *, replaces: bool = False, **settings: str) -> Shape:
        raw = {**BUILT_IN, "bootstrap.servers": "localhost:1"}
        raw |= {k.replace("__", "."): v for k, v in settings.items()}
        return Shape(read(ConnectorConfig, raw), replaces)

    def records(self, shape: Shape) -> list[tuple[str | None, str | None]]:
        dice = random.Random(1)
        return [shape.record(number, number % 4, dice) for number in range(1000)]

    def test_inserts_come_with_and_without_keys(self) -> None:
        keys = [key for key, _ in self.records(self.shape())]
        assert None in keys
        assert len(set(keys)) > 100

    def test_records_that_replace_each_other_share_their_key(self) -> None:
        shape = self.shape(replaces=True, pk__mode="record_value", pk__fields="account")
        seen: dict[str | None, int] = {}
        for key, value in self.records(shape):
            assert seen.setdefault(key, json.loads(value or "")["account"]) is not None
            assert seen[key] == json.loads(value or "")["account"]
        assert len(seen) < 1000

    def test_deletes_come_as_tombstones(self) -> None:
        shape = self.shape(
            replaces=True, pk__mode="record_key", pk__fields="k", delete__enabled="true"
        )
        values = [value for key, value in self.records(shape) if key is not None]
        assert len(values) == 1000
        assert None in values

    def test_schemas_travel_with_the_values_unless_switched_off(self) -> None:
        shape = self.shape(value__converter__schemas__enable="true")
        _, value = shape.record(1, 0, random.Random(1))
        assert set(json.loads(value or "")) == {"schema", "payload"}

    def test_another_format_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"value\.converter must be"):
            self.shape(value__converter="org.apache.kafka.connect.converters.LongConverter")


def test_a_drill_that_fails_names_the_fault_the_seed_and_the_logs(tmp_path: Path) -> None:
    """Every drill runs through this loop, which grants records to each fault."""
    faults = plan(3, 7, TRANSACTIONAL)
    seen: list[tuple[Fault | None, int | None]] = []
    allowed: list[int] = []

    def inject(fault: Fault) -> int:
        if fault is faults[2]:
            raise DrillFailed("it did not recover.")
        return fault.number

    with pytest.raises(DrillFailed) as failure:
        inject_all(
            faults,
            7,
            inject,
            allow=allowed.append,
            directory=tmp_path,
            observe=lambda *of: seen.append(of),
        )
    third = faults[2]
    assert str(failure.value) == (
        f"fault {third.number} of 3 ({third.kind.value}, {third.place}; seed 7): it did not "
        f"recover. All logs: {tmp_path}"
    )
    assert allowed == 3 * [RECORDS_PER_FAULT]
    assert [found for _, found in seen] == [None, 1, None, 2, None]


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "semel", "drill", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE,
        env={**os.environ, **environment},
    )


def test_a_directory_that_holds_anything_is_refused_and_left_alone(tmp_path: Path) -> None:
    """It is removed after the drill."""
    file = tmp_path / "mine.txt"
    file.touch()
    for directory in (tmp_path, file):
        ended = command("--dir", str(directory), "--faults", "1")
        assert ended.returncode == ConfigError.exit_code
        assert "is not empty, and the drill would remove it" in " ".join(ended.stderr.split())
    assert list(tmp_path.iterdir()) == [file]


class TestTopicToTopic:
    """A connector that writes to Kafka."""

    config = MappingProxyType(
        {
            "name": "copy",
            "connector.class": "kafka",
            "topics": "drill",
            "topic.rename.format": "drill.copy",
            "tasks.max": "2",
            "provenance": "true",
        }
    )

    def test_bytes_may_be_anything_so_they_are_json(self) -> None:
        raw = {**KafkaSink.defaults, **self.config, "bootstrap.servers": "localhost:1"}
        shape = Shape(read(ConnectorConfig, raw), replaces=False, tombstones=True)
        values = [shape.record(n, 0, random.Random(n))[1] for n in range(100)]
        assert None in values
        assert {json.loads(v)["id"] for v in values if v is not None} <= set(range(100))

    @pytest.mark.long
    @pytest.mark.integration
    def test_faults_in_a_kafka_transaction_lose_nothing_and_write_nothing_twice(self) -> None:
        kinds = [Kind.WORKER_KILL, Kind.TIME_OUT, Kind.ZOMBIE, Kind.BROKER_RESTART]
        kinds += [Kind.BROKER_KILL]
        report = drill.drill(self.config, 5, 1, kinds=[*kinds, Kind.STORE_KILL])
        assert {r.fault.kind for r in report.results} == set(kinds)
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True)
        assert report.final is not None
        assert report.final.records > 1000


class TestFiles:
    """A connector that writes files; the drill gives it a directory, whatever it had."""

    config = MappingProxyType(
        {
            "name": "files",
            "connector.class": "io.confluent.connect.s3.S3SinkConnector",
            "s3.bucket.name": "lake",
            "format.class": "io.confluent.connect.s3.format.parquet.ParquetFormat",
            "flush.size": "100",
            "topics": "drill",
            "tasks.max": "2",
            "provenance": "true",
            "value.converter.schemas.enable": "false",
        }
    )

    @pytest.mark.parametrize("key", ["path", "hdfs.url", "store.url"])
    def test_hdfs_is_drilled_on_one_of_its_own(self, key: str, tmp_path: Path) -> None:
        raw = {"connector.class": "files", key: "webhdfs://namenode:9870/x"}
        store = store_of(raw, tmp_path)
        assert isinstance(store.server, Hdfs)
        assert (
            read(FilesConfig, {**raw, **store.keys, **(store.where or {})}).location()
            == f"{store.server.url}/files"
        )
        assert Kind.STORE_KILL in store.faults

    @pytest.mark.long
    @pytest.mark.integration
    def test_faults_in_hdfs_lose_nothing_and_write_nothing_twice(self) -> None:
        kinds = [Kind.DRIVER_KILL, Kind.ERROR, Kind.STORE_RESTART, Kind.STORE_KILL]
        config = {**self.config, "path": "webhdfs://namenode/x", "s3.bucket.name": ""}
        report = drill.drill(config, 4, 1, kinds=[*kinds, Kind.DISK_FULL])
        assert {r.fault.kind for r in report.results} == set(kinds)
        assert (report.lost, report.duplicated, report.exact) == (0, 0, True)

    @pytest.mark.long
    @pytest.mark.integration
    def test_faults_lose_nothing_and_write_nothing_twice(self) -> None:
        kinds = [Kind.DRIVER_KILL, Kind.ERROR, Kind.SECOND_DRIVER, Kind.DISK_FULL]
        report = drill.drill(self.config, 4, 1, kinds=[*kinds, Kind.STORE_KILL])
        assert {r.fault.kind for r in report.results} == set(kinds)
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True)
        assert report.exact
        assert report.final is not None
        assert report.final.records > 1000


class TestLines:
    """A file of lines."""

    config = MappingProxyType(
        {
            "name": "drill",
            "connector.class": "FileStreamSink",
            "file": "/nowhere/lines.txt",
            "topics": "drill",
            "tasks.max": "2",
            "value.converter.schemas.enable": "false",
        }
    )

    @pytest.mark.long
    @pytest.mark.integration
    def test_faults_lose_nothing_and_write_nothing_twice(self) -> None:
        kinds = [Kind.WORKER_KILL, Kind.ZOMBIE, Kind.TOPIC_RECREATED, Kind.DISK_FULL]
        report = drill.drill(self.config, 4, 1, kinds=kinds)
        assert {r.fault.kind for r in report.results} == set(kinds)
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True)
        assert report.final is not None
        assert report.final.records > 1000


class TestLakes:
    """Connectors whose tables others may write, too."""

    common = MappingProxyType(
        {
            "topics": "drill",
            "tasks.max": "2",
            "provenance": "true",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        }
    )

    @pytest.mark.long
    @pytest.mark.integration
    @pytest.mark.parametrize(
        "keys",
        [
            {"connector.class": "delta", "delta.table.path": "s3://lake", "auto.create": "true"},
            {
                "connector.class": "iceberg",
                "iceberg.tables": "db.drill",
                "iceberg.catalog.type": "rest",
            },
        ],
        ids=["delta", "iceberg"],
    )
    def test_faults_lose_nothing_and_write_nothing_twice(self, keys: dict[str, str]) -> None:
        kinds = [Kind.CONCURRENT_WRITER, Kind.DISK_FULL, Kind.ERROR]
        config = {"name": "lake", **self.common, **keys}
        report = drill.drill(config, 3, 1, kinds=[*kinds, Kind.STORE_KILL])
        assert {r.fault.kind for r in report.results} == set(kinds)
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True)
        assert report.exact


class TestSearch:
    """The drill of a sink whose store is a search server."""

    config: MappingProxyType[str, str] = MappingProxyType(
        {
            "name": "drill-search",
            "connector.class": "opensearch",
            "tasks.max": "2",
            "topics": "drill",
            "connection.url": "http://elsewhere:9200",
            "key.ignore": "false",
            "behavior.on.null.values": "delete",
            "value.converter.schemas.enable": "false",
            "provenance": "true",
        }
    )

    def test_login_and_tls_of_the_users_own_server_are_left_out(self, tmp_path: Path) -> None:
        secured = {
            **self.config,
            "connection.url": "https://elsewhere:9200",
            "connection.user": "me",
            "connection.password": "secret",
            "elastic.security.protocol": "SSL",
        }
        store = store_of(secured, tmp_path)
        servers = {"bootstrap.servers": "localhost:1"}
        made = read(SearchConfig, {**secured, **servers, **store.keys, **(store.where or {})})
        assert (made.username, made.password, made.security_protocol) == ("", "", "plaintext")

    @pytest.mark.long
    @pytest.mark.integration
    def test_a_server_that_is_killed_loses_nothing_and_writes_nothing_twice(
        self, jdk: None
    ) -> None:
        report = drill.drill(self.config, 1, 1, kinds=[Kind.STORE_KILL, Kind.TABLE_OPTIMIZE])
        assert [r.fault.kind for r in report.results] == [Kind.STORE_KILL]
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True)
        assert report.exact
        assert report.final is not None
        assert report.final.records > 1000


class TestMariaDB:
    """The drill of a sink that writes to MariaDB."""

    config: MappingProxyType[str, str] = MappingProxyType(
        {
            **BUILT_IN,
            "name": "drill-mariadb",
            "connection.url": "jdbc:mariadb://elsewhere:3306/shop",
            "connection.user": "me",
            "connection.password": "secret",
        }
    )

    @pytest.mark.long
    @pytest.mark.integration
    @pytest.mark.skipif(not mariadb.installed(), reason="mariadbd is not installed")
    def test_a_server_that_is_killed_loses_nothing_and_writes_nothing_twice(self) -> None:
        kinds = [Kind.STORE_KILL, Kind.WORKER_KILL, Kind.ZOMBIE]
        report = drill.drill(self.config, 3, 1, kinds=kinds)
        assert {r.fault.kind for r in report.results} == set(kinds)
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True)
        assert report.exact
        assert report.final is not None
        assert report.final.records > 1000


@pytest.mark.long
@pytest.mark.integration
def test_a_store_of_the_users_is_written_to_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    url = f"jdbc:sqlite:{tmp_path / 'mine.db'}"
    config = {**BUILT_IN, "connector.class": "sqlite", "connection.url": url}
    report = drill.drill(config, 1, 1, kinds=[Kind.ERROR, Kind.DISK_FULL], own_store=True)
    assert [r.fault.kind for r in report.results] == [Kind.ERROR]
    assert report.kept
    assert report.final is not None
    with sqlite3.connect(tmp_path / "mine.db") as mine:
        assert mine.execute("SELECT count(*) FROM drill").fetchone() == (report.final.records,)
    with pytest.raises(ConfigError, match="needs an empty store, but drill has rows"):
        drill.drill(config, 1, 1, own_store=True)
    assert not list(tmp_path.glob("semel-drill-*"))


class TestFencedTask:
    """What the drill's broker outages brought to light."""

    @pytest.mark.parametrize(
        ("lost", "stopped", "expected"),
        [
            pytest.param(False, False, ["fenced"], id="another run"),
            pytest.param(True, False, ["log"], id="nobody else was fenced"),
            pytest.param(True, True, ["log", "stopped"], id="another run, as other tasks know"),
        ],
    )
    def test_a_lost_session_is_not_mistaken_for_another_run(
        self, lost: bool, stopped: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[str] = []

        class Line:
            orphaned = False

            def __init__(self, _address: object) -> None:
                self.stop = threading.Event()
                if stopped:
                    self.stop.set()

            def send(self, report: Report) -> None:
                told.append(report.kind)

            def beat(self, _report: Report) -> None: ...

            def close(self) -> None: ...

        class Doomed:
            heartbeats = 0.1

            def __init__(self, *_arguments: object) -> None: ...

            def run(self) -> None:
                raise Fenced("another instance")

            def false_fence_reason(self, _fence: Fenced) -> str | None:
                return "its session had just expired" if lost else None

        monkeypatch.setattr(attempt, "ControlLine", Line)
        spec: Any = SimpleNamespace(
            environment={},
            control=None,
            connector=SimpleNamespace(name="drill", task_memory=1 << 40),
            task=Doomed,
        )
        if lost and not stopped:  # Spark starts it again
            with pytest.raises(Fenced):
                attempt.run_task(spec, 0, 0)
        else:
            attempt.run_task(spec, 0, 0)
        assert told == expected


@pytest.mark.parametrize("struck", [True, False])
def test_a_driver_may_die_of_its_fault_between_two_looks(struck: bool) -> None:
    """It is gone when the drill looks at it, and was not yet hit when it read what has fired."""

    class Dying:
        looks = 0
        status: int | None = None
        until = Stage.until

        @property
        def running(self) -> Any:
            return SimpleNamespace(status=self.status, end=lambda: "exit status -9")

        def fired(self) -> list[int]:
            self.looks += 1
            if self.looks == 2:
                self.status = -9
                return []
            return [7] * (struck and self.looks > 2)

        def do(self, *_arguments: object) -> None: ...

        remember = arm = disarm = do

    stage: Any = Dying()
    traffic: Any = SimpleNamespace(kick=lambda: None)
    fault = Fault(1, Kind.DRIVER_KILL, "task.before_publish", 0, 0.0)
    with nullcontext() if struck else pytest.raises(DrillFailed, match="the connector ended"):
        assert Injector(stage, traffic, 1)._at(fault, "kill-driver", lambda: 0) == 7


@pytest.mark.integration
class TestRun:
    @pytest.mark.long
    @pytest.mark.parametrize(
        "kinds",
        [
            (Kind.WORKER_KILL, Kind.ZOMBIE),
            (
                *(Kind.DRIVER_KILL, Kind.STORE_KILL, Kind.ERROR),
                *(Kind.BROKER_KILL, Kind.REPLACED_ZOMBIE),
            ),
        ],
        ids=["short", "others"],
    )
    def test_faults_lose_nothing_and_write_nothing_twice(self, kinds: tuple[Kind, ...]) -> None:
        report = drill.drill(None, len(kinds), 1, kinds=kinds)
        assert {r.fault.kind for r in report.results} == set(kinds)
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True)
        assert report.final is not None
        assert report.final.records > 1000
        assert not any(p.behind for p in report.final.partitions)

    @pytest.mark.long
    def test_a_connector_stops_where_it_must_and_goes_on_when_it_may(self) -> None:
        kinds = [Kind.RETENTION, Kind.BATCH_DAMAGED, Kind.OFFSETS_DELETED]
        kinds += [Kind.PARTITIONS_ADDED, Kind.STORE_SILENT]
        report = drill.drill(None, len(kinds), 1, kinds=kinds)
        assert {r.fault.kind for r in report.results} == set(kinds)
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True)

    @pytest.mark.long  # each sink's own tests have two drivers
    def test_of_two_drivers_one_yields_and_says_so(self) -> None:
        report = drill.two_drivers(None, 1)
        assert report.fenced > 0
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True)

    @pytest.mark.long
    def test_without_the_ledger_rule_the_audit_finds_duplicates(self) -> None:
        # A lost reply makes the task commit again: only the ledger knows that it has. Several
        # faults, because some meet a commit without rows.
        done = command(
            *("--faults", "8", "--seed", "1", "--only", "error"),
            PYTHONPATH=os.pathsep.join([str(WITHOUT_RULE), os.environ.get("PYTHONPATH", "")]),
        )
        assert done.returncode == 1, done.stderr
        last = done.stdout.splitlines()[-1]
        assert last.startswith("8 faults: 0 lost, ")
        assert not last.endswith(" 0 duplicated")
        assert "BROKEN" in done.stdout
