"""``semel offsets show|set|reset``: the ledger by hand."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from semel.cli.connector import AsJson, Bootstrap, File, with_servers
from semel.cli.console import console
from semel.config import ConnectorConfig
from semel.errors import ConfigError
from semel.ledger import TopicPartition, firsts
from semel.run import plan

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
    as_json: AsJson = False,
) -> None:
    """Set positions. Refused while the connector runs."""
    planned = plan(with_servers(file, bootstrap_server))
    wanted: dict[TopicPartition, int] = {}
    for tp, at in map(_parse, positions):
        _check_topic(planned.connector, tp.topic)
        if wanted.setdefault(tp, at) != at:
            raise ConfigError(f"{tp} is given two positions, {wanted[tp]} and {at}: leave one out")
    planned.sink.set_positions(firsts(wanted))
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
    """Forget all positions: the next run starts by auto.offset.reset. Refused while it runs."""
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
    if as_json:
        print(json.dumps([]))
        return
    print(f"{planned.connector.name}: positions forgotten")


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
