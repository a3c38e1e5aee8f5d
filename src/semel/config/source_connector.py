"""The keys that every source connector has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from semel.config.connector import CommonConfig, ErrorHandlingConfig, is_topic, not_zero
from semel.config.definition import HIGH, LOW, Type, key
from semel.config.loading import under
from semel.core.delivery import Delivery
from semel.core.errors import ConfigError, Problem
from semel.core.patterns import compiled

TOPIC_CREATION = "topic.creation."
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
        if raw.get(f"{TOPIC_CREATION}enable", "true").strip().lower() == "false":
            return cls()
        if not under(raw, TOPIC_CREATION).keys() - {"enable"}:
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
    settings = under(raw, f"{TOPIC_CREATION}{name}.")
    partitions, replication = (default.partitions, default.replication) if default else (None, None)
    include = _patterns(name, "include", settings, problems)
    return TopicGroup(
        name,
        (".*",) if default is None else include,
        () if default is None else _patterns(name, "exclude", settings, problems),
        _number(name, "partitions", settings, partitions, problems),
        _number(name, "replication.factor", settings, replication, problems),
        {k: v for k, v in settings.items() if k not in _OWN},
    )


def _number(
    group: str, key: str, settings: Mapping[str, str], default: int | None, problems: list[Problem]
) -> int:
    text = settings.get(key, "").strip()
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
    group: str, key: str, settings: Mapping[str, str], problems: list[Problem]
) -> tuple[str, ...]:
    patterns = tuple(p.strip() for p in settings.get(key, "").split(",") if p.strip())
    for pattern in patterns:
        try:
            compiled(pattern)
        except ValueError as error:
            problems.append(_problem(f"{group}.{key}", f"={pattern!r} {error}"))
    return patterns


def _matches(patterns: Sequence[str], topic: str) -> bool:
    return any(compiled(p).fullmatch(topic) for p in patterns)


def _problem(key: str, message: str) -> Problem:
    return Problem(TOPIC_CREATION + key, f"{TOPIC_CREATION}{key}{message}")


OFFSETS_FILE = "offset.storage.file.filename"
OFFSETS_URLS = ("offset.storage.jdbc.connection.url", "offset.storage.jdbc.url")
"""The keys that keep source offsets outside Kafka."""
OFFSETS_TABLE = "offset.storage.jdbc.table.name"
_TRANSACTION_BYTES = 64 * 1024 * 1024


OFFSETS = "offset.storage."
_NO_SETTINGS = ("topic", "partitions", "replication.factor", "cleanup.policy", "file.filename")


def topic_settings(raw: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The configuration that a topic of a cluster is created with, from the keys below a prefix
    such as :data:`OFFSETS` (KIP-605)."""
    return {
        name: value
        for name, value in under(raw, prefix).items()
        if name not in _NO_SETTINGS and not name.startswith("jdbc.")
    }


def offsets_on_one_machine(raw: Mapping[str, str]) -> dict[str, str]:
    """The keys of a configuration that keep source offsets in a file, with what they name."""
    values = {name: raw.get(name, "").strip() for name in (OFFSETS_FILE, *OFFSETS_URLS)}
    return {
        name: value
        for name, value in values.items()
        if value and (name == OFFSETS_FILE or value.removeprefix("jdbc:").startswith("sqlite:"))
    }


