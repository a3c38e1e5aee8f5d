"""The commands as a user meets them: what they print, how they exit, and no stack traces."""

# ruff: noqa: F401, F811
from __future__ import annotations

import getpass
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from typer.testing import CliRunner, Result

from semel.api import run
from semel.audit.report import AuditReport, PartitionAudit
from semel.cli import connector, proof
from semel.cli.commands import app
from semel.config import group_of
from semel.core.errors import NothingToAudit, NotKnown, SemelError
from semel.core.ledger import TopicPartition
from semel.driver import run as runs
from semel.driver.base import State
from semel.driver.runtime import Runtime
from semel.kafka.groups import Groups
from semel.worker.plugins import definitions_of
from semel_lab.embedded import Kafka
from tests.cli.conftest import NOWHERE, Ended, Semel, Write
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Config, Configure, Start, configure, start, written
from tests.engine.harness import caught_up, positions, records, sql, wait_until

UPSERT = {"insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "id"}


def test_an_unexpected_error_is_reported_in_one_line(
    semel: Semel, written: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nobody [saw] this")

    monkeypatch.setattr(connector, "plan_any", fails)
    ended = semel("validate", written(NOWHERE))
    assert ended.code == SemelError.exit_code
    assert "error: failed unexpectedly: ZeroDivisionError: nobody [saw] this" in ended.err
    monkeypatch.setattr(runs, "wait_for_brokers", fails)
    with pytest.raises(SemelError, match="failed unexpectedly: ZeroDivisionError: nobody"):
        run(NOWHERE)


def test_validate_touches_no_service(semel: Semel, written: Write) -> None:
    ended = semel("validate", written(NOWHERE))
    assert ended.code == 0
    assert "valid; exactly-once (transactional), direct engine" in ended.out
    ended = semel("validate", written({**NOWHERE, "task.max": "2"}), "--json")
    facts = json.loads(ended.out)
    assert (ended.code, facts["error_count"]) == (0, 0)
    (warning,) = facts["warnings"]
    assert (warning["key"], warning["value"]) == ("task.max", "2")
    assert warning["message"] == "unknown configuration key task.max; did you mean tasks.max?"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks.max": "two"}, "tasks.max='two' must be a whole number"),
        *(
            pytest.param(change, message, marks=pytest.mark.long)
            for change, message in (
                ({"tasks.max": "0"}, "tasks.max='0' must be at least 1"),
                ({"errors.tolerance": "some"}, "must be one of none, all"),
                ({"topics": None}, "set one of topics (a list) and topics.regex"),
                ({"connection.url": None}, "connection.url is required"),
                ({"bootstrap.servers": None}, "or in SEMEL_BOOTSTRAP_SERVERS"),
                ({"connector.class": "FileStream"}, "is not a connector that semel has"),
                (
                    {"connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector"},
                    "connector.class=kafka, a sink, copies topics",
                ),
                (
                    {"consumer.override.group.id": "mine"},
                    "consumer.override.group.id is set by semel",
                ),
                (
                    {"consumer.override.isolation.level": "read_uncommitted"},
                    "never reads records of aborted transactions",
                ),
                (
                    {"consumer.override.no.such.key": "1"},
                    'No such configuration property: "no.such.key"',
                ),
                (
                    {"delivery": "exactly-once", "delivery.mechanism": "idempotent"},
                    "cannot be kept",
                ),
            )
        ),
        ({"transforms": "t"}, "transforms.t.type is required"),
    ],
)
def test_a_configuration_that_cannot_be_run_is_refused_with_the_reason(
    change: dict[str, Any], message: str, semel: Semel, written: Write
) -> None:
    config = {k: v for k, v in {**NOWHERE, **change}.items() if v is not None}
    for command in ("validate", "run", "describe"):
        ended = semel(command, written(config))
        assert ended.code == 2
        assert message in ended.err
    ended = semel("validate", written(config), "--json")
    assert ended.code == 2
    answer = json.loads(ended.out)
    (found,) = (c["value"] for c in answer["configs"] if c["value"]["errors"])
    assert answer["error_count"] == len(found["errors"]) == 1
    assert message in found["errors"][0]
    ended = semel("run", written(config), "--json")
    assert (ended.code, json.loads(ended.out)["error"]) == (2, "ConfigError")


