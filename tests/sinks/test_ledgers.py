"""What the ledger of every store does. What only one of them does stands with that store."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.config import ConnectorConfig, read
from semel.core.errors import ConfigError, LedgerConflict
from semel.core.ledger import Advance, Hole, OffsetRange, Outcome, TopicPartition, firsts
from semel.core.records import Commit, DeadLetter
from semel.sinks import sink_class
from semel.sinks.base import Sink
from semel.sinks.files.sink import FilesSink
from semel.sinks.letters import SHOWN, LetterStore
from semel.sinks.protocols import Transactional
from semel.sinks.search.sink import SearchSink
from semel.storage import drivers
from tests import databases
from tests.conftest import new_database
from tests.engine.harness import once_let_go
from tests.sinks.byhand import check_keeps_what_was_read
from tests.sinks.delta.conftest import Lake
from tests.sinks.files.conftest import Folder
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.otherlogs import check_refuses_another_log
from tests.sinks.search.conftest import Cluster
from tests.sinks.target import Target, records

LINES = "org.apache.kafka.connect.file.FileStreamSinkConnector"
COMMON = {"name": "c", "topics": "t", "bootstrap.servers": "nowhere:9092"}


@dataclass
class Store:
    """A store with nothing in it, and the sinks of connectors to it."""

    config: dict[str, str]
    seen: Callable[[], Collection[Any]]
    """Its rows, as a reader sees them."""
    topic: str = "t"

    def __post_init__(self) -> None:
        self.first, self.second = (TopicPartition(self.topic, n) for n in (0, 1))
        self.made: list[Sink] = []

    def sink(self, suffix: str = "") -> Sink:
        keys = {**self.config, "name": f"{self.config['name']}{suffix}"}
        kind: Any = sink_class(self.config["connector.class"])
        self.made.append(kind(read(ConnectorConfig, keys)))
        return self.made[-1]

    def started(self, suffix: str = "") -> Sink:
        """One that has entered its first position."""
        made = self.sink(suffix)
        made.prepare([self.topic])
        made.start(firsts({self.first: 0}))
        return made

    def deliver(self, sink: Sink, *spans: tuple[int, int]) -> Outcome:
        """Ranges of offsets, one for each partition, as the engine does for exactly-once."""
        moved = [
            Advance(OffsetRange(self.topic, n, *span), *[span[1] - span[0]] * 2)
            for n, span in enumerate(spans)
        ]
        batches = []
        for n, span in enumerate(spans):
            ids = list(range(*span))
            lines = {"value": pa.array([b"%d" % i for i in ids], pa.binary())}
            rows = lines if self.config["connector.class"] == LINES else {"id": ids}
            keys = {"topic": self.topic, "offsets": ids, "partition": n}
            batches.append(records(rows, **keys))  # type: ignore[arg-type]
        commit = Commit(batches)
        if isinstance(sink, Transactional):
            return sink.commit(moved, commit)
        judged = sink.write(commit, moved)
        return judged if judged is Outcome.REPLAYED else sink.advance(moved)


def _read(folder: Folder) -> list[Any]:
    found = [fsspec.open(f"{folder.where}/{name}").open() for name in folder.files()]
    return [row for file in found for row in pq.read_table(file).to_pylist()]


@pytest.fixture(
    params=[
        "postgresql",
        "sqlite",
        pytest.param("duckdb", marks=pytest.mark.long),
        "mariadb",
        "sqlserver",
        "delta",
        "iceberg",
        "files",
        "memory",
        "lines",
        "opensearch",
        pytest.param("elasticsearch", marks=pytest.mark.long),
    ]
)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    kind, ends = request.param, ExitStack()
    if kind in ("postgresql", *databases.SYSTEMS):
        url = ends.enter_context(new_database(kind, request, tmp_path))
        keys = {"connector.class": kind, "connection.url": url, "auto.create": "true"}
        seen = Target(url).query if kind == "postgresql" else partial(databases.query, url)
        made = Store({**COMMON, **keys}, lambda: seen("SELECT * FROM t"))
    elif kind in ("opensearch", "elasticsearch"):
        cluster = Cluster(request.getfixturevalue(kind))
        made = Store(cluster.config(), cluster.documents, cluster.topic)
    elif kind == "delta":
        made = Store(Lake(tmp_path).config(), Lake(tmp_path).rows)
    elif kind == "iceberg":
        warehouse = Warehouse(tmp_path)
        made = Store(warehouse.config(), warehouse.rows)
    elif kind == "lines":
        file = tmp_path / "lines"
        keys = {"connector.class": LINES, "file": str(file)}
        made = Store({**COMMON, **keys}, lambda: file.read_text().split())
    else:
        monkeypatch.setattr(drivers, "_EXCLUSIVE", drivers._EXCLUSIVE | {"memory"})
        at = str(tmp_path) if kind == "files" else f"memory://bucket-{uuid.uuid4().hex}"
        folder = Folder(at)
        made = Store(folder.config(), lambda: _read(folder))
    with ends:
        yield made
        for sink in made.made:
            sink.close()


def test_rows_move_with_their_position_and_a_replay_changes_nothing(store: Store) -> None:
    sink = store.started()
    assert store.deliver(sink, (0, 10)) is Outcome.APPLIED
    assert len(store.seen()) == 10
    (before,) = store.sink().entries()
    facts = (before.position, before.start_position, before.records_read, before.rows_written)
    assert facts == (10, 0, 10, 10)
    assert before.updated_at.startswith("20")
    for again in (sink, store.started()):
        assert store.deliver(again, (0, 10)) is Outcome.REPLAYED
    assert list(store.sink().entries()) == [before]
    assert len(store.seen()) == 10


def test_a_gap_an_overlap_and_a_zombie_write_nothing(store: Store) -> None:
    sink, zombie = store.started(), store.started()
    store.deliver(sink, (0, 10))
    for span in ((0, 20), (5, 15), (11, 20)):
        for each in (sink, zombie):
            with pytest.raises(LedgerConflict, match=f"the ledger is at 10 for {store.first}"):
                store.deliver(each, span)
    assert len(store.seen()) == 10
    assert [e.position for e in sink.entries()] == [10]


def test_first_positions_are_entered_once(store: Store) -> None:
    sink = store.started()
    assert sink.start(firsts({})) == {}
    store.deliver(sink, (0, 10))
    other = store.sink()
    other.prepare([store.topic])
    later = {store.first: 99, store.second: 4}
    assert other.start(firsts(later)) == {store.first: 10, store.second: 4}
    assert sorted(e.position for e in other.entries()) == [4, 10]


def test_counts_add_up_and_holes_are_recorded(store: Store) -> None:
    sink = store.started()
    store.deliver(sink, (0, 10))
    for begin, end in ((10, 15), (15, 16)):
        sink.advance([Advance(OffsetRange(*store.first, begin, end), lost=end - begin)])
    sink.advance([Advance(OffsetRange(*store.first, 16, 20), 4, 1, 2, 1)])
    found = store.started().snapshot([store.topic])
    assert list(found.holes) == [Hole(*store.first, 10, 15), Hole(*store.first, 15, 16)]
    (entry,) = found.entries
    counts = (entry.records_read, entry.rows_written, entry.records_lost)
    assert counts == (14, 11, 6)


def test_positions_that_are_set_by_hand_fence_and_what_was_read_stays_known(store: Store) -> None:
    sink = store.started()
    store.deliver(sink, (0, 10))
    sink.close()
    begun = isinstance(sink, FilesSink | SearchSink)  # they begin again only once prepared
    check_keeps_what_was_read(store.sink, store.first, restarts=not begun)
    with pytest.raises(LedgerConflict):
        store.deliver(sink, (10, 20))


def test_records_of_the_former_log_are_refused_at_the_same_position(store: Store) -> None:
    check_refuses_another_log(store.started(), store.first)


def test_connectors_do_not_see_each_other(store: Store) -> None:
    """Not even where the name of one begins with that of the other."""
    one = store.started()
    store.deliver(one, (0, 5))
    if isinstance(one, FilesSink):
        with pytest.raises(ConfigError, match=r"the files of topic t .* belong to connector c"):
            store.started(":b")
        return
    two = store.started(":b")
    assert [e.position for e in two.entries()] == [0]
    assert store.sink("'s").entries() == []
    one.close()
    once_let_go(lambda: store.sink().set_positions(None))
    assert [e.position for e in two.entries()] == [0]
    assert store.sink().entries() == []


# Dead letters


def test_dead_letters_are_read_back_in_the_order_of_their_records(store: Store) -> None:
    if store.config["connector.class"] == LINES:
        pytest.skip("a file of lines has no tables")
    kind = store.config["connector.class"]
    table = {"iceberg": "ns.letters", "opensearch": f"{store.topic}-letters"}.get(kind, "letters")
    store.config |= {"errors.tolerance": "all", "errors.deadletterqueue.table": table}

    def letter(partition: int, offset: int) -> DeadLetter:
        headers = [("h", "ü".encode()), ("n", None)]
        message = f"it's \\ {offset}"
        raw = b"\0k", None if offset == 3 else b"\xff%d" % offset
        return DeadLetter(store.topic, partition, offset, *raw, headers, 5, "STAGE", "E", message)

    def set_aside(sink: Sink, *letters: DeadLetter) -> None:
        moved = [Advance(OffsetRange(store.topic, 0, 0, 90), read=90, failed=len(letters))]
        commit = Commit([], letters)
        if isinstance(sink, Transactional):
            sink.commit(moved, commit)
        else:
            sink.write(commit, moved)

    sink = store.started()
    assert isinstance(sink, LetterStore)
    assert sink.letters(None, 9).num_rows == 0
    given = [letter(0, 3), letter(0, 20), letter(1, 7)]
    set_aside(sink, *given)
    found = sink.letters(None, 9)
    assert found.schema.names == SHOWN.names
    assert [r["offset"] for r in found.to_pylist()] == [3, 20, 7]
    for row, one in zip(found.to_pylist(), given, strict=True):
        place = row["topic"], row["partition"], row["offset"], row["key"], row["value"]
        assert place == (one.topic, one.partition, one.offset, one.key, one.value)
        assert (row["stage"], row["exception"], row["message"]) == ("STAGE", "E", one.message)
        assert json.loads(row["headers"]) == [["h", "ü"], ["n", None]]

    def offsets(*given: Any, backwards: bool = False) -> list[int]:
        return sink.letters(*given, backwards=backwards).column("offset").to_pylist()

    assert offsets((store.topic, 0, 3), 1) == [20]
    assert offsets((store.topic, 1, 7), 1) == []
    assert offsets(None, 2, backwards=True) == [7, 20]
    assert offsets((store.topic, 0, 20), 9, backwards=True) == [3]
