"""``semel offsets show|set|reset``: the ledger by hand."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from semel.cli.connector import AsJson, Bootstrap, File, with_servers
from semel.cli.console import console
from semel.config import ConnectorConfig
from semel.errors import ConfigError
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.groups import Groups
from semel.ledger import UNKNOWN_LOG, LedgerEntry, TopicPartition, first, firsts
from semel.plan import Plan, plan

_SESSIONS = 30.0
"""Seconds until a group has no members any more, once they are gone."""

app = typer.Typer(no_args_is_help=True, help="Show or change a connector's stored positions.")


@app.command(epilog="Example: semel offsets show flights.json")
def show(file: File, bootstrap_server: Bootstrap = "", as_json: AsJson = False) -> None:
    """Show the ledger: positions and counts of each topic-partition."""
    planned = plan(with_servers(file, bootstrap_server))
    entries = planned.sink.entries()
    planned.sink.close()
    if as_json:
        print(json.dumps([asdict(e) for e in entries]))
        return
    table = Table(box=None, header_style="bold")
    for title in ("topic", "partition", "position", "read", "rows", "filtered", "failed", "lost"):
        table.add_column(title, justify="left" if title == "topic" else "right")
    table.add_column("updated")
    for e in entries:
        counts = (e.records_read, e.rows_written, e.records_filtered, e.records_failed)
        numbers = [f"{n:,}" for n in (e.position, *counts, e.records_lost)]
        table.add_row(e.topic, str(e.partition), *numbers, e.updated_at)
    console().print(table if entries else "the ledger holds nothing yet")


@app.command("set", epilog="Example: semel offsets set flights.json flights-0=1200 flights-1=1180")
def set_(
    file: File,
    positions: Annotated[list[str], typer.Argument(help="TOPIC-PARTITION=OFFSET, one or more.")],
    bootstrap_server: Bootstrap = "",
    force: Annotated[
        bool, typer.Option("--force", help="Do not compare with what Kafka holds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Set positions. Refused while the connector runs, and where Kafka has no such offsets."""
    planned = plan(with_servers(file, bootstrap_server))
    wanted: dict[TopicPartition, int] = {}
    for tp, at in map(_parse, positions):
        _check_topic(planned.connector, tp.topic)
        if wanted.setdefault(tp, at) != at:
            raise ConfigError(f"{tp} is given two positions, {wanted[tp]} and {at}: leave one out")
    planned.sink.set_positions(firsts(wanted) if force else _in_kafka(planned, wanted))
    planned.sink.close()
    if as_json:
        print(json.dumps([{**tp._asdict(), "position": at} for tp, at in wanted.items()]))
        return
    for tp, at in wanted.items():
        print(f"{tp} = {at}")


@app.command(epilog="Example: semel offsets reset flights.json")
def reset(
    file: File,
    bootstrap_server: Bootstrap = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget all positions, and their copies in the consumer group: the next run starts by
    auto.offset.reset. Refused while the connector runs."""
    planned = plan(with_servers(file, bootstrap_server))
    if not yes:
        typer.confirm(
            f"Forget the positions of {planned.connector.name}? Its rows stay where they are, and "
            "records that are read again are written again",
            abort=True,
            err=as_json,
        )
    planned.sink.set_positions(None)
    planned.sink.close()
    if not planned.sink.capabilities.ledger_in_group:
        _forget_group(planned)
    if as_json:
        print(json.dumps([]))
        return
    print(f"{planned.connector.name}: positions forgotten")


def _in_kafka(planned: Plan, wanted: Mapping[TopicPartition, int]) -> list[LedgerEntry]:
    """First entries at these positions, of the logs that Kafka has now.

    Raises:
        ConfigError: it has no such partition or offset.
    """
    name = planned.connector.name
    cluster = Cluster(client_config(planned.connector, "admin"))
    there = cluster.topics()
    for tp in wanted:
        if tp.partition >= there.get(tp.topic, 0):
            raise ConfigError(
                f"connector {name}: {tp} does not exist: topic {tp.topic} has "
                f"{there.get(tp.topic, 0)} partitions. Correct it, or set it anyway with --force"
            )
    logs = cluster.logs({tp.topic for tp in wanted})
    earliest, ends = cluster.earliest(wanted), cluster.ends(wanted)
    for tp, at in wanted.items():
        if not earliest[tp] <= at <= ends[tp][0]:
            raise ConfigError(
                f"connector {name}: {tp}={at} lies outside of the log, which begins at "
                f"{earliest[tp]} and ends at {ends[tp][0]}. Correct it, or set it anyway with "
                "--force"
            )
    return [first(tp, at, logs.get(tp.topic, UNKNOWN_LOG)) for tp, at in wanted.items()]


def _forget_group(planned: Plan) -> None:
    """Delete the consumer group: its offsets would be the next run's first positions.

    Raises:
        ConfigError: it has members.
    """
    group = planned.connector.group_id
    groups = Groups(client_config(planned.connector, "admin"))
    deadline = time.monotonic() + _SESSIONS
    while not groups.is_idle(group):  # tasks that have just stopped keep their places for a while
        if time.monotonic() > deadline:
            raise ConfigError(
                f"connector {planned.connector.name}: its ledger is empty now, but consumer group "
                f"{group} has members, so its offsets stay. Stop the connector, and run this again"
            )
        time.sleep(0.2)
    groups.delete(group)


def _check_topic(connector: ConnectorConfig, topic: str) -> None:
    pattern = connector.topics_regex
    if topic not in connector.topics and not (pattern and re.fullmatch(pattern, topic)):
        reads = ", ".join(connector.topics) or f"topics matching {pattern}"
        raise ConfigError(
            f"connector {connector.name} does not read topic {topic}; it reads {reads}"
        )


def _parse(text: str) -> tuple[TopicPartition, int]:
    name, _, offset = text.rpartition("=")
    topic, _, partition = name.rpartition("-")
    if not (topic and partition.isdigit() and offset.isdigit()):
        raise ConfigError(f"{text!r} is not TOPIC-PARTITION=OFFSET, such as flights-0=1200")
    return TopicPartition(topic, int(partition)), int(offset)
