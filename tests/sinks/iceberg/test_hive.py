"""A Hive metastore: its locks end, and it compares a table with what the commit has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from thrift.transport.TTransport import TTransportException

from semel.core.errors import ConfigError, TransientError
from semel.core.ledger import Outcome, firsts
from semel.core.records import Commit
from semel.sinks.iceberg import hive
from semel.sinks.iceberg.hive import LOCKS
from semel_lab.embedded.proxy import Proxy
from tests.engine.harness import some
from tests.hivemetastore import HiveMetastore
from tests.patience import PATIENCE
from tests.sinks.iceberg.conftest import Warehouse, hive_warehouse
from tests.sinks.iceberg.test_catalogs import committed, ids
from tests.sinks.iceberg.test_crashes import MODES, assert_fenced_when_it_wakes_up, begun
from tests.sinks.target import FIRST, advance, records, values

PLACE = "hive.before_alter"


@pytest.fixture
def metastore(tmp_path: Path, hive_metastore: HiveMetastore) -> Warehouse:
    return hive_warehouse(tmp_path, hive_metastore)


def without_locks(warehouse: Warehouse) -> None:
    warehouse.sink()
    with warehouse.table().transaction() as change:
        change.set_properties({LOCKS: "false"})


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_killed_under_a_lock_the_next_one_waits_until_it_has_ended(
    mode: str, metastore: Warehouse
) -> None:
    process, _ = begun(metastore, mode, PLACE, "kill-worker")
    process.join(PATIENCE)
    assert process.exitcode == -9
    assert metastore.stored() == 10
    sink = metastore.sink(keys=MODES[mode])
    assert sink.commit([advance(10, 20)], values(10, 20)) is Outcome.APPLIED
    assert ids(metastore) == list(range(20))


@pytest.mark.parametrize(
    ("mode", "locks"), some([(m, y) for m in MODES for y in (True, False)], {("append", True)})
)
def test_a_zombie_whose_lock_has_ended_is_refused(
    mode: str, locks: bool, metastore: Warehouse
) -> None:
    if not locks:
        without_locks(metastore)
    assert_fenced_when_it_wakes_up(mode, PLACE, metastore)


@pytest.mark.long
def test_pyiceberg_alone_would_undo_what_others_have_committed(
    metastore: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why commits are compared: if PyIceberg were safe alone, the comparison could go."""
    sink, other = metastore.sink(), metastore.sink()
    sink.commit([advance(0, 10)], values(0, 10))
    monkeypatch.setattr(hive, "_expecting", lambda _: {})
    asleep: list[str] = []

    def sleep(place: str) -> None:
        if not asleep:
            asleep.append(place)
            other.commit([advance(10, 15)], values(10, 15))

    monkeypatch.setattr(hive, "hit", sleep)
    sink.commit([advance(10, 20)], values(10, 20))
    assert asleep
    assert ids(metastore) == list(range(20))


def test_a_metastore_that_does_not_compare_is_refused(
    metastore: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metastore that is not asked to compare behaves like one that cannot."""
    started = metastore.sink()
    started.set_positions(firsts({FIRST: 0}))
    location = metastore.table().metadata_location
    monkeypatch.setattr(hive, "_expecting", lambda _: {})
    for wanted in ({FIRST: 1}, None):
        with pytest.raises(ConfigError, match=r"catalog.uri=thrift.*Upgrade it to Hive"):
            started.set_positions(wanted and firsts(wanted))
    for keys in (
        {},
        {
            "iceberg.tables": None,
            "iceberg.tables.dynamic-enabled": "true",
            "iceberg.tables.ledger": f"{metastore.name}_ledger",
            "iceberg.tables.route-field": "to",
        },
    ):
        with pytest.raises(ConfigError, match=r"catalog.uri=thrift.*Upgrade it to Hive"):
            metastore.sink(keys=keys)
    assert metastore.table().metadata_location == location


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_a_commit_whose_answer_is_lost_is_not_duplicated(
    mode: str, metastore: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = metastore.sink(keys=MODES[mode])
    sink.commit([advance(0, 10)], values(0, 10))
    original = hive.Client.recv_alter_table_with_environment_context
    lost = []

    def cut(self: Any) -> None:
        original(self)
        if not lost:
            lost.append(self)
            self._iprot.trans.close()
            raise TTransportException(TTransportException.END_OF_FILE, "cut")

    monkeypatch.setattr(hive.Client, "recv_alter_table_with_environment_context", cut)
    assert committed(sink, 10, 20) is Outcome.REPLAYED
    assert lost
    assert sink.commit([advance(20, 30)], values(20, 30)) is Outcome.APPLIED
    assert ids(metastore) == list(range(30))


def test_a_table_is_created_and_its_columns_are_added_and_widened(metastore: Warehouse) -> None:
    sink = metastore.sink(keys={"iceberg.tables.evolve-schema-enabled": "true"})
    sink.commit([advance(0, 10)], values(0, 10))
    wide = Commit([records([{"text": "new", "id": i} for i in range(2**40, 2**40 + 10)])])
    staged = sink.stage(wide)
    sink.commit_staged([advance(10, 20)], staged)
    assert ids(metastore) == [*range(10), *range(2**40, 2**40 + 10)]
    with metastore.catalog._client as client:  # type: ignore[attr-defined]
        columns = client.get_table(*metastore.name.split(".")).sd.cols
    assert {c.name: c.type for c in columns} == {"id": "bigint", "text": "string"}


def test_a_namespace_that_is_missing_is_not_created(metastore: Warehouse) -> None:
    metastore.name = "nowhere.t"
    with pytest.raises(ConfigError, match=r"no namespace nowhere .* create it first"):
        metastore.sink()


@pytest.mark.long
def test_a_metastore_that_falls_silent_is_left(metastore: Warehouse) -> None:
    metastore.sink().close()
    with Proxy.before(metastore.properties["uri"]) as proxy:
        metastore.properties["uri"] = proxy.url(metastore.properties["uri"])
        sink = metastore.sink(keys={"store.timeout.ms": "5000"})
        assert sink.commit([advance(0, 10)], values(0, 10)) is Outcome.APPLIED
        proxy.silence(new=True)
        with pytest.raises(TransientError):
            sink.commit([advance(10, 20)], values(10, 20))
        proxy.accept()
        assert committed(sink, 10, 20) is Outcome.APPLIED
        assert ids(metastore) == list(range(20))
