"""Ledger entries as JSON, for stores that keep them as texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from semel.core.ledger import LEDGER_FORMAT, LedgerEntry, check_format

_SHORT = {
    "start_position": "start",
    "records_read": "read",
    "rows_written": "rows",
    "records_filtered": "filtered",
    "records_failed": "failed",
    "records_lost": "lost",
    "updated_at": "at",
}
_PLACE = {"topic", "partition", "position"}
_DEFAULTS = LedgerEntry("", 0, 0, -1)
_NAMES = {f.name: _SHORT.get(f.name, f.name) for f in fields(LedgerEntry) if f.name not in _PLACE}


def facts_of(entry: LedgerEntry) -> dict[str, Any]:
    """An entry's facts besides topic, partition and position; unknown ones are left out."""
    facts = {short: getattr(entry, name) for name, short in _NAMES.items()}
    unknown = {short: getattr(_DEFAULTS, name) for name, short in _NAMES.items()}
    return {"v": LEDGER_FORMAT} | {k: v for k, v in facts.items() if v != unknown[k]}


def entry_of(topic: str, partition: int, position: Any, facts: Mapping[str, Any]) -> LedgerEntry:
    """The entry; one without facts, which another program has written, begins at its position.

    Raises:
        ServiceError: a later version of semel has written it.
        ValueError: no semel has written it: a value has another type.
    """
    version = facts.get("v", LEDGER_FORMAT)
    attributes = {"position": position, "start_position": position}
    attributes |= {name: facts[short] for name, short in _NAMES.items() if short in facts}
    kinds = {name: type(getattr(_DEFAULTS, name)) for name in attributes}
    if type(version) is not int or any(type(attributes[name]) is not kinds[name] for name in kinds):
        raise ValueError(f"the facts of {topic}-{partition} are not semel's")
    check_format(f"the ledger's entry of {topic}-{partition}", version, LEDGER_FORMAT)
    return LedgerEntry(topic, partition, **attributes)


def dumped(facts: Mapping[str, Any] | list[Any]) -> str:
    """JSON without spaces."""
    return json.dumps(facts, separators=(",", ":"))


def loaded(text: str | bytes) -> dict[str, Any]:
    """The facts; empty if the text is not JSON that semel wrote."""
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
