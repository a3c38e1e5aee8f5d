"""A router that looks only at the topic names the targets of sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from semel.config import read
from semel.core.errors import ConfigError
from semel.driver.planning import plan
from semel.sinks.delta.config import DeltaConfig
from semel.sinks.kafka.config import KafkaConfig
from semel.sinks.search.config import SearchConfig
from semel.sinks.sql.config import PostgresConfig

KAFKA = "org.apache.kafka.connect.transforms."
ROUTER = {
    "transforms": "r",
    "transforms.r.type": f"{KAFKA}RegexRouter",
    "transforms.r.regex": "shop\\.(.*)",
    "transforms.r.replacement": "$1",
    "transforms.r.predicate": "shop",
    "predicates": "shop",
    "predicates.shop.type": f"{KAFKA}predicates.TopicNameMatches",
    "predicates.shop.pattern": ".*orders",
}
COMMON = {"name": "c", "topics": "shop.orders", "bootstrap.servers": "nowhere:9092"}
SINKS: Mapping[str, tuple[Any, dict[str, str], Callable[[Any, str], str]]] = {
    "postgresql": (
        PostgresConfig,
        {"connection.url": "jdbc:postgresql://nowhere/x", "table.name.format": "t_${topic}"},
        lambda config, topic: config.table(topic).removeprefix("t_"),
    ),
    "delta": (DeltaConfig, {"delta.table.path": "/x"}, lambda config, topic: config.table(topic)),
    "opensearch": (
        SearchConfig,
        {"connection.url": "http://nowhere:9200"},
        lambda config, topic: config.index(topic),
    ),
    "kafka": (KafkaConfig, {}, lambda config, topic: config.topic(topic)),
}


@pytest.mark.parametrize("sink", SINKS)
def test_targets_bear_the_name_that_the_router_gives(sink: str) -> None:
    section, keys, named = SINKS[sink]
    raw = {**COMMON, "connector.class": sink, **keys, **ROUTER}
    planned = plan(raw)
    planned.close()
    config = read(section, raw)
    assert named(config, "shop.orders") == "orders"
    assert named(config, "shop.items") == "shop.items"


def test_topics_of_another_cluster_are_not_merged() -> None:
    merged = ROUTER | {"transforms.r.regex": ".*", "transforms.r.replacement": "all"}
    raw = {**COMMON, "connector.class": "kafka", **merged, "topics": "a.orders,b.orders"}
    plan(raw).close()
    with pytest.raises(
        ConfigError, match=r"transforms send topics a\.orders and b\.orders to topic"
    ):
        plan(raw | {"dest.kafka.bootstrap.servers": "elsewhere:9092"})


def test_tables_of_delta_are_found_by_topics_only_if_no_router_names_them() -> None:
    raw = {**COMMON, "connector.class": "delta", "delta.table.path": "/x"}
    raw |= {"topics": "", "topics.regex": "shop.*"}
    plan(raw).close()
    with pytest.raises(ConfigError, match="which the router changes"):
        plan(raw | ROUTER)
