"""Connector configuration: Kafka Connect's names and defaults, typed and checked.

A section of configuration is a frozen dataclass whose fields are declared with :func:`key`.
:func:`read` turns the user's strings into an instance and reports every mistake at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import javaproperties

from semel.delivery import Delivery, Mechanism
from semel.errors import ConfigError, Problem
from semel.problems import Problems, current

T = TypeVar("T")
_REQUIRED: Any = object()
_MOST_RECORDS = 1_000_000

GROUPS = "connect-"
"""What the names of connectors' consumer groups begin with, as Kafka Connect's do."""


def key(
    name: str,
    default: Any = _REQUIRED,
    doc: str = "",
    *,
    aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
    at_least: int | None = None,
    secret: bool = False,
) -> Any:
    """Declare a configuration key as a dataclass field.

    ``aliases`` are the names other connectors give to the same setting; ``choices`` are accepted
    in any case; ``secret`` values are never shown.
    """
    metadata = {
        "name": name,
        "doc": doc,
        "aliases": aliases,
        "choices": choices,
        "at_least": at_least,
        "secret": secret,
    }
    if default is _REQUIRED:
        return dataclasses.field(metadata=metadata, kw_only=True, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, kw_only=True, repr=not secret)


@dataclass(frozen=True)
class ConnectorConfig:
    """The keys every sink connector has, whatever its sink."""

    name: str = key("name", doc="Unique name; the consumer group is connect-<name>.")
    connector_class: str = key("connector.class", doc="The connector, by class or short name.")
    tasks_max: int = key("tasks.max", 1, "Most tasks to run at once.", at_least=1)
    topics: tuple[str, ...] = key("topics", (), "Topics to read, separated by commas.")
    topics_regex: str = key("topics.regex", "", "Regular expression of the topics to read.")
    bootstrap_servers: str = key(
        "bootstrap.servers",
        doc="Kafka brokers, host:port separated by commas.",
        aliases=("kafka.bootstrap.servers", "consumer.override.bootstrap.servers"),
    )
    key_converter: str = key(
        "key.converter", "org.apache.kafka.connect.storage.StringConverter", "Decodes keys."
    )
    value_converter: str = key(
        "value.converter", "org.apache.kafka.connect.json.JsonConverter", "Decodes values."
    )
    delivery: Delivery | None = key(
        "delivery",
        None,
        "The guarantee: at-most-once, at-least-once or exactly-once. Default: the strongest one "
        "that sink and configuration can keep.",
    )
    delivery_mechanism: Mechanism | None = key(
        "delivery.mechanism", None, "How exactly-once is kept: auto, transactional or idempotent."
    )
    engine: str = key(
        "engine",
        "auto",
        "auto, direct, or micro-batch (Structured Streaming, for DataFrame transforms).",
        choices=("auto", "direct", "micro-batch"),
    )
    offset_reset: str = key(
        "auto.offset.reset",
        "earliest",
        "Where a topic that the ledger has never seen starts.",
        choices=("earliest", "latest"),
        aliases=("consumer.override.auto.offset.reset",),
    )
    offset_out_of_range: str = key(
        "offset.out.of.range",
        "stop",
        "When retention removed the stored position: stop, or earliest (record the hole, go on).",
        choices=("stop", "earliest"),
    )
    topic_recreated: str = key(
        "topic.recreated",
        "stop",
        "When a topic was deleted and created again, or is another cluster's: stop, or earliest "
        "(record it, read the new topic from its beginning).",
        choices=("stop", "earliest"),
    )
    log_truncated: str = key(
        "log.truncated",
        "stop",
        "When a partition's log lost records that were read, as after an unclean leader election: "
        "stop, or continue (record it, go on from where the logs part).",
        choices=("stop", "continue"),
    )
    target_changed: str = key(
        "target.changed",
        "stop",
        "When a topic's results went to another target so far: stop, or continue (record it, go on "
        "in the new target without the older results).",
        choices=("stop", "continue"),
    )
    first_position: str = key(
        "first.position",
        "stop",
        "Where a topic that the ledger has never seen starts if consumer group connect-<name> has "
        "offsets: group (there), reset (by auto.offset.reset), or stop if the offsets may be those "
        "of a semel that has lost its ledger.",
        choices=("stop", "group", "reset"),
    )
    max_poll_records: int = key(
        "max.poll.records",
        50_000,
        "Most records of one commit.",
        aliases=("consumer.override.max.poll.records",),
        at_least=1,
    )
    max_poll_bytes: int = key(
        "max.poll.bytes",
        64 * 1024 * 1024,
        "Bounds what a task holds: a commit has at most a quarter of it, or one record.",
        at_least=1024,
    )
    linger_ms: int = key(
        "poll.linger.ms", 0, "How long a poll waits for more records once it has one.", at_least=0
    )
    max_retries: int = key(
        "max.retries",
        10,
        "Retries of a commit after a transient failure. A store that is away is waited for without "
        "end unless this is set.",
        at_least=0,
    )
    store_timeout_ms: int = key(
        "store.timeout.ms",
        60_000,
        "A call to the store that has had no answer for so long is ended, unless bytes move or the "
        "store works on it.",
        at_least=100,
    )
    retry_backoff_ms: int = key("retry.backoff.ms", 3000, "Pause between two retries.", at_least=0)
    errors_tolerance: str = key(
        "errors.tolerance",
        "none",
        "none: stop at a bad record; all: go on.",
        choices=("none", "all"),
    )
    errors_log: bool = key("errors.log.enable", False, "Log each bad record.")
    errors_log_messages: bool = key(
        "errors.log.include.messages", False, "Log the record's content too."
    )
    dead_letter_topic: str = key(
        "errors.deadletterqueue.topic.name", "", "Topic that receives bad records, raw."
    )
    dead_letter_headers: bool = key(
        "errors.deadletterqueue.context.headers.enable",
        True,
        "Add Connect's __connect.errors.* headers to dead letters.",
    )
    dead_letter_replication: int = key(
        "errors.deadletterqueue.topic.replication.factor",
        3,
        "Replication of the dead letter topic when it is created.",
        at_least=1,
    )
    dead_letter_table: str = key(
        "errors.deadletterqueue.table",
        "",
        "Table that receives bad records in the same transaction, exactly once.",
    )
    provenance: bool = key(
        "provenance",
        False,
        "Store topic, partition, offset and timestamp with each row: the audit is then exact.",
    )
    provenance_topic: str = key("provenance.topic.column", "__connect_topic", "Column name.")
    provenance_partition: str = key(
        "provenance.partition.column", "__connect_partition", "Column name."
    )
    provenance_offset: str = key("provenance.offset.column", "__connect_offset", "Column name.")
    provenance_timestamp: str = key(
        "provenance.timestamp.column", "__connect_timestamp", "Column name."
    )
    max_offsets_per_trigger: int = key(
        "maxOffsetsPerTrigger",
        1_000_000,
        "Micro-batch and bounded: most records of one batch.",
        at_least=1,
    )
    fail_on_data_loss: bool = key(
        "failOnDataLoss", True, "Micro-batch: stop when records are gone before they were read."
    )
    processing_time: str = key(
        "processingTime",
        "0 seconds",
        "Micro-batch and bounded: interval between two batches; bounded: 10 seconds unless set.",
    )

    def __post_init__(self) -> None:
        problems = []
        if bool(self.topics) == bool(self.topics_regex):
            problems.append(
                "set one of topics (a list) and topics.regex (a pattern)"
                + (", not both" if self.topics else "; neither is set")
            )
        if self.topics_regex:
            try:
                re.compile(self.topics_regex)
            except re.error as error:
                problems.append(f"topics.regex={self.topics_regex!r} is not a pattern: {error}")
        if self.max_poll_records > _MOST_RECORDS:
            problems.append(
                f"max.poll.records={self.max_poll_records} must be at most {_MOST_RECORDS}, which "
                "is what the client hands over at once"
            )
        if self.dead_letter_topic and self.dead_letter_table:
            problems.append(
                "errors.deadletterqueue.topic.name and errors.deadletterqueue.table exclude each "
                "other: set the one that dead letters go to"
            )
        columns = list(self.provenance_columns.values())
        if len({c.lower() for c in columns}) < len(columns):
            problems.append(
                f"provenance.*.column: {', '.join(columns)}: provenance needs a column of its own "
                "for each of topic, partition, offset and timestamp, in lower case too"
            )
        if problems:
            raise ConfigError(*problems)

    @property
    def group_id(self) -> str:
        """The consumer group."""
        return group_of(self.name)

    @property
    def provenance_columns(self) -> dict[str, str]:
        """Metadata column -> column of the target table; empty without provenance."""
        if not self.provenance:
            return {}
        return {
            "__connect_topic": self.provenance_topic,
            "__connect_partition": self.provenance_partition,
            "__connect_offset": self.provenance_offset,
            "__connect_timestamp": self.provenance_timestamp,
        }


PREFIXES = (
    "key.converter.",
    "value.converter.",
    "consumer.override.",
    "producer.override.",
    "admin.override.",
    "storage.options.",
    "spark.",
)
"""Keys under these belong to a converter, a Kafka client, a store or Spark and pass through."""

IGNORED = {
    "config.action.reload": "semel reads a configuration once, at start",
    "errors.retry.timeout": "conversion is deterministic; the store is retried by max.retries",
    "errors.retry.delay.max.ms": "conversion is deterministic; see retry.backoff.ms",
    "tasks.max.enforce": "no more than tasks.max tasks ever run",
    "header.converter": "headers are carried as they are",
}
"""Kafka Connect's keys that have no effect here, with the reason."""

