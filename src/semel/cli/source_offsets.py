"""``semel offsets`` of a source connector."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from semel.cli.console import console
from semel.core.errors import ConfigError
from semel.driver.planning import SourcePlan
from semel.driver.source_positions import reset_source_offsets, set_source_offsets, source_offsets
from semel.kafka.clients import client_config
from semel.kafka.cluster import wait_for_brokers

Wanted = tuple[dict[str, Any], dict[str, Any] | None]


def show(planned: SourcePlan, *, as_json: bool) -> None:
    """Show each source partition with its offset."""
    wait_for_brokers(client_config(planned.connector, "admin"))
    found = source_offsets(planned)
    if as_json:
        _print(found)
        return
    table = Table(box=None, header_style="bold")
    table.add_column("source partition")
    table.add_column("source offset")
    for partition, offset in found:
        table.add_row(escape(_text(partition)), escape(_text(offset)))
    console().print(table if found else "no source offsets are stored yet")


def set_(planned: SourcePlan, texts: Sequence[str], *, force: bool, as_json: bool) -> None:
    """Set the offsets of some source partitions."""
    wanted = [_parsed(text) for text in texts]
    wait_for_brokers(client_config(planned.connector, "admin"))
    set_source_offsets(planned, wanted, force=force)
    if as_json:
        _print(wanted)
        return
    for partition, offset in wanted:
        print(f"{_text(partition)} = {_text(offset)}")


def reset(planned: SourcePlan, *, yes: bool, as_json: bool) -> None:
    """Forget all source offsets."""
    name = planned.connector.name
    if not yes:
        typer.confirm(
            f"Forget the source offsets of {name}? Its records stay in Kafka, and what is read "
            "again is written again",
            abort=True,
            err=as_json,
        )
    reset_source_offsets(planned)
    print(json.dumps([]) if as_json else f"{name}: source offsets forgotten")


def _parsed(text: str) -> Wanted:
    decoder = json.JSONDecoder()
    try:
        partition, end = decoder.raw_decode(text)
        equals, rest = text[end:].lstrip()[:1], text[end:].lstrip()[1:]
        offset = json.loads(rest)
    except ValueError:
        partition, offset, equals = None, None, ""
    if equals != "=" or not isinstance(partition, dict) or not isinstance(offset, dict | None):
        raise ConfigError(
            f"{text!r} is not a source partition and its offset in JSON, such as "
            '\'{"filename":"test.txt"}={"position":8}\', or =null to forget it'
        )
    return partition, offset


def _print(found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]) -> None:
    print(json.dumps([{"partition": dict(p), "offset": o} for p, o in found]))


def _text(facts: Mapping[str, Any] | None) -> str:
    return json.dumps(facts, separators=(",", ":"), ensure_ascii=False)
