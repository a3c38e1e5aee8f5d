"""A connector notices when its results went to another index."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.config import ConnectorConfig, read
from semel.core.errors import ConfigError
from semel.core.ledger import MOVED, Hole, Rebase
from semel.driver.startup import check_targets
from semel.sinks.search.sink import SearchSink
from tests.sinks.search.conftest import Cluster
from tests.sinks.search.test_ledger import deliver, moved, values

pytestmark = pytest.mark.integration


def checked(cluster: Cluster, **keys: str) -> SearchSink:
    """A start of the connector, as far as its targets."""
    config = cluster.config(keys)
    sink = cluster.sink(keys, started=False)
    sink.prepare([cluster.topic])
    connector = read(ConnectorConfig, config)
    check_targets(connector, sink, sink.entries(), [cluster.topic])
    return sink


@pytest.fixture
def written(cluster: Cluster) -> Cluster:
    """Ten documents; the entry does not name their index yet."""
    deliver(cluster.sink(), moved(cluster, 0, 10), values(cluster, 0, 10))
    return cluster


def elsewhere(cluster: Cluster, index: str) -> dict[str, str]:
    return {"topic.to.external.resource.mapping": f"{cluster.topic}:{index}"}


def test_another_index_is_refused_until_it_is_allowed(written: Cluster) -> None:
    (entry,) = checked(written).entries()
    assert entry.target.startswith(f"{written.topic}#")
    other = f"{written.topic}-b"
    keys = elsewhere(written, other)
    with pytest.raises(ConfigError, match=f"{written.topic}, which held 10 rows, is gone"):
        checked(written, **keys)
    written.server.request("PUT", f"/{other}", {})
    told = f"results went to {written.topic} so far, and would go to {other} now"
    with pytest.raises(ConfigError, match=f"{told}.*target.changed=continue"):
        checked(written, **keys)
    sink = checked(written, **keys, **{"target.changed": "continue"})
    assert list(sink.snapshot([written.topic]).holes) == [Hole(written.topic, 0, 0, 10, MOVED)]
    checked(written, **keys)


def test_an_index_that_was_deleted_or_made_anew_is_refused(written: Cluster) -> None:
    checked(written)
    written.server.request("DELETE", f"/{written.topic}")
    with pytest.raises(ConfigError, match="which held 10 rows, is gone"):
        checked(written)
    written.server.request("PUT", f"/{written.topic}", {})
    with pytest.raises(ConfigError, match="was dropped and created again"):
        checked(written)


def test_an_index_that_was_restored_with_its_ledger_is_not_refused(written: Cluster) -> None:
    """Both then have other ids than before."""
    (entry,) = checked(written).entries()
    name, _, _ = entry.target.partition("#")
    sink = written.sink(started=False)
    sink.rebase([Rebase(entry, replace(entry, target=f"{name}#old@old"))])
    checked(written)


def test_an_alias_that_was_pointed_at_another_index_is_refused(written: Cluster) -> None:
    alias, new = f"{written.topic}-alias", f"{written.topic}-new"
    keys = elsewhere(written, alias)
    for remove, add in ((None, written.topic), (written.topic, new)):
        if add == new:
            checked(written, **keys)
            written.server.request("PUT", f"/{new}", {})
        actions = [{"add": {"index": add, "alias": alias}}]
        if remove:
            actions += [{"remove": {"index": remove, "alias": alias}}]
        written.server.request("POST", "/_aliases", {"actions": actions})
    with pytest.raises(ConfigError, match=f"results went to {written.topic} so far.*{new} now"):
        checked(written, **keys)
