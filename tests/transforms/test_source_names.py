"""Tables that the source of a change event names, as Debezium's JDBC sink does."""

from __future__ import annotations

import pytest

from semel.core.errors import ConfigError
from semel.driver.planning import plan
from semel.transforms import known_chain
from tests.transforms.records import applied, batch

EVENT = {
    "before": None,
    "after": {"id": 1},
    "source": {"schema": "public", "table": "a.b", "lsn": 7},
    "op": "c",
}
DEBEZIUM = {
    "name": "c",
    "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
    "bootstrap.servers": "localhost:1",
    "topics": "t",
    "connection.url": "jdbc:sqlite:x.db",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("${source.table}", "a.b"),
        ("${source.schema}.of_${topic}_${source.lsn}", "public.of_shop_orders_7"),
    ],
)
def test_fields_of_the_source_name_the_table(form: str, name: str) -> None:
    made = applied({"collection.name.format": form}, batch([EVENT], topic="shop.orders"))
    assert made.batch.topics.to_pylist() == [name]


def test_records_without_a_source_are_left_out_and_those_without_the_field_refused() -> None:
    config = {"collection.name.format": "${source.table}"}
    nameless = {**EVENT, "source": {"schema": "s", "table": None, "lsn": 1}}
    outcome = applied(config, batch([None, EVENT, nameless, {**EVENT, "source": None}]))
    assert outcome.batch.rows.tolist() == [1]
    assert [(r.index, r.message) for r in outcome.refused] == [
        (2, "collection.name.format: source.table is to name the table, and is null or missing")
    ]
    assert len(applied(config, batch([{"id": 1}])).batch) == 0
    assert len(applied({"collection.name.format": "${source.no}"}, batch([EVENT])).refused) == 1


def test_only_debeziums_sink_does_so_and_it_names_tables_for_each_record() -> None:
    keys = {"collection.name.format": "${source.table}"}
    planned = plan(DEBEZIUM | keys)
    planned.close()
    assert not known_chain(planned.connector.originals).goes_by_topic
    confluent = {"connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector"}
    with pytest.raises(ConfigError, match=r"fields of \$\{source\.\.\.\} with connector\.class=io"):
        plan(DEBEZIUM | confluent | {"table.name.format": "${source.table}"})
    with pytest.raises(ConfigError, match="engine=micro-batch cannot"):
        plan(DEBEZIUM | keys | {"engine": "micro-batch"})
