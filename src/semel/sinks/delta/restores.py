"""Detects whether a table still holds what a connector committed to it.

``RESTORE`` brings back the files of an older version, and a table can be replaced in place; both
leave transaction identifiers as they are. So each commit of a connector also stores its own version
and the table's id, and what others have done since is read from the table's log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_RESTORE = "RESTORE"
_REPLACES = frozenset(
    {
        "CLONE",
        "CREATE OR REPLACE TABLE",
        "CREATE OR REPLACE TABLE AS SELECT",
        "REPLACE TABLE",
        "REPLACE TABLE AS SELECT",
    }
)


@dataclass(frozen=True, slots=True)
class Operation:
    """The operation of one version of a table, as its log entry names it."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


def operation_of(entry: bytes) -> Operation:
    """The operation that a log entry names; writers may omit it."""
    for line in entry.splitlines():
        if line.startswith(b'{"commitInfo"'):
            facts = json.loads(line)["commitInfo"]
            return Operation(str(facts.get("operation")), facts.get("operationParameters") or {})
    return Operation("")


@dataclass(frozen=True, slots=True)
class Setback:
    """Why a table does not, or may not, hold a connector's last commit.

    ``said`` tells what happened; ``base`` is the version whose state the table went back to, if
    that is known; ``undo`` the last version before it happened.
    """

    said: str
    base: int | None = None
    undo: int | None = None

    def undone(self, what: str) -> str:
        """How to bring back what is gone."""
        if self.undo is None:
            return ""
        return f"To bring the {what} back, restore the table to version {self.undo}. "


def setback(
    committed: int,
    version: int,
    log: Mapping[int, Operation],
    seen: Mapping[int, Setback | None] | None = None,
) -> dict[int, Setback | None]:
    """What took the commit of version ``committed`` out of the table, for each version up to
    ``version``; None where nothing did, or where a second restore undid the first.

    ``seen`` is the answer for an earlier version: the log before it is not needed any more.
    """
    states: dict[int, Setback | None] = {committed: None, **(seen or {})}
    begin = max(states) + 1
    missing = [v for v in range(begin, version + 1) if v not in log]
    if missing:
        unknown = Setback(
            f"the log entry of version {missing[-1]} has been cleaned up, so nobody can tell "
            "whether the table was restored to an older version meanwhile"
        )
        return {**states, version: unknown}
    for at in range(begin, version + 1):
        states[at] = _after(log[at], at, committed, states)
    return states


def _after(
    operation: Operation, at: int, committed: int, states: Mapping[int, Setback | None]
) -> Setback | None:
    if operation.name in _REPLACES:
        return Setback(f"version {at} replaced the table ({operation.name})", undo=at - 1)
    if operation.name != _RESTORE:
        return states[at - 1]
    to = str(operation.parameters.get("version", ""))
    if not to.isdigit():
        moment = operation.parameters.get("timestamp") or operation.parameters.get("datetime")
        return Setback(f"version {at} restored the table to time {moment}", undo=at - 1)
    if int(to) >= committed:
        return states[int(to)]
    return Setback(f"version {at} restored the table to version {to}", int(to), at - 1)