@pytest.mark.parametrize(
    ("keys", "delivery"),
    [
        ({}, "exactly-once (transactional)"),
        *(
            pytest.param(keys, delivery, marks=pytest.mark.long)
            for keys, delivery in (
                ({"delivery": "at-most-once"}, "at-most-once"),
                ({"delivery": "at-least-once"}, "at-least-once"),
                ({"delivery.mechanism": "idempotent", **UPSERT}, "exactly-once (idempotent)"),
            )
        ),
    ],
)
def test_describe_names_the_guarantee_and_why_it_holds(
    keys: Config, delivery: str, semel: Semel, written: Write
) -> None:
    file = written({**NOWHERE, **keys})
    facts = json.loads(semel("describe", file, "--json").out)
    mode = keys.get("insert.mode", "insert")
    where = "in PostgreSQL at 192.0.2.1/db"
    assert facts["writes"] == f"table ${{topic}} {where} ({mode})"
    assert facts["ledger"] == f"table semel_offsets {where}"
    assert facts["delivery"] == delivery
    assert facts["because"]
    assert delivery in semel("describe", file).out


def test_describe_lists_the_keys_of_a_class(semel: Semel) -> None:
    given = json.loads(semel("describe", "--keys", "sqlite", "--json").out)
    answered = json.dumps([asdict(key) for key in definitions_of("sqlite")])  # by the REST API
    assert given == json.loads(answered)
    lines = semel("describe", "--keys", "sqlite").out.splitlines()
    assert len(lines) == sum(1 + bool(key["documentation"]) for key in given)
    at = lines.index("pk.mode  STRING, default none, HIGH")
    assert lines[at + 1].startswith("    Where the primary key comes from: none, kafka ")
    assert "connection.url  PASSWORD, required, HIGH" in lines
    cast = "org.apache.kafka.connect.transforms.Cast$Value"
    assert "spec  LIST, required, HIGH" in semel("describe", "--keys", cast).out
    ended = semel("describe", "--keys", "sqlit")
    assert (ended.code, ended.out) == (2, "")
    assert "connector.class='sqlit' is not a connector that semel has" in ended.err
    for command in ("run", "validate"):
        assert "semel describe --keys CLASS" in semel(command, "--help").out


