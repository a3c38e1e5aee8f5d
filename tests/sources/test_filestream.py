"""FileStreamSource, without Kafka: what is read from a file, and the offset after it."""

from __future__ import annotations

import errno
import gzip
import io
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.driver.planning import plan_source
from semel.sources import filestream
from semel.sources.base import Measurable, Source, SourceBatch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lines.txt"


@pytest.fixture
def make(path: Path) -> Callable[..., Source]:
    def made(**keys: str) -> Source:
        raw = {
            "name": "lines",
            "connector.class": "FileStreamSource",
            "file": str(path),
            "topic": "lines",
            "bootstrap.servers": "localhost:1",
        }
        return plan_source({**raw, **{k.replace("_", "."): v for k, v in keys.items()}}).source

    return made


def begun(source: Source, offset: Mapping[str, Any] | None = None) -> Iterator[SourceBatch | None]:
    (partition,) = source.partitions()
    return source.read(partition, offset)


def lines(batches: Iterator[SourceBatch | None]) -> tuple[list[str], Mapping[str, Any] | None]:
    """The lines up to where nothing more is there, and the last offset as Kafka Connect sees it."""
    found: list[str] = []
    offset = None
    while (batch := next(batches)) is not None:
        offset = {"position": batch.offset["position"]}
        for records in batch.records:
            assert records.topic == "lines"
            found += records.values.to_pylist()
    return found, offset


def test_offsets_are_kafka_connects(path: Path, make: Callable[..., Source]) -> None:
    path.write_text("one\ntwo\n")
    source = make()
    assert source.partitions() == [{"filename": str(path)}]
    assert lines(begun(source)) == (["one", "two"], {"position": 8})


def test_a_line_without_its_end_waits_for_it(path: Path, make: Callable[..., Source]) -> None:
    path.write_bytes(b"one\ntw")
    reader = begun(make())
    assert lines(reader) == (["one"], {"position": 4})
    with path.open("ab") as file:
        file.write(b"o\nthree\r")
    assert lines(reader) == (["two"], {"position": 8})
    with path.open("ab") as file:
        file.write(b"\n")
    assert lines(reader) == (["three"], {"position": 15})


def test_reading_continues_after_any_batch(path: Path, make: Callable[..., Source]) -> None:
    """An offset inside a poll leads to the next line, also where characters take several bytes."""
    expected = [f"größe {n}" for n in range(20)]
    path.write_text("".join(f"{line}\r\n" for line in expected), newline="")
    source, offset, found = make(batch_size="3"), None, []
    while (batch := next(begun(source, offset))) is not None:
        assert len(batch) <= 3
        found += batch.records[0].values.to_pylist()
        offset = batch.offset
    assert found == expected


def test_a_line_longer_than_a_block_is_one_line(
    path: Path, make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filestream, "_BLOCK", 4)
    path.write_text("a" * 1000 + "\nb\n")
    assert lines(begun(make())) == (["a" * 1000, "b"], {"position": 1003})


@pytest.mark.parametrize("ending", ["txt", "gz"])
def test_a_line_that_does_not_end_is_refused_before_it_fills_the_memory(
    ending: str, path: Path, make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filestream, "_BLOCK", 4)
    monkeypatch.setattr(filestream, "LARGEST", 100)
    content = b"a\n" + b"\0" * 1000
    path = path.with_suffix(f".{ending}")
    path.write_bytes(gzip.compress(content) if ending == "gz" else content)
    reading = begun(make(file=str(path)))
    batch = next(reading)
    assert batch is not None
    assert batch.offset["position"] == 2
    with pytest.raises(ServiceError, match=r"line at position 2 has no end within 100 bytes"):
        next(reading)


