"""Finds out whether the server is still working on a silent session or the session is lost."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import adbc_driver_manager

from semel.core import watchdog
from semel.databases.postgresql import driver

_CONNECT = re.compile(r"\bconnect_timeout=(\d+)")
_SAMPLES = 5
_PAUSE = 0.2

MINE = """SELECT pg_backend_pid()::bigint AS pid,
    (SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()) AS begun"""
_STATE = """SELECT state, wait_event_type AS kind, wait_event AS event FROM pg_stat_activity
WHERE pid = {pid} AND backend_start::text = '{begun}' AND datname = current_database()"""
_COPIED = "SELECT bytes_processed FROM pg_stat_progress_copy WHERE pid = {pid}"


@dataclass(frozen=True, slots=True)
class Backend:
    """The server process of a session."""

    pid: int
    begun: str


def bounded(uri: str, seconds: float) -> str:
    """The URI with a ``connect_timeout`` of at most this long; libpq takes no less than two."""
    most = max(2, int(seconds))
    given = _CONNECT.search(uri)
    if given is None:
        return f"{uri}{'&' if '?' in uri else '?'}connect_timeout={most}"
    return _CONNECT.sub(f"connect_timeout={min(int(given[1][:9]) or most, most)}", uri)


def line(uri: str, before: dict[int, tuple[int, int]]) -> int | None:
    """The descriptor of the connection that was opened since ``before``, if it is the only one."""
    ports = {int(port) for port in re.findall(r":(\d+)", urlsplit(uri).netloc)} or {5432}
    now = watchdog.connections()
    new = [handle for inode, (handle, port) in now.items() if inode not in before and port in ports]
    return new[0] if len(new) == 1 else None


def end(uri: str, backend: Backend | None) -> str:
    """What the session is doing, according to the server. If it only waits for its client, it is
    ended together with its locks, and the answer is empty."""
    if backend is None:
        return ""
    connection = driver.connect(bounded(uri, 5))
    try:
        copied: list[Any] = []
        for _ in range(_SAMPLES):
            found = _rows(connection, _STATE.format(pid=backend.pid, begun=backend.begun))
            if not found:
                return ""  # it has ended, or this is another server
            (state, kind, event), *_ = found
            if state == "active" and kind != "Client":
                return f"waits for {kind} {event}" if kind else "a statement is running"
            copied.append(_rows(connection, _COPIED.format(pid=backend.pid)))
            if copied[-1] != copied[0]:
                return "a COPY is in progress"
            time.sleep(_PAUSE)
        _rows(connection, f"SELECT pg_terminate_backend({backend.pid})")
    finally:
        with suppress(adbc_driver_manager.Error, RuntimeError):
            connection.close()
    return ""


def _rows(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows
