"""Each file once, whatever happens to it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.driver.planning import plan_source
from semel.sources.base import Measurable, Repeatable, Sharded
from semel.sources.directory import places
from semel.sources.directory.source import DirectorySource
from tests import s3
from tests.sources.directory.conftest import Reading, names
from tests.sources.directory.test_formats import schema

Make = Callable[..., DirectorySource]
Rename = Callable[[Path, Path], Path]


def lines(count: int, start: int = 0) -> list[str]:
    return [f"line {n}" for n in range(start, start + count)]


def write(path: Path, values: list[str]) -> None:
    path.write_text("".join(f"{v}\n" for v in values))


def replace(path: Path, values: list[str]) -> None:
    """Rename another file over it."""
    other = path.parent.parent / "other"
    write(other, values)
    other.replace(path)


def create(path: Path, values: list[str]) -> None:
    """Create another file of its name, which may get its inode."""
    path.unlink()
    write(path, values)


def across(rename: Rename) -> Rename:
    """A rename between two file systems, one of them in each directory."""

    def refuse(source: Path, target: Path) -> Path:
        if source.parent != target.parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(source, target)

    return refuse


def retiming(rename: Rename) -> Rename:
    """A rename that changes the file's time, as on some mounted object stores."""

    def renamed(source: Path, target: Path) -> Path:
        moved = rename(source, target)
        os.utime(moved, (0, 0))
        return moved

    return renamed


def test_files_are_read_in_their_order_and_moved_when_they_are_committed(
    make: Make, folder: Path
) -> None:
    write(folder / "b.txt", lines(3, 3))
    write(folder / "a.txt", lines(3))
    source = make()
    assert isinstance(source, Sharded)
    assert isinstance(source, Repeatable)
    reading = Reading(source)
    assert reading.all() == lines(6)
    assert names(folder) == []
    assert names(folder.parent / "done") == ["a.txt", "b.txt"]
    write(folder / "c.txt", lines(2, 6))
    assert reading.all() == lines(8)


def test_a_name_that_no_offset_can_hold_is_left_out(
    make: Make, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder / "a.txt", lines(3))
    write(folder / os.fsdecode(b"caf\xe9.txt"), lines(3))
    assert Reading(make()).all() == lines(3)
    assert caplog.text.count("its name is not UTF-8") == 1


def test_a_file_that_was_committed_but_not_moved_is_moved_and_not_read_again(
    make: Make, folder: Path
) -> None:
    write(folder / "a.txt", lines(3))
    reading = Reading(make())
    while reading.step(cleans=False):
        pass
    assert names(folder) == ["a.txt"]
    again = Reading(make(), reading.stored)
    assert again.all() == []
    assert names(folder) == []
    assert names(folder.parent / "done") == ["a.txt"]


@pytest.mark.parametrize("policy", ["none", "DELETE", "MOVEBYDATE"])
def test_what_becomes_of_files_is_what_the_policy_says(
    policy: str, make: Make, folder: Path
) -> None:
    path = folder / "a.txt"
    write(path, lines(3))
    os.utime(path, (1_600_000_000, 1_600_000_000))
    reading = Reading(make(cleanup_policy=policy))
    assert reading.all() == lines(3)
    reading.restart()
    assert reading.all() == lines(3)
    done = names(folder.parent / "done")
    assert (names(folder), done) == {
        "none": (["a.txt"], []),
        "DELETE": ([], []),
        "MOVEBYDATE": ([], ["2020-09-13/a.txt"]),
    }[policy]


def test_reading_goes_on_inside_a_file(make: Make, folder: Path) -> None:
    write(folder / "a.txt", lines(100))
    for steps in range(1, 12):
        reading = Reading(make(batch_size="9", cleanup_policy="none"))
        for _ in range(steps):
            reading.step()
        reading.restart()
        assert reading.all() == lines(100)


def test_a_file_replaced_under_its_name_is_read_anew_and_told(
    make: Make, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder / "a.txt", lines(3))
    reading = Reading(make(cleanup_policy="none"))
    assert reading.all() == lines(3)
    write(folder / "a.txt", ["another"])
    assert reading.all() == [*lines(3), "another"]
    assert "file a.txt is not the same as before (size 8, " in caplog.text
    reading.restart()
    assert reading.all() == [*lines(3), "another"]