def test_the_demo_removes_nothing_but_a_demo(semel: Semel, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.touch()
    for directory in (tmp_path, file):
        ended = semel("demo", "--dir", directory)
        assert ended.code == 2
        assert "holds files that do not belong to an earlier demo" in ended.err
    assert list(tmp_path.iterdir()) == [file]


def test_brokers_of_the_command_line_are_not_passed_over(
    semel: Semel, written: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = semel("validate", written(NOWHERE), "--bootstrap-server", "kafka:9092")
    assert ended.code == 2
    assert "--bootstrap-server kafka:9092, but" in ended.err
    assert "has bootstrap.servers=192.0.2.1:9092: remove one" in ended.err
    monkeypatch.setenv("SEMEL_BOOTSTRAP_SERVERS", "kafka:9092")
    assert semel("validate", written(NOWHERE)).code == 0


def test_programs_find_the_brokers_of_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    unnamed = {name: value for name, value in NOWHERE.items() if name != "bootstrap.servers"}
    source = {"name": "s", "connector.class": "FileStreamSource", "file": "/x", "topic": "t"}
    for config in (unnamed, source):
        monkeypatch.delenv("SEMEL_BOOTSTRAP_SERVERS", raising=False)
        with Runtime() as runtime, pytest.raises(SemelError, match=r"bootstrap\.servers"):
            runtime.start(config, initial_state=State.STOPPED)
        monkeypatch.setenv("SEMEL_BOOTSTRAP_SERVERS", "kafka:9092")
        with Runtime() as runtime:
            started = runtime.start(config, initial_state=State.STOPPED)
            assert started.planned.connector.bootstrap_servers == "kafka:9092"


def test_a_standalone_workers_connectors_are_judged_without_starting_them(
    semel: Semel, written: Write, tmp_path: Path
) -> None:
    worker, wrong = tmp_path / "worker.properties", tmp_path / "wrong.json"
    worker.write_text("bootstrap.servers=192.0.2.1:9092\n")
    wrong.write_text(json.dumps({**NOWHERE, "name": "wrong", "tasks.max": "two"}))
    none = semel("worker", "--check", worker)
    assert (none.code, "0 connectors" in none.out) == (0, True)
    ended = semel("worker", "--check", worker, wrong, "--json")
    (found,) = json.loads(ended.out)["connectors"]
    assert (ended.code, found["name"]) == (2, "wrong")
    assert "tasks.max='two' must be a whole number" in found["problem"]


@pytest.mark.integration
def test_a_standalone_workers_file_says_where_connectors_begin(
    topic: MakeTopic,
    kafka: Kafka,
    configure: Configure,
    semel: Semel,
    written: Write,
    tmp_path: Path,
) -> None:
    worker = tmp_path / "worker.properties"
    worker.write_text(f"bootstrap.servers={kafka.bootstrap_servers}\n")
    ended = semel("worker", "--check", worker, written(configure(topic())), "--json")
    (found,) = json.loads(ended.out)["connectors"]
    assert (ended.code, found["problem"]) == (0, "")
    assert found["begins"] == "auto.offset.reset=earliest"


def test_a_position_is_given_once(semel: Semel, written: Write) -> None:
    file = written(NOWHERE)
    ended = semel("offsets", "set", file, "a-0=5", "b-0=5", "a-0=6")
    assert ended.code == 2
    assert "a-0 has two positions, 5 and 6: leave one out" in ended.err


def test_a_file_that_is_not_there_or_not_json_is_named(semel: Semel, tmp_path: Path) -> None:
    assert semel("run", tmp_path / "none.json").code == 2
    (tmp_path / "bad.json").write_text("{")
    ended = semel("run", tmp_path / "bad.json")
    assert (ended.code, "is not JSON" in ended.err) == (2, True)
    ended = semel("validate", "--json", tmp_path / "bad.json")
    answer = json.loads(ended.out)
    assert (ended.code, answer["error_code"]) == (2, 400)
    assert "is not JSON" in answer["message"]


def test_all_mistakes_and_warnings_are_reported_at_once(semel: Semel, written: Write) -> None:
    file = written({**NOWHERE, "topics": None, "topic": "a", "tasks.max": "two", "pk.mode": "no"})
    ended = semel("validate", file)
    assert ended.code == 2
    for part in (
        "did you mean topics?",
        "tasks.max='two' must be",
        "pk.mode='no' must be",
        "neither",
    ):
        assert part in ended.err
    facts = json.loads(semel("validate", file, "--json").out)
    wrong = [c["value"]["name"] for c in facts["configs"] if c["value"]["errors"]]
    assert sorted(wrong) == ["pk.mode", "tasks.max", "topics"]
    assert [w["key"] for w in facts["warnings"]] == ["topic"]


@pytest.mark.long
def test_nothing_is_wrapped_that_does_not_go_to_a_terminal(semel: Semel, written: Write) -> None:
    ended = semel("validate", written({**NOWHERE, "delivery": "exactly-twice" * 20}))
    assert len(ended.err.splitlines()) == 1
    assert len(ended.err) > 300
    ended = semel("describe", written({**NOWHERE, "topics": "t" * 200, "table.name.format": "t"}))
    assert any("t" * 200 in line for line in ended.out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["validate"], "semel validate: Missing argument"),
        (["validate", "--jsno", "f"], "semel validate: No such option: --jsno"),
        (["describe"], "semel describe: Invalid value for file: name a configuration, or a class"),
        (["describe", "f", "--keys", "sqlite"], "semel describe: Invalid value for file"),
        (["frobnicate"], "semel: No such command 'frobnicate'"),
        (["offsets", "set", "f"], "semel offsets set: Missing argument"),
        (["drill", "f", "--faults", "many"], "semel drill: Invalid value for '--faults'"),
    ],
)
def test_a_mistake_in_the_command_line_is_one_plain_line(
    arguments: list[str], message: str, semel: Semel
) -> None:
    ended = semel(*arguments)
    (line,) = ended.err.splitlines()
    assert line.startswith(f"error: {message}")
    assert line.endswith("--help")
    assert (ended.code, ended.out) == (2, "")


