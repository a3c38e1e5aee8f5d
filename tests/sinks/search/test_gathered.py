"""The audit's view of documents whose records name their indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from semel.core.ledger import LedgerEntry
from semel.core.records import Commit, Records
from tests.sinks.search.conftest import Cluster
from tests.sinks.target import advance, records

pytestmark = pytest.mark.integration

ROUTER = {
    "transforms": "r",
    "transforms.r.type": "org.apache.kafka.connect.transforms.TimestampRouter",
}


def routed(cluster: Cluster, to: str, *offsets: int) -> Records:
    rows = [{"n": n} for n in offsets]
    return replace(records(rows, topic=cluster.topic, offsets=offsets), topic=to)


@pytest.mark.parametrize("provenance", ["true", "false"])
def test_documents_of_a_topic_are_found_in_all_indices(cluster: Cluster, provenance: str) -> None:
    sink = cluster.sink(ROUTER | {"provenance": provenance})
    names = [f"{cluster.topic}-{day}" for day in (1, 2)]
    parts = [routed(cluster, names[0], 0, 2), routed(cluster, names[1], 1)]
    sink.write(Commit(parts))
    moved = advance(0, 3, topic=cluster.topic)
    sink.advance([moved])
    asked = []

    def named(entries: Sequence[LedgerEntry]) -> list[str]:
        asked.append([e.position for e in entries])
        return names[: len(asked)]  # more records come while the audit looks

    snapshot = sink.gathered([cluster.topic], named)
    assert asked == [[3], [3], [3]]
    target = snapshot.targets[cluster.topic]
    assert (snapshot.rows[target], snapshot.untraced[target]) == (3, 0)
    if provenance == "true":
        found = snapshot.records[cluster.topic].column("offset").to_pylist()
        assert sorted(found) == [0, 1, 2]
