"""docs/metrics.md names every metric, and none that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.worker.metrics import OF_REBALANCES, prometheus_name, registry
from tests.metrics.test_collector import SOURCE, observed

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
_GROUPS = {"the same, by connector": "connect-worker"}


def documented() -> Iterator[str]:
    for row in re.findall(r"^\|(.+)\|$", PAGE, re.M):
        first, second, *_ = (cell.strip() for cell in row.split("|"))
        group = re.fullmatch(r"`([a-z-]+)-metrics`", first)
        named = _GROUPS.get(first) or (group[1] if group is not None else "")
        if named:
            for attribute in re.findall(r"`([a-z-]+)`", second):
                of = "connector" if attribute == "status" else named
                yield prometheus_name(of, attribute)
        else:
            yield from re.findall(r"`(semel_\w+)`", first)


@pytest.mark.filterwarnings("ignore")
def test_the_page_names_every_metric_and_no_other() -> None:
    shown = [observed(), observed(SOURCE)]
    rebalances = dict.fromkeys(OF_REBALANCES, 1.0)
    families = registry(lambda: shown, dict, lambda: rebalances).collect()
    names = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in families
    }
    ours = {name for name in names if name.startswith(("kafka_connect_", "semel_"))}
    assert set(documented()) == ours