KAFKA = {"connector.class": "kafka", "topic.rename.format": "x", "connection.url": None}
SEARCH = {"connector.class": "opensearch", "connection.url": "http://192.0.2.1:9200"}
ICEBERG = {"connector.class": "iceberg", "connection.url": None}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (
            {
                **KAFKA,
                "topic.rename.format": "${topic}",
                "producer.override.acks": "1",
                "producer.override.enable.idempotence": "false",
                "errors.deadletterqueue.table": "letters",
                "offset.storage.topic": "a",
            },
            ("acks=1", "enable.idempotence=false", "Kafka has no tables", "ledger topic", "ever"),
        ),
        (
            {
                **SEARCH,
                "errors.deadletterqueue.table": "semel_offsets",
                "index.name.format": "one",
            },
            ("is the index of the ledger", "both go to index one"),
        ),
        (
            {
                **ICEBERG,
                "iceberg.tables": "db.t",
                "iceberg.catalog.type": "hadoop",
                "iceberg.table.db.t.partition-by": "year(",
                "iceberg.table.db.t.route-regex": "x",
                "iceberg.table.other.id-columns": "id",
            },
            ("catalog.type='hadoop'", "partition-by 'year('", "has no field", "table.other.id-col"),
        ),
        (
            {
                **ICEBERG,
                "iceberg.tables": "db.t,db.u",
                "iceberg.catalog.type": "hive",
                "delivery": "at-most-once",
                "errors.deadletterqueue.table": "db.t",
                "iceberg.table.db.t.id-columns": "__connect_topic",
            },
            ("at-most-once moves", "letters need a table"),
        ),
    ],
)
def test_mistakes_in_combinations_of_keys_are_reported_together(
    change: dict[str, Any], parts: tuple[str, ...], semel: Semel, written: Write
) -> None:
    config = {k: v for k, v in {**NOWHERE, **change}.items() if v is not None}
    ended = semel("validate", written(config))
    assert ended.code == 2
    for part in parts:
        assert part in ended.err, ended.err


