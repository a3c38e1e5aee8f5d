"""A connector does not start if its keys are assumed to be JSON and are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.core.errors import ConfigError
from semel.core.ledger import TopicPartition, firsts
from semel.driver.planning import plan
from semel.driver.startup import check_keys
from semel.kafka.clients import client_config
from semel.kafka.cluster import Cluster
from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("keys", "position", "good"),
    [
        (["a", "b"], 0, False),
        (["a", "b"], 2, False),
        (["a", '"b"'], 0, True),
        (['{"id": 1}', None], 0, True),
        ([None, None], 0, True),
        ([], 0, True),
    ],
)
def test_keys_near_the_position_are_looked_at(
    topic: MakeTopic,
    kafka: Kafka,
    tmp_path: Path,
    keys: list[str | None],
    position: int,
    good: bool,
) -> None:
    name = topic(1, values=[b"{}"] * len(keys), keys=[k and k.encode() for k in keys])
    raw = {
        "name": name,
        "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
        "connection.url": f"jdbc:sqlite:{tmp_path}/database",
        "bootstrap.servers": kafka.bootstrap_servers,
        "topics": name,
        "pk.mode": "record_key",
        "key.converter.schemas.enable": "false",
        "pk.fields": "k",
    }
    planned = plan(raw)
    planned.close()
    connector = planned.connector
    assert connector.assumes_keys
    cluster = Cluster(client_config(connector, "admin"))
    entries = firsts({TopicPartition(name, 0): position})
    if good:
        check_keys(connector, cluster, entries)
        return
    with pytest.raises(ConfigError, match=r"none of 2 keys in topic .* such as 'a' \(") as refusal:
        check_keys(connector, cluster, entries)
    assert refusal.value.problems[0].key == "key.converter"
