"""Checks of single keys."""

from __future__ import annotations

from zoneinfo import ZoneInfo


def a_time_zone(name: str) -> None:
    """Check ``db.timezone``. Raises ValueError."""
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ValueError("is not the name of a time zone, such as Europe/Berlin") from None


def not_relaxed(relaxed: bool) -> None:
    """Check ``incrementing.relaxed.monotonic``. Raises ValueError."""
    if relaxed:
        raise ValueError(
            "is not available: rows that become visible out of order cannot be read exactly once. "
            "Remove it, or use mode=timestamp+incrementing with timestamp.delay.interval.ms"
        )


def no_provider(name: str) -> None:
    """Check ``jdbc.credentials.provider.class``. Raises ValueError."""
    if name and name.rpartition(".")[2] != "DefaultJdbcCredentialsProvider":
        raise ValueError(
            "is not available: it is a Java class. Set connection.user and connection.password, "
            "which may be references such as ${file:path:key}"
        )
