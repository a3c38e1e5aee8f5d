"""The keys for bad records."""

from __future__ import annotations

from dataclasses import dataclass

from semel.config.definition import Type, key


@dataclass(frozen=True)
class ErrorHandlingConfig:
    """Whether a bad record stops the connector, and what is logged about it."""

    errors_tolerance: str = key(
        "errors.tolerance",
        "none",
        "none: stop at a bad record; all: continue.",
        choices=("none", "all"),
        group="Error Handling",
        display="Error Tolerance",
    )
    errors_log: bool = key("errors.log.enable", False, "Log each bad record.", display="Log Errors")
    errors_log_messages: bool = key(
        "errors.log.include.messages",
        False,
        "Log the record's content too.",
        display="Log Error Details",
    )


@dataclass(frozen=True)
class DeadLetterConfig(ErrorHandlingConfig):
    """Where bad records of a sink connector go."""

    dead_letter_topic: str = key(
        "errors.deadletterqueue.topic.name",
        "",
        "Topic that receives bad records, raw.",
        group="Error Handling",
        display="Dead Letter Queue Topic Name",
    )
    dead_letter_headers: bool = key(
        "errors.deadletterqueue.context.headers.enable",
        True,
        "Add Connect's __connect.errors.* headers to dead letters.",
        display="Enable Error Context Headers",
    )
    dead_letter_replication: int = key(
        "errors.deadletterqueue.topic.replication.factor",
        3,
        "Replication of the dead letter topic when it is created.",
        at_least=1,
        type=Type.SHORT,
        display="Dead Letter Queue Topic Replication Factor",
    )
    dead_letter_table: str = key(
        "errors.deadletterqueue.table",
        "",
        "Table that receives bad records, exactly once. In a database, they are committed in the "
        "same transaction as the results.",
    )
