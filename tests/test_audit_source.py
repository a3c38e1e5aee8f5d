"""What the audit of a source concludes from the records of both sides, without services."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pyarrow as pa
import pytest

from semel.audit import source
from semel.audit.workspace import Workspace
from semel.core.delivery import Delivery
from semel.core.ledger import TopicPartition

TP = TopicPartition("t", 0)
VALUES = [b"%d" % n for n in range(4)]
DELETE, COMPACT = {"cleanup.policy": "delete"}, {"cleanup.policy": "compact,delete"}


def message(offset: int) -> Any:
    facts = {"topic": "t", "partition": 0, "offset": offset}
    facts |= dict.fromkeys(("key", "value"), VALUES[offset])
    return Mock(**{f"{name}.return_value": fact for name, fact in facts.items()})


@pytest.mark.parametrize(
    ("offsets", "first", "config", "lost", "why"),
    [
        ((0, 1, 2, 3), 0, DELETE, 0, []),
        ((0, 1, 2, 3), 0, COMPACT, 0, []),
        ((2, 3), 0, DELETE, 2, []),
        ((2, 3), 0, None, 2, []),  # this user may not ask
        ((2, 3), 2, DELETE, 0, ["topic t: its first records are gone (retention)"]),
        ((2, 3), 0, COMPACT, 0, ["topic t: records may be missing because it is compacted"]),
    ],
)
def test_what_a_topic_has_dropped_itself_is_not_lost(
    offsets: tuple[int, ...], first: int, config: dict[str, str] | None, lost: int, why: list[str]
) -> None:
    planned = Mock(guarantee=SimpleNamespace(delivery=Delivery.EXACTLY_ONCE))
    planned.source.revises, planned.source.ordered = False, True
    earliest = Mock(return_value={TP: first})
    cluster = Mock(earliest=earliest, topic_config=Mock(return_value=config))
    with patch.object(source, "SourceChain"), patch.object(source, "Encoder"):
        auditor = source._Auditor(planned, cluster, Workspace())
    auditor._places["file"] = 0
    held = pa.table({name: pa.array(VALUES, pa.binary()) for name in ("key", "value")})
    auditor._count(held, "t", pa.repeat(0, 4), pa.array(range(4)), source=1)
    with patch.object(source, "read_ranges", return_value=[list(map(message, offsets))]):
        auditor.kafka({TP: 4})
    report = auditor.report()
    auditor._workspace.close()
    assert (report.lost, report.duplicated, report.broken) == (lost, 0, bool(lost))
    assert [*report.not_judged] == why
    assert len(report.findings) == lost
