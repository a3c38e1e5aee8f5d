"""Translates the configuration of FilePulse's connector, where that is possible."""

from __future__ import annotations

from collections.abc import Mapping

from semel.core.errors import ConfigError, misconfigured

CLASS = "io.streamthoughts.kafka.connect.filepulse.source.FilePulseSourceConnector"
PREFIXES = ("fs.", "tasks.", "filters", "file.filter.", "offset.", "skip.", "ignore.")

PATHS = (
    "fs.listing.directory.path",
    "fs.cleanup.policy.move.success.path",
    "fs.cleanup.policy.move.failure.path",
)
_SAME = {
    "fs.listing.directory.path": "input.path",
    "fs.listing.recursive.enabled": "input.path.walk.recursively",
    "fs.listing.interval.ms": "empty.poll.wait.ms",
    "fs.cleanup.policy.move.success.path": "finished.path",
    "fs.cleanup.policy.move.failure.path": "error.path",
    "file.filter.regex.pattern": "input.file.pattern",
    "file.filter.minimum.age.ms": "file.minimum.age.ms",
}
_POLICIES = {
    "LogCleanupPolicy": "none",
    "DeleteCleanupPolicy": "delete",
    "LocalMoveCleanupPolicy": "move",
}
_READERS = {"Row": "text", "Avro": "avro", "Parquet": "parquet"}
_OF_NO_MEANING = (
    *("fs.listing.class", "fs.listing.filters", "tasks.max", "tasks.empty.poll.wait.ms"),
    *("tasks.file.status.storage.", "tasks.halt.on.error", "offset.policy.class"),
    *("offset.strategy", "offset.attributes.string", "ignore.committed.offsets"),
)
"""Keys whose effect follows from semel's own settings, or that concern what the offsets topic keeps
here."""


def translated(raw: Mapping[str, str]) -> dict[str, str]:
    """The keys of the directory source.

    Raises:
        ConfigError: a key has no equivalent.
    """
    config = {name: raw[given] for given, name in _SAME.items() if raw.get(given)}
    policy = _last(raw.get("fs.cleanup.policy.class", "LogCleanupPolicy"))
    if policy not in _POLICIES:
        raise _refused("fs.cleanup.policy.class", policy, f"one of {', '.join(_POLICIES)}")
    config["cleanup.policy"] = _POLICIES[policy]
    config["halt.on.error"] = raw.get(
        "tasks.halt.on.error", "true" if not config.get("error.path") else "false"
    )
    reader = _last(raw.get("tasks.reader.class", ""))
    kind = next((f for name, f in _READERS.items() if f"{name}FileInputReader" in reader), "")
    if not kind:
        raise _refused("tasks.reader.class", reader, "a reader of rows, Avro or Parquet")
    config["format"] = kind
    for name, value in raw.items():
        if name in ("fs.cleanup.policy.class", "tasks.reader.class", *_SAME):
            continue
        if name.startswith(PREFIXES) and value and not name.startswith(_OF_NO_MEANING):
            raise _refused(
                name,
                value,
                "left out. connector.class=Directory reads CSV, JSON, text, Parquet and Avro, and "
                "transforms=... stands for filters",
            )
    return {**{k: v for k, v in raw.items() if not k.startswith(PREFIXES)}, **config}


def _last(name: str) -> str:
    return name.strip().rpartition(".")[2]


def _refused(name: str, value: str, must: str) -> ConfigError:
    return misconfigured(
        name, f"{name}={value} of FilePulse has no equivalent here: it must be {must}"
    )