REFUSED = {
    "transforms": "single message transforms are not available: pass transform= to semel.run()",
    "predicates": "predicates are not available: pass transform= to semel.run()",
}
"""Kafka Connect's keys that would change results; ignoring them would be wrong."""


def group_of(connector: str) -> str:
    """A connector's consumer group."""
    return GROUPS + connector


def connector_of(group: str) -> str:
    """The connector of a consumer group."""
    return group.removeprefix(GROUPS)


def load(source: str | Path | Mapping[str, Any]) -> dict[str, str]:
    """Read a connector file, or normalise a mapping, to flat strings.

    Accepts Kafka Connect's ``{"name": ..., "config": {...}}``, flat JSON, and ``.properties``.

    Raises:
        ConfigError: the file cannot be read or is not of these shapes.
    """
    if isinstance(source, Mapping):
        return _flatten(source, "the configuration")
    if not isinstance(source, (str, Path)):
        raise ConfigError(
            f"a configuration is a file or a mapping of keys to values, not {type(source).__name__}"
        )
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if path.suffix == ".properties":
        try:
            return {k: v.strip() for k, v in javaproperties.loads(text).items()}
        except javaproperties.InvalidUEscapeError as error:
            raise ConfigError(f"{path} is not a .properties file: {error}") from error
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}. "
            "Kafka Connect's properties format needs the suffix .properties."
        ) from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {type(document).__name__}")
    return _flatten(document, str(path))


