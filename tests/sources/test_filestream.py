"""FileStreamSource, without Kafka: what is read of a file, and the offset behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from semel.errors import ConfigError, ServiceError
from semel.plan import plan_source
from semel.sources import filestream
from semel.sources.base import Source, SourceBatch


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
    """The lines up to where nothing more is there, and the last offset."""
    found: list[str] = []
    offset = None
    while (batch := next(batches)) is not None:
        offset = batch.offset
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


def test_reading_goes_on_behind_any_batch(path: Path, make: Callable[..., Source]) -> None:
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


def test_a_missing_file_is_waited_for_and_told_once(
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
    """The line that nobody will end is delivered, in one commit with the new file's position."""
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


def test_a_directory_is_refused(path: Path, make: Callable[..., Source]) -> None:
    path.mkdir()
    with pytest.raises(ConfigError, match="is a directory"):
        next(begun(make()))


def test_a_file_without_permission_is_refused(
    path: Path, make: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ServiceError, match=r"Permission denied\. Grant read permission"):
        next(begun(make()))
