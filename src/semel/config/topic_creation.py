"""``topic.creation.*``: how a source connector creates the topics that are missing (KIP-158)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from semel.config.loading import under
from semel.core.errors import ConfigError, Problem
from semel.core.patterns import compiled

PREFIX = "topic.creation."
DEFAULT = "default"
_OWN = ("include", "exclude", "partitions", "replication.factor")


@dataclass(frozen=True, slots=True)
class TopicGroup:
    """Settings of the topics whose names match one of ``include`` and none of ``exclude``.

    ``partitions`` and ``replication`` are -1 for the brokers' defaults; ``config`` is the
    configuration of the topic.
    """

    name: str
    include: Sequence[str]
    exclude: Sequence[str]
    partitions: int
    replication: int
    config: Mapping[str, str]

    def takes(self, topic: str) -> bool:
        """Whether a topic belongs to the group."""
        return _matches(self.include, topic) and not _matches(self.exclude, topic)


@dataclass(frozen=True, slots=True)
class TopicCreation:
    """The groups, in the order in which they are tried; none if topics must exist.
    ``as_brokers_do`` is set if there are no settings: missing topics are then created with the
    brokers' defaults, if the brokers create topics on request."""

    groups: Sequence[TopicGroup] = ()
    as_brokers_do: bool = False

    @classmethod
    def of(cls, names: Sequence[str], raw: Mapping[str, str]) -> TopicCreation:
        """The groups of a configuration, the default group last.

        Raises:
            ConfigError: a key is missing, or its value cannot be used.
        """
        enabled = raw.get(f"{PREFIX}enable", "true").strip().lower() != "false"
        if not enabled:
            return cls()
        if not any(key.startswith(PREFIX) and key != f"{PREFIX}enable" for key in raw):
            return cls((_OF_BROKERS,), as_brokers_do=True)
        problems: list[Problem] = []
        if len(set(names)) < len(names):
            problems.append(_problem("groups", f"={','.join(names)} names a group twice"))
        default = _group(DEFAULT, raw, None, problems)
        others = [_group(n, raw, default, problems) for n in dict.fromkeys(names) if n != DEFAULT]
        if problems:
            raise ConfigError(*problems)
        return cls((*others, default))

    def group_of(self, topic: str) -> TopicGroup | None:
        """The first group that takes a topic; None if it may not be created."""
        return next((g for g in self.groups if g.takes(topic)), None)


_OF_BROKERS = TopicGroup(DEFAULT, (".*",), (), -1, -1, {})


def _group(
    name: str, raw: Mapping[str, str], default: TopicGroup | None, problems: list[Problem]
) -> TopicGroup:
    given = under(raw, f"{PREFIX}{name}.")
    partitions, replication = (default.partitions, default.replication) if default else (None, None)
    include = _patterns(name, "include", given, problems)
    return TopicGroup(
        name,
        (".*",) if default is None else include,
        () if default is None else _patterns(name, "exclude", given, problems),
        _number(name, "partitions", given, partitions, problems),
        _number(name, "replication.factor", given, replication, problems),
        {k: v for k, v in given.items() if k not in _OWN},
    )


def _number(
    group: str, key: str, given: Mapping[str, str], default: int | None, problems: list[Problem]
) -> int:
    text = given.get(key, "").strip()
    if not text and default is not None:
        return default
    if not text:
        message = " is required to create topics; -1 is the brokers' default"
        problems.append(_problem(f"{group}.{key}", message))
        return -1
    if not re.fullmatch(r"-1|[1-9]\d{0,8}", text):
        problems.append(_problem(f"{group}.{key}", f"={text!r} must be -1, or at least 1"))
        return -1
    return int(text)


def _patterns(
    group: str, key: str, given: Mapping[str, str], problems: list[Problem]
) -> tuple[str, ...]:
    found = tuple(p.strip() for p in given.get(key, "").split(",") if p.strip())
    for pattern in found:
        try:
            compiled(pattern)
        except ValueError as error:
            problems.append(_problem(f"{group}.{key}", f"={pattern!r} {error}"))
    return found


def _matches(patterns: Sequence[str], topic: str) -> bool:
    return any(compiled(p).fullmatch(topic) for p in patterns)


def _problem(key: str, message: str) -> Problem:
    return Problem(PREFIX + key, f"{PREFIX}{key}{message}")
