"""What semel reports about a connector beyond Kafka Connect's API: its guarantee, ledger and
lag."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from semel.core.delivery import Guarantee
from semel.driver.planning import AnyPlan, SourcePlan
from semel.driver.planning.refusal import without_references
from semel.driver.positions import ledger_facts
from semel.driver.source_lag import source_lag
from semel.driver.source_positions import source_offsets
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.worker.errors import BadRequest
from semel.worker.offsets import of_source

Answer = dict[str, Any]


def guarantee(planned: AnyPlan) -> Answer:
    """The guarantee that holds and why, with the facts that ``semel describe`` shows."""
    held: Guarantee = planned.guarantee
    return {
        "delivery": held.delivery.value,
        "mechanism": held.mechanism.value if held.mechanism is not None else None,
        "because": held.why,
        "engine": planned.engine,
        "facts": {name: _told(planned, fact) for name, fact in planned.facts().items()},
    }


def _told(planned: AnyPlan, fact: Any) -> Any:
    """A fact, without what references of the configuration stand for."""
    if isinstance(fact, list):
        return [_told(planned, each) for each in fact]
    if isinstance(fact, str):
        return without_references(fact, planned.connector.originals)
    return fact


def ledger(planned: AnyPlan) -> Answer:
    """The ledger's entries; of a source connector, its source offsets."""
    if isinstance(planned, SourcePlan):
        connector = planned.connector
        holds = {"topic": connector.offsets_topic}
        if connector.offsets_file:
            holds = {"file": connector.offsets_file}
        elif connector.offsets_url:
            holds = {"table": connector.offsets_table}
        return holds | of_source(source_offsets(planned))
    return {"entries": ledger_facts(planned.sink.entries(), planned.sink.holes())}


def lag(planned: AnyPlan) -> Answer:
    """How far the ledger is behind Kafka's ends, at this moment, or how much a source still has
    to read.

    Raises:
        BadRequest: the source cannot tell.
    """
    if isinstance(planned, SourcePlan):
        return _of_source(planned)
    positions = {e.topic_partition: e.position for e in planned.sink.entries()}
    ends = Cluster(client_config(planned.connector, "admin")).latest(positions)
    partitions = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "position": at,
            "end": ends[tp],
            "lag": max(0, ends[tp] - at),
        }
        for tp, at in sorted(positions.items())
    ]
    return {"lag": sum(each["lag"] for each in partitions), "partitions": partitions}


def _of_source(planned: SourcePlan) -> Answer:
    found = source_lag(planned)
    if found is None:
        raise BadRequest(
            f"connector {planned.connector.name}: its source cannot tell how much is left to read "
            "with this configuration"
        )
    partitions = [asdict(each) for each in found.partitions]
    return {"lag": found.total, "unit": found.unit, "partitions": partitions}