def _flatten(document: Mapping[str, Any], where: str) -> dict[str, str]:
    flat = dict(document)
    if isinstance(flat.get("config"), Mapping):
        inner = dict(flat["config"])
        if "name" in flat and str(inner.setdefault("name", flat["name"])) != str(flat["name"]):
            raise ConfigError(
                f"{where}: name={flat['name']!r} outside of config and {inner['name']!r} in it: "
                "the ledger goes by the name. Remove one"
            )
        flat = inner
    strange = [k for k in flat if not isinstance(k, str)]
    if strange:
        raise ConfigError(f"{where}: the key {strange[0]!r} must be a string")
    nested = [k for k, v in flat.items() if isinstance(v, Mapping)]
    if nested:
        raise ConfigError(f"{where}: {nested[0]} holds an object; a value must be a string")
    return {k: _text(v) for k, v in flat.items() if v is not None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def absolute(raw: Mapping[str, str], name: str) -> dict[str, str]:
    """The key, if its value is a relative path and no URL, with the path made absolute."""
    given = raw.get(name, "").strip()
    if not given or "://" in given or Path(given).is_absolute():
        return {}
    return {name: str(Path(given).absolute())}


def read(section: type[T], raw: Mapping[str, str]) -> T:
    """Build ``section`` from the user's strings.

    Raises:
        ConfigError: lists every missing key, every value of the wrong type and what does not fit
            together. While problems are gathered, they are reported there instead, and the section
            has defaults in the place of what cannot be used.
    """
    values: dict[str, Any] = {}
    found = Problems()
    renamed: dict[str, str] = {}
    hints = typing.get_type_hints(section)
    for field in dataclasses.fields(section):  # type: ignore[arg-type]
        meta = field.metadata
        name = meta["name"]
        given = [n for n in (name, *meta["aliases"]) if n in raw]
        default = _default(field)
        if given and (raw[given[0]].strip() or default is not _REQUIRED):
            renamed[name] = given[0]
        try:
            values[field.name] = _value(section, field, hints[field.name], raw, given)
        except _Unusable as error:
            given = given or [name]
            value = "" if meta["secret"] else raw.get(given[0], "")
            found.add([Problem(given[0], value, str(error))])
            found.unusable |= {name, *given}
            values[field.name] = "" if default is _REQUIRED else default
    made = object.__new__(section)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    check = getattr(made, "__post_init__", None)
    if check is not None:
        try:
            check()
        except ConfigError as error:
            words = (_in_the_users_words(p.message, renamed) for p in error.problems)
            found.add([Problem("", "", message) for message in words])
    gathered = current()
    if gathered is not None:
        gathered.add(found.found)
        gathered.unusable |= found.unusable
    elif found.found:
        raise ConfigError(*found.found, title=title(raw))
    return made


def title(raw: Mapping[str, str]) -> str:
    """What messages about a connector begin with."""
    return f"connector {raw['name']}: " if raw.get("name") else ""


class _Unusable(Exception):
    """What is wrong with a setting."""


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _REQUIRED


def _value(
    section: type,
    field: dataclasses.Field[Any],
    hint: Any,
    raw: Mapping[str, str],
    given: Sequence[str],
) -> Any:
    meta, default = field.metadata, _default(field)
    if len({raw[n] for n in given}) > 1:
        raise _Unusable(f"{' and '.join(given)} are the same setting with different values")
    if default is _REQUIRED and not (given and raw[given[0]].strip()):
        others = raw.keys() - names(section)
        near = difflib.get_close_matches(meta["name"], others, n=1, cutoff=0.85)
        which = f"; was {near[0]} meant to be it?" if near else "."
        raise _Unusable(f"{meta['name']} is required{which} {meta['doc']}")
    if not given:
        return default
    if default and _is_blank_text(field, raw[given[0]]):
        raise _Unusable(f"{given[0]} is empty: set it, or remove it for the default, {default}")
    try:
        return _parse(hint, raw[given[0]], meta)
    except ValueError as error:
        shown = "" if meta["secret"] else f"={raw[given[0]]!r}"
        raise _Unusable(f"{given[0]}{shown} {error}") from None


def _is_blank_text(field: dataclasses.Field[Any], text: str) -> bool:
    return isinstance(field.default, str) and not field.metadata["choices"] and not text.strip()


def _in_the_users_words(message: str, names: Mapping[str, str]) -> str:
    """The message with each ``key=`` as it was written, where that was by an alias."""
    for name, given in names.items():
        if given != name:
            message = re.sub(rf"(?<![\w.]){re.escape(name)}(?==)", given, message)
    return message


def _parse(hint: Any, text: str, meta: Mapping[str, Any]) -> Any:
    optional = isinstance(hint, types.UnionType)
    if optional:
        hint = next(h for h in typing.get_args(hint) if h is not type(None))
    text = text.strip()
    if meta["choices"]:
        return _choice(text.lower(), meta["choices"], meta["doc"])
    if isinstance(hint, type) and issubclass(hint, Enum):
        if optional and text.lower() in ("", "auto"):
            return None
        try:
            return hint(text.lower())
        except ValueError:
            known = [*(["auto"] if optional else []), *(m.value for m in hint)]
            raise ValueError(f"must be one of {', '.join(known)}") from None
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("must be true or false")
        return text.lower() == "true"
    if hint is int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if meta["at_least"] is not None and number < meta["at_least"]:
            raise ValueError(f"must be at least {meta['at_least']}")
        return number
    if typing.get_origin(hint) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def _choice(text: str, choices: tuple[str, ...], doc: str) -> str:
    if text in choices:
        return text
    if len(choices) == 1:
        raise ValueError(f"must be {choices[0]}: {doc}")
    raise ValueError(f"must be one of {', '.join(filter(None, choices))}")


def names(section: type) -> Iterator[str]:
    """Every key and alias that ``section`` declares."""
    for field in dataclasses.fields(section):
        yield field.metadata["name"]
        yield from field.metadata["aliases"]


def check_keys(
    raw: Mapping[str, str],
    sections: Iterable[type],
    ignored: Mapping[str, str],
    prefixes: tuple[str, ...] = (),
) -> list[str]:
    """Warnings for keys that no section knows (with the nearest known one) or that are ignored."""
    known = {n for section in sections for n in names(section)}
    ignored = {**IGNORED, **ignored}
    warnings = []
    for name in raw:
        root = name.split(".", maxsplit=1)[0]
        if name in known or root in REFUSED or name.startswith(PREFIXES + prefixes):
            continue
        if name in ignored:
            warnings.append(f"{name} has no effect: {ignored[name]}")
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        warnings.append(f"unknown configuration key {name}{hint}")
    return warnings


def check_refused(raw: Mapping[str, str]) -> None:
    """Raises ConfigError for keys that would change the results and are not supported."""
    refused = [
        f"{name}={raw[name]}: {why}" for name, why in REFUSED.items() if raw.get(name, "").strip()
    ]
    if refused:
        raise ConfigError(*refused, title=title(raw))


def check_converter_keys(given: Mapping[str, str], known: Collection[str], where: str) -> list[str]:
    """Warnings for keys below ``where`` that its converter does not know.

    Raises:
        ConfigError: a key of Kafka Connect's converters that would change the results.
    """
    if given.get("replace.null.with.default", "true").strip().lower() == "false":
        raise ConfigError(
            f"{where}.replace.null.with.default=false is not available: a null field with a "
            "default takes the default. Remove it"
        )
    without_effect = {"replace.null.with.default", "schemas.cache.size", "decimal.format"}
    warnings = []
    for name in sorted(set(given) - set(known) - without_effect):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {where}.{near[0]}?" if near else ""
        warnings.append(f"unknown configuration key {where}.{name}{hint}")
    return warnings


def under(raw: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The keys below ``prefix``, without it."""
    return {k[len(prefix) :]: v for k, v in raw.items() if k.startswith(prefix)}
