"""Stores in RocksDB: what was not kept is gone as a whole."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core.errors import ServiceError
from semel.streams import store as stores
from semel.streams.store import Changes, MemoryStore, State, Store
from tests.patience import PATIENCE


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def get(store: Store, *keys: bytes) -> list[bytes | None]:
    found: list[bytes | None] = store.get(binary(*keys)).to_pylist()
    return found


def everything(store: Store) -> list[tuple[bytes, bytes]]:
    return list(store.range(b"", None))


def test_what_is_kept_is_there_again(tmp_path: Path) -> None:
    state = State(tmp_path, ["a", "b"])
    state.stores["a"].put(binary(b"k", b"l"), binary(b"1", b"2"))
    state.keep(state.cut(), b"first")
    state.stores["a"].put(binary(b"k"), binary(None))
    state.keep(state.cut(), b"second")
    state.stores["a"].put(binary(b"m"), binary(b"3"))
    state.close()
    again = State(tmp_path, ["a", "b"])
    assert (again.marker, everything(again.stores["a"])) == (b"second", [(b"l", b"2")])
    assert everything(again.stores["b"]) == []
    again.close()


def test_what_was_not_kept_is_forgotten(tmp_path: Path) -> None:
    state = State(tmp_path, ["a"])
    store = state.stores["a"]
    store.put(binary(b"k"), binary(b"1"))
    state.keep(state.cut(), b"first")
    store.put(binary(b"k"), binary(b"2"))
    waiting = state.cut()
    store.put(binary(b"k"), binary(b"3"))
    assert get(store, b"k") == [b"3"]
    state.drop()
    assert get(store, b"k") == [b"1"]
    assert waiting == {"a": {b"k": b"2"}}
    state.close()


def test_a_folder_that_another_process_holds_is_left_alone(tmp_path: Path) -> None:
    first, second = State(tmp_path, ["a"]), State(tmp_path, ["a"])
    assert first.path != second.path
    first.close()
    second.close()


def _dies(folder: Path) -> None:
    state = State(folder, ["a"])
    for number in range(100):
        state.stores["a"].put(binary(b"%d" % number, b"last"), binary(b"x", b"%d" % number))
        state.keep(state.cut(), b"%d" % number)
        if number == 40:
            state.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_crash_takes_the_marker_along_with_what_it_stands_for(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_dies, args=(tmp_path,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    state = State(tmp_path, ["a"])
    reached = int(state.marker or b"-1")
    assert reached >= 40
    assert get(state.stores["a"], b"last", b"%d" % reached) == [b"%d" % reached, b"x"]
    assert len(everything(state.stores["a"])) == reached + 2
    state.close()


def test_what_another_thread_cuts_meanwhile_is_not_forgotten(tmp_path: Path) -> None:
    state = State(tmp_path, ["a"])
    store = state.stores["a"]
    for number in range(100):  # each time, the other thread has its turn at another line
        store.put(binary(b"k"), binary(b"old"))
        kept, turns = state.cut(), iter(range(number, -1, -1))
        cuts: list[Changes] = []
        store.put(binary(b"k"), binary(b"new"))

        def trace(*_: object, turns: Iterator[int] = turns, cuts: list[Changes] = cuts) -> Any:
            if next(turns, None) == 0:
                cuts.append(state.cut())
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        state.keep(kept, b"m")
        sys.settrace(before)
        assert get(store, b"k") == [b"new"], number
        for changes in cuts or [state.cut()]:
            state.keep(changes, b"m")
        assert get(store, b"k") == [b"new"], number
    state.close()


def test_damage_is_not_taken_for_the_end(tmp_path: Path) -> None:
    state = State(tmp_path, ["a"])
    keys = [b"%05d" % number for number in range(2000)]
    state.stores["a"].put(binary(*keys), binary(*(key * 50 for key in keys)))
    state.keep(state.cut(), b"m")
    state.close()
    (file,) = tmp_path.glob("0/*.sst")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    state = State(tmp_path, ["a"])
    for read in (everything, lambda store: get(store, *keys)):
        with pytest.raises(ServiceError, match="Delete the folder"):
            read(state.stores["a"])
    state.close()


def test_large_values_do_not_stay_in_memory(tmp_path: Path) -> None:
    state = State(tmp_path, ["a"])
    value = binary(bytes(5_000_000))
    tracemalloc.start()
    for number in range(30):
        state.stores["a"].put(binary(b"%d" % number), value)
        state.keep(state.cut(), b"m")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100_000_000
    state.close()


def test_a_value_that_is_written_often_does_not_displace_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(tmp_path, ["a"])
    store = state.stores["a"]
    for key, value in ((b"k", b"v"), *[(b"often", bytes(1_000_000))] * 100):
        store.put(binary(key), binary(value))
        state.keep(state.cut(), b"m")
    monkeypatch.setattr(state, "get", lambda _keys: pytest.fail("it was read from the disk"))
    assert get(store, b"k") == [b"v"]
    state.close()


KEYS = st.sampled_from([b"", b"\0", b"a", b"a\0", b"ab", b"b", b"\xff"])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=2)))),
        st.tuples(st.sampled_from(["cut", "keep", "get", "range"]), st.tuples(KEYS, KEYS)),
    )
)


@given(ACTIONS)
def test_a_store_is_an_ordered_map_whatever_is_written_yet(
    actions: list[tuple[str, list[tuple[bytes, bytes]]]],
) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"rocks-{os.getpid()}"
    state, like, cuts = State(folder, ["a", "b"]), MemoryStore(), []
    state.clear()
    stores._HOT, hot = 2, stores._HOT
    store = state.stores["a"]
    state.stores["b"].put(binary(b"other"), binary(b"1"))
    try:
        for action, given_ in actions:
            if action == "put" and given_:
                keys, values = (binary(*column) for column in zip(*given_, strict=True))
                store.put(keys, values)
                like.put(keys, values)
            elif action == "cut":
                cuts.append(state.cut())
            elif action == "keep" and cuts:
                state.keep(cuts.pop(0), b"m")
            elif action == "get":
                assert get(store, *given_) == get(like, *given_)
            elif action == "range":
                start, stop = given_
                assert list(store.range(start, stop)) == list(like.range(start, stop))
                assert everything(store) == everything(like)
    finally:
        stores._HOT = hot
        state.close()
        shutil.rmtree(folder)
