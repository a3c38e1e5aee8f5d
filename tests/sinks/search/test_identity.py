"""Entries in the ledger's index name the log that they point at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.core.errors import LedgerConflict, ServiceError
from semel.core.ledger import RECREATED, Hole, Outcome, Rebase
from semel.core.records import Commit
from semel.sinks.search.ledger import INDEX
from tests.sinks.search.conftest import Cluster
from tests.sinks.search.test_ledger import deliver, moved, values
from tests.sinks.target import held, records

pytestmark = pytest.mark.integration


def test_an_entry_learns_its_log_and_keeps_epochs(cluster: Cluster) -> None:
    sink = cluster.sink()
    old = held(cluster.sink())
    assert (old.cluster_id, old.topic_id, old.leader_epoch) == ("", "", -1)
    new = replace(old, cluster_id="k", topic_id="first")
    sink.rebase([Rebase(old, new)])
    sink.rebase([Rebase(old, new)])
    step = replace(moved(cluster, 0, 10)[0], leader_epoch=2, epoch_offset=9)
    deliver(sink, [step], values(cluster, 0, 10))
    entry = held(cluster.sink())
    assert (entry.cluster_id, entry.topic_id, entry.position) == ("k", "first", 10)
    assert (entry.leader_epoch, entry.epoch_offset) == (2, 9)


def test_records_of_the_new_log_replace_documents_of_the_former_one(cluster: Cluster) -> None:
    sink = cluster.sink()
    deliver(sink, moved(cluster, 0, 10), values(cluster, 0, 10))
    old = held(sink)
    hole = Hole(cluster.topic, 0, 0, 10, RECREATED)
    sink.rebase([Rebase(old, replace(old, position=0, topic_id="second"), hole)])
    assert list(sink.snapshot([cluster.topic]).holes) == [hole]
    batch = records([{"id": 100 + i} for i in range(5)], topic=cluster.topic)
    assert deliver(sink, moved(cluster, 0, 5), Commit([batch])) is Outcome.APPLIED
    ids = sorted(d["id"] for d in cluster.documents().values())
    assert ids == [5, 6, 7, 8, 9, 100, 101, 102, 103, 104]


def test_records_of_the_new_log_replace_documents_that_no_position_counts(
    cluster: Cluster,
) -> None:
    """The position was at the beginning when the run was killed, and it is again."""
    sink = cluster.sink()
    bare = held(sink)
    first, second = (replace(bare, topic_id=each) for each in ("first", "second"))
    sink.rebase([Rebase(bare, first)])
    sink.write(values(cluster, 0, 10), moved(cluster, 0, 10))
    sink.rebase([Rebase(first, second)])
    batch = records([{"id": 100 + i} for i in range(10)], topic=cluster.topic)
    assert deliver(sink, moved(cluster, 0, 10), Commit([batch])) is Outcome.APPLIED
    ids = sorted(d["id"] for d in cluster.documents().values())
    assert ids == [*range(100, 110)]


def test_a_rebase_of_what_another_run_has_moved_is_a_conflict(cluster: Cluster) -> None:
    sink = cluster.sink()
    old = held(sink)
    cluster.sink().advance(moved(cluster, 0, 10))
    with pytest.raises(LedgerConflict, match="position 0 before, now 10"):
        sink.rebase([Rebase(old, replace(old, topic_id="second"))])


def test_a_document_of_a_later_version_is_refused(cluster: Cluster) -> None:
    sink = cluster.sink()
    place = f"{cluster.name}/{cluster.topic}/0"
    source = cluster.server.request("POST", f"/{INDEX}/_mget", {"ids": [place]})["docs"][0]
    later = {**source["_source"], "format": 2}
    cluster.server.request("PUT", f"/{INDEX}/_doc/{place.replace('/', '%2F')}", later)
    for read in (sink.entries, lambda: sink.advance(moved(cluster, 0, 10))):
        with pytest.raises(ServiceError, match="in index semel_offsets was written by a later"):
            read()
