"""Micro-batches into a search server, committed by tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.audit import audit
from semel_lab.embedded.opensearch import OpenSearch
from tests import matrix
from tests.conftest import MakeTopic
from tests.engine.harness import ids, records
from tests.engine.microbatch.conftest import Arm, Go, MakeConfig

pytestmark = pytest.mark.integration


@pytest.mark.long
@pytest.mark.cell(sink="elasticsearch", mode="micro-batch", delivery="delivery")
@pytest.mark.parametrize("delivery", ["at-most-once", "at-least-once", "idempotent"])
def test_a_task_that_is_killed_between_documents_and_positions(
    delivery: str,
    topic: MakeTopic,
    configure: MakeConfig,
    go: Go,
    opensearch: OpenSearch,
    arm: Arm,
    failpoint_directory: Path,
) -> None:
    source = topic(partitions=2, values=records(100))
    config = configure(
        source,
        connector_class="opensearch",
        connection_url=opensearch.url,
        key_ignore="true",
        provenance="true",
        read_timeout_ms="600000",
        maxOffsetsPerTrigger="40",
    )
    config |= matrix.DELIVERIES[delivery]
    arm("deliver.between", "kill-worker", skip=1)
    go(config)
    matrix.killed(config, failpoint_directory)
    found = ids(opensearch.url, source)
    assert (len(found) < 100) == (delivery == "at-most-once")
    assert found == sorted(set(found) & set(range(100)))
    assert audit(config).kept
