"""The ledger beside the files: one entry, one commit, and what a crash or a zombie leaves."""

from __future__ import annotations

import json
import os
import resource
import uuid
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from semel.core.errors import (
    ConfigError,
    LedgerConflict,
    ServiceError,
    TargetChanged,
    TransientError,
)
from semel.core.ledger import Outcome, firsts
from semel.core.records import Commit, DeadLetter
from semel.sinks.files import ledger as module
from semel.sinks.files import sink as sink_module
from semel.storage.store import LocalStore
from tests.engine.harness import some
from tests.sinks.files.conftest import Folder
from tests.sinks.target import FIRST, advance, at_first, values


def letter(offset: int) -> DeadLetter:
    return DeadLetter("t", 0, offset, None, b"{bad", (), 1, "VALUE_CONVERTER", "E", "no")


def stop_at(monkeypatch: pytest.MonkeyPatch, place: str, times: int = 1) -> list[str]:
    """Fail, as a crash would, when a place is reached; returns the places that were."""
    seen: list[str] = []

    def fail(reached: str) -> None:
        seen.append(reached)
        if reached == place and seen.count(place) <= times:
            raise TransientError("crash")

    monkeypatch.setattr(module, "hit", fail)
    monkeypatch.setattr(sink_module, "hit", fail)
    return seen


def test_files_and_positions_are_one_entry(place: Folder) -> None:
    sink = place.sink()
    staged = sink.stage(values(0, 10))
    assert place.files() == []
    assert sink.commit_staged([advance(0, 10)], staged) is Outcome.APPLIED
    assert place.files() == ["t/partition=0/t+0+0000000000-0000000010.parquet"]
    assert place.staged() == []
    state = place.state()
    assert state.entries[FIRST].position == 10
    assert [f.target for f in state.files] == place.files()
    assert [f.rows for f in state.files] == [10]


def test_a_replay_changes_nothing(place: Folder) -> None:
    sink = place.sink()
    staged = sink.stage(values(0, 10))
    assert sink.commit_staged([advance(0, 10)], staged) is Outcome.APPLIED
    before = place.files()
    assert sink.commit_staged([advance(0, 10)], staged) is Outcome.REPLAYED
    other = place.sink()
    assert other.commit([advance(0, 10)], values(0, 10)) is Outcome.REPLAYED
    assert place.files() == before
    sink.advance([advance(10, 11)])
    place.sink()
    assert place.staged() == [], "what the replay has staged is cleaned away"


def test_of_two_that_create_the_same_entry_one_is_fenced(place: Folder) -> None:
    sink, other = place.sink(), place.sink()

    def overtake() -> None:
        other.commit([advance(0, 10)], values(0, 10))

    overtaken = at_first(sink_module, "sink.before_commit", overtake)
    with overtaken, pytest.raises(LedgerConflict, match="the ledger is at 10"):
        sink.commit([advance(0, 7)], values(0, 7))
    assert place.files() == ["t/partition=0/t+0+0000000000-0000000010.parquet"]