def test_a_missing_file_is_waited_for_and_reported_once(
    path: Path, make: Callable[..., Source], caplog: pytest.LogCaptureFixture
) -> None:
    reader = begun(make())
    assert [next(reader) for _ in range(3)] == [None] * 3
    assert [r.getMessage() for r in caplog.records] == [
        f"connector lines: file {path} is not there: waiting for it"
    ]
    path.write_text("one\n")
    assert lines(reader) == (["one"], {"position": 4})


def test_a_file_that_is_cut_is_read_from_its_beginning(
    path: Path, make: Callable[..., Source], caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text("one\ntwo\n")
    reader = begun(make())
    lines(reader)
    path.write_text("new\n")
    assert lines(reader) == (["new"], {"position": 4})
    assert "has 4 bytes, but 8 were read: it was cut" in caplog.text


def test_a_file_that_was_cut_meanwhile_is_read_from_its_beginning(
    path: Path, make: Callable[..., Source]
) -> None:
    """The new position is an offset of its own: after a crash, the file may have grown."""
    path.write_text("new\n")
    reader = begun(make(), {"position": 8})
    first = next(reader)
    assert first is not None
    assert (len(first), first.offset) == (0, {"position": 0})
    assert lines(reader) == (["new"], {"position": 4})


def test_a_replaced_file_is_read_to_its_end_first(
    path: Path, make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that nobody will end is delivered."""
    monkeypatch.setattr(filestream, "_QUIET", 0.0)
    path.write_text("one\ntw")
    reader = begun(make())
    assert lines(reader)[0] == ["one"]
    path.rename(path.with_suffix(".1"))
    assert next(reader) is None, "another file may come"
    with path.with_suffix(".1").open("a") as old:
        old.write("o\nrest")
    path.write_text("new, and longer\n")
    assert lines(reader) == (["two", "rest", "new, and longer"], {"position": 16})


def test_files_that_were_replaced_before_they_were_opened_are_read_in_their_order(
    path: Path, make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a log grows by several files a second, also while they are read."""
    monkeypatch.setattr(filestream, "_QUIET", 0.0)

    write(path, "a")
    reader = begun(make(batch_size="1"))
    assert lines(reader)[0] == ["a"]
    for line in "bc":
        rotated(path)
        write(path, line)
    found, offsets = [], []
    while (batch := next(reader)) is not None:
        found += [v for r in batch.records for v in r.values.to_pylist()]
        offsets.append(batch.offset)
        if len(found) < 6:
            rotated(path)
            write(path, "defgh"[len(offsets) - 1])
    assert found == list("bcdefgh")


def rotated(path: Path) -> None:
    """As log rotation does: the largest number is the oldest file."""
    numbers = [int(p.suffix[1:]) for p in path.parent.glob(f"{path.name}.*")]
    for number in sorted(numbers, reverse=True):
        path.with_name(f"{path.name}.{number}").rename(path.with_name(f"{path.name}.{number + 1}"))
    path.rename(path.with_name(f"{path.name}.1"))
    time.sleep(0.02)  # the next file is written to later


def test_a_position_that_no_line_begins_at_is_refused(
    path: Path, make: Callable[..., Source]
) -> None:
    path.write_text("one\ntwo\n")
    with pytest.raises(ConfigError, match="no line begins at position 5"):
        next(begun(make(), {"position": 5}))


@pytest.mark.parametrize("position", ["8", -1, 1.5, True])
def test_an_offset_that_makes_no_sense_is_refused(
    make: Callable[..., Source], position: object
) -> None:
    with pytest.raises(ConfigError, match="semel offsets"):
        next(begun(make(), {"position": position}))


@pytest.mark.parametrize(("created", "why"), [("mkdir", "directory"), ("mkfifo", "regular file")])
def test_what_is_no_file_is_refused(
    created: str, why: str, path: Path, make: Callable[..., Source]
) -> None:
    getattr(os, created)(path)
    with pytest.raises(ConfigError, match=f"is (a|not a) {why}"):
        next(begun(make()))
    with pytest.raises(ConfigError, match=f"is (a|not a) {why}"):
        make().check()


def test_a_file_without_permission_is_refused(
    path: Path, make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ServiceError, match=r"Permission denied\. Grant read permission"):
        next(begun(make()))


def write(path: Path, *found: str) -> None:
    path.write_text("".join(f"{line}\n" for line in found))


def reached(source: Source) -> Mapping[str, Any]:
    """The offset after the last line."""
    offset: Mapping[str, Any] = {}
    for batch in begun(source):
        if batch is None:
            return offset
        offset = batch.offset
    raise AssertionError("the file ended")


class TestRotatedWhileStopped:
    """The offset tells the file that it was reached in from another one."""

    @pytest.fixture(autouse=True)
    def quiet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(filestream, "_QUIET", 0.0)

    def test_the_old_file_is_read_to_its_end_first(
        self, path: Path, make: Callable[..., Source], caplog: pytest.LogCaptureFixture
    ) -> None:
        write(path, "one", "two")
        offset = reached(make())
        with path.open("a") as file:
            file.write("three\nfo")
        path.rename(path.with_name("lines.txt.1"))
        write(path, "new", "new", "new, and longer")
        found, last = lines(begun(make(), offset))
        assert found == ["three", "fo", "new", "new", "new, and longer"]
        assert last == {"position": path.stat().st_size}
        assert f"reading {path}.1 to its end first" in caplog.text

    def test_reading_goes_on_from_each_offset_on_the_way(
        self, path: Path, make: Callable[..., Source]
    ) -> None:
        write(path, *(f"a{n}" for n in range(6)))
        offset = reached(make())
        with path.open("a") as file:
            file.write("b0\nb1\nb2\nb3")
        first, second = path.with_name("lines-2.txt"), path.with_name("lines-1.txt")
        path.rename(first)
        os.utime(first, (1_600_000_000, 1_600_000_000))
        write(second, *(f"c{n}" for n in range(4)))
        write(path.with_name("lines-of-others.txt"), "not these")
        write(path, *(f"d{n}" for n in range(4)))
        source, found = make(batch_size="1"), []
        while (batch := next(begun(source, offset))) is not None:
            offset = batch.offset
            found += [v for r in batch.records for v in r.values.to_pylist()]
        assert found == [f"{c}{n}" for c in "bcd" for n in range(4)]

    def test_one_that_is_still_written_to_is_read_until_that_ends(
        self, path: Path, make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A program writes to it until it opens the log again."""
        monkeypatch.setattr(filestream, "_QUIET", 60.0)
        write(path, "one")
        offset = reached(make())
        with path.open("a") as program:
            rotated(path)
            write(path, "new")
            reader = begun(make(), offset)
            assert lines(reader)[0] == []
            program.write("two\n")
        assert lines(reader)[0] == ["two"]
        monkeypatch.setattr(filestream, "_QUIET", 0.0)
        assert lines(reader)[0] == ["new"]

    def test_one_of_many_that_is_still_written_to_is_read(
        self, path: Path, make: Callable[..., Source]
    ) -> None:
        """Log rotation makes the next file before the program knows of it."""
        write(path, "one")
        offset = reached(make())
        rotated(path)
        write(path, "two")
        rotated(path)
        write(path)
        os.utime(path, ns=(0, path.with_name("lines.txt.1").stat().st_mtime_ns - 1))
        assert lines(begun(make(), offset))[0] == ["two"]

    @pytest.mark.parametrize("hidden", [".1", ".2"])
    def test_one_that_cannot_be_read_is_named(
        self, hidden: str, path: Path, make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(path, "one")
        offset = reached(make())
        rotated(path)
        write(path, "two")
        rotated(path)
        write(path, "three")
        opened = Path.open

        def open_(file: Path, *arguments: Any, **options: Any) -> Any:
            if file.suffix == hidden:
                raise PermissionError(13, "Permission denied", str(file))
            return opened(file, *arguments, **options)

        monkeypatch.setattr(Path, "open", open_)
        with pytest.raises(TransientError, match=rf"{path}{hidden} cannot be read: Permission"):
            lines(begun(make(), offset))

    def test_one_that_is_nowhere_is_reported(
        self, path: Path, make: Callable[..., Source], caplog: pytest.LogCaptureFixture
    ) -> None:
        write(path, "one", "two")
        offset = reached(make())
        write(path, "six", "ten", "new")
        assert lines(begun(make(), offset))[0] == ["six", "ten", "new"]
        assert "differs from what was read before position 8" in caplog.text

    def test_a_copy_of_a_file_that_was_cut_is_read_to_its_end(
        self, path: Path, make: Callable[..., Source]
    ) -> None:
        write(path, "one", "two")
        reader = begun(make())
        lines(reader)
        write(path.with_name("lines.txt.1"), "one", "two", "three")
        write(path, "n")
        assert lines(reader)[0] == ["three", "n"]

    def test_a_file_that_was_cut_and_grew_again_between_two_looks_is_noticed(
        self, path: Path, make: Callable[..., Source]
    ) -> None:
        write(path, "one", "two")
        reader = begun(make())
        lines(reader)
        with path.open("r+") as file:  # the same file
            file.write("six\nten\nnew\n")
        assert lines(reader)[0] == ["six", "ten", "new"]

    @pytest.mark.parametrize("new", [["six", "ten"], ["six", "ten", "new"]], ids=["same", "longer"])
    def test_a_new_file_that_has_been_given_the_same_inode_is_noticed(
        self, new: list[str], path: Path, make: Callable[..., Source], caplog: Any
    ) -> None:
        """A file system gives a new file the number of one that was deleted, so it proves
        nothing."""
        write(path, "one", "two")
        offset, before = reached(make()), path.stat()
        write(path, *new)
        assert os.path.samestat(path.stat(), before)
        assert lines(begun(make(), offset))[0] == new
        assert "differs from what was read before position 8" in caplog.text


class TestGzip:
    def test_lines_are_read_and_reading_resumes(
        self, path: Path, make: Callable[..., Source]
    ) -> None:
        packed = path.with_name("lines.gz")
        expected = [f"größe {n}" for n in range(20)]
        packed.write_bytes(gzip.compress("\n".join(expected).encode()))
        source, offset, found = make(file=str(packed), batch_size="3"), None, []
        while (batch := next(begun(source, offset))) is not None:
            offset = batch.offset
            found += batch.records[0].values.to_pylist()
        assert found == expected
        assert offset is not None
        assert offset["position"] == len("\n".join(expected).encode())

    def test_one_that_is_still_written_is_waited_for(
        self, path: Path, make: Callable[..., Source], caplog: pytest.LogCaptureFixture
    ) -> None:
        packed = path.with_name("lines.gz")
        content = gzip.compress("".join(f"{n}\n" for n in range(9999)).encode())
        packed.write_bytes(content[:-1000])
        reader = begun(make(file=str(packed)))
        some = lines(reader)[0]
        assert 0 < len(some) < 9999
        assert "ends too early for a gzip file" in caplog.text
        packed.write_bytes(content)
        more: list[str] = []
        while len(some) + len(more) < 9999:
            more += lines(reader)[0]
        assert some + more == [str(n) for n in range(9999)]

    def test_a_new_one_under_the_name_is_read_from_its_beginning(
        self, path: Path, make: Callable[..., Source]
    ) -> None:
        packed = path.with_name("lines.gz")
        packed.write_bytes(gzip.compress(b"one\n"))
        reader = begun(make(file=str(packed)))
        assert lines(reader)[0] == ["one"]
        packed.unlink()
        packed.with_suffix(".new").write_bytes(gzip.compress(b"six\nten"))
        packed.with_suffix(".new").rename(packed)
        assert lines(reader)[0] == ["six", "ten"]

    def test_what_is_no_gzip_is_refused(self, path: Path, make: Callable[..., Source]) -> None:
        packed = path.with_name("lines.gz")
        packed.write_text("plain\n")
        with pytest.raises(ServiceError, match=r"lines\.gz is not a gzip file"):
            next(begun(make(file=str(packed))))


def test_other_character_sets_are_read(path: Path, make: Callable[..., Source]) -> None:
    path.write_bytes("größe\r\nzwei\n".encode("latin-1"))
    assert lines(begun(make(file_charset="ISO-8859-1"))) == (["größe", "zwei"], {"position": 12})
    with pytest.raises(ConfigError, match="must write line ends as ASCII does"):
        make(file_charset="UTF-16")
    with pytest.raises(ConfigError, match="is not a character set"):
        make(file_charset="klingon")


def test_a_name_that_no_offset_can_hold_is_left_out(
    path: Path, make: Callable[..., Source], caplog: pytest.LogCaptureFixture
) -> None:
    for name in (b"a.log", b"caf\xe9.log"):
        path.with_name(os.fsdecode(name)).write_text("one\n")
    source = make(file="", file_pattern="*.log", file_directory=str(path.parent))
    assert [source.partitions() for _ in range(2)] == [[{"filename": "a.log"}]] * 2
    assert caplog.text.count("its name is not UTF-8") == 1


def test_files_that_match_a_pattern_are_partitions(
    path: Path, make: Callable[..., Source], caplog: pytest.LogCaptureFixture
) -> None:
    none = make(file="", file_pattern=f"{path.parent}/*.log")
    assert [none.partitions(), none.partitions()] == [[], []]
    assert caplog.text.count("no file matches file.pattern") == 1
    for name in ("a.log", "b.log", "c.txt"):
        write(path.with_name(name), name)
    source = make(file="", file_pattern=f"{path.parent}/*.log")
    found = source.partitions()
    assert found == [{"filename": str(path.with_name(n))} for n in ("a.log", "b.log")]
    assert [lines(source.read(p, None))[0] for p in found] == [["a.log"], ["b.log"]]
    path.with_name("a.log").unlink()
    write(path.with_name("d.log"), "d")
    assert len(source.partitions()) == 3, "one that is gone may still be read"
    relative = make(file="", file_pattern="*.log", file_directory=str(path.parent))
    assert relative.partitions() == [{"filename": "b.log"}, {"filename": "d.log"}]
    with pytest.raises(ConfigError, match="exclude each other"):
        make(file_pattern="*")


def test_the_bytes_after_an_offset_are_left(path: Path, make: Callable[..., Source]) -> None:
    source = make(file="", file_pattern=f"{path.parent}/*")
    assert isinstance(source, Measurable)
    assert source.unit == "bytes"
    for name, content in (("a", b"one\ntwo\n"), ("b", b"three"), ("c.gz", b"?"), ("gone", b"x\n")):
        path.with_name(name).write_bytes(content)
    source.partitions()
    path.with_name("gone").unlink()
    stored = {"a": {"position": 4}, "c.gz": {"position": 1}}

    def lag() -> dict[str, int | None]:
        found = source.lag(lambda partition: stored.get(Path(partition["filename"]).name))
        return {Path(partition["filename"]).name: count for partition, count in found}

    assert lag() == {"a": 4, "b": 5, "c.gz": None, "gone": 0}
    path.with_name("a").write_bytes(b"1\n")  # it was cut, and is read from its beginning
    assert lag()["a"] == 2


class BrokenDisk(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("ending", ["txt", "gz"])
def test_an_error_of_the_disk_is_not_taken_for_a_file_that_was_cut(path: Path, ending: str) -> None:
    file = filestream._GrowingFile("c", path.with_suffix(f".{ending}"), "UTF-8", 10)
    with pytest.raises(TransientError, match="cannot be read: Input/output error"):
        file._before(BrokenDisk(), 4)
