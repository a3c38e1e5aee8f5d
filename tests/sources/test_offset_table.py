"""Source offsets in a table of a database."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from semel.config.source_connector import OFFSETS_URLS
from semel.core.errors import ConfigError, LedgerConflict, ServiceError, Unavailable
from semel.driver.planning import plan_source
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel.kafka.transactions import PlainProducer
from semel.sources.offsets import Owner, SourceOffsets
from semel_lab.drill.disk import Disk
from semel_lab.embedded.mariadb import MariaDB
from tests.databases import Given
from tests.disks import read_only
from tests.sources.jdbc.conftest import executed

pytestmark = pytest.mark.integration

(URL, *_) = OFFSETS_URLS
RAW = {
    "name": "lines",
    "connector.class": "FileStreamSource",
    "file": "test.txt",
    "topic": "lines",
    "bootstrap.servers": "localhost:1",
}
PLACE = {"filename": "größe 'x' \\ \"y\".txt"}
Open = Callable[..., SourceOffsets]


@pytest.fixture(params=("postgresql", "sqlite", pytest.param("mariadb", marks=pytest.mark.long)))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new, empty database of each system that can hold offsets."""
    if request.param == "postgresql":
        yield str(request.getfixturevalue("database"))
    elif request.param == "mariadb":
        server: MariaDB | Given = request.getfixturevalue("mariadb")
        name = f"offsets_{uuid.uuid4().hex[:8]}"
        yield server.create_database(name)
        server.drop_database(name)
    else:
        yield f"jdbc:sqlite:{tmp_path / 'offsets.db'}"


@pytest.fixture
def opened(url: str) -> Iterator[Open]:
    """The offsets of a connector, as one process has them."""
    with ExitStack() as ending:

        def make(**keys: str) -> SourceOffsets:
            given = {k.replace("_", "."): v for k, v in keys.items()}
            connector = plan_source({**RAW, URL: url, **given}).connector
            cluster = Cluster(client_config(connector, "admin"))
            return ending.enter_context(closing(SourceOffsets(connector, cluster)))

        yield make


def store(offsets: SourceOffsets, position: int | None) -> None:
    record = offsets.read().record(PLACE, None if position is None else {"position": position})
    offsets.store(PlainProducer("", {}), [record])


def own(offsets: SourceOffsets, run: str) -> None:
    offsets.store(PlainProducer("", {}), [offsets.read().owned_by(Owner(run, 1))])


def test_offsets_are_stored_changed_and_forgotten_for_each_connector(opened: Open) -> None:
    mine, other = opened(), opened(name="other")
    assert mine.read(expected=False).offsets == ()
    for offsets in (mine, other):
        offsets.prepare()
        own(offsets, "run")
        store(offsets, 8)
    store(mine, 9)
    assert opened().read().offsets == ((PLACE, {"position": 9}),)
    assert opened().owner() == Owner("run", 1)
    store(mine, None)
    assert mine.read().offsets == ()
    assert other.read().offset(PLACE) == {"position": 8}


def test_a_run_that_was_replaced_moves_no_offset(opened: Open) -> None:
    first, second = opened(), opened()
    first.prepare()
    own(first, "first")
    store(first, 8)
    stored = first.read()
    own(second, "second")
    with pytest.raises(LedgerConflict, match=r'the record .\["lines",null\]. has changed'):
        first.store(PlainProducer("", {}), [stored.record(PLACE, {"position": 9})])
    assert second.read().offset(PLACE) == {"position": 8}


def test_a_frozen_task_cannot_set_back_what_its_successor_has_stored(opened: Open) -> None:
    first, second = opened(), opened()
    first.prepare()
    own(first, "run")
    frozen = first.read().record(PLACE, {"position": 8})
    store(second, 20)
    with pytest.raises(LedgerConflict, match="another run or task has written it"):
        first.store(PlainProducer("", {}), [frozen])
    assert second.read().offset(PLACE) == {"position": 20}


def test_a_table_that_is_gone_is_not_mistaken_for_a_new_one(opened: Open, url: str) -> None:
    offsets = opened()
    offsets.prepare()
    own(offsets, "run")
    offsets.close()
    executed(url, "DROP TABLE semel_source_offsets")
    with pytest.raises(ServiceError, match=r"offsets table semel_source_offsets of .* is gone"):
        opened().read()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("jdbc:oracle:thin:scott/tiger@h", r"connection\.url=oracle:\.\.\. keeps no source offs"),
        ("jdbc:duckdb:offsets.db", r"connection\.url=duckdb:\.\.\. keeps no source offsets"),
        ("jdbc:sqlite::memory:", r"offset\.storage\.jdbc\.connection\.url does not name a sqlite"),
    ],
)
def test_what_cannot_hold_offsets_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        plan_source({**RAW, URL: url})
    assert "tiger" not in str(refused.value)


def test_a_file_on_a_disk_that_becomes_read_only_is_not_read_on_from(disk: Disk) -> None:
    connector = plan_source({**RAW, URL: f"jdbc:sqlite:{disk.directory / 'offsets.db'}"}).connector
    with closing(SourceOffsets(connector, Cluster(client_config(connector, "admin")))) as offsets:
        offsets.prepare()
        own(offsets, "run")
        offsets.read()
        offsets.check_writable()
        offsets.close()  # a disk with open files cannot become read-only
        with read_only(disk), pytest.raises(Unavailable, match="read-only"):
            offsets.check_writable()
        offsets.check_writable()
        assert offsets.owner() == Owner("run", 1)
