"""Databases in a file, on a disk that takes no writes."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from semel.core.errors import ConfigError, Unavailable
from semel.databases.base import Session
from semel.databases.duckdb import Duckdb
from semel.databases.files import LockFile, database_path, normalized
from semel.databases.login import Login, Timeouts
from semel.databases.sqlite import Sqlite
from semel_lab.drill.disk import Disk
from tests.disks import read_only
from tests.patience import PATIENCE


def sqlite(path: Path) -> Session:
    return Sqlite(Login(f"jdbc:sqlite:{path}"), "c", Timeouts())


def duckdb(path: Path) -> Session:
    return Duckdb(Login(f"jdbc:duckdb:{path}"), "c", Timeouts())


@pytest.mark.parametrize("dialect", [sqlite, duckdb])
def test_a_disk_that_is_read_only_is_waited_for(
    dialect: Callable[[Path], Session], disk: Disk
) -> None:
    path = disk.directory / "x.db"
    with closing(dialect(path)) as made, made.transaction():
        made.execute("CREATE TABLE t (v INTEGER)")
    with closing(dialect(path)) as made:
        with (
            read_only(disk),
            pytest.raises(Unavailable, match=r"read-only|Read-only"),
            made.transaction(),
        ):
            made.execute("INSERT INTO t VALUES (1)")
        with made.transaction():
            made.execute("INSERT INTO t VALUES (1)")
    with closing(dialect(path)) as made, made.transaction(reading=True):
        assert made.query("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 1}]


def test_a_lock_that_a_read_only_disk_refuses_is_waited_for(disk: Disk) -> None:
    with read_only(disk), pytest.raises(Unavailable, match="Read-only file system"):
        LockFile(disk.directory / "lock").acquire(shared=True, timeout=0)


def test_an_owner_that_always_wants_the_lock_again_lets_others_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, refused = fcntl.flock, threading.Event()

    def note_refusals(file: int, how: int) -> None:
        try:
            flock(file, how)
        except BlockingIOError:
            refused.set()
            raise

    monkeypatch.setattr(fcntl, "flock", note_refusals)
    turns: list[bool] = []

    def take_turns() -> None:
        other = LockFile(tmp_path / "lock")
        for _ in range(5):
            turns.append(other.acquire(shared=False, timeout=PATIENCE))
            other.release()

    busy = LockFile(tmp_path / "lock")
    assert busy.acquire(shared=False, timeout=0)
    waiting = threading.Thread(target=take_turns, daemon=True)
    waiting.start()
    for _ in range(100):
        refused.clear()
        assert refused.wait(PATIENCE)  # so the next attempt comes a while after the release
        busy.release()
        assert busy.acquire(shared=False, timeout=PATIENCE)
        if len(turns) == 5:
            break
    taken = list(turns)
    busy.release()
    waiting.join(PATIENCE)
    assert taken == [True] * 5


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("jdbc:sqlite:/d/a;b.db?journal_mode=WAL", "/d/a;b.db"),
        ("jdbc:duckdb:/d/a.db;threads=2", "/d/a.db"),
        ("jdbc:duckdb:/d/a;b.db", "/d/a;b.db"),
        ("jdbc:duckdb:/md:/a.db", "/md:/a.db"),
        ("jdbc:sqlite:/:d:/a.db", "/:d:/a.db"),
        ("jdbc:sqlite:data:a.db", f"{Path.cwd()}/data:a.db"),
        *((f"jdbc:sqlite:file:{a}/d/a.db?cache=shared", "/d/a.db") for a in ("", "//", "///")),
        ("jdbc:sqlite:file:a.db", f"{Path.cwd()}/a.db"),
        ("jdbc:sqlite:///d/a.db", "/d/a.db"),
        ("sqlite:////d/a.db", "/d/a.db"),
        *((f"jdbc:sqlite:{name}", "") for name in (":memory:", "/:memory:", "file::memory:")),
        *((f"jdbc:sqlite:file:{name}", "") for name in ("a?mode=memory", "/d/a%20b", "//host/a")),
        *((f"jdbc:sqlite:{name}", "") for name in (":resource:a.db", "?mode=memory")),
        *((f"jdbc:duckdb:{name}", "") for name in ("md:shop", "ducklake:a.db", ":memory:a")),
    ],
)
def test_a_url_names_a_file_or_is_refused(url: str, path: str) -> None:
    system = url.removeprefix("jdbc:").split(":")[0]
    if path:
        whole = normalized({"connection.url": url}, system)["connection.url"]
        assert {str(database_path(u, system)) for u in (url, whole)} == {path}
        return
    with pytest.raises(ConfigError, match=f"connection.url does not name a {system} file. Set"):
        database_path(url, system)
