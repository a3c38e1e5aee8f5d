"""Entries of the ledger beside the files name the log that they point at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.core.errors import ConfigError, LedgerConflict
from semel.core.ledger import RECREATED, Hole, Outcome, Rebase
from tests.sinks.files.conftest import Folder
from tests.sinks.target import advance, held, values


def test_an_entry_keeps_its_log_and_the_epoch_of_its_last_record(folder: Folder) -> None:
    sink = folder.sink()
    old = held(sink)
    new = replace(old, cluster_id="k", topic_id="first")
    sink.rebase([Rebase(old, new)])
    folder.made().rebase([Rebase(old, new)])
    sink.commit([replace(advance(0, 10), leader_epoch=2, epoch_offset=9)], values(0, 10))
    entry = held(folder.made())
    assert (entry.cluster_id, entry.topic_id) == ("k", "first")
    assert (entry.leader_epoch, entry.epoch_offset, entry.position) == (2, 9, 10)


def test_what_is_named_by_offsets_does_not_begin_anew(folder: Folder) -> None:
    sink = folder.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    old = held(sink)
    again = Rebase(old, replace(old, position=0, topic_id="second"), Hole("t", 0, 0, 10, RECREATED))
    why = "t-0 cannot be read again from offset 0 .topic created again.: the files .* named by"
    with pytest.raises(ConfigError, match=why):
        sink.rebase([again])
    assert held(folder.made()) == old
    assert sink.commit([advance(10, 12)], values(10, 12)) is Outcome.APPLIED


def test_a_rebase_of_what_another_run_has_moved_is_a_conflict(folder: Folder) -> None:
    sink = folder.sink()
    old = held(sink)
    folder.sink().commit([advance(0, 10)], values(0, 10))
    with pytest.raises(LedgerConflict, match="position 0 before, now 10"):
        sink.rebase([Rebase(old, replace(old, topic_id="second"))])