def test_an_entry_whose_creation_was_not_answered_is_recognised(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = place.sink()
    staged = sink.stage(values(0, 10))
    stop_at(monkeypatch, "sink.after_commit")
    with pytest.raises(TransientError):
        sink.commit_staged([advance(0, 10)], staged)
    assert place.files() == []
    assert sink.commit_staged([advance(0, 10)], staged) is Outcome.REPLAYED
    assert len(place.files()) == 1


@pytest.mark.parametrize("reached", ["sink.after_commit", "files.between_renames"])
def test_whoever_comes_next_makes_the_files_visible(
    reached: str, place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = place.sink(keys={"flush.size": 2})
    with monkeypatch.context() as patch:
        stop_at(patch, reached)
        with pytest.raises(TransientError):
            sink.commit([advance(0, 10)], values(0, 10))
    seen = len(place.files())
    assert 0 < seen < 5 if reached == "files.between_renames" else seen == 0
    other = place.sink()  # a driver that starts
    assert len(place.files()) == 5
    assert place.staged() == []
    assert other.commit([advance(10, 12)], values(10, 12)) is Outcome.APPLIED
    # The one that was interrupted wakes up and finishes what is finished.
    sink._ledger.finish(sink._ledger._newest)
    assert len(place.files()) == 6


def test_a_commit_finishes_the_entry_before_it(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, other = place.sink(), place.sink()
    with monkeypatch.context() as patch:
        stop_at(patch, "sink.after_commit")
        with pytest.raises(TransientError):
            sink.commit([advance(0, 10)], values(0, 10))
    assert other.commit([advance(10, 20)], values(10, 20)) is Outcome.APPLIED
    assert len(place.files()) == 2


def test_a_zombie_that_slept_until_its_entry_was_deleted_is_fenced(place: Folder) -> None:
    sink, zombie = place.sink(), place.sink()

    def sleep() -> None:
        for n in range(30):
            sink.commit([advance(n, n + 1)], values(n, n + 1))

    staged = zombie.stage(values(0, 5))
    asleep = at_first(sink_module, "sink.before_commit", sleep)
    with asleep, pytest.raises(LedgerConflict, match="far beyond entry 2"):
        zombie.commit_staged([advance(0, 5)], staged)
    assert len(place.files()) == 30
    entries = [f for f in place.all() if f.endswith(".ledger")]
    assert len(entries) == module._KEPT
    assert "_semel/c/00000000000000000002.ledger" not in entries
    assert place.state().entries[FIRST].position == 30


@pytest.mark.parametrize("ahead", some([19, 20, 21], {20}))
def test_a_zombie_is_fenced_wherever_the_newest_entry_is(ahead: int, place: Folder) -> None:
    """It wants entry 2 when the newest one is so many ahead: there, just deleted, or long so."""
    sink, zombie = place.sink(), place.sink()

    def sleep() -> None:
        for n in range(ahead + 1):
            sink.commit([advance(n, n + 1)], values(n, n + 1))

    staged = zombie.stage(values(0, 1))
    with at_first(sink_module, "sink.before_commit", sleep), pytest.raises(LedgerConflict):
        zombie.commit_staged([advance(0, 1)], staged)
    assert place.state().sequence == 2 + ahead
    assert len(place.files()) == ahead + 1
    assert place.state().entries[FIRST].position == ahead + 1


def test_a_deletion_that_was_missed_does_not_let_a_zombie_in(folder: Folder) -> None:
    sink, zombie = folder.sink(), folder.sink()
    before = zombie._ledger.newest()
    for n in range(60):
        sink.commit([advance(n, n + 1)], values(n, n + 1))
    ledger = Path(folder.where, "_semel/c")
    (ledger / f"{1:020}.ledger").write_bytes(before.text())
    with pytest.raises(LedgerConflict, match="far beyond"):
        zombie._ledger.append(before.after([advance(0, 5)], []))
    assert not (ledger / f"{2:020}.ledger").exists()


def test_files_that_were_begun_under_an_older_entry_are_written_again(place: Folder) -> None:
    sink = place.sink(keys={"topics": "t,u"})
    staged = sink.stage(values(0, 10))
    sink.start(firsts({FIRST._replace(topic="u"): 0}))
    with pytest.raises(TargetChanged, match="written again"):
        sink.commit_staged([advance(0, 10)], staged)
    assert sink.commit([advance(0, 10)], values(0, 10)) is Outcome.APPLIED


def test_cleaning_takes_what_no_entry_can_name_any_more(place: Folder) -> None:
    sink = place.sink()
    lost = sink.stage(values(0, 3)).files[0].staged
    sink.commit([advance(0, 10)], values(0, 10))
    current = sink.stage(values(10, 12))
    place.sink()
    assert lost not in place.all()
    assert [f.staged for f in current.files] == place.staged()
    assert sink.commit_staged([advance(10, 12)], current) is Outcome.APPLIED


def test_an_entry_is_whole_or_not_there(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = folder.sink()
    original = os.link

    def crash(*_arguments: object) -> None:
        raise OSError("crash")

    monkeypatch.setattr(os, "link", crash)
    with pytest.raises(TransientError, match="crash"):
        sink.commit([advance(0, 10)], values(0, 10))
    monkeypatch.setattr(os, "link", original)
    assert folder.state().entries[FIRST].position == 0
    assert folder.sink().commit([advance(0, 10)], values(0, 10)) is Outcome.APPLIED


def test_a_file_is_on_the_disk_before_the_entry_that_names_it(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = folder.sink()
    synced: list[str] = []
    original = os.fsync

    def note(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    staged = sink.stage(values(0, 10))
    path = str(Path(folder.where, staged.files[0].staged))
    assert path in synced
    assert str(Path(path).parent) in synced
    sink.commit_staged([advance(0, 10)], staged)
    assert str(Path(folder.where, "t/partition=0")) in synced


@pytest.mark.parametrize(
    "place", ["folder", pytest.param("directory", marks=pytest.mark.integration)], indirect=True
)
class TestFolders:
    """Where a store has folders, others may remove them, or put a file in their place."""

    def test_one_that_is_removed_before_the_rename_loses_nothing(
        self, place: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink = place.sink()
        original, removed = sink._store._make_room, []

        def make(name: str) -> None:
            original(name)
            if name.startswith("t/") and not removed:
                removed.append(name)
                filesystem, root = fsspec.url_to_fs(place.where)
                filesystem.rm(f"{root}/{name.rpartition('/')[0]}", recursive=True)

        monkeypatch.setattr(sink._store, "_make_room", make)
        staged = sink.stage(values(0, 10))
        with pytest.raises(TransientError, match="removed the folder of t/partition=0/t"):
            sink.commit_staged([advance(0, 10)], staged)
        assert removed
        assert sink.commit_staged([advance(0, 10)], staged) is Outcome.REPLAYED
        assert len(place.files()) == 1
        assert place.staged() == []

    @pytest.mark.parametrize("name", ["t", "t/partition=0"])
    def test_a_file_in_its_place_is_named(self, place: Folder, name: str) -> None:
        sink = place.sink()
        filesystem, root = fsspec.url_to_fs(place.where)
        filesystem.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(f"{root}/{name}", b"mine")
        with pytest.raises(ServiceError, match=rf"a file is where.*move it away: .*/{name}"):
            sink.commit([advance(0, 10)], values(0, 10))
        filesystem.rm(f"{root}/{name}")
        assert sink.commit([advance(0, 10)], values(0, 10)) is Outcome.REPLAYED
        assert len(place.files()) == 1


def test_cleaning_takes_half_made_entries(place: Folder) -> None:
    place.sink()
    filesystem, root = fsspec.url_to_fs(place.where)
    filesystem.pipe_file(f"{root}/_semel/c/.{uuid.uuid4().hex}", b"half")
    place.sink()
    assert [f for f in place.all() if "/." in f] == []


def test_an_entry_that_is_cleaned_away_half_made_is_made_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = folder.sink()
    staged = sink.stage(values(0, 10))
    original, times = os.link, [2, 99]

    def clean(source: Path, target: Path) -> None:
        if times[0]:
            times[0] -= 1
            sink._ledger.clean()
        original(source, target)

    monkeypatch.setattr(os, "link", clean)
    assert sink.commit_staged([advance(0, 10)], staged) is Outcome.APPLIED
    del times[0]
    with pytest.raises(TransientError, match="No such file"):
        sink.commit_staged([advance(10, 12)], sink.stage(values(10, 12)))


def test_dead_letters_appear_in_the_same_commit(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"errors.deadletterqueue.table": "dead", "errors.tolerance": "all", "provenance": "true"}
    sink = place.sink(keys=keys)
    commit = Commit(values(0, 5).records, [letter(5), letter(6)])
    with monkeypatch.context() as patch:
        stop_at(patch, "sink.before_commit")
        with pytest.raises(TransientError):
            sink.commit([advance(0, 7)], commit)
    assert place.files() == []
    staged = sink.stage(commit)
    assert sink.commit_staged([advance(0, 7)], staged) is Outcome.APPLIED
    assert place.files() == [
        "dead/topic=t/partition=0/t+0+0000000005-0000000007.parquet",
        "t/partition=0/t+0+0000000000-0000000005.parquet",
    ]
    snapshot = sink.snapshot(["t"])
    assert snapshot.dead["t"].select(["offset", "timestamp"]).to_pylist() == [
        {"offset": 5, "timestamp": 1},
        {"offset": 6, "timestamp": 1},
    ]
    place.sink(keys=keys)
    assert place.staged() == []


@pytest.mark.parametrize("kind", ["json", "csv", "avro"])
def test_the_times_of_dead_letters_are_read_in_each_format(folder: Folder, kind: str) -> None:
    keys = {"errors.deadletterqueue.table": "dead", "errors.tolerance": "all", "format": kind}
    sink = folder.sink(keys=keys)
    sink.commit([advance(0, 7)], Commit([], [letter(6)]))
    assert sink.snapshot(["t"]).dead["t"].to_pylist() == [
        {"partition": 0, "offset": 6, "timestamp": 1}
    ]


def test_the_place_of_a_dead_letter_of_the_year_10000_is_read_without_its_time(
    folder: Folder,
) -> None:
    keys = {"errors.deadletterqueue.table": "dead", "errors.tolerance": "all", "format": "csv"}
    sink = folder.sink(keys=keys)
    late = replace(letter(6), timestamp=253_402_300_800_000)
    sink.commit([advance(0, 7)], Commit([], [late]))
    assert sink.snapshot(["t"]).dead["t"].to_pylist() == [{"partition": 0, "offset": 6}]


def test_dead_letters_are_not_among_a_topics_files(place: Folder) -> None:
    keys = {"errors.deadletterqueue.table": "u", "topics": "", "topics.regex": "[tu]"}
    sink = place.made(keys=keys)
    sink.prepare(["t"])
    with pytest.raises(ConfigError, match="is the folder of topic u too"):
        sink.prepare(["u"])


def test_without_a_transaction_results_are_moved_at_once(place: Folder) -> None:
    sink = place.sink(keys={"delivery": "at-least-once"})
    staged = sink.stage(values(0, 10))
    assert sink.write_staged(staged, [advance(0, 10)]) is Outcome.APPLIED
    assert len(place.files()) == 1
    assert sink.write_staged(staged, [advance(0, 10)]) is Outcome.APPLIED
    assert sink.advance([advance(0, 10)]) is Outcome.APPLIED
    assert sink.write_staged(staged, [advance(0, 10)]) is Outcome.REPLAYED
    assert len(place.files()) == 1
    gone = sink.stage(values(10, 12))
    sink.start(firsts({FIRST._replace(partition=1): 0}))
    place.sink()
    with pytest.raises(TargetChanged, match="is gone"):
        sink.write_staged(gone, [advance(10, 12)])


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once", "at-most-once"])
def test_files_that_the_driver_does_not_see_are_not_committed(
    place: Folder, tmp_path: Path, delivery: str
) -> None:
    """A path that is each machine's own: tasks write, and the driver finds nothing."""
    sink = place.sink(keys={"delivery": delivery})
    staged = Folder(str(tmp_path / "executor")).sink().stage(values(0, 10))
    moved = advance(0, 10)
    with pytest.raises(ConfigError, match="path must be shared by the driver and all executors"):
        if delivery == "exactly-once":
            sink.commit_staged([moved], staged)
        elif delivery == "at-least-once":
            sink.write_staged(staged, [moved])
        else:
            sink.advance([moved])
            sink.write_staged(staged)
    assert place.files() == []
    assert place.state().entries[FIRST].position == (10 if delivery == "at-most-once" else 0)


def test_a_file_that_was_cut_is_not_committed(folder: Folder) -> None:
    sink = folder.sink()
    staged = sink.stage(values(0, 10))
    os.truncate(Path(folder.where, staged.files[0].staged), 5)
    with pytest.raises(ConfigError, match="is missing or incomplete"):
        sink.commit_staged([advance(0, 10)], staged)
    assert folder.state().entries[FIRST].position == 0


def test_files_that_another_run_has_cleaned_away_meanwhile_are_no_error_of_the_path(
    place: Folder,
) -> None:
    sink, other = place.sink(), place.sink()
    staged = sink.stage(values(0, 10))

    def overtake() -> None:
        other.commit([advance(0, 10)], values(0, 10))
        place.sink()

    with at_first(sink_module, "sink.after_positions", overtake):
        assert sink.commit_staged([advance(0, 10)], staged) is Outcome.REPLAYED
    assert len(place.files()) == 1


def test_an_audit_sees_one_entry_while_a_run_goes_on(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"provenance": "true"}
    sink = place.sink(keys=keys)
    sink.commit([advance(0, 10)], values(0, 10))
    with monkeypatch.context() as patch:
        stop_at(patch, "sink.after_commit")
        with pytest.raises(TransientError):
            sink.commit([advance(10, 20)], values(10, 20))
    from semel.sinks.files import snapshot

    raced = []
    original = snapshot.visible

    def race(store: object, below: str) -> dict[str, int]:
        if not raced:
            raced.append(below)
            sink.commit([advance(20, 30)], values(20, 30))
        return original(store, below)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot, "visible", race)
    found = place.made(keys=keys).snapshot(["t"])
    assert raced
    assert [e.position for e in found.entries] == [20]
    assert sorted(found.records["t"].column("offset").to_pylist()) == list(range(20))


def test_another_connectors_folder_is_left_alone(place: Folder) -> None:
    place.sink("first").commit([advance(0, 1)], values(0, 1))
    with pytest.raises(
        ConfigError, match=r"belong to connector first.*semel offsets reset, with that"
    ):
        place.sink("second")
    place.sink("second", {"topics.dir": "elsewhere"})
    place.made("first").set_positions(None)
    place.sink("second")


@pytest.mark.parametrize("delivery", [None, "exactly-once", "at-most-once"])
def test_a_store_that_ignores_exclusive_creation_is_found_out(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, delivery: str | None
) -> None:
    def overwrite(self: LocalStore, name: str, content: bytes) -> None:
        path = Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    monkeypatch.setattr(LocalStore, "create", overwrite)
    with pytest.raises(ConfigError, match=r"does not create files exclusively.*at-least-once"):
        folder.sink(keys={"delivery": delivery})
    folder.sink(keys={"delivery": "at-least-once"})


def test_an_entry_says_what_it_holds(folder: Folder) -> None:
    sink = folder.sink("orders")
    sink.commit([advance(0, 3)], values(0, 3))
    entry = json.loads(Path(folder.where, "_semel/orders", f"{2:020}.ledger").read_text())
    assert entry["connector"] == "orders"
    assert entry["positions"][0]["position"] == 3
    assert entry["files"][0]["target"] == "t/partition=0/t+0+0000000000-0000000003.parquet"


def test_a_disk_that_takes_no_more_leaves_nothing_visible(folder: Folder) -> None:
    """The kernel cuts a write short, as it does on a full disk."""
    sink = folder.sink()
    sink.commit([advance(0, 3)], values(0, 3))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        with pytest.raises(TransientError, match="File too large"):
            sink.commit([advance(3, 6)], values(3, 6))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(folder.files()) == 1
    assert folder.state().entries[FIRST].position == 3
    assert sink.commit([advance(3, 6)], values(3, 6)) is Outcome.APPLIED
    assert [r["id"] for r in folder.read()] == list(range(6))
