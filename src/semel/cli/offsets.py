"""``semel offsets show|set|reset``: shows and changes the ledger by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from semel.cli import source_offsets
from semel.cli.connector import AsJson, Bootstrap, File, with_servers
from semel.cli.console import console
from semel.config import whole
from semel.core.context import this_user
from semel.core.errors import ConfigError
from semel.core.ledger import Hole, TopicPartition
from semel.driver.planning import AnyPlan, SourcePlan, plan_any
from semel.driver.positions import check_topic, ledger_facts, reset_positions, set_positions
from semel.kafka.clients import client_config
from semel.kafka.cluster import wait_for_brokers
from semel.sinks.protocols import FencesByGroup

app = typer.Typer(no_args_is_help=True, help="Show or change a connector's stored positions.")


@app.command(epilog="Example: semel offsets show flights.json")
def show(file: File, bootstrap_server: Bootstrap = "", as_json: AsJson = False) -> None:
    """Show the ledger: the positions and counts of each topic-partition, and its holes."""
    planned = plan_any(with_servers(file, bootstrap_server))
    if isinstance(planned, SourcePlan):
        source_offsets.show(planned, as_json=as_json)
        return
    if isinstance(planned.sink, FencesByGroup):  # its ledger is in Kafka
        _wait_for_brokers(planned)
    entries, holes = planned.sink.entries(), planned.sink.holes()
    planned.sink.close()
    if as_json:
        print(json.dumps(ledger_facts(entries, holes)))
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
    if holes:
        console().print(holes_table(holes))


def holes_table(holes: Sequence[Hole]) -> Table:
    """Holes, with who has made them and when."""
    table = Table(box=None, header_style="bold")
    for title in ("hole in", "offsets", "reason", "by", "at"):
        table.add_column(title)
    for h in holes:
        span = f"{h.from_offset:,} to {h.until_offset - 1:,}"
        table.add_row(str(h.topic_partition), span, h.reason, escape(h.by), h.at)
    return table


@app.command("set", epilog="Example: semel offsets set flights.json flights-0=1200 flights-1=1180")
def set_(
    file: File,
    positions: Annotated[
        list[str],
        typer.Argument(
            help="TOPIC-PARTITION=OFFSET, one or more; for a source, its partition and offset in "
            "JSON."
        ),
    ],
    bootstrap_server: Bootstrap = "",
    force: Annotated[
        bool, typer.Option("--force", help="Do not compare with what Kafka holds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Set positions. Refused while the connector runs, and if Kafka has no such offsets."""
    planned = plan_any(with_servers(file, bootstrap_server))
    if isinstance(planned, SourcePlan):
        source_offsets.set_(planned, positions, force=force, as_json=as_json)
        return
    wanted: dict[TopicPartition, int] = {}
    for tp, at in map(_parse, positions):
        check_topic(planned.connector, tp.topic)
        if wanted.setdefault(tp, at) != at:
            raise ConfigError(f"{tp} has two positions, {wanted[tp]} and {at}: leave one out")
    if not force:
        _wait_for_brokers(planned)
    hint = ", or set it anyway with --force"
    set_positions(planned, wanted, this_user(), force=force, hint=hint)
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
    """Forget all positions and their copies in the consumer group. The next run starts at
    auto.offset.reset. Refused while the connector runs."""
    planned = plan_any(with_servers(file, bootstrap_server))
    _wait_for_brokers(planned)
    if isinstance(planned, SourcePlan):
        source_offsets.reset(planned, yes=yes, as_json=as_json)
        return
    if not yes:
        typer.confirm(
            f"Forget the positions of {planned.connector.name}? Its rows stay, so records that are "
            "read again are written again",
            abort=True,
            err=as_json,
        )
    reset_positions(planned, this_user())
    planned.sink.close()
    if as_json:
        print(json.dumps([]))
        return
    print(f"{planned.connector.name}: positions forgotten")


def _wait_for_brokers(planned: AnyPlan) -> None:
    """Raises ServiceError: no broker answers."""
    wait_for_brokers(client_config(planned.connector, "admin"))


def _parse(text: str) -> tuple[TopicPartition, int]:
    name, _, offset = text.rpartition("=")
    topic, _, partition = name.rpartition("-")
    try:
        if topic:
            return TopicPartition(topic, whole(partition, 0)), whole(offset, 0)
    except ValueError:
        pass
    raise ConfigError(f"{text!r} is not TOPIC-PARTITION=OFFSET, such as flights-0=1200")
