"""An object store over the wire: conditional puts and server-side copies, through s3fs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from semel.config import ConnectorConfig, read
from semel.core.errors import ConfigError, LedgerConflict, ServiceError
from semel.core.ledger import Outcome, firsts
from semel.sinks.files import snapshot as snapshots
from semel.sinks.files.sink import FilesSink
from tests.s3 import Bucket, server
from tests.sinks.files.conftest import Folder
from tests.sinks.target import FIRST, advance, at_first, values


class Lake(Folder):
    """A bucket."""

    def __init__(self, endpoint: str) -> None:
        self._bucket = Bucket(endpoint)
        super().__init__(self._bucket.where)

    def config(self, name: str = "c", keys: Any = None) -> dict[str, str]:
        return super().config(name, {**self._bucket.options, **(keys or {})})

    def all(self) -> list[str]:
        return self._bucket.all()

    def ids(self) -> list[int]:
        return self._bucket.ids()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with server() as found:
        yield found


@pytest.fixture
def lake(endpoint: str) -> Lake:
    return Lake(endpoint)


def test_a_bucket_that_is_not_there_is_named(lake: Lake) -> None:
    raw = lake.config(keys={"path": "s3://nowhere/x"})
    sink = FilesSink(read(ConnectorConfig, raw))
    with pytest.raises(ServiceError, match=r"s3://nowhere.*bucket does not exist"):
        sink.prepare(["t"])
    with pytest.raises(ServiceError, match="bucket does not exist"):
        sink.start(firsts({FIRST: 0}))
    with pytest.raises(ServiceError, match="bucket does not exist"):
        sink.stage(values(0, 10))


def test_rows_and_positions_are_one_conditional_put(lake: Lake) -> None:
    sink, other = lake.sink(), lake.sink()
    assert sink.commit([advance(0, 10)], values(0, 10)) is Outcome.APPLIED
    assert lake.files() == ["t/partition=0/t+0+0000000000-0000000010.parquet"]
    assert lake.staged() == []
    with pytest.raises(LedgerConflict, match="is at 10"):
        other.commit([advance(0, 7)], values(0, 7))
    assert other.commit([advance(0, 10)], values(0, 10)) is Outcome.REPLAYED
    assert other.commit([advance(10, 12)], values(10, 12)) is Outcome.APPLIED
    assert lake.ids() == list(range(12))
    assert [e.position for e in lake.made().entries()] == [12]


def test_of_two_puts_of_one_entry_one_is_refused(lake: Lake) -> None:
    from semel.sinks.files import sink as module

    sink, other = lake.sink(), lake.sink()

    def overtake() -> None:
        other.commit([advance(0, 10)], values(0, 10))

    with at_first(module, "sink.before_commit", overtake), pytest.raises(LedgerConflict):
        sink.commit([advance(0, 7)], values(0, 7))
    assert lake.ids() == list(range(10))


def test_a_store_that_overwrites_in_spite_of_the_condition_is_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from s3fs import S3FileSystem

    original = S3FileSystem._call_s3

    async def deaf(self: Any, method: str, *args: Any, **keys: Any) -> Any:
        keys.pop("IfNoneMatch", None)
        return await original(self, method, *args, **keys)

    monkeypatch.setattr(S3FileSystem, "_call_s3", deaf)
    with pytest.raises(ConfigError, match="does not create files exclusively"):
        lake.sink()


@pytest.mark.parametrize("at_once", [0, snapshots._WHOLE])
def test_an_audit_reads_what_is_in_the_bucket(
    lake: Lake, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_WHOLE", at_once)
    sink: FilesSink = lake.sink(keys={"provenance": "true", "flush.size": 3})
    sink.commit([advance(0, 10)], values(0, 10))
    snapshot = lake.made(keys={"provenance": "true"}).snapshot(["t"])
    assert sorted(snapshot.records["t"].column("offset").to_pylist()) == list(range(10))
    assert [e.topic_partition for e in snapshot.entries] == [FIRST]
