"""Change events for Iceberg tables: ``iceberg.tables.cdc-field``, and the transforms of Iceberg's
project."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from semel.converters.json.converter import JsonConverter
from semel.core.errors import ConfigError
from semel.driver.planning import plan
from tests.transforms.records import applied, batch, values

ICEBERG = "org.apache.iceberg.connect.transforms."
ONE, TWO = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
SOURCE = {"schema": "public", "db": "shop", "table": "orders"}


def event(op: str, before: Any, after: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 7}


def one(name: str, **options: str) -> dict[str, str]:
    given = {f"transforms.t.{k.replace('_', '.')}": v for k, v in options.items()}
    return {"transforms": "t", "transforms.t.type": name, **given}


@pytest.mark.parametrize("project", [ICEBERG, "io.tabular.iceberg.connect.transforms."])
def test_a_change_event_becomes_its_row_with_what_happened(project: str) -> None:
    events = [event("c", None, ONE), event("u", ONE, TWO), event("d", TWO, None), None]
    outcome = applied(one(f"{project}DebeziumTransform"), batch(events, [{"id": 1}] * 4))
    rows = outcome.batch.values.array.to_pylist()
    assert [r and {"id": r["id"], "name": r["name"]} for r in rows] == [ONE, TWO, TWO, None]
    assert [r and r["_cdc"]["op"] for r in rows] == ["I", "U", "D", None]
    assert rows[1]["_cdc"] == {
        "op": "U",
        "ts": 7,
        "source": "public.orders",
        "target": "public.orders",
        "offset": 11,
        "key": {"id": 1},
    }


def test_a_pattern_names_the_target_and_other_records_are_refused() -> None:
    config = one(f"{ICEBERG}DebeziumTransform", cdc_target_pattern="lake.{db}_{table}")
    made = applied(config, batch([event("c", None, ONE)]))
    assert made.batch.values.array[0].as_py()["_cdc"]["target"] == "lake.public_orders"
    assert [r.index for r in applied(config, batch([ONE])).refused] == [0]


def test_a_record_of_dms_becomes_its_data() -> None:
    facts = {"operation": "delete", "timestamp": "t", "schema-name": "s", "table-name": "o"}
    rows = [{"data": ONE, "metadata": facts}, {"data": None, "metadata": facts}, None]
    made = applied(one(f"{ICEBERG}DmsTransform"), batch(rows)).batch
    assert made.rows.tolist() == [0, 2]
    assert made.values.array.to_pylist() == [
        {**ONE, "_cdc": {"op": "D", "ts": "t", "source": "s.o"}},
        None,
    ]


def test_a_field_is_copied() -> None:
    config = one(f"{ICEBERG}CopyValue", source_field="id", target_field="copy")
    assert applied(config, batch([ONE])).batch.values.array.to_pylist() == [{**ONE, "copy": 1}]


def test_the_field_makes_deletes_and_keys() -> None:
    config = {"iceberg.tables.cdc-field": "_cdc.op"}
    rows = [{"id": n, "_cdc": {"op": op}} for n, op in enumerate(["I", "u", " delete", None, "R"])]
    made = applied(config, batch([*rows, None])).batch
    assert made.rows.tolist() == [0, 1, 2, 3, 4]
    assert made.keys.array.field("id").to_pylist() == [0, 1, 2, 3, 4]
    assert [v is None for v in made.values.array.to_pylist()] == [False, False, True, False, False]
    assert [r.index for r in applied(config, batch(["x", None])).refused] == [0]


def test_the_field_makes_deletes_of_records_that_hold_json() -> None:
    converter = JsonConverter(schemas_enable=False)
    converter.keep_text()
    given = converter.decode(
        pa.array([b'{"op":"D","x":[1,"a"]}', b'{"op":"I","x":[2,"b"]}'])
    ).values
    made = values({"iceberg.tables.cdc-field": "op"}, batch(given))
    assert made == [None, {"op": "I", "x": '[2,"b"]'}]


def test_a_sink_with_such_a_field_merges_by_key() -> None:
    raw = {
        "name": "c",
        "connector.class": "io.tabular.iceberg.connect.IcebergSinkConnector",
        "bootstrap.servers": "localhost:1",
        "topics": "t",
        "iceberg.tables": "db.t",
        "iceberg.tables.cdc-field": "_cdc.op",
        "iceberg.tables.default-id-columns": "id",
        "iceberg.catalog.type": "rest",
        "iceberg.catalog.uri": "http://localhost:1",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    }
    planned = plan(raw)
    planned.close()
    wants = planned.sink.capabilities
    assert wants.replaces
    assert wants.takes_tombstones
    with pytest.raises(ConfigError, match=r"cdc-field=_cdc\.op with several tables"):
        plan({**raw, "iceberg.tables": "db.t,db.u"})
