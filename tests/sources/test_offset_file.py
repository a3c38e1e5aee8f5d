"""Source offsets in the file of Kafka Connect's standalone worker."""

from __future__ import annotations

import base64
import fcntl
from pathlib import Path

import pytest

from semel.core.errors import ConfigError, LedgerConflict, Unavailable
from semel.sources.offsets import outside
from semel.sources.offsets.outside import OffsetFile, parsed, serialized

JAVAS = base64.b64decode(
    "rO0ABXNyABFqYXZhLnV0aWwuSGFzaE1hcAUH2sHDFmDRAwACRgAKbG9hZEZhY3RvckkACXRocmVzaG9sZHhwP0AAAAAAAAx3"
    "CAAAABAAAAACdXIAAltCrPMX+AYIVOACAAB4cAAAACFbImxpbmVzIix7ImZpbGVuYW1lIjoidGVzdC50eHQifV11cQB+AAIA"
    "AAAOeyJwb3NpdGlvbiI6OH11cQB+AAIAAAAbWyJsaW5lcyIseyJmaWxlbmFtZSI6IsOkIn1dcHg="
)
"""Two offsets that Java has written; the second one is null."""
LINES = b'["lines",{"filename":"test.txt"}]'


def test_what_java_has_written_is_read() -> None:
    assert parsed(JAVAS) == {LINES: b'{"position":8}'}


def test_what_is_written_is_as_java_writes_it() -> None:
    one = serialized({LINES: b'{"position":8}'})
    assert JAVAS.startswith(one[:78])  # up to the number of entries
    assert one[82:-1] in JAVAS
    assert parsed(one) == {LINES: b'{"position":8}'}
    assert parsed(serialized({})) == {}


@pytest.mark.parametrize(
    "content", [b"text", JAVAS[:-1], JAVAS + b"x", JAVAS[:90], JAVAS.replace(b"[B", b"[C")]
)
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"filename=.*offsets is not a file of source offsets"):
        OffsetFile("c", str(path)).prepare()
    assert path.read_bytes() == content


def test_offsets_of_others_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    path.write_bytes(JAVAS)
    file = OffsetFile("c", str(path))
    file.prepare()
    file.write([(b"mine", b"1"), (b"other", b"2")], {})
    file.write([(b"mine", b"3"), (b"other", None)], {})
    assert file.read() == {LINES: b'{"position":8}', b"mine": b"3"}


def test_a_file_that_is_not_there_yet_or_empty_holds_nothing(tmp_path: Path) -> None:
    file = OffsetFile("c", str(tmp_path / "offsets"))
    file.prepare()
    assert file.read() == {}
    (tmp_path / "offsets").touch()
    assert file.read() == {}
    with pytest.raises(ConfigError, match="in a directory that exists"):
        OffsetFile("c", str(tmp_path / "missing" / "offsets")).prepare()


def test_a_process_that_is_frozen_while_it_writes_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OffsetFile("c", str(tmp_path / "offsets"))
    with (tmp_path / "offsets.semel-lock").open("w") as other, monkeypatch.context() as patch:
        fcntl.flock(other, fcntl.LOCK_EX)
        patch.setattr(outside, "_PATIENCE", 0.0)
        with pytest.raises(Unavailable, match=r"another process holds .*offsets.semel-lock"):
            file.write([(b"mine", b"1")], {})
    file.write([(b"mine", b"1")], {})
    assert file.read() == {b"mine": b"1"}


def test_a_record_that_another_process_has_changed_is_not_overwritten(tmp_path: Path) -> None:
    file = OffsetFile("c", str(tmp_path / "offsets"))
    file.write([(b"mine", b"1"), (b"owner", b"a")], {})
    with pytest.raises(LedgerConflict, match="the record owner has changed since it was read"):
        file.write([(b"mine", b"2")], {b"owner": b"b", b"mine": b"1"})
    file.write([(b"mine", b"2")], {b"owner": b"a", b"mine": b"1"})
    assert file.read() == {b"owner": b"a", b"mine": b"2"}
