"""Keeps the progress of ``semel audit --follow`` in a file, so a restart continues from there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from semel.audit.follow.progress import Mark
from semel.core.errors import ConfigError
from semel.core.ledger import TopicPartition

_VERSION = 1


@dataclass(frozen=True, slots=True)
class FollowState:
    """The marks of all partitions, and the counts ``records``, ``unknown`` and ``expired`` up to
    the offsets in ``counted``.

    ``connector`` and ``target`` say whose they are. ``surplus`` holds, for each topic, how many
    more rows it has than the ledger counts.
    """

    connector: str
    target: str
    marks: Mapping[TopicPartition, Mark] = field(default_factory=dict)
    records: int = 0
    unknown: int = 0
    expired: int = 0
    surplus: Mapping[str, int] = field(default_factory=dict)
    counted: Mapping[TopicPartition, int] = field(default_factory=dict)


def default_path(connector: str, target: str) -> Path:
    """The file for the state of a connector with this target."""
    root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    plain = re.sub(r"[^\w.-]", "_", connector)[:60]
    digest = hashlib.blake2s(f"{connector}\n{target}".encode(), digest_size=6).hexdigest()
    return root / "semel" / f"{plain}-{digest}.json"


def load(path: Path, connector: str, target: str) -> FollowState:
    """The state in a file, or an empty one if there is no file.

    Raises:
        ConfigError: the file cannot be read or belongs to another connector or target.
    """
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return FollowState(connector, target)
    except OSError as error:
        raise ConfigError(f"--state {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _damaged(path, error) from None
    if isinstance(found, dict) and isinstance(found.get("version"), int):
        if found["version"] > _VERSION:
            raise ConfigError(
                f"--state {path} was written by a newer version of semel (format "
                f"{found['version']}; this one reads {_VERSION}). Upgrade semel, or name another "
                "file"
            )
    else:
        raise _damaged(path, "it has no version")
    try:
        state = _parsed(found)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None
    for what, theirs, mine in (
        ("connector", state.connector, connector),
        ("target", state.target, target),
    ):
        if theirs != mine:
            raise ConfigError(
                f"--state {path} belongs to {what} {theirs}, not to {mine}. Name another file, or "
                "delete it to judge everything again"
            )
    return state


def save(path: Path, state: FollowState) -> None:
    """Replace the file with one that holds this state.

    Raises:
        ConfigError: it cannot be written.
    """
    marks: dict[str, dict[str, Any]] = {}
    for tp, mark in sorted(state.marks.items()):
        facts = {**asdict(mark), "counted": state.counted.get(tp, 0)}
        marks.setdefault(tp.topic, {})[str(tp.partition)] = facts
    content = {
        "version": _VERSION,
        "connector": state.connector,
        "target": state.target,
        "records": state.records,
        "unknown": state.unknown,
        "expired": state.expired,
        "surplus": dict(state.surplus),
        "topics": marks,
    }
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink()
        raise ConfigError(f"--state {path} cannot be written: {error.strerror}") from None


def _parsed(found: Mapping[str, Any]) -> FollowState:
    parts = {
        TopicPartition(topic, int(partition)): facts
        for topic, partitions in found["topics"].items()
        for partition, facts in partitions.items()
    }
    return FollowState(
        str(found["connector"]),
        str(found["target"]),
        {tp: _mark(facts) for tp, facts in parts.items()},
        _number(found["records"]),
        _number(found["unknown"]),
        _number(found["expired"]),
        {str(t): _number(n, least=None) for t, n in found["surplus"].items()},
        {tp: _number(facts["counted"]) for tp, facts in parts.items()},
    )


def _mark(facts: Mapping[str, Any]) -> Mark:
    numbers = {n: _number(facts[n]) for n in ("start", "offset", "read", "rowless")}
    return Mark(**numbers, cluster_id=str(facts["cluster_id"]), topic_id=str(facts["topic_id"]))


def _number(value: object, least: int | None = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a number")
    if least is not None and value < least:
        raise ValueError(f"{value} is negative")
    return value


def _damaged(path: Path, why: object) -> ConfigError:
    return ConfigError(
        f"--state {path} is not a state of semel audit --follow ({why}). Name another file, or "
        "delete it to judge everything again"
    )