@dataclass(frozen=True)
class SourceConnectorConfig(ErrorHandlingConfig, CommonConfig):
    """The keys every source connector has, whatever its source."""

    bootstrap_servers: str = key(
        "bootstrap.servers",
        doc="Kafka brokers, host:port separated by commas. Name them here, with "
        "--bootstrap-server, or in SEMEL_BOOTSTRAP_SERVERS.",
        aliases=("kafka.bootstrap.servers", "producer.override.bootstrap.servers"),
        group="Common",
    )
    delivery: Delivery | None = key(
        "delivery",
        None,
        "The guarantee: at-least-once or exactly-once. Default, or auto: exactly-once if the "
        "source can keep it.",
        importance=HIGH,
        group="Delivery",
    )
    exactly_once_support: str = key(
        "exactly.once.support",
        "requested",
        "required refuses a connector that cannot keep exactly-once; requested runs it "
        "at-least-once.",
        choices=("requested", "required"),
        group="Exactly Once Support",
        display="Exactly once support",
    )
    transaction_boundary: str = key(
        "transaction.boundary",
        "poll",
        "poll: one transaction for each batch of records that was read together. interval: one "
        "per transaction.boundary.interval.ms, or earlier when 64 MiB wait. connector: the "
        "source decides where a transaction ends.",
        choices=("poll", "interval", "connector"),
    )
    transaction_interval_ms: int = key(
        "transaction.boundary.interval.ms",
        60_000,
        "Time between two commits with transaction.boundary=interval.",
        at_least=0,
        importance=LOW,
        display="Transaction boundary interval",
    )
    offsets_topic: str = key(
        "offsets.storage.topic",
        "connect-offsets",
        "Topic that holds the source offsets, in Kafka Connect's format. Created compacted if "
        "it is missing.",
        aliases=("offset.storage.topic",),
        importance=LOW,
        group="offsets.topic",
        display="Offsets topic",
        validator=is_topic,
    )
    offsets_file: str = key(
        OFFSETS_FILE,
        "",
        "File that holds the source offsets instead, as with Kafka Connect's standalone worker; "
        "at-least-once.",
        importance=LOW,
    )
    offsets_url: str = key(
        OFFSETS_URLS[0],
        "",
        "Database whose table holds the source offsets instead, such as "
        "jdbc:postgresql://host:port/database; at-least-once.",
        aliases=OFFSETS_URLS[1:],
        secret=True,
        importance=LOW,
    )
    offsets_user: str = key(
        "offset.storage.jdbc.connection.user",
        "",
        "The user of that database, if the URL names none.",
        aliases=("offset.storage.jdbc.user",),
        importance=LOW,
    )
    offsets_password: str = key(
        "offset.storage.jdbc.connection.password",
        "",
        "The user's password.",
        aliases=("offset.storage.jdbc.password",),
        secret=True,
        importance=LOW,
    )
    offsets_table: str = key(
        OFFSETS_TABLE,
        "semel_source_offsets",
        "Table that holds the source offsets. Created if it is missing.",
        aliases=("offset.storage.jdbc.offset.table.name",),
        importance=LOW,
    )
    offsets_partitions: int = key(
        "offset.storage.partitions",
        25,
        "Partitions of the offsets topic when it is created; -1 is the brokers' default.",
        at_least=-1,
        validator=not_zero,
        type=Type.INT,
        importance=LOW,
    )
    offsets_replication: int = key(
        "offset.storage.replication.factor",
        -1,
        "Replication of the offsets topic when it is created; -1 is the brokers' default.",
        at_least=-1,
        type=Type.SHORT,
        importance=LOW,
        validator=not_zero,
    )
    group_id: str = key(
        "group.id",
        "connect-cluster",
        "First part of the producers' transactional.id, <group.id>-<name>-<task>. To take over a "
        "connector of Kafka Connect, set it to the group.id of its workers.",
        importance=LOW,
        group="Common",
    )
    topic_creation_groups: tuple[str, ...] = key(
        "topic.creation.groups",
        (),
        "Groups of topics that are created with settings of their own.",
        importance=LOW,
        group="Topic Creation",
    )

    def __post_init__(self) -> None:
        problems = []
        required = self.exactly_once_support == "required"
        if self.delivery is Delivery.AT_MOST_ONCE:
            problems.append(
                Problem(
                    "delivery",
                    "delivery=at-most-once is for sink connectors. Set it to at-least-once or "
                    "exactly-once",
                )
            )
        elif required and self.delivery is Delivery.AT_LEAST_ONCE:
            problems.append(
                Problem(
                    "exactly.once.support",
                    "exactly.once.support=required, but delivery=at-least-once: remove one",
                )
            )
        if self.offsets_file and self.offsets_url:
            problems.append(
                Problem(
                    OFFSETS_URLS[0],
                    f"{OFFSETS_URLS[0]} and {OFFSETS_FILE} exclude each other: set one",
                )
            )
        try:
            self.topic_creation  # noqa: B018
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(*problems)

    @property
    def topic_creation(self) -> TopicCreation:
        """How missing topics are created."""
        return TopicCreation.of(self.topic_creation_groups, self.originals)

    @property
    def transaction_bytes(self) -> int:
        """The most bytes that wait for one transaction."""
        return _TRANSACTION_BYTES

    def transactional_id(self, task: int) -> str:
        """The ``transactional.id`` of a task's producer."""
        return transactional_id(self.group_id, self.name, task)


def transactional_id(group: str, name: str, task: int) -> str:
    """Kafka Connect's ``transactional.id`` of a task of a connector."""
    return f"{group}-{name}-{task}"
