"""The audit compares rows with the log that they were read from, or says that it is gone."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from semel.audit import logs
from semel.audit.follow.follower import Follower
from semel.audit.follow.progress import FollowState
from semel.audit.logs import check_not_truncated, check_positions, check_topics
from semel.core.errors import OffsetOutOfRange
from semel.core.ledger import LedgerEntry, LogId, TopicPartition

TP = TopicPartition("t", 0)
LOG = LogId("cluster", "topic id")
ENTRY = LedgerEntry(*TP, 10, 0, **LOG._asdict(), leader_epoch=3, epoch_offset=9)


@pytest.mark.parametrize("log", [LogId("cluster", "another id"), LogId("another", "topic id")])
def test_a_topic_of_the_same_name_is_not_compared(log: LogId) -> None:
    """It has records at all offsets that were read from the former one."""
    cluster = Mock(logs=Mock(return_value={"t": log}))
    with pytest.raises(OffsetOutOfRange, match="topic t was created again"):
        check_topics("c", [ENTRY], cluster)


def test_logs_that_are_the_same_as_far_as_is_known_are_compared() -> None:
    for entry, log in ((ENTRY, LOG), (ENTRY, LogId()), (LedgerEntry(*TP, 10, 0), LOG)):
        check_topics("c", [entry], Mock(logs=Mock(return_value={"t": log})))


def test_a_position_beyond_the_log_is_not_compared() -> None:
    cluster = Mock(latest=Mock(return_value={TP: 9}))
    with pytest.raises(OffsetOutOfRange, match="the ledger is at 10 for t-0, which Kafka does not"):
        check_positions("c", [ENTRY], {"t": 1}, cluster)


def test_a_log_that_was_cut_and_has_grown_again_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Mock(earliest=Mock(return_value={TP: 0}), ends=Mock(return_value={TP: (99, 4)}))
    monkeypatch.setattr(
        logs, "divergences", lambda _, known, ends: {e.topic_partition: 7 for e in known}
    )
    with pytest.raises(OffsetOutOfRange, match=r"the log of t-0 was truncated.* from offset 7 on"):
        check_not_truncated("c", [ENTRY], {"t": 1}, cluster)
    cluster.earliest.return_value = {TP: 10}  # the record whose epoch is known has expired
    check_not_truncated("c", [ENTRY], {"t": 1}, cluster)


def test_following_begins_only_if_no_log_was_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Mock(
        matching=Mock(return_value={"t": 1}),
        logs=Mock(return_value={"t": LOG}),
        latest=Mock(return_value={TP: 99}),
        earliest=Mock(return_value={TP: 0}),
        ends=Mock(return_value={TP: (99, 4)}),
    )
    monkeypatch.setattr(logs, "divergences", lambda *_: {TP: 7})
    planned = Mock(sink=Mock(entries=Mock(return_value=[ENTRY])))
    state = FollowState("c", "target")
    following = Follower(planned, cluster, Mock(), state, print, Mock())
    with pytest.raises(OffsetOutOfRange, match="the log of t-0 was truncated"):
        following.round()
