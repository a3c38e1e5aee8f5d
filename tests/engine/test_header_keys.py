"""A table whose key comes from headers, as Debezium's sink names it."""

from __future__ import annotations

import pytest

from semel.audit import audit
from semel.core.errors import BadRecord
from tests.conftest import MakeTopic, Produce
from tests.engine.conftest import Configure
from tests.engine.harness import caught_up
from tests.sinks.target import Target

KEYS = {
    "primary.key.mode": "record_header",
    "primary.key.fields": "k",
    "insert.mode": "upsert",
    "table.name.format": "t",
}


def test_rows_replace_each_other_by_their_headers(
    topic: MakeTopic, produce: Produce, configure: Configure, database: str
) -> None:
    source = topic(partitions=1)
    values = [f'{{"id": {n}}}'.encode() for n in range(5)]
    produce(source, values[:4], headers=[[("k", str(n % 3).encode())] for n in range(4)])
    config = configure(source, KEYS)
    caught_up(config)
    target = Target(database)
    assert target.tuples("SELECT k, id FROM t ORDER BY k") == [("0", 3), ("1", 1), ("2", 2)]
    report = audit(config)
    assert (report.kept, report.lost, report.duplicated) == (True, 0, 0)
    produce(source, values[4:])
    with pytest.raises(BadRecord, match="offset 4 failed in TASK_PUT: column k of the key is null"):
        caught_up(config)
    target.close()
