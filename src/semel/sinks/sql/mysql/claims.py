"""Claims of a connector's runs in MariaDB and MySQL, whose locks are never shared.

Each session of a connector takes one of many locks. No run is alive if all of them are free.
"""

from __future__ import annotations

import hashlib
import random
import time
from typing import Any

from semel.core.errors import TransientError
from semel.sinks import jdbc

_SLOTS = 256


def take(connection: Any, database: str, connector: str, where: str) -> None:
    """Take a free lock. If so many sessions of the connector are alive that none is free, continue
    without one: the others show that it runs.

    Raises:
        TransientError: one session holds all of them, to change positions.
    """
    slots = _slots(database, connector)
    holders = ", ".join(f"IS_USED_LOCK('{slot}')" for slot in slots)
    deadline = time.monotonic() + jdbc.RELEASE_TIME
    while True:
        held = row(connection, f"SELECT {holders}")
        free = [slot for slot, by in zip(slots, held, strict=True) if by is None]
        if free:
            (got,) = row(connection, f"SELECT GET_LOCK('{random.choice(free)}', 0)")
            if got == 1:
                return
        elif len(set(held)) == len(held):
            return
        if time.monotonic() >= deadline:
            raise TransientError(f"{where}: positions are being changed")
        time.sleep(jdbc.RELEASE_PAUSE)


def every_slot(database: str, connector: str) -> str:
    """A query that takes all of the locks; they are held until the session ends."""
    locks = (f"GET_LOCK('{slot}', 0)" for slot in _slots(database, connector))
    return f"SELECT {', '.join(locks)}"


def row(connection: Any, sql: str) -> tuple[Any, ...]:
    """The one row of a query."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        found: tuple[Any, ...] = cursor.fetchone()
        return found


def _slots(database: str, connector: str) -> list[str]:
    name = hashlib.blake2s(f"{database}\0{connector}".encode(), digest_size=12).hexdigest()
    return [f"semel.{name}.{slot}" for slot in range(_SLOTS)]