def test_a_replacement_of_the_same_size_and_time_is_read_and_a_chmod_changes_nothing(
    make: Make, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "a.txt"
    write(path, ["one", "two"])
    kept = path.stat()
    reading = Reading(make(cleanup_policy="none"))
    assert reading.all() == ["one", "two"]
    path.chmod(0o600)
    (folder.parent / "link").hardlink_to(path)
    reading.restart()
    assert reading.all() == ["one", "two"]
    write(path, ["six", "ten"])
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert reading.all() == ["one", "two", "six", "ten"]
    assert "file a.txt is not the same as before (size 8, " in caplog.text
    reading.stored["a.txt"] = {  # as Kafka Connect's connectors may
        n: v for n, v in reading.stored["a.txt"].items() if n not in ("changed", "checksum")
    }
    path.chmod(0o640)
    reading.restart()
    assert reading.all() == ["one", "two", "six", "ten"]


def test_a_file_of_the_name_size_and_time_of_a_deleted_one_is_not_deleted_unread(
    make: Make, folder: Path
) -> None:
    path = folder / "a.txt"
    write(path, ["one"])
    kept = path.stat()
    reading = Reading(make(cleanup_policy="DELETE"))
    assert reading.all() == ["one"]
    write(path, ["two"])
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert reading.all() == ["one", "two"]


def test_a_file_that_changes_while_it_is_read_is_not_done(make: Make, folder: Path) -> None:
    write(folder / "a.txt", lines(30))
    reading = Reading(make(batch_size="9"))
    reading.step()
    write(folder / "a.txt", lines(40))
    assert reading.all()[-40:] == lines(40)
    assert names(folder.parent / "done") == ["a.txt"]


def test_a_replacement_of_the_same_size_and_time_of_a_file_that_is_read_begins_anew(
    make: Make, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "a.txt"
    write(path, lines(30, 10))
    kept = path.stat()
    reading = Reading(make(batch_size="9"))
    reading.step()
    path.chmod(0o600)
    reading.restart()
    reading.step()
    assert reading.values == lines(18, 10)
    other = folder.parent / "other"
    write(other, lines(30, 50))
    os.utime(other, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    other.rename(path)
    before = dict(reading.stored)
    for committed in (before, reading.stored):  # the first commit fails
        reading.stored = committed
        reading.restart()
        reading.step()
    assert "file a.txt is not the same as before" in caplog.text
    reading.restart()
    assert reading.all()[-21:] == lines(21, 59)
    assert names(folder.parent / "done") == ["a.txt"]


@pytest.mark.parametrize("is_denied", [False, True])
def test_a_finished_file_that_cannot_be_compared_is_tried_again_or_left(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, is_denied: bool
) -> None:
    path = folder / "a.txt"
    write(path, lines(3))
    reading = Reading(make(cleanup_policy="none"))
    assert reading.all() == lines(3)
    path.chmod(0)
    reading.restart()

    class Stale(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.ESTALE, "Stale file handle")

    def opened(*_: object) -> Stale:
        if is_denied:
            raise PermissionError(errno.EACCES, "Permission denied")
        return Stale()

    monkeypatch.setattr(Path, "open", opened)
    with contextlib.nullcontext() if is_denied else pytest.raises(TransientError, match="Stale"):
        assert reading.all() == lines(3)


def test_a_replacement_that_may_not_be_read_is_not_deleted(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "a.txt"
    write(path, ["one", "two"])
    kept = path.stat()
    reading = Reading(make(cleanup_policy="delete"))
    while reading.step(cleans=False):
        pass
    path.unlink()
    write(path, ["six", "ten"])
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    with monkeypatch.context() as denied:

        def opened(*_: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        denied.setattr(Path, "open", opened)
        again = Reading(make(cleanup_policy="delete"), reading.stored)
        assert again.all() == []
        assert names(folder) == ["a.txt"]
    again.restart()
    assert again.all() == ["six", "ten"]
    assert names(folder) == []


@pytest.mark.parametrize("begun", [False, True])
def test_a_file_replaced_before_it_is_opened_is_read_once(
    make: Make, folder: Path, begun: bool
) -> None:
    write(folder / "b.txt", lines(30, 100))
    reading = Reading(make(batch_size="9"))
    if begun:
        reading.step()
    write(folder / "a.txt", lines(9))
    reading.restart()
    reading.step()  # both files are listed, and a.txt is read
    assert reading.values[-9:] == lines(9)
    replace(folder / "b.txt", lines(20, 200))
    assert reading.all()[-20:] == lines(20, 200)
    assert len(reading.values) == 29 + (9 if begun else 0)


@pytest.mark.parametrize("policy", ["MOVE", "DELETE"])
def test_a_file_that_replaces_a_finished_one_after_the_restart_is_read(
    make: Make, folder: Path, policy: str
) -> None:
    write(folder / "b.txt", ["finished"])
    reading = Reading(make(batch_size="9", cleanup_policy=policy))
    while reading.step(cleans=False):
        pass
    write(folder / "a.txt", lines(9))
    reading.restart()
    reading.step()  # both files are listed, and a.txt is read
    replace(folder / "b.txt", ["another"])
    assert reading.all() == ["finished", *lines(9), "another"]


@pytest.mark.parametrize(
    ("policy", "disk", "left"),
    [("MOVE", "same", ["a.txt"]), ("MOVE", "other", ["a.txt", "a.txt.1"]), ("DELETE", "same", [])],
)
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("another", [replace, create, write])
def test_a_file_that_takes_the_name_at_the_very_end_is_read(
    make: Make,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    disk: str,
    left: list[str],
    another: Callable[[Path, list[str]], None],
    links: bool,
) -> None:
    """It gets the finished one's name just before that is moved or deleted."""
    path, late = folder / "a.txt", [["another"]]
    rename: Rename = Path.rename if disk == "same" else across(Path.rename)

    def renamed(source: Path, target: Path) -> Path:
        if source == path and late and (disk == "same" or target.parent == folder):
            another(path, late.pop())
        return rename(source, target)

    def refuse(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    write(path, lines(3))
    monkeypatch.setattr(Path, "rename", renamed)
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    assert Reading(make(cleanup_policy=policy)).all() == [*lines(3), "another"]
    assert names(folder) == []
    assert names(folder.parent / "done") == left


@pytest.mark.parametrize("another", [replace, create, write])
def test_a_file_that_changes_while_it_is_copied_to_another_disk_is_read(
    make: Make,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    another: Callable[[Path, list[str]], None],
) -> None:
    path, late, copystat = folder / "a.txt", [["another"]], shutil.copystat

    def copied(*given: Any) -> None:
        if late:
            another(path, late.pop())
        copystat(*given)

    write(path, lines(3))
    monkeypatch.setattr(Path, "rename", across(Path.rename))
    monkeypatch.setattr(shutil, "copystat", copied)
    assert Reading(make()).all() == [*lines(3), "another"]
    assert names(folder) == []
    assert names(folder.parent / "done") == ["a.txt"]
    assert (folder.parent / "done" / "a.txt").read_text() == "another\n"


def test_a_copy_that_does_not_succeed_is_removed(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    write(folder / "a.txt", lines(3))
    monkeypatch.setattr(Path, "rename", across(Path.rename))
    monkeypatch.setattr(shutil, "copystat", fail)
    with pytest.raises(TransientError, match="Input/output error"):
        Reading(make()).all()
    assert names(folder) == ["a.txt"]
    assert names(folder.parent / "done") == []


@pytest.mark.parametrize("coarse", [False, True])
def test_a_move_to_another_disk_that_is_repeated_leaves_one_copy(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, coarse: bool
) -> None:
    path, copystat, copied = folder / "a.txt", shutil.copystat, folder.parent / "done" / "a.txt"

    def rounded(source: Path, target: Path) -> None:
        copystat(source, target)
        os.utime(target, (86_402, 86_402))

    def fail(*_arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    write(path, lines(3))
    os.utime(path, (86_400, 86_403.5))
    modified = path.stat().st_mtime_ns
    reading = Reading(make())
    monkeypatch.setattr(Path, "rename", across(Path.rename))
    if coarse:
        monkeypatch.setattr(shutil, "copystat", rounded)
    with monkeypatch.context() as failing:
        failing.setattr(Path, "unlink", fail)
        failing.setattr(Path, "rename", across(fail))
        with pytest.raises(TransientError, match="Input/output error"):
            reading.all()
    assert copied.stat().st_mtime_ns == (86_402_000_000_000 if coarse else modified)
    reading.restart()
    assert reading.all() == lines(3)
    assert names(folder) == []
    assert names(copied.parent) == ["a.txt"]


def test_a_file_that_takes_the_name_and_may_not_be_read_is_put_back(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename, checksum_of = folder / "a.txt", Path.rename, places._checksum_of

    def refuse(of: Path) -> int:
        if of == path:
            return checksum_of(of)
        raise PermissionError(errno.EACCES, "Permission denied")

    def renamed(source: Path, target: Path) -> Path:
        replace(source, lines(3, 3))
        os.utime(source, (1, 1))
        return rename(source, target)

    write(path, lines(3))
    with monkeypatch.context() as replaced:
        replaced.setattr(Path, "rename", renamed)
        replaced.setattr(places, "_checksum_of", refuse)
        with pytest.raises(ServiceError, match="access is denied"):
            Reading(make()).all()
    assert names(folder.parent / "done") == []
    assert names(folder) == ["a.txt"]
    assert path.read_text() == "line 3\nline 4\nline 5\n"


def test_a_rename_that_changes_the_time_of_a_file_of_spooldir_changes_no_file(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "a.txt", lines(3))
    monkeypatch.setattr(Path, "rename", retiming(Path.rename))
    source = make()
    source.committed({"fileName": "a.txt"}, {"offset": 3, "state": "done"})
    assert names(folder) == []


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_deleted_file_is_looked_at_again_if_that_failed(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    path, rename, stat = folder / "a.txt", Path.rename, Path.stat

    def renamed(source: Path, target: Path) -> Path:
        if is_replaced:
            replace(source, ["another"])
        return rename(source, target)

    def failing(path: Path, **given: Any) -> os.stat_result:
        if path.name.startswith(".semel-"):
            failing_once.undo()
            raise OSError(errno.EIO, "Input/output error")
        return stat(path, **given)

    write(path, lines(3))
    with monkeypatch.context() as failing_once:
        failing_once.setattr(Path, "rename", renamed)
        failing_once.setattr(Path, "stat", failing)
        reading = Reading(make(cleanup_policy="DELETE"))
        reading.step()
    assert reading.all() == [*lines(3), *(["another"] if is_replaced else [])]
    assert names(folder) == []


@pytest.mark.parametrize("policy", ["MOVE", "DELETE"])
def test_a_rename_that_changes_the_time_changes_no_file(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    write(folder / "a.txt", lines(3))
    monkeypatch.setattr(Path, "rename", retiming(Path.rename))
    assert Reading(make(cleanup_policy=policy)).all() == lines(3)
    assert names(folder) == []


def test_a_rename_that_is_sent_twice_is_no_error(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS does if the first answer is lost."""
    rename = Path.rename

    def renamed(source: Path, target: Path) -> Path:
        rename(source, target)
        return rename(source, target)

    write(folder / "a.txt", lines(3))
    monkeypatch.setattr(Path, "rename", renamed)
    assert Reading(make(cleanup_policy="DELETE")).all() == lines(3)
    assert names(folder) == []


def test_files_of_the_same_content_are_all_kept(make: Make, folder: Path) -> None:
    reading = Reading(make())
    for day in (1, 2):
        write(folder / "a.txt", ["heartbeat"])
        os.utime(folder / "a.txt", (day * 86_400, day * 86_400))
        assert reading.all() == ["heartbeat"] * day
        assert before(make(), "a.txt", reading.stored["a.txt"]) == ["heartbeat"]
    assert names(folder.parent / "done") == ["a.txt", "a.txt.1"]


def test_a_copy_in_the_finished_path_stays_there(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier move has left it; another file takes the name while this one is moved again."""
    path, late, rename = folder / "a.txt", [["another"]], Path.rename
    done = folder.parent / "done"

    def renamed(source: Path, target: Path) -> Path:
        if source == path and late:
            replace(path, late.pop())
        return rename(source, target)

    write(path, lines(3))
    shutil.copy2(path, done)
    monkeypatch.setattr(Path, "rename", renamed)
    assert Reading(make()).all() == [*lines(3), "another"]
    assert [(done / n).read_text() for n in names(done)] == [
        "".join(f"{line}\n" for line in lines(3)),
        "another\n",
    ]


@pytest.mark.parametrize("policy", ["MOVE", "DELETE"])
def test_a_file_that_is_replaced_twice_at_the_very_end_stops_the_connector(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    path, late, rename = folder / "a.txt", [["second"], ["third"]], Path.rename

    def renamed(source: Path, target: Path) -> Path:
        if source == path:
            replace(path, late.pop(0))
        moved = rename(source, target)
        if source == path:
            write(path, late.pop(0))
        return moved

    write(path, lines(3))
    monkeypatch.setattr(Path, "rename", renamed)
    with pytest.raises(ServiceError, match="was replaced twice") as stopped:
        Reading(make(cleanup_policy=policy)).all()
    second = Path(str(stopped.value).partition("moved: ")[2].partition(" is one")[0])
    assert (path.read_text(), second.read_text()) == ("third\n", "second\n")


def test_a_directory_without_renames_has_its_finished_files_deleted(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    write(folder / "a.txt", lines(3))
    monkeypatch.setattr(Path, "rename", refuse)
    assert Reading(make(cleanup_policy="DELETE")).all() == lines(3)
    assert names(folder) == []


def test_a_file_that_takes_the_name_where_there_are_no_renames_is_read(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, late = folder / "a.txt", [["another"]]

    def refuse(*_arguments: object) -> None:
        if late:
            replace(path, late.pop())
        raise OSError(errno.ENOSPC, "No space left on device")

    write(path, lines(3))
    monkeypatch.setattr(Path, "rename", refuse)
    assert Reading(make(cleanup_policy="DELETE")).all() == [*lines(3), "another"]
    assert names(folder) == []


def test_a_file_that_somebody_moves_on_at_once_is_finished(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def renamed(source: Path, target: Path) -> Path:
        moved = rename(source, target)
        write(source, ["another"])
        moved.unlink()
        return moved

    write(folder / "a.txt", lines(3))
    with monkeypatch.context() as hurried:
        hurried.setattr(Path, "rename", renamed)
        reading = Reading(make(cleanup_policy="DELETE"))
        while reading.step():
            hurried.setattr(Path, "rename", rename)
    assert reading.all() == [*lines(3), "another"]


def test_a_file_that_a_crash_left_aside_is_reported(
    make: Make, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / ".semel-1", lines(3))
    reading = Reading(make())
    assert reading.all() == []
    assert ".semel-1" not in caplog.text, "it may be about to be deleted"
    monkeypatch.setattr("semel.sources.directory.files._ASIDE_S", 0)
    assert reading.all() == []
    assert caplog.text.count("file .semel-1 was left in input.path") == 1
    assert names(folder) == [".semel-1"]


def test_a_file_whose_links_change_before_it_is_opened_is_read(make: Make, folder: Path) -> None:
    write(folder / "b.txt", ["waits"])
    write(folder / "a.txt", lines(9))
    reading = Reading(make(batch_size="9"))
    reading.step()  # both files are listed, and a.txt is read
    (folder / "b.txt").chmod(0o600)
    while reading.step():
        pass
    assert reading.values == [*lines(9), "waits"]


def test_a_file_that_is_in_the_finished_path_already_leaves_the_input(
    make: Make, folder: Path
) -> None:
    write(folder / "a.txt", lines(3))
    (folder.parent / "done" / "a.txt").hardlink_to(folder / "a.txt")
    assert Reading(make()).all() == lines(3)
    assert names(folder) == []
    assert names(folder.parent / "done") == ["a.txt"]


def test_a_file_is_not_moved_over_another_one(make: Make, folder: Path) -> None:
    done = folder.parent / "done"
    write(done / "a.txt", ["earlier"])
    write(folder / "a.txt", lines(3))
    reading = Reading(make())
    reading.all()
    assert names(done) == ["a.txt", "a.txt.1"]
    assert (done / "a.txt").read_text() == "earlier\n"


def test_a_file_that_took_the_place_of_a_finished_one_is_not_moved_unread(
    make: Make, folder: Path
) -> None:
    write(folder / "a.txt", lines(3))
    reading = Reading(make())
    while reading.step(cleans=False):
        pass
    write(folder / "a.txt", ["another"])
    reading.restart()
    assert reading.all() == [*lines(3), "another"]


def before(source: DirectorySource, name: str, offset: Mapping[str, Any]) -> list[str]:
    batches = source.before({"fileName": name}, offset)
    return [v for b in batches for r in b.records for v in r.values.to_pylist()]


def test_what_lies_before_an_offset_is_read_again_from_where_the_file_is_now(
    make: Make, folder: Path
) -> None:
    write(folder / "a.txt", lines(30))
    source = make(batch_size="9")
    reading = Reading(source)
    reading.step()
    offset = reading.stored["a.txt"]
    assert (offset["offset"], "state" in offset) == (9, False)
    assert before(source, "a.txt", offset) == lines(9)
    reading.all()
    assert reading.stored["a.txt"]["state"] == "done"
    assert before(make(), "a.txt", reading.stored["a.txt"]) == lines(30)
    (folder.parent / "done" / "a.txt").unlink()
    with pytest.raises(ServiceError, match=r"file a\.txt .* is gone.*An audit needs"):
        list(make().before({"fileName": "a.txt"}, reading.stored["a.txt"]))


@pytest.mark.parametrize("location", ["field", "headers"])
def test_records_read_again_name_the_file_as_it_was_read_first(
    make: Make, folder: Path, location: str
) -> None:
    (folder / "a.csv").write_text("1\n2\n")
    keys = {"value_schema": schema(id="INT32"), "metadata_location": location}
    source = make("csv", cleanup_policy="movebydate", **keys)
    reading = Reading(source)
    reading.all()
    again = [r for b in source.before({"fileName": "a.csv"}, reading.stored["a.csv"])
             for r in b.records]  # fmt: skip
    assert not (folder / "a.csv").exists()
    assert [v for r in again for v in r.values.to_pylist()] == reading.values
    headers = [h for r in again if r.headers is not None for h in r.headers.to_pylist()]
    assert [{h["key"]: h["value"].decode() for h in each} for each in headers] == reading.headers


def test_files_that_come_and_are_moved_while_others_are_read_again_are_found(
    make: Make, folder: Path
) -> None:
    write(folder / "a.txt", lines(3))
    reading = Reading(make())
    reading.all()
    write(folder / "b.txt", lines(4))
    source = make()
    assert before(source, "a.txt", reading.stored["a.txt"]) == lines(3)
    reading.all()
    assert before(source, "b.txt", reading.stored["b.txt"]) == lines(4)
    write(folder / "c.txt", lines(5))
    reading.all()
    assert before(source, "c.txt", reading.stored["c.txt"]) == lines(5)


def test_patterns_ages_flags_and_folders_choose_the_files(make: Make, folder: Path) -> None:
    (folder / "sub").mkdir()
    for name in ("a.csv", "a.csv.PROCESSING", "b.txt", "sub/c.csv"):
        write(folder / name, [name])
    assert Reading(make(input_file_pattern=r"^.*\.csv", cleanup_policy="none")).all() == ["a.csv"]
    found = Reading(
        make(input_path_walk_recursively="true", cleanup_policy="none", input_file_pattern=".*csv")
    ).all()
    assert found == ["a.csv", "sub/c.csv"]
    young = Reading(make(file_minimum_age_ms="3600000"))
    batch = next(young.batches)
    assert batch is not None  # it is not all that is there
    assert (len(batch), batch.reached) == (0, ())


def test_files_are_sorted_by_several_attributes(make: Make, folder: Path) -> None:
    for name, size in (("a", 1), ("b", 2), ("c", 1)):
        write(folder / name, [name * size])
    assert Reading(make(files_sort_attributes="LengthDesc,NameDesc")).all() == ["bb", "c", "a"]


def test_tasks_share_the_files(make: Make, folder: Path) -> None:
    for n in range(40):
        write(folder / f"{n}.txt", [str(n)])
    source = make(tasks_max="3", cleanup_policy="none")
    found = []
    for shard in source.partitions():
        batches = source.read_shard(shard, lambda _partition: None)
        part = []
        while (batch := next(batches)) is not None:
            part += [v for r in batch.records for v in r.values.to_pylist()]
        assert part
        found += part
    assert sorted(found, key=int) == [str(n) for n in range(40)]


def test_another_number_of_tasks_reads_no_file_again(make: Make, folder: Path) -> None:
    for n in range(20):
        write(folder / f"{n}.txt", [str(n)])
    reading = Reading(make(cleanup_policy="none"))
    reading.all()
    source = make(tasks_max="3", cleanup_policy="none")
    for shard in source.partitions():
        batches = source.read_shard(shard, lambda p: reading.stored.get(p["fileName"]))
        assert next(batches) is None


def test_a_finished_path_on_another_disk_is_copied_to(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "a.txt", lines(3))
    monkeypatch.setattr(Path, "rename", across(Path.rename))
    assert Reading(make()).all() == lines(3)
    assert names(folder) == []
    assert (folder.parent / "done" / "a.txt").read_text() == "line 0\nline 1\nline 2\n"


def test_a_move_that_another_run_makes_at_the_same_time_is_no_error(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has been replaced may wake up between its commit and its move."""
    write(folder / "a.txt", lines(3))
    reading = Reading(make())
    while reading.step(cleans=False):
        pass
    versions, done = reading.source._versions, folder.parent / "done"
    same = versions.same

    def late(*given: Any, **named: Any) -> bool:
        (folder / "a.txt").rename(done / "a.txt")
        return same(*given, **named)

    monkeypatch.setattr(versions, "same", late)
    reading.source.committed({"fileName": "a.txt"}, reading.stored["a.txt"])
    assert names(done) == ["a.txt"]


def test_a_place_that_may_not_be_written_to_is_reported(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/done/a.txt")

    write(folder / "a.txt", lines(3))
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(ServiceError, match=r"access is denied: .*/done/a\.txt"):
        Reading(make()).all()


def test_a_file_without_the_field_of_the_key_does_not_stop_others(make: Make, folder: Path) -> None:
    (folder / "a.csv").write_text('other\n1\n"2\n')
    (folder / "b.csv").write_text("id\n1\n")
    keys = {"csv_first_row_as_header": "true", "schema_generation_enabled": "true"}
    source = make("csv", key_fields="id", halt_on_error="false", **keys)
    assert Reading(source).all() == [{"id": "1"}]
    assert (names(folder.parent / "bad"), names(folder.parent / "done")) == (["a.csv"], ["b.csv"])


def test_headers_say_which_file_a_record_is_from(make: Make, folder: Path) -> None:
    (folder / "sub").mkdir()
    for name in ("a.txt", "sub/b.tar.gz.txt"):
        write(folder / name, ["x", "y"])
        os.utime(folder / name, (1_600_000_000.5,) * 2)
    reading = Reading(make(input_path_walk_recursively="true", batch_size="1"))
    reading.all()
    assert reading.headers[1] == {
        "file.name": "a.txt",
        "file.name.without.extension": "a",
        "file.path": str(folder / "a.txt"),
        "file.parent.dir.name": "in",
        "file.length": "4",
        "file.offset": "2",
        "file.last.modified": "2020-09-13T12:26:40.500Z",
    }
    assert reading.headers[2]["file.name.without.extension"] == "b.tar.gz"
    assert reading.headers[2]["file.parent.dir.name"] == "sub"
    assert reading.headers[2]["file.relative.path"] == "sub"
    assert [h["file.offset"] for h in reading.headers] == ["1", "2", "1", "2"]


@pytest.mark.parametrize(("sign", "year"), [(1, 9999), (-1, 1)])
def test_a_file_may_be_of_a_year_that_python_does_not_have(sign: int, year: int) -> None:
    assert places.FoundFile("a.txt", 1, sign * 10**15, "").modified.year == year


@pytest.mark.parametrize(
    ("name", "location", "warned"),
    [
        ("file.name", "headers", False),
        ("file.nmae", "headers", True),
        ("file.name", "none", True),
    ],
)
def test_a_predicate_that_waits_for_a_header_that_never_comes_is_warned_of(
    name: str, location: str, warned: bool, folder: Path
) -> None:
    raw = {
        **{"name": "files", "connector.class": "Directory", "format": "text", "topic": "t"},
        **{"input.path": str(folder), "cleanup.policy": "none", "bootstrap.servers": "h:1"},
        **{"value.converter": "org.apache.kafka.connect.storage.StringConverter"},
        "metadata.location": location,
        "transforms": "only",
        "transforms.only.type": "org.apache.kafka.connect.transforms.Filter",
        "transforms.only.predicate": "named",
        "transforms.only.negate": "true",
        "predicates": "named",
        "predicates.named.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey",
        "predicates.named.name": name,
    }
    warnings = [w for w in plan_source(raw).warnings if "waits for the header" in w]
    assert bool(warnings) is warned, warnings


def test_what_is_said_of_the_file_may_be_a_field_or_nothing(make: Make, folder: Path) -> None:
    (folder / "a.csv").write_text("one\n1\n")
    keys = {
        **{"csv_first_row_as_header": "true", "schema_generation_enabled": "true"},
        "cleanup_policy": "none",
    }
    reading = Reading(make("csv", metadata_location="FIELD", metadata_field="from", **keys))
    (value,) = reading.all()
    assert value["one"] == "1"
    assert (value["from"]["name"], value["from"]["offset"]) == ("a.csv", 1)
    assert reading.headers == []
    reading = Reading(make("csv", metadata_location="NONE", **keys))
    assert (reading.all(), reading.headers) == ([{"one": "1"}], [])


def test_many_small_files_are_committed_together(make: Make, folder: Path) -> None:
    for n in range(100):
        write(folder / f"{n:03}.txt", [str(n)])
    batch = next(make().read_shard({"shard": 0}, lambda _partition: None))
    assert batch is not None
    assert (len(batch), len(batch.records), len(batch.reached)) == (100, 1, 100)


def test_a_missing_directory_is_waited_for_and_reported_once(
    make: Make, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.rmdir()
    reading = Reading(make())
    for _ in range(3):
        reading.all()
    assert caplog.text.count("is not there: waiting for it") == 1
    folder.mkdir()
    write(folder / "a.txt", lines(1))
    assert reading.all() == lines(1)


class TestBroken:
    """A file that cannot be read to its end."""

    @pytest.fixture
    def broken(self, folder: Path) -> Path:
        path = folder / "a.txt"
        path.write_bytes(b"one\ntwo\n\xff\xfe\nfour\n")
        write(folder / "b.txt", ["good"])
        return path

    def test_it_is_moved_and_others_are_read(
        self, broken: Path, make: Make, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        reading = Reading(make(halt_on_error="false"))
        assert reading.all() == ["one", "two", "good"]
        assert "file a.txt: record 3: it is not UTF-8. The file is moved to error.path" in (
            caplog.text
        )
        assert names(folder.parent / "bad") == ["a.txt"]
        assert names(folder.parent / "done") == ["b.txt"]

    def test_the_connector_halts_once_it_is_committed_and_then_goes_on(
        self, broken: Path, make: Make, folder: Path
    ) -> None:
        reading = Reading(make())
        with pytest.raises(ServiceError, match=r"file a\.txt: record 3: it is not UTF-8"):
            reading.all()
        assert reading.values == ["one", "two"]
        reading.restart()
        assert reading.all() == ["one", "two", "good"]
        assert names(folder.parent / "bad") == ["a.txt"]

    def test_a_crash_before_it_is_moved_does_not_read_it_again(
        self, broken: Path, make: Make, folder: Path
    ) -> None:
        reading = Reading(make(halt_on_error="false"))
        while reading.step(cleans=False):
            pass
        assert names(folder) == ["a.txt", "b.txt"]
        reading.restart()
        assert reading.all() == ["one", "two", "good"]
        assert names(folder.parent / "bad") == ["a.txt"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"input_path": ""}, "input.path is required"),
        ({"finished_path": ""}, "finished.path is required with cleanup.policy=move"),
        ({"halt_on_error": "false", "error_path": ""}, "error.path is required with"),
        ({"format": ""}, "format is required: one of csv, json, text, parquet, avro"),
        ({"cleanup_policy": "KEEP"}, "must be one of none, delete, move, movebydate"),
        ({"input_file_pattern": "["}, "is not a regular expression"),
        ({"files_sort_attributes": "Name"}, "must be one or more of NameAsc"),
        ({"file_charset": "klingon"}, "is not a character set"),
        ({"file_charset": "rot13"}, "is not a character set"),
        ({"finished_path": "s3://bucket/done"}, "must be in one store"),
        ({"format": "csv"}, "value.schema is required, or csv.first.row.as.header=true"),
        ({"format": "csv", "csv_separator_char": "ab"}, "must be a character of ASCII"),
        ({"format": "csv", "csv_separator_char": "128"}, "must be a character of ASCII"),
        ({"format": "json", "value_schema": "{"}, "value.schema is not JSON"),
        ({"format": "json", "value_schema": "[" * 100_000}, "value.schema is nested too deeply"),
        (
            {
                "format": "json",
                "value_schema": '{"type":"STRUCT","fieldSchemas":{"a":{"type":"ARRAY","name":[]}}}',
            },
            "value.schema is not a schema",
        ),
        (
            {
                "format": "csv",
                "value_schema": '{"type":"STRUCT","fieldSchemas":{"a":{"type":"BYTES","name":'
                '"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"few"}}}}',
            },
            "value.schema field a: its scale few must be from 0 to 38",
        ),
        (
            {
                "format": "csv",
                "value_schema": '{"type":"STRUCT","fieldSchemas":{"a":{"type":"ARRAY",'
                '"valueSchema":{"type":"INT8"}}}}',
            },
            "value.schema: field a cannot be read from csv",
        ),
        (
            {
                "format": "json",
                "value_schema": '{"type":"STRUCT","fieldSchemas":{"a":{"type":"STRUCT"}}}',
            },
            "value.schema: field a cannot be read from json: .* A STRUCT needs fieldSchemas",
        ),
        ({"timestamp_mode": "FIELD"}, "timestamp.field is required"),
        ({"parser_timestamp_date_formats": "YYYY-MM-dd"}, "formats uses the pattern letter Y"),
        ({"key_fields": "id"}, "lines of text have no fields"),
        ({"parser_timestamp_timezone": "Mars"}, "Mars is not a time zone"),
        ({"topic": "a,b"}, "must be one topic"),
        ({"metadata_location": "FIELD"}, "lines of text have no fields"),
    ],
)
def test_mistakes_are_reported_before_anything_runs(
    keys: dict[str, str], message: str, make: Make
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**keys)


def test_paths_that_would_be_read_again_are_refused(make: Make, folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"is read as part of input\.path"):
        make(finished_path=str(folder))
    with pytest.raises(ConfigError, match=r"is read as part of input\.path"):
        make(finished_path=str(folder / "done"), input_path_walk_recursively="true")
    make(finished_path=str(folder / "done"))


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ({}, "offset is missing"),
        ({"offset": -1}, "offset must be a whole number of 0 or more"),
        ({"offset": 1, "position": "a"}, "position must be a whole number"),
        ({"offset": 1, "state": "almost"}, "state must be done or broken"),
    ],
)
def test_offsets_that_make_no_sense_are_refused(
    offset: dict[str, object], message: str, make: Make
) -> None:
    with pytest.raises(ConfigError, match=message):
        make().check_offset({"fileName": "a.txt"}, offset)
    with pytest.raises(ConfigError, match="must be a fileName"):
        make().check_offset({"filename": "a.txt"}, {"offset": 1})


def test_reading_resumes_at_an_offset_of_spooldir(make: Make, folder: Path) -> None:
    write(folder / "a.txt", lines(10))
    assert Reading(make(), {"a.txt": {"offset": 4}}).all() == lines(6, 4)


def test_files_that_are_not_finished_are_left(make: Make, folder: Path) -> None:
    keys = {"cleanup_policy": "none", "batch_size": "2", "input_file_pattern": ".*txt"}
    for name in ("a.txt", "b.txt"):
        write(folder / name, lines(3))
    source = make(tasks_max="2", file_minimum_age_ms="60000", **keys)
    assert isinstance(source, Measurable)
    assert source.unit == "files"
    reading = Reading(make(**keys))

    def lag() -> list[str]:
        found = source.lag(lambda partition: reading.stored.get(partition["fileName"]))
        return sorted(partition["fileName"] for partition, count in found for _ in range(count))

    assert lag() == ["a.txt", "b.txt"]
    reading.step()
    assert lag() == ["a.txt", "b.txt"], "one that is partly read is not finished"
    reading.all()
    assert lag() == []
    write(folder / "a.txt", lines(9))
    write(folder / "c.txt", lines(1))
    write(folder / "c.csv", lines(1))
    assert lag() == ["a.txt", "c.txt"]
    shutil.rmtree(folder)
    assert lag() == []


@pytest.fixture
def endpoint() -> Iterator[str]:
    with s3.server() as endpoint:
        yield endpoint


class TestS3:
    def test_objects_are_read_once_and_moved(self, endpoint: str, make: Make) -> None:
        bucket = s3.Bucket(endpoint)
        client = bucket._client
        for name in ("lake/in/a.txt", "lake/in/.semel-b.txt", "lake/in/sub/c.txt"):
            client.put_object(Bucket=bucket.name, Key=name, Body=f"{name}\n".encode() * 20)
        where = bucket.where
        keys = {
            "input_path": f"{where}/in",
            "finished_path": f"{where}/done",
            "error_path": f"{where}/bad",
            "batch_size": "15",
            "storage.options.key": "k",
            "storage.options.secret": "s",
            "storage.options.endpoint_url": endpoint,
        }
        reading = Reading(make(**keys))
        reading.step()
        assert "etag" in reading.stored[".semel-b.txt"]
        reading.restart()
        assert reading.all() == ["lake/in/.semel-b.txt"] * 20 + ["lake/in/a.txt"] * 20
        assert bucket.all() == ["done/.semel-b.txt", "done/a.txt", "in/sub/c.txt"]
        again = Reading(make(**keys), reading.stored)
        assert again.all() == []
        client.put_object(Bucket=bucket.name, Key="lake/in/a.txt", Body=b"new\n")
        assert again.all() == ["new"]
        assert "done/a.txt.1" in bucket.all()

    def test_an_object_replaced_before_it_is_opened_is_read_once(
        self, endpoint: str, make: Make
    ) -> None:
        bucket = s3.Bucket(endpoint)
        client = bucket._client
        for name in ("a", "b"):
            client.put_object(Bucket=bucket.name, Key=f"lake/in/{name}.txt", Body=b"old\n" * 15)
        keys = {
            "input_path": f"{bucket.where}/in",
            "finished_path": "",
            "error_path": "",
            "cleanup_policy": "none",
            "batch_size": "15",
            "storage.options.key": "k",
            "storage.options.secret": "s",
            "storage.options.endpoint_url": endpoint,
        }
        reading = Reading(make(**keys))
        reading.step()  # both are listed, and a.txt is read
        client.put_object(Bucket=bucket.name, Key="lake/in/b.txt", Body=b"new\n" * 15)
        assert reading.all() == ["old"] * 15 + ["new"] * 15
