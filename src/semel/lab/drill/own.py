"""A store of the user's: a drill writes there if nothing is there yet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from semel.errors import ConfigError, ServiceError
from semel.plan import plan
from semel.sinks import protocols
from semel.sinks.base import Sink, Snapshot

_LETTERS = ("errors.tolerance", "errors.deadletterqueue.")


def without_letters(raw: Mapping[str, str]) -> dict[str, str]:
    """The configuration with its dead letters switched off.

    Other connectors' may be in their table. A drill sends no bad record; one that a table of the
    user's refuses ends it, instead of being no loss.
    """
    return {k: v for k, v in raw.items() if not k.startswith(_LETTERS)}


def check_empty(raw: Mapping[str, str], topics: Collection[str]) -> None:
    """A drill's records are none of the user's, and its offsets begin at 0.

    Raises:
        ConfigError: there are rows where its results would go, or positions of the connector's.
    """
    planned = plan({**raw, "provenance": "false"})  # rows that are there may have none
    refusal = f"connector {planned.connector.name}: --own-store needs an empty store, but"
    fix = "Name another database or directory, or an empty one"
    try:
        for found in _look(planned.sink, topics):
            held = [target for target, rows in found.rows.items() if rows]
            if held:
                raise ConfigError(f"{refusal} {held[0]} has rows. {fix}")
            if found.entries:
                raise ConfigError(f"{refusal} its ledger knows the connector. {fix}")
    except _Unknown as unknown:
        raise ConfigError(f"{refusal} what is there cannot be read ({unknown}). {fix}") from None
    finally:
        planned.sink.close()  # a database in a file has one process at a time


class _Unknown(Exception):
    """Something is there, but not what a sink of this kind has written."""


def _look(sink: Sink, topics: Collection[str]) -> Sequence[Snapshot]:
    """What is there. Where that can be told as it is, nothing is created."""
    try:
        return protocols.snapshots(sink, topics)
    except (ConfigError, ServiceError):  # often there is nothing yet
        sink.prepare(topics)
    try:
        return protocols.snapshots(sink, topics)
    except (ConfigError, ServiceError) as error:
        raise _Unknown(str(error).rstrip(".")) from None
