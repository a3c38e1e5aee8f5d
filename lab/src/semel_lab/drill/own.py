"""The user's own store, which a drill uses only if it is empty."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from semel.core.errors import ConfigError, ServiceError
from semel.driver.planning import plan
from semel.sinks import protocols
from semel.sinks.base import Sink, Snapshot

_LETTERS = ("errors.tolerance", "errors.deadletterqueue.")


def without_letters(raw: Mapping[str, str]) -> dict[str, str]:
    """The configuration without dead letters.

    Their table may hold other connectors' letters. A drill sends no bad records. If the user's
    table refuses a record, the drill ends, because the record would otherwise not count as lost.
    """
    return {k: v for k, v in raw.items() if not k.startswith(_LETTERS)}


def check_empty(raw: Mapping[str, str], topics: Collection[str]) -> None:
    """Check that a drill's rows and positions, which begin at 0, do not collide with the user's.

    Raises:
        ConfigError: a target has rows, or the ledger knows the connector.
    """
    planned = plan({**raw, "provenance": "false"})  # existing rows may have none
    refusal = f"connector {planned.connector.name}: --own-store needs an empty store, but"
    fix = "Name another database or directory, or an empty one"
    try:
        for contents in _look(planned.sink, topics):
            occupied = [target for target, rows in contents.rows.items() if rows]
            if occupied:
                raise ConfigError(f"{refusal} {occupied[0]} has rows. {fix}")
            if contents.entries:
                raise ConfigError(f"{refusal} its ledger knows the connector. {fix}")
    except _Unknown as unknown:
        raise ConfigError(f"{refusal} its contents cannot be read ({unknown}). {fix}") from None
    finally:
        planned.sink.close()  # only one process at a time can open a database file


class _Unknown(Exception):
    """The store holds something that this kind of sink did not write."""


def _look(sink: Sink, topics: Collection[str]) -> Sequence[Snapshot]:
    """Read the store. Create targets only if it cannot be read without them."""
    try:
        return protocols.snapshots(sink, topics)
    except (ConfigError, ServiceError):  # often because nothing exists yet
        sink.prepare(topics)
    try:
        return protocols.snapshots(sink, topics)
    except (ConfigError, ServiceError) as error:
        raise _Unknown(str(error).rstrip(".")) from None
