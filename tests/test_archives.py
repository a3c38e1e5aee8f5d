"""Class data archives: found only when they fit, made whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from semel.spark import archives
from semel.spark.archives import Archive, key


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    monkeypatch.delenv(archives.SWITCH, raising=False)
    return Archive("spark", "k", tmp_path / "archives")


def _write(part: Path) -> dict[str, Any]:
    part.write_bytes(b"classes")
    return {"command": ["java"]}


@pytest.fixture
def java(tmp_path: Path) -> Path:
    home = tmp_path / "java"
    for name in ("bin/java", "release", "lib/server/libjvm.so", "spark.jar"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    return home / "bin" / "java"


def test_what_was_made_is_found_with_its_facts(archive: Archive) -> None:
    assert archive.facts() is None and archive.options() == []
    assert archive.make(_write)
    written = int(archive.file.stat().st_mtime)
    assert archive.facts() == {"command": ["java"], "size": 7, "written": written}
    assert f"-XX:SharedArchiveFile={archive.file}" in archive.options()
    assert "-Xshare:auto" in archive.options()


def test_checksums_are_computed_if_the_time_has_changed(archive: Archive) -> None:
    assert archive.make(_write)
    assert "-XX:-VerifySharedSpaces" in archive.options()
    os.utime(archive.file, (1, 1))
    assert "-XX:+VerifySharedSpaces" in archive.options()


def test_it_is_found_where_new_files_may_be_written_by_the_group(archive: Archive) -> None:
    before = os.umask(0o002)
    try:
        assert archive.make(_write)
    finally:
        os.umask(before)
    assert archive.facts() is not None
    assert not archive.wanted()


@pytest.mark.parametrize("changed", ["bin/java", "release", "lib/server/libjvm.so", "spark.jar"])
@pytest.mark.parametrize("change", ["content", "time"])
def test_another_jvm_or_other_jars_have_another_key(java: Path, changed: str, change: str) -> None:
    home = java.parent.parent
    before = key(java, [home / "spark.jar"], ["4.1.3"])
    assert key(java, [home / "spark.jar"], ["4.1.3"]) == before
    if change == "content":
        (home / changed).write_text("something longer than before")
    else:
        os.utime(home / changed, (1, 1))
    assert key(java, [home / "spark.jar"], ["4.1.3"]) != before


def test_another_spark_or_one_more_jar_has_another_key(java: Path) -> None:
    jars = [java.parent.parent / "spark.jar"]
    assert len({key(java, jars, ["4.1.3"]), key(java, jars, ["4.1.4"]), key(java, [], [])}) == 3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a.file.write_bytes(b"class"),
        lambda a: a.file.unlink(),
        lambda a: a.file.chmod(0o666),
        lambda a: a.file.with_suffix(".json").write_text('{"si'),
        lambda a: a.file.with_suffix(".json").write_text("[]"),
        lambda a: a.file.with_suffix(".json").unlink(),
    ],
    ids=["truncated", "gone", "writable by all", "half of the facts", "no facts", "facts gone"],
)
def test_one_that_is_not_whole_or_not_ours_is_not_used(archive: Archive, spoil: Any) -> None:
    assert archive.make(_write)
    spoil(archive)
    assert archive.options() == []
    assert archive.make(_write) and archive.options()


def test_a_training_that_fails_leaves_nothing_and_is_not_repeated_at_once(archive: Archive) -> None:
    def fail(part: Path) -> dict[str, Any]:
        part.write_bytes(b"half")
        raise RuntimeError("no memory")

    assert archive.wanted()
    with pytest.raises(RuntimeError, match="no memory"):
        archive.make(fail)
    assert archive.facts() is None
    assert not [p for p in archive.directory.iterdir() if p.suffix in (".part", ".jsa")]
    assert not archive.wanted()
    assert archive.make(_write), "asked for by hand, it is tried again"


def test_a_killed_training_leaves_nothing_that_is_used(archive: Archive) -> None:
    program = f"""
import os, signal
from pathlib import Path
from semel.spark.archives import Archive

def die(part):
    part.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

Archive("spark", "k", Path({str(archive.directory)!r})).make(die)
"""
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert list(archive.directory.glob("*.part"))
    assert archive.facts() is None
    assert archive.make(_write) and archive.options()
    assert not list(archive.directory.glob("*.part"))


def test_of_two_that_make_it_at_once_one_leaves_it_to_the_other(archive: Archive) -> None:
    def meanwhile(part: Path) -> dict[str, Any]:
        assert not Archive("spark", "k", archive.directory).make(_write)
        return _write(part)

    assert archive.make(meanwhile)
    assert archive.options()


def test_what_no_jvm_has_used_for_long_is_removed(archive: Archive) -> None:
    used, unused = (Archive("spark", name, archive.directory) for name in ("used", "unused"))
    long_ago = time.time() - 40 * 86400
    assert used.make(_write) and unused.make(_write)
    for path in archive.directory.iterdir():
        os.utime(path, (long_ago, long_ago))
    assert used.options()
    assert archive.make(_write)
    assert used.file.exists() and not unused.file.exists()
    assert json.loads(used.file.with_suffix(".json").read_text())["size"] == 7


def test_what_a_killed_training_has_left_is_removed_after_a_day(archive: Archive) -> None:
    archive.directory.mkdir()
    left, written = (archive.directory / f"spark-{name}.1.part" for name in ("left", "written"))
    for part in (left, written):
        _write(part)
    yesterday = time.time() - 86400 - 60
    os.utime(left, (yesterday, yesterday))
    archive.prune()
    assert not left.exists() and written.exists()


@pytest.mark.parametrize("why", ["read-only home", "no home", "switched off", "no memory"])
def test_no_archive_is_wanted_where_none_can_be_kept(
    why: str, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "read-only home":
        (tmp_path / "file").touch()
        archive = Archive("spark", "k", tmp_path / "file" / "archives")
    elif why == "no home":
        archive = Archive("spark", "k", Path("/proc/nobody/archives"))
    elif why == "switched off":
        monkeypatch.setenv(archives.SWITCH, "off")
    else:
        monkeypatch.setattr(archives, "_memory", lambda: 1e9)
    assert not archive.wanted()
    assert archive.options() == []
