"""Which topologies run, and what is said of those that do not."""

from __future__ import annotations

import pytest

from semel.audit.follow import follow
from semel.core.errors import ConfigError, NotJudged
from semel.driver.planning import plan
from semel.streams import Streams

CONFIG = {
    "name": "app",
    "connector.class": "postgresql",
    "connection.url": "postgresql://h/db",
    "bootstrap.servers": "h:1",
    "topology": f"{__name__}:made",
}


def made() -> Streams:
    streams = Streams({"name": "app"})
    counted = streams.stream("orders").group_by("customer", name="customers").count()
    counted.to({"connector.class": "postgresql"})
    return streams


def looking_up(repartitioned: bool = False, target: str | None = "postgresql") -> Streams:
    """Counts what is joined with a global table."""
    streams = Streams({"name": "app", "bootstrap.servers": "h:1"})
    joined = streams.stream("orders").join(streams.global_table("customers"), key="customer")
    if repartitioned:
        joined = joined.repartition(name="joined")
    counts = joined.group_by_key().count()
    if target is None:
        counts.to_topic("counts")
    else:
        counts.to({"connector.class": target})
    return streams


def several() -> Streams:
    streams = made()
    streams.stream("orders").to({"connector.class": "mysql"})
    return streams


def without_a_result() -> Streams:
    streams = Streams({"name": "app"})
    streams.stream("orders").filter("true")
    return streams


def broken() -> Streams:
    raise RuntimeError("it is broken")


NOTHING = "no topology"


def test_a_plan_reads_the_topics_of_the_topology_and_its_own() -> None:
    planned = plan(CONFIG)
    assert planned.connector.topics == ("orders", "app-customers-repartition")
    assert "Sub-topology: 1" in planned.facts()["topology"]


def test_a_program_may_give_the_topology_itself() -> None:
    config = {key: value for key, value in CONFIG.items() if key != "topology"}
    assert plan(config, made().topology()).topology == plan(CONFIG).topology


def test_a_topology_that_writes_to_topics_has_kafka_as_its_target() -> None:
    streams = Streams({"name": "app", "bootstrap.servers": "h:1"})
    streams.stream("orders").to_topic("copies")
    planned = plan(streams.config, streams.topology())
    assert planned.topology is not None
    assert "topic copies" in planned.sink.describe()["writes"]


def test_a_state_of_what_global_tables_say_is_kept_apart_or_with_the_target() -> None:
    """It cannot go back: after a crash it must not be computed again beside results."""
    planned = plan(CONFIG, looking_up(repartitioned=True).topology())
    assert planned.connector.topics == ("orders", "app-joined-repartition")
    streams = looking_up(target=None)
    assert plan(streams.config, streams.topology()).connector.topics == ("orders",)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"topology": "nowhere:made"}, "name its folder in PYTHONPATH"),
        ({"topology": f"{__name__}:NOTHING"}, r"must be a semel\.streams\.Streams"),
        ({"topology": f"{__name__}:broken"}, "RuntimeError: it is broken"),
        ({"topology": f"{__name__}:several"}, "several targets"),
        ({"topology": f"{__name__}:without_a_result", "connector.class": None}, "has no result"),
        ({"topology": f"{__name__}:looking_up"}, r"Put \.repartition\(\) behind the join"),
        ({"semel.python.modules": "acme"}, "Name its module in semel.python.modules"),
        ({"provenance": "true"}, "a result comes from many records"),
        ({"delivery": "at-least-once"}, "needs a target with transactions"),
        ({"connector.class": "delta", "delta.table.path": "/x"}, "Write to a database, or to Kaf"),
        ({"transforms": "a", "transforms.a.type": "Filter"}, "transforms are not applied"),
    ],
)
def test_what_cannot_be_kept_is_refused(keys: dict[str, str | None], says: str) -> None:
    config = {key: value for key, value in {**CONFIG, **keys}.items() if value is not None}
    with pytest.raises(ConfigError, match=says):
        plan(config)


def test_an_audit_cannot_follow_results_that_are_not_records() -> None:
    with pytest.raises(NotJudged, match="is a topology"):
        follow(plan(CONFIG))
