"""Where a database is, who logs in, and how long to wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from semel.config import HIGH, key

POSTGRESQL = ("postgresql", "postgres")
"""The schemes of PostgreSQL's URLs."""


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """A JDBC URL; user and password take precedence over those in it."""

    url: str
    user: str = ""
    password: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the JDBC driver for which the URL has none."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait, in milliseconds."""

    idle: int = 30_000
    """The server ends a transaction whose process is frozen for that long."""
    lock: int = 10_000
    """For another process's lock."""
    answer: int = 60_000
    """For a server that does not answer."""


def user_key(group: str) -> Any:
    """``connection.user``, of a database."""
    return key(
        "connection.user",
        "",
        "The user; takes precedence over a user in connection.url.",
        aliases=("connection.username",),
        importance=HIGH,
        group=group,
        display="JDBC User",
    )


def password_key(group: str) -> Any:
    """``connection.password``, of a database."""
    return key(
        "connection.password",
        "",
        "The user's password.",
        secret=True,
        importance=HIGH,
        group=group,
        display="JDBC Password",
    )
