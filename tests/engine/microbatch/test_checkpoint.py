"""Whether a query's checkpoint and its ledger have come equally far."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.core.errors import ConfigError
from semel.core.ledger import QUERY, LedgerEntry, LogId, TopicPartition, first
from semel.driver.microbatch.checkpoint import CheckpointState, caution, check, check_unchanged
from tests.engine.microbatch.conftest import connector

OWN = connector(**{"checkpoint.location": "file:/state"})
NOTES = {"connector": "tests", "query": "SELECT 1", "digest": "d"}
TP = TopicPartition("t", 0)


def entry(position: int, id_: str = "q", digest: str = "d") -> LedgerEntry:
    return replace(first(QUERY, 0, LogId(id_, digest)), position=position)


def read(count: int) -> dict[TopicPartition, LedgerEntry]:
    return {TP: replace(first(TP, 0), position=count, records_read=count)}


@pytest.mark.parametrize(
    ("found", "stored"),
    [
        (CheckpointState(), None),  # the first start
        (CheckpointState("q", notes=NOTES), None),  # which has died before it entered the query
        (CheckpointState("q", notes=NOTES), entry(0)),
        (CheckpointState("q", 0, -1, NOTES), entry(0)),  # the first batch was not committed
        (CheckpointState("q", 0, -1, NOTES), entry(1)),  # it was, and Spark does not know
        (CheckpointState("q", 4, 4, NOTES), entry(5)),
        (CheckpointState("q", 5, 4, NOTES), entry(5)),
        (CheckpointState("q", 5, 4, NOTES), entry(6)),
        (CheckpointState(), entry(0)),  # no batch was committed, so no state is lost
    ],
)
def test_in_step_or_one_batch_behind_goes_on(
    found: CheckpointState, stored: LedgerEntry | None
) -> None:
    check(OWN, found, stored, {TP: first(TP, 0)} if stored is None else read(9))
    check_unchanged(OWN, found, stored, "d")


@pytest.mark.parametrize(
    ("found", "stored", "says"),
    [
        (
            CheckpointState(),
            entry(5),
            "is empty, but the ledger has the rows of query q up to batch 4",
        ),
        (CheckpointState("r", notes=NOTES), entry(5), "its state is lost"),
        (
            CheckpointState("r", 4, 4, NOTES),
            entry(5),
            "is the checkpoint of query r, but the ledger",
        ),
        (CheckpointState("q", 2, 2, NOTES), entry(5), "the checkpoint is older"),
        (
            CheckpointState("q", 3, 3, NOTES),
            entry(5),
            "the checkpoint is older",
        ),  # batch 4's offsets lack
        (CheckpointState("q", 7, 6, NOTES), entry(5), "the checkpoint is newer"),
        (CheckpointState("q", 5, 5, NOTES), entry(5), "The rows of batches 5 to 5 are missing"),
        (CheckpointState("q", 3, 3, NOTES), None, "the ledger knows nothing of it"),
        (CheckpointState("q", 3, 3, {"connector": "x"}), None, "keeps the state of connector x"),
        (
            CheckpointState("q", 4, 4, NOTES | {"query": "SELECT 0"}),
            entry(5, digest="e"),
            "has changed",
        ),
    ],
)
def test_anything_else_stops_with_the_facts_and_the_way_out(
    found: CheckpointState, stored: LedgerEntry | None, says: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        check(OWN, found, stored, read(9))
        check_unchanged(OWN, found, stored, "d")
    text = str(raised.value)
    assert says in text and text.startswith("connector tests: ")
    assert "checkpoint.location" in text, "what to set"


def test_a_connector_that_has_read_without_the_query_cannot_begin_one() -> None:
    with pytest.raises(ConfigError, match="has read records before without the query"):
        check(OWN, CheckpointState(), None, read(9))


def test_a_changed_query_goes_on_if_told_to() -> None:
    go_on = connector(**{"checkpoint.location": "file:/state", "query.changed": "continue"})
    check_unchanged(go_on, CheckpointState("q", 4, 4, NOTES), entry(5, digest="e"), "d")
    with pytest.raises(ConfigError, match="Run the former query once"):
        check_unchanged(go_on, CheckpointState("q", 4, 3, NOTES), entry(5, digest="e"), "d")


@pytest.mark.parametrize(
    ("location", "warned"),
    [("file:/state", False), ("hdfs://h/state", False), ("s3a://b/state", True)],
)
def test_an_object_store_is_warned_of(location: str, warned: bool) -> None:
    said = caution(connector(**{"checkpoint.location": location})) or ""
    assert ("a second driver may overwrite the state" in said) == warned
