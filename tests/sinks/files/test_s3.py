"""An object store over the wire: conditional puts and server-side copies, through s3fs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import boto3
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer

from semel.errors import ConfigError, LedgerConflict
from semel.ledger import Outcome
from semel.records import Commit
from semel.sinks.files.sink import FilesSink
from tests.sinks.files.conftest import FIRST, Folder
from tests.sinks.target import advance, records


class Bucket(Folder):
    """A bucket, seen without fsspec."""

    def __init__(self, endpoint: str, name: str) -> None:
        super().__init__(f"s3://{name}/lake")
        self._endpoint = endpoint
        self._name = name
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="k",
            aws_secret_access_key="s",
        )
        self.client.create_bucket(Bucket=name)

    def config(self, name: str = "c", keys: Any = None) -> dict[str, str]:
        options = {
            "aws.access.key.id": "k",
            "aws.secret.access.key": "s",
            "s3.region": "us-east-1",
            "storage.options.endpoint_url": self._endpoint,
        }
        return super().config(name, {**options, **(keys or {})})

    def all(self) -> list[str]:
        found = self.client.list_objects_v2(Bucket=self._name, Prefix="lake/")
        return sorted(o["Key"].removeprefix("lake/") for o in found.get("Contents", []))

    def ids(self) -> list[int]:
        found: list[int] = []
        for key in self.files():
            body = self.client.get_object(Bucket=self._name, Key=f"lake/{key}")["Body"].read()
            found += pq.read_table(io.BytesIO(body)).column("id").to_pylist()
        return sorted(found)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def lake(endpoint: str, request: pytest.FixtureRequest) -> Bucket:
    return Bucket(endpoint, f"bucket-{abs(hash(request.node.name))}")


def values(first: int, until: int) -> Commit:
    offsets = range(first, until)
    return Commit([records([{"id": i} for i in offsets], offsets=offsets)])


def test_rows_and_positions_are_one_conditional_put(lake: Bucket) -> None:
    sink, other = lake.sink(), lake.sink()
    assert sink.commit([advance(0, 10)], values(0, 10)) is Outcome.APPLIED
    assert lake.files() == ["t/partition=0/t+0+0000000000-0000000010.parquet"]
    assert lake.staged() == []
    with pytest.raises(LedgerConflict, match="stands at 10"):
        other.commit([advance(0, 7)], values(0, 7))
    assert other.commit([advance(0, 10)], values(0, 10)) is Outcome.REPLAYED
    assert other.commit([advance(10, 12)], values(10, 12)) is Outcome.APPLIED
    assert lake.ids() == list(range(12))
    assert [e.position for e in lake.made().entries()] == [12]


def test_of_two_puts_of_one_entry_one_is_refused(
    lake: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.sinks.files import sink as module

    sink, other = lake.sink(), lake.sink()
    raced = []

    def race(reached: str) -> None:
        if reached == "sink.before_commit" and not raced:
            raced.append(reached)
            other.commit([advance(0, 10)], values(0, 10))

    monkeypatch.setattr(module, "hit", race)
    with pytest.raises(LedgerConflict):
        sink.commit([advance(0, 7)], values(0, 7))
    assert raced
    assert lake.ids() == list(range(10))


def test_a_store_that_overwrites_in_spite_of_the_condition_is_refused(
    lake: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    from s3fs import S3FileSystem

    original = S3FileSystem._call_s3

    async def deaf(self: Any, method: str, *args: Any, **keys: Any) -> Any:
        keys.pop("IfNoneMatch", None)
        return await original(self, method, *args, **keys)

    monkeypatch.setattr(S3FileSystem, "_call_s3", deaf)
    with pytest.raises(ConfigError, match="does not keep exclusive creation"):
        lake.sink()


def test_an_audit_reads_what_stands_there(lake: Bucket) -> None:
    sink: FilesSink = lake.sink(keys={"provenance": "true", "flush.size": 3})
    sink.commit([advance(0, 10)], values(0, 10))
    snapshot = lake.made(keys={"provenance": "true"}).snapshot(["t"])
    assert sorted(snapshot.records["t"].column("offset").to_pylist()) == list(range(10))
    assert [e.topic_partition for e in snapshot.entries] == [FIRST]
