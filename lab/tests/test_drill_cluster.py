"""The drill of a cluster of workers."""

from __future__ import annotations

import pytest

from semel.core.errors import ConfigError
from semel_lab.drill.cluster.run import drill_cluster
from semel_lab.drill.plan import OF_CLUSTERS, Kind


def test_faults_that_hit_no_cluster_are_refused() -> None:
    with pytest.raises(ConfigError, match="--only store-kill does not hit a cluster"):
        drill_cluster(None, 1, kinds=[Kind.STORE_KILL])
    with pytest.raises(ConfigError, match="must be at least 2"):
        drill_cluster(None, 1, workers=1)


@pytest.mark.integration
@pytest.mark.long
def test_a_cluster_keeps_its_guarantee_under_each_fault() -> None:
    report = drill_cluster(None, len(OF_CLUSTERS), seed=7)
    assert {result.fault.kind for result in report.results} == set(OF_CLUSTERS)
    assert report.kept
    assert (report.lost, report.duplicated) == (0, 0)
    assert report.final is not None
    assert report.final.records > 0
