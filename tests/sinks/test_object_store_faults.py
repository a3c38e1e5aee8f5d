"""An object store that refuses requests, loses answers or gets requests twice during a commit.

What the sinks' libraries do about it differs: some try again by themselves, and are then refused by
what they have written. Whatever they do, nothing is lost and nothing is there twice.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from semel.config import ConnectorConfig, read
from semel.core.errors import TransientError
from semel.core.ledger import Outcome, TopicPartition, firsts
from semel.core.records import Commit, DeadLetter
from semel.sinks.delta.sink import DeltaSink
from semel.sinks.files.sink import FilesSink
from semel.sinks.iceberg.sink import IcebergSink
from semel.sinks.staging import StagingSink
from tests.engine.harness import some
from tests.faults import KINDS, Faults
from tests.s3 import Bucket
from tests.sinks.iceberg.conftest import Warehouse
from tests.sinks.target import advance, values

FIRST = TopicPartition("t", 0)


class Place:
    """What one sink writes into a bucket, and the requests that its commit is made of."""

    of_commit: tuple[str, ...]
    of_staging = ".parquet"
    letters = "dead"

    def __init__(self, faults: Faults, path: Path) -> None:
        self.faults = faults
        self.path = path
        self.bucket = Bucket(faults.backend)

    def keys(self) -> dict[str, Any]:
        raise NotImplementedError

    def kind(self) -> type[StagingSink]:
        raise NotImplementedError

    def ids(self) -> list[int]:
        raise NotImplementedError

    def sink(self, **more: str) -> StagingSink:
        raw = {"name": "c", "bootstrap.servers": "nowhere:9092", "topics": "t"}
        raw |= {**self.keys(), **more}
        made: Any = self.kind()
        sink: StagingSink = made(read(ConnectorConfig, raw))
        sink.prepare(["t"])
        sink.start(firsts({FIRST: 0}))
        return sink


class DeltaPlace(Place):
    of_commit = ("/_delta_log/",)

    @staticmethod
    def options(endpoint: str) -> dict[str, str]:
        return {
            "aws_endpoint_url": endpoint,
            "aws_allow_http": "true",
            "aws_access_key_id": "k",
            "aws_secret_access_key": "s",
            "aws_region": "us-east-1",
        }

    def keys(self) -> dict[str, Any]:
        options = self.options(self.faults.url)
        return {
            "connector.class": "delta",
            "delta.table.path": self.bucket.where,
            "auto.create": "true",
            **{f"storage.options.{k}": v for k, v in options.items()},
        }

    def kind(self) -> type[StagingSink]:
        return DeltaSink

    def table(self, name: str) -> Any:
        options = self.options(self.faults.backend)
        where = f"{self.bucket.where}/{name}"
        return DeltaTable(where, storage_options=options).to_pyarrow_table()

    def ids(self) -> list[int]:
        return sorted(self.table("t").column("id").to_pylist())

    def dead(self) -> list[int]:
        return sorted(self.table("dead").column("offset").to_pylist())


class IcebergPlace(Place):
    of_commit = (".metadata.json", "/snap-", "-m0.avro")
    letters = "db.dead"

    def warehouse(self, endpoint: str) -> Warehouse:
        return Warehouse(
            self.path,
            {
                "type": "sql",
                "uri": f"sqlite:///{self.path}/catalog.db",
                "warehouse": self.bucket.where,
                "s3.endpoint": endpoint,
                "s3.access-key-id": "k",
                "s3.secret-access-key": "s",
                "s3.region": "us-east-1",
            },
        )

    def keys(self) -> dict[str, Any]:
        return self.warehouse(self.faults.url).config()

    def kind(self) -> type[StagingSink]:
        return IcebergSink

    def ids(self) -> list[int]:
        return sorted(r["id"] for r in self.warehouse(self.faults.backend).rows())

    def dead(self) -> list[int]:
        found = self.warehouse(self.faults.backend).rows("db.dead")
        return sorted(r["offset"] for r in found)


class FilesPlace(Place):
    of_commit = (".ledger", "x-amz-copy-source")
    of_staging = "/staged/"

    def keys(self) -> dict[str, Any]:
        options = {**self.bucket.options, "storage.options.endpoint_url": self.faults.url}
        return {"connector.class": "files", "path": self.bucket.where, **options}

    def kind(self) -> type[StagingSink]:
        return FilesSink

    def ids(self) -> list[int]:
        seen = [k for k in self.bucket.all() if not k.startswith(("_semel", "dead"))]
        return sorted(i for k in seen for i in self._column(k, "id"))

    def dead(self) -> list[int]:
        seen = [k for k in self.bucket.all() if k.startswith("dead")]
        return sorted(i for k in seen for i in self._column(k, "offset"))

    def _column(self, key: str, column: str) -> list[int]:
        found: list[int] = pq.read_table(io.BytesIO(self.bucket.read(key)))[column].to_pylist()
        return found


PLACES = {"delta": DeltaPlace, "iceberg": IcebergPlace, "files": FilesPlace}
REQUESTS = [(name, part) for name, place in PLACES.items() for part in place.of_commit]
SHORT = {
    ("delta", "/_delta_log/", "lost"),
    ("iceberg", ".metadata.json", "lost"),
    ("files", ".ledger", "twice"),
}
"""The request that decides, in each sink."""


@pytest.fixture
def faults(faulty_aws: Faults) -> Iterator[Faults]:
    yield faulty_aws
    faulty_aws.clear()


def delivered(sink: StagingSink, commit: Commit, first: int, until: int) -> None:
    """As the engine does it: the same again after an error whose outcome is not known."""
    staged = sink.stage(commit)
    for _ in range(5):
        try:
            sink.commit_staged([advance(first, until)], staged)
            return
        except TransientError:
            continue
    raise AssertionError("it never came about")


@pytest.mark.parametrize(
    ("name", "part", "kind"), some(((*r, k) for r in REQUESTS for k in KINDS), SHORT)
)
def test_a_fault_in_the_middle_of_a_commit_loses_nothing_and_doubles_nothing(
    name: str, part: str, kind: str, faults: Faults, tmp_path: Path
) -> None:
    place: Any = PLACES[name](faults, tmp_path)
    sink = place.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    fault = faults.come(kind, "PUT", part)
    delivered(sink, values(10, 20), 10, 20)
    assert fault.matched
    assert place.ids() == list(range(20))
    again = place.sink()
    assert [e.position for e in again.entries()] == [20]
    assert again.commit([advance(10, 20)], values(10, 20)) is Outcome.REPLAYED
    assert again.commit([advance(20, 30)], values(20, 30)) is Outcome.APPLIED
    assert place.ids() == list(range(30))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["lost", "twice"])
@pytest.mark.parametrize("name", PLACES)
def test_dead_letters_survive_such_a_fault_too(
    name: str, kind: str, faults: Faults, tmp_path: Path
) -> None:
    place: Any = PLACES[name](faults, tmp_path)
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.table": place.letters}
    sink = place.sink(**keys)

    def letter(offset: int) -> DeadLetter:
        return DeadLetter("t", 0, offset, None, b"bad", [], 0, "STAGE", "E", "why")

    sink.commit([advance(0, 10)], Commit(values(0, 9).records, [letter(9)]))
    part = place.of_commit[0]
    fault = faults.come(kind, "PUT", f"dead/{part.lstrip('/')}" if name == "delta" else part)
    delivered(sink, Commit(values(10, 19).records, [letter(19)]), 10, 20)
    assert fault.matched
    assert (place.ids(), place.dead()) == ([*range(9), *range(10, 19)], [9, 19])


@pytest.mark.parametrize("name", some(PLACES, {"files"}))
def test_a_store_that_refuses_while_files_are_staged_shows_nothing(
    name: str, faults: Faults, tmp_path: Path
) -> None:
    place: Any = PLACES[name](faults, tmp_path)
    sink = place.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    fault = faults.come("refused", "PUT", place.of_staging)
    for _ in range(3):
        try:
            staged = sink.stage(values(10, 20))
            break
        except TransientError:
            continue
    assert fault.matched
    assert place.ids() == list(range(10))
    assert sink.commit_staged([advance(10, 20)], staged) is Outcome.APPLIED
    assert place.ids() == list(range(20))
