"""What a connector does, which guarantee holds, and why: for people."""

from __future__ import annotations

from typing import Any

from semel.config import SourceConnectorConfig
from semel.planning import AnyPlan, Plan, SourcePlan
from semel.sources.offsets.store import where


def facts_of(planned: AnyPlan) -> dict[str, Any]:
    """The facts by their names."""
    return _of_source(planned) if isinstance(planned, SourcePlan) else _of_sink(planned)


def _of_source(planned: SourcePlan) -> dict[str, Any]:
    connector, guarantee = planned.connector, planned.guarantee
    boundary = connector.transaction_boundary
    if boundary == "interval":
        boundary = f"every {connector.transaction_interval_ms:,} ms, or 64 MiB"
    bad = "a record that cannot be written stops the connector; everything before it is committed"
    if connector.errors_tolerance == "all":
        bad = (
            "records that a transform or a converter refuses are counted and skipped "
            "(errors.tolerance=all); one that a broker refuses stops the connector"
        )
    return {
        "name": connector.name,
        **planned.source.describe(),
        "offsets": where(connector)
        + ("" if connector.offsets_url else ", in Kafka Connect's format"),
        "missing topics": _creation(connector),
        "delivery": str(guarantee),
        "because": guarantee.why,
        "transactions": boundary if guarantee.mechanism else "none",
        "bad records": bad,
        "engine": planned.engine,
        "tasks": connector.tasks_max,
        "warnings": planned.warnings or ["none"],
    }


def _creation(connector: SourceConnectorConfig) -> str:
    creation = connector.topic_creation
    if creation.as_brokers_do:
        return "created with the brokers' defaults, if auto.create.topics.enable=true there"
    if not creation.groups:
        return "stop the connector (topic.creation.enable=false)"
    return "created as topic.creation.* says"


def _of_sink(planned: Plan) -> dict[str, Any]:
    connector, guarantee = planned.connector, planned.guarantee
    if connector.errors_tolerance == "none":
        bad = "a bad record stops the connector; everything before it is committed"
    elif connector.dead_letter_table and planned.sink.capabilities.commits_dead_letters_first:
        bad = (
            f"bad records go to table {connector.dead_letter_table}, each once, in a commit of "
            "their own before the results'"
        )
    elif connector.dead_letter_table:
        bad = (
            f"bad records go to table {connector.dead_letter_table} in the transaction that moves "
            "the positions past them: exactly once"
            if guarantee.mechanism is not None and guarantee.mechanism.value == "transactional"
            else f"bad records go to table {connector.dead_letter_table} with the results"
        )
    elif connector.dead_letter_topic and planned.sink.capabilities.takes_dead_letters:
        bad = (
            f"bad records go to topic {connector.dead_letter_topic} in the transaction that moves "
            "the positions past them: exactly once"
            if guarantee.mechanism is not None
            else f"bad records go to topic {connector.dead_letter_topic} with the results"
        )
    elif connector.dead_letter_topic:
        bad = (
            f"bad records go to topic {connector.dead_letter_topic} before the commit: at least "
            "once, because Kafka and the target share no transaction"
        )
    else:
        bad = "bad records are counted and dropped (errors.tolerance=all without dead letters)"
    return {
        "name": connector.name,
        "reads": list(connector.topics) or [f"topics matching {connector.topics_regex}"],
        **planned.sink.describe(),
        "group": connector.group_id,
        "delivery": str(guarantee),
        "because": guarantee.why,
        "bad records": bad,
        "unknown fields": _UNKNOWN[connector.fields_unknown],
        "audit": _audited(planned),
        "engine": planned.engine,
        "tasks": connector.tasks_max,
        "warnings": planned.warnings or ["none"],
    }


_UNKNOWN = {
    None: "stop the connector where values have a schema; otherwise their values are counted",
    "stop": "stop the connector",
    "warn": "their values are left out and counted",
    "ignore": "their values are left out",
}
"""What becomes of fields for which the target has no column."""


def _audited(planned: Plan) -> str:
    if planned.connector.provenance:
        return "record by record, by the provenance of each row"
    if not planned.sink.capabilities.traces:
        return "by counts"
    return "by keys or counts; provenance=true makes it exact to the record"
