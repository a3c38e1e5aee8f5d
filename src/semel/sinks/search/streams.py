"""Data streams: documents that are only appended, each with a time.

A stream is a series of backing indices, and writes go to the newest. It takes no versions, and an
id is unique in one backing index only, so records that are written again after a rollover are there
twice: the delivery is at-least-once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from semel.core.errors import Problem

if TYPE_CHECKING:
    from semel.sinks.search.config import SearchConfig

TIME = "@timestamp"
"""The field that each document of a stream must have."""

REASON = (
    "a data stream takes no versions, and an id is unique in one of its backing indices only, so "
    "records that are written again after a rollover are there twice"
)


def problems(config: SearchConfig) -> Iterator[Problem]:
    """What cannot be combined with a data stream, or does not name one."""
    kind, dataset = config.stream_type, config.stream_dataset
    if (kind == "none") == bool(dataset):
        given, lacking = ("dataset", "type") if dataset else ("type", "dataset")
        yield Problem(
            f"data.stream.{lacking}",
            f"data.stream.{given}={dataset or kind} needs data.stream.{lacking}: a stream is named "
            "type-dataset-namespace. Set it",
        )
    if config.stream_prefix and not config.stream_enabled:
        yield Problem(
            "data.stream.prefix",
            f"data.stream.prefix={config.stream_prefix} needs data.stream.enabled=true. Set it, or "
            "remove the prefix",
        )
    if not config.streams:
        return
    if config.merges:
        yield Problem(
            "write.method",
            "write.method=upsert changes documents, and a data stream is append-only. Set "
            "write.method=insert",
        )
    if config.tombstones == "delete":
        yield Problem(
            "behavior.on.null.values",
            "behavior.on.null.values=delete: nothing can be deleted from a data stream by its id. "
            "Set ignore or fail",
        )
    if config.ids_are_keys(""):
        yield Problem(
            "key.ignore",
            "ids that are record keys: a data stream takes each id once, so later records of a "
            "key would be lost. Set key.ignore=true",
        )


def name(config: SearchConfig, topic: str) -> str:
    """The stream of a topic: Confluent's name, or Aiven's if that is enabled."""
    if config.stream_enabled:
        return "-".join(part for part in (config.stream_prefix, topic) if part).lower()
    namespace = config.stream_namespace.replace("${topic}", topic)
    return f"{config.stream_type}-{config.stream_dataset}-{namespace}".lower()
