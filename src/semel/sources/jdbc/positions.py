"""What a position means in each mode."""

from __future__ import annotations

from semel.sources.jdbc.config import INCREMENTING, TIMESTAMP, JdbcSourceConfig
from semel.sources.jdbc.offsets import Position


def begun(config: JdbcSourceConfig, position: Position, now: int) -> Position:
    """The position. In modes with a time, if it has none, ``timestamp.initial`` if that is set.
    ``now`` is in microseconds since 1970."""
    initial, known = config.timestamp_initial, (position.timestamp, position.load)
    if known != (None, None) or initial is None or not config.by_time:
        return position
    return Position(None, now if initial == -1 else initial * 1000)


def after(config: JdbcSourceConfig, position: Position) -> Position:
    """The position; in incrementing mode, if no number is known, ``incrementing.initial``."""
    if config.mode != INCREMENTING or position.incrementing is not None:
        return position
    return Position(config.incrementing_initial)


def lacking(config: JdbcSourceConfig, position: Position) -> str:
    """What an offset needs in this mode but lacks; empty if nothing."""
    if config.by_time:
        known = position.load is not None or position.timestamp is not None
        return "" if known else TIMESTAMP
    known = position.incrementing is not None or not config.by_number
    return "" if known else INCREMENTING