@pytest.mark.long
@pytest.mark.integration
def test_offsets_are_shown_set_and_reset_but_not_while_the_connector_runs(
    topic: MakeTopic, configure: Configure, start: Start, semel: Semel, written: Write
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    file = written(config)

    def once_let_go(command: str, *arguments: str) -> Ended:
        """The server may learn a little later that a run has ended."""
        told: list[Ended] = []

        def done() -> bool:
            told.append(semel("offsets", command, file, *arguments))
            return "is running" not in told[-1].err

        wait_until(done)
        return told[-1]

    assert "the ledger holds nothing yet" in semel("offsets", "show", file).out
    running = start(config)
    running.until(lambda p: p.rows == 10)
    refusal = semel("offsets", "set", file, f"{source}-0=3")
    assert (refusal.code, "is running" in refusal.err) == (2, True)
    refusal = semel("offsets", "reset", file, "--yes")
    assert (refusal.code, "is running" in refusal.err) == (2, True)
    (entry,) = json.loads(semel("offsets", "show", file, "--json").out)
    assert (entry["topic"], entry["position"], entry["rows_written"]) == (source, 10, 10)
    running.stop()

    assert once_let_go("set", f"{source}-0=7").out == f"{source}-0 = 7\n"
    assert positions(config) == {TopicPartition(source, 0): 7}
    (entry,) = json.loads(semel("offsets", "show", file, "--json").out)
    (hole,) = entry["holes"]
    assert (hole["from_offset"], hole["until_offset"], hole["reason"]) == (7, 10, "set back")
    assert hole["by"] == getpass.getuser()
    told = semel("offsets", "show", file).out
    assert "set back" in told and hole["by"] in told and hole["at"] in told
    assert semel("offsets", "set", file, "nonsense").code == 2
    refusal = semel("offsets", "set", file, "another-0=7")
    assert (refusal.code, "does not read topic another" in refusal.err) == (2, True)
    assert caught_up(config).rows == 3
    told = once_let_go("set", f"{source}-0=9", "--json")
    assert json.loads(told.out) == [{"topic": source, "partition": 0, "position": 9}]
    told = once_let_go("reset", "--yes", "--json")
    assert (told.code, json.loads(told.out)) == (0, [])
    assert positions(config) == {}


@pytest.mark.integration
def test_positions_that_kafka_does_not_have_are_set_by_force_only(
    topic: MakeTopic, configure: Configure, semel: Semel, written: Write
) -> None:
    source = topic(values=records(3))
    config = configure(source)
    file = written(config)
    for wanted, message in (
        (f"{source}-1=0", f"{source}-1 does not exist: topic {source} has 1 partitions"),
        (f"{source}-0=4", f"{source}-0=4 is outside the log, which begins at 0 and ends at 3"),
    ):
        ended = semel("offsets", "set", file, wanted)
        assert (ended.code, message in ended.err, "--force" in ended.err) == (2, True, True)
        assert positions(config) == {}
    assert semel("offsets", "set", file, f"{source}-0=4", "--force").code == 0
    assert positions(config) == {TopicPartition(source, 0): 4}


@pytest.mark.integration
def test_a_reset_forgets_the_offsets_of_the_group_too(
    kafka: Kafka, topic: MakeTopic, configure: Configure, semel: Semel, written: Write
) -> None:
    """They would be the next run's first positions."""
    source = topic(values=records(3))
    config = configure(source)
    groups, group = Groups({"bootstrap.servers": kafka.bootstrap_servers}), group_of(config["name"])
    groups.set_offsets(group, [KafkaPartition(source, 0, 2)])
    assert semel("offsets", "reset", written(config), "--yes").code == 0
    assert groups.offsets(group, [TopicPartition(source, 0)]) == ({}, set())


@pytest.mark.parametrize(
    ("change", "allowed", "code"),
    [
        ({}, False, 0),
        ({"lost": 1}, False, 1),
        ({"not_judged": ["keys"]}, False, 7),
        ({"not_judged": ["keys"]}, True, 0),
        ({"not_judged": ["keys"], "lost": 1}, True, 1),
    ],
)
def test_an_audit_ends_with_0_1_or_7(
    change: dict[str, Any],
    allowed: bool,
    code: int,
    semel: Semel,
    written: Write,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = PartitionAudit("t", 0, 3, 3, change.get("lost", 0), 0)
    unjudged = tuple(change.get("not_judged", ()))
    report = AuditReport("c", "exactly-once", True, [part], "lost" in change, unjudged)
    monkeypatch.setattr(proof, "wait_for_brokers", lambda *_: None)
    monkeypatch.setattr(proof, "audit", lambda *_, **__: report)
    ended = semel("audit", written(NOWHERE), *(["--allow-unjudged"] if allowed else []))
    assert ended.code == code, ended.err
    assert ("not judged: keys" in ended.out) == ("not_judged" in change)


@pytest.mark.integration
def test_audit_and_lag_print_and_exit_by_what_they_find(
    kafka: Kafka,
    topic: MakeTopic,
    produce: Produce,
    configure: Configure,
    semel: Semel,
    written: Write,
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    file = written(config)
    nothing = semel("audit", file)
    assert nothing.code == NothingToAudit.exit_code
    assert "the ledger holds nothing of connector" in nothing.err
    caught_up(config)
    ended = semel("audit", file)
    assert ended.code == 0
    assert "10 records: 0 lost, 0 duplicated (exactly-once (transactional)" in ended.out
    sql(config["connection.url"], f'DELETE FROM "{source}" WHERE id = 1')
    ended = semel("audit", file, "--json")
    facts = json.loads(ended.out)
    assert (ended.code, facts["lost"], facts["kept"]) == (1, 1, False)

    produce(source, records(5))
    for arguments in ([file], [config["name"], "--bootstrap-server", kafka.bootstrap_servers]):
        (found,) = json.loads(semel("lag", *arguments, "--json").out)
        assert (found["connector"], found["position"], found["lag"]) == (config["name"], 10, 5)
    assert source in semel("lag", file).out
    nobody = semel("lag", "nobody", "--bootstrap-server", kafka.bootstrap_servers)
    assert (nobody.code, nobody.out) == (NotKnown.exit_code, "")
    assert "connector nobody has published no positions" in nobody.err
    assert semel("lag").code == 2


@pytest.mark.long
@pytest.mark.integration
def test_audit_follow_ends_by_a_signal_or_at_the_first_finding(
    topic: MakeTopic, configure: Configure, semel: Semel, written: Write, tmp_path: Path
) -> None:
    source = topic(values=records(10))
    config = configure(source)
    file, state = written(config), tmp_path / "state.json"
    caught_up(config)

    def interrupt() -> None:
        wait_until(lambda: state.exists() and '"offset": 10' in state.read_text())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    ended = semel("audit", file, "--follow", "--state", state)
    assert ended.code == 0
    assert "10 records judged record by record: 0 lost, 0 duplicated" in ended.out

    sql(config["connection.url"], f'DELETE FROM "{source}" WHERE id = 3')
    ended = semel("audit", file, "--follow", "--state", state, "--json")
    assert ended.code == 1
    *intervals, summary = map(json.loads, ended.out.splitlines())
    assert [(i["lost"], i["lost_offsets"]) for i in intervals if i["lost"]] == [(1, "3")]
    assert (summary["lost"], summary["broken"]) == (1, True)
    assert "1 lost (offset 3)" in ended.err

    state.write_text("{")
    refused = semel("audit", file, "--follow", "--state", state)
    assert (refused.code, f"--state {state} is not a state" in refused.err) == (2, True)
    refused = semel("audit", file, "--state", state)
    assert (refused.code, "needs --follow" in refused.err) == (2, True)


def test_help_lists_the_exit_codes() -> None:
    result: Result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for code in range(8):
        assert f"{code} " in result.output
