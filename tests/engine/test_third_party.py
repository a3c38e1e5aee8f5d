"""A sink that another package brings: the one of docs/write-a-sink.md, installed and run."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from semel import sinks
from semel.audit import audit
from semel.cli.commands import app
from semel.core import failpoints
from semel.core.errors import ConfigError
from semel.core.ledger import TopicPartition
from semel.driver.planning import plan
from semel_lab.drill.stage import Stage
from semel_lab.drill.stores import store_of
from semel_lab.embedded import Kafka
from tests import matrix
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config
from tests.engine.harness import (
    LocalSpark,
    assert_promise_kept,
    caught_up,
    name,
    positions,
    records,
    some,
)
from tests.patience import PATIENCE
from tests.processes import run_to_end

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "semel-lmdb"
COUNT = 1200


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has put the package, with the metadata of its entry point."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    run = run_to_end([*pip, *options, str(PACKAGE)])
    assert run.returncode == 0, run.stderr
    return target


@pytest.fixture(autouse=True)
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For this process and for those that it starts."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return {
        "name": name(),
        "connector.class": "lmdb",
        "topics": "t",
        "bootstrap.servers": "nowhere:9092",
        "lmdb.path": str(tmp_path / "store"),
        "provenance": "true",
        "retry.backoff.ms": "200",
    }


def stored(config: Config, database: str) -> dict[bytes, bytes]:
    """As another program reads it, in another process."""
    script = (
        "import lmdb, sys, pickle\n"
        "environment = lmdb.open(sys.argv[1], max_dbs=8, readonly=True)\n"
        "with environment.begin() as transaction:\n"
        "    database = environment.open_db(sys.argv[2].encode(), transaction, create=False)\n"
        "    found = dict(transaction.cursor(database))\n"
        "sys.stdout.buffer.write(pickle.dumps(found))\n"
    )
    command = [sys.executable, "-c", script, config["lmdb.path"], database]
    found: dict[bytes, bytes] = pickle.loads(subprocess.check_output(command, timeout=PATIENCE))
    return found


@pytest.mark.long
def test_a_drill_sets_no_key_that_the_sink_does_not_know(config: Config, tmp_path: Path) -> None:
    stage = Stage(config, tmp_path / "drill")
    assert not [w for w in stage.planned.warnings if "unknown configuration key" in w]


@pytest.mark.integration
@pytest.mark.parametrize("delivery", some(matrix.DELIVERIES, {"transactional"}))
def test_killed_at_every_place(
    delivery: str, kafka: Kafka, topic: MakeTopic, config: Config, points: Path
) -> None:
    source = topic(partitions=2, values=records(COUNT), keys=[f"k{i}" for i in range(COUNT)])
    config |= {
        "topics": source,
        "bootstrap.servers": kafka.bootstrap_servers,
        "consumer.override.max.poll.records": "20",
        **matrix.DELIVERIES[delivery],
    }
    places = [p for p in failpoints.PLACES if delivery != "transactional" or p != "deliver.between"]
    for place in places:
        failpoints.arm(points, place, "kill-worker", skip=1)
    spark = LocalSpark(points)
    caught_up(config, spark=spark)
    assert spark.attempts[0] >= len(places)
    found = [json.loads(value)["id"] for value in stored(config, source).values()]
    # Keys that are written twice show nothing of it.
    assert_promise_kept(config, points, found, COUNT, shows=delivery == "at-most-once")


@pytest.mark.integration
def test_the_last_change_of_each_key_is_kept_and_the_audit_sees_what_is_not(
    kafka: Kafka, topic: MakeTopic, produce: Produce, config: Config
) -> None:
    source = topic(partitions=2)
    values = [*(b"%d" % i for i in range(60)), None, None]
    produce(source, values, keys=[*(f"k{i % 20}" for i in range(60)), "k3", "k4"])
    config |= {"topics": source, "bootstrap.servers": kafka.bootstrap_servers}
    config |= {"consumer.override.max.poll.records": "7"}
    caught_up(config)
    expected = {b"k%d" % i: b"%d" % (40 + i) for i in range(20) if i not in (3, 4)}
    assert stored(config, source) == expected
    report = audit(config)
    assert (report.exact, report.lost, report.duplicated) == (True, 0, 0)
    _remove(config, source, b"k7")
    assert audit(config).lost == 1


def _remove(config: Config, source: str, key: bytes) -> None:
    sink: Any = plan(config).sink
    with sink.transaction(writing=True) as transaction:
        for database in (source, f"semel:places:{source}"):
            assert transaction.delete(key, db=sink._database(transaction, database))


@pytest.mark.integration
def test_keys_that_do_not_fit_are_bad_records(
    kafka: Kafka, topic: MakeTopic, produce: Produce, config: Config
) -> None:
    source = topic()
    keys = [b"a", None, b"x" * 600, b"b"]
    produce(source, [b"1", b"2", b"3", b"4"], keys=keys, partition=0)
    config |= {"topics": source, "bootstrap.servers": kafka.bootstrap_servers}
    caught_up(config | {"errors.tolerance": "all"})
    assert stored(config, source) == {b"a": b"1", b"b": b"4"}
    assert positions(config) == {TopicPartition(source, 0): 4}


def test_the_commands_know_it(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps(config | {"lmdb.pth": "x"}))
    run = CliRunner()
    validated = run.invoke(app, ["validate", "--json", str(file)])
    (warning,) = json.loads(validated.stdout)["warnings"]
    assert warning["message"] == "unknown configuration key lmdb.pth; did you mean lmdb.path?"
    described = json.loads(run.invoke(app, ["describe", "--json", str(file)]).stdout)
    assert described["delivery"] == "exactly-once (transactional)"
    assert described["ledger"] == "database semel:offsets there"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"lmdb.path": ""}, "lmdb.path is required"),
        ({"lmdb.map.size": "1"}, "lmdb.map.size='1' must be at least 65536"),
        ({"engine": "micro-batch"}, "does not run on engine=micro-batch. Set engine=direct"),
        ({"errors.deadletterqueue.table": "d"}, "Set errors.deadletterqueue.topic.name"),
    ],
)
def test_what_it_cannot_keep_is_refused(config: Config, keys: Config, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(config | keys)


def test_a_drill_writes_into_a_directory_of_its_own(config: Config, tmp_path: Path) -> None:
    store = store_of(config, tmp_path / "drill")
    assert store.where == {"lmdb.path": str(tmp_path / "drill" / "lmdb")}


def test_a_relative_path_is_one_place_for_all_processes(config: Config) -> None:
    assert plan({**config, "lmdb.path": "here"}).connector.originals["lmdb.path"] == str(
        Path.cwd() / "here"
    )


def test_an_entry_point_that_cannot_be_loaded_is_named(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "broken-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: broken\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[semel.sinks]\nbroken = nothing_here:Sink\nwrong = json:dumps\nsqlite = json:dumps\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot load nothing_here:Sink: No module named"):
        plan(config | {"connector.class": "broken"})
    with pytest.raises(ConfigError, match="json:dumps is not a semel Sink"):
        plan(config | {"connector.class": "wrong"})
    assert sinks.sink_class("sqlite").__module__ == "semel.sinks.sql.sqlite"  # ours stays ours


@pytest.mark.long
def test_the_packages_own_tests(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PACKAGE)]
    run = run_to_end(command, cwd=tmp_path)
    assert run.returncode == 0, run.stdout
