"""Two writers of one ledger in any order, interrupted anywhere: each record is visible once."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import fsspec
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.core.errors import LedgerConflict, TransientError
from semel.core.ledger import Advance, firsts
from semel.core.records import Commit
from semel.sinks.files import ledger as ledger_module
from semel.sinks.files import sink as sink_module
from semel.sinks.files.sink import FilesSink
from semel.sinks.staging import StagedCommit
from tests.sinks.files.conftest import Folder
from tests.sinks.target import FIRST, advance, records

PLACES = ["sink.after_positions", "sink.before_commit", "sink.after_commit"]
SLEEP = "sleep"  # before the entry, while the other one commits
CRASHES = st.sampled_from([None, SLEEP, *PLACES, "files.between_renames"])
STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["put", "put", "put", "stage", "commit", "restart", "start"]),
        st.integers(1, 6),
        CRASHES,
    ),
    min_size=4,
    max_size=25,
)


@dataclass
class Writer:
    """One run of the connector; it may hold what it staged for any time."""

    place: Folder
    sink: FilesSink = field(init=False)
    held: tuple[Advance, StagedCommit] | None = None

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.sink = self.place.sink(keys={"flush.size": 2})
        self.held = None

    def stage(self, size: int) -> None:
        entry = self.sink.entries()[0]
        offsets = range(entry.position, entry.position + size)
        commit = Commit([records([{"id": i} for i in offsets], offsets=offsets)])
        self.held = advance(offsets.start, offsets.stop), self.sink.stage(commit)

    def start(self, partition: int) -> None:
        """Another partition appears: the ledger continues, the positions stay."""
        self.sink.start(firsts({FIRST._replace(partition=partition): 0}))

    def commit(self, *, dies: bool) -> None:
        if self.held is None:
            return
        moved, staged = self.held
        try:
            self.sink.commit_staged([moved], staged)
            self.held = None
        except LedgerConflict:
            self.held = None
        except TransientError:  # the engine tries again, unless it is gone
            if dies:
                self.restart()


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_each_record_is_visible_once(
    steps: list[tuple[int, str, int, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    armed: list[str] = []
    place = Folder(f"memory://histories-{uuid.uuid4().hex}")
    writers = [Writer(place), Writer(place)]

    def hit(reached: str) -> None:
        if reached == "sink.before_commit" and SLEEP in armed:
            armed.remove(SLEEP)
            for _ in range(size):
                writers[1 - who].stage(1)
                writers[1 - who].commit(dies=False)
        elif reached in armed:
            armed.remove(reached)
            raise TransientError("interrupted")

    monkeypatch.setattr(ledger_module, "hit", hit)
    monkeypatch.setattr(sink_module, "hit", hit)
    monkeypatch.setattr(ledger_module, "_KEPT", 1)  # sleepers are soon older than any entry
    for number, (who, action, size, crash) in enumerate(steps):
        armed[:] = []
        if action == "restart":
            writers[who].restart()
        elif action == "start":
            writers[who].start(number + 1)
        if action in ("put", "stage"):
            writers[who].stage(size)
        if action in ("put", "commit"):
            armed[:] = [crash] if crash else []
            writers[who].commit(dies=size > 3)
    armed[:] = []
    place.sink()  # whoever comes next finishes what is left
    filesystem, root = fsspec.url_to_fs(place.where)
    found = []
    for file in place.files():
        with filesystem.open(f"{root}/{file}", "rb") as stream:
            found += pq.read_table(stream).column("id").to_pylist()
    assert sorted(found) == list(range(place.state().entries[FIRST].position))
    filesystem.rm(root, recursive=True)
