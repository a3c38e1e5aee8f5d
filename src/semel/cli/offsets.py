"""``semel offsets show|set|reset``: shows and changes a connector's stored offsets by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from semel.cli.application import console
from semel.cli.common import AsJson, Bootstrap, File, with_servers
from semel.core.context import this_user
from semel.core.errors import ConfigError
from semel.core.ledger import Hole
from semel.driver.planning import plan_any
from semel.kafka.cluster import wait_for_brokers

if TYPE_CHECKING:
    from semel.driver.offsets import OffsetChange

app = typer.Typer(no_args_is_help=True, help="Show or change a connector's stored positions.")


@app.command(epilog="Example: semel offsets show flights.json")
def show(file: File, bootstrap_server: Bootstrap = "", as_json: AsJson = False) -> None:
    """Show the ledger: the positions and counts of each topic-partition, and its holes."""
    with closing(plan_any(with_servers(file, bootstrap_server))) as planned:
        offsets = planned.offsets
        if offsets.in_kafka:
            wait_for_brokers(offsets.client)
        if as_json:
            print(json.dumps(offsets.listed()))
            return
        rows, holes = offsets.rows(), offsets.holes()
    table = Table(box=None, header_style="bold")
    for title, value in rows[0].items() if rows else ():
        table.add_column(title, justify="right" if isinstance(value, int) else "left")
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else escape(v) for v in row.values()))
    console().print(table if rows else offsets.none_yet)
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
    with closing(plan_any(with_servers(file, bootstrap_server))) as planned:
        offsets = planned.offsets
        by_place: dict[str, OffsetChange] = {}
        for each in map(offsets.parsed, positions):
            where, at = offsets.text(each)
            _, before = offsets.text(by_place.setdefault(where, each))
            if before != at:
                raise ConfigError(
                    f"{where} has two {offsets.name}, {before} and {at}: leave one out"
                )
        if offsets.in_kafka or not force:
            wait_for_brokers(offsets.client)
        hint = ", or set it anyway with --force"
        offsets.set(list(by_place.values()), this_user(), force=force, hint=hint)
    if as_json:
        print(json.dumps([offsets.fact(each) for each in by_place.values()]))
        return
    for where, at in map(offsets.text, by_place.values()):
        print(f"{where} = {at}")


@app.command(epilog="Example: semel offsets reset flights.json")
def reset(
    file: File,
    bootstrap_server: Bootstrap = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget all positions and their copies in the consumer group. The next run starts at
    auto.offset.reset. Refused while the connector runs."""
    with closing(plan_any(with_servers(file, bootstrap_server))) as planned:
        name, offsets = planned.connector.name, planned.offsets
        wait_for_brokers(offsets.client)
        if not yes:
            question = f"Forget the {offsets.name} of {name}? {offsets.reread}"
            typer.confirm(question, abort=True, err=as_json)
        offsets.reset(this_user())
    print(json.dumps([]) if as_json else f"{name}: {offsets.name} forgotten")
