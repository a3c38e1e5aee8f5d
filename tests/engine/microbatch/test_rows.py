"""The rows of a micro-batch are those that the direct engine would write."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.conftest import MakeTopic, Produce
from tests.engine.harness import some
from tests.engine.microbatch.conftest import Go, MakeConfig, Query
from tests.engine.microbatch.transforms import KEYED, passing, rows, shuffled

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_kafka_connects_transforms_run_before_those_of_data_frames(
    topic: MakeTopic, configure: MakeConfig, go: Go, query: Query
) -> None:
    source = topic(2, values=[json.dumps({"a": {"b": n}}).encode() for n in range(10)])
    config = configure(source) | {
        "transforms": "flat",
        "transforms.flat.type": "org.apache.kafka.connect.transforms.Flatten$Value",
        "transforms.flat.delimiter": "_",
    }
    go(config)
    assert query("SELECT sum(a_b)::int FROM t") == [(45,)]
    go(config | {"name": "frames"}, passing)
    assert query("SELECT sum(a_b)::int FROM t") == [(90,)]


@pytest.mark.long
@pytest.mark.parametrize(
    "transform", [None, pytest.param(passing, marks=pytest.mark.long)], ids=["chain", "frames"]
)
def test_a_chain_sees_keys_and_headers_that_the_sink_does_not_use(
    transform: Any, topic: MakeTopic, produce: Produce, configure: MakeConfig, go: Go, query: Query
) -> None:
    source = topic(2)
    numbers = range(10)
    produce(
        source,
        [json.dumps({"a": n}).encode() for n in numbers],
        [b"key-%d" % n for n in numbers],
        headers=[[("skip", b"")] if n % 2 else None for n in numbers],
    )
    config = configure(source) | {
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "transforms": "some,key",
        "transforms.some.type": "org.apache.kafka.connect.transforms.Filter",
        "transforms.some.predicate": "marked",
        "transforms.key.type": "io.aiven.kafka.connect.transforms.KeyToValue",
        "transforms.key.key.fields": "*",
        "transforms.key.value.fields": "k",
        "predicates": "marked",
        "predicates.marked.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey",
        "predicates.marked.name": "skip",
    }
    go(config, *([transform] if transform else []))
    found = query("SELECT a::int, k FROM t ORDER BY a")
    assert found == [(n, f"key-{n}") for n in numbers if n % 2 == 0]


TYPES: list[tuple[str, dict[str, Any], Any]] = [
    ("i8", {"type": "int8"}, -8),
    ("i16", {"type": "int16"}, -16),
    ("i32", {"type": "int32"}, 1 << 30),
    ("i64", {"type": "int64"}, 1 << 60),
    ("f32", {"type": "float"}, 1.5),
    ("f64", {"type": "double"}, 0.1),
    ("flag", {"type": "boolean"}, True),
    ("txt", {"type": "string"}, "ä\n€"),
    ("raw", {"type": "bytes"}, base64.b64encode(b"\0\xff").decode()),
    ("dec", {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
             "parameters": {"scale": "2", "connect.decimal.precision": "10"}},
     base64.b64encode((12345).to_bytes(2, "big")).decode()),
    ("day", {"type": "int32", "name": "org.apache.kafka.connect.data.Date"}, 20000),
    ("tod", {"type": "int32", "name": "org.apache.kafka.connect.data.Time"}, 45_296_789),
    ("ts", {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}, 1_700_000_000_123),
    ("mtime", {"type": "int64", "name": "io.debezium.time.MicroTime"}, 45_296_789_012),
    ("ntime", {"type": "int64", "name": "io.debezium.time.NanoTime"}, 45_296_789_012_000),
    ("mts", {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, 1_700_000_000_123_456),
    ("nts", {"type": "int64", "name": "io.debezium.time.NanoTimestamp"}, 1_700_000_000_123_456_789),
    ("zts", {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
     "2024-02-29T12:30:00.5+02:00"),
    ("doc", {"type": "string", "name": "io.debezium.data.Json"}, '{"a": [1, null]}'),
    ("list", {"type": "array", "items": {"type": "int32"}}, [1, 2, 3]),
    ("inner", {"type": "struct", "fields": [{"field": "x", "type": "int32"}]}, {"x": 1}),
]  # fmt: skip


def enveloped() -> list[str]:
    """A record of every type, and one of nulls."""
    fields = [{"field": name, "optional": True, **schema} for name, schema, _ in TYPES]
    schema = {"type": "struct", "optional": False, "fields": fields}
    full = {name: value for name, _, value in TYPES}
    payloads = [full, dict.fromkeys(full)]
    return [json.dumps({"schema": schema, "payload": payload}) for payload in payloads]


def arrow_passing(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.mark.long
def test_values_of_all_types_are_the_same_through_both_engines(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1, values=enveloped())
    for name, engine, transform in (
        ("a", "direct", None),
        ("b", "micro-batch", None),
        ("c", "micro-batch", passing),
        ("d", "micro-batch", shuffled_by_offset),
    ):
        config = configure(t, name=name, table_name_format=name, engine=engine)
        config["value.converter.schemas.enable"] = "true"
        go(config, transform)
    found = {
        name: (
            query(f"SELECT {name}::text FROM {name} ORDER BY i8"),
            query("SELECT column_name::text, data_type::text FROM information_schema.columns "
                  f"WHERE table_name = '{name}' ORDER BY column_name"),
        )
        for name in "abcd"
    }  # fmt: skip
    assert len(found["a"][0]) == 2
    for name in "bcd":
        assert found[name] == found["a"]


def shuffled_by_offset(df: DataFrame) -> DataFrame:
    return df.repartition(2, "__connect_offset")


@pytest.mark.long
def test_plain_json_makes_the_same_table_through_both_engines(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1)
    produce(t, ['{"i": 1, "f": 2.5, "s": "x", "d": "2024-02-29", "t": "2024-02-29T01:02:03Z", '
                '"o": {"a": 1}, "l": [1, 2], "n": null}', '{"i": 2}'])  # fmt: skip
    go(configure(t, name="a", table_name_format="a", engine="direct"), arrow_passing)
    go(configure(t, name="b", table_name_format="b"), passing)
    assert query("SELECT a::text FROM a ORDER BY i") == query("SELECT b::text FROM b ORDER BY i")


@pytest.mark.long
def test_columns_of_the_target_decide_without_a_transform(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1)
    query("CREATE TABLE t (id int2, u uuid, n numeric(6,2), at time, iv interval, j jsonb)")
    produce(t, [json.dumps({"id": 7, "u": "0e37df36-f698-11e6-8dd4-cb9ced3df976", "n": 12.5,
                            "at": "12:00:01", "iv": "1 day", "j": {"a": 1}})])  # fmt: skip
    go(configure(t))
    direct = configure(t, name="other", engine="direct")
    go(direct)
    found = query("SELECT t::text FROM t")
    assert len(found) == 2
    assert found[0] == found[1]


@pytest.mark.long
def test_fields_that_the_sample_lacks_are_found(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(1, values=[*rows(1100), *rows(1, 1100, late="yes")])
    go(configure(t), lambda df: df.withColumn("upper", F.upper("late")))
    assert query("SELECT count(*) FROM t") == [(1101,)]
    assert query("SELECT id, upper FROM t WHERE late IS NOT NULL") == [(1100, "YES")]


@pytest.mark.long
def test_each_topic_has_its_own_transform_and_table(
    topic: MakeTopic, configure: MakeConfig, query: Query, go: Go
) -> None:
    one = topic(2, values=rows(10))
    two = topic(1, values=[json.dumps({"id": i, "color": "red"}) for i in range(6)])
    seen: list[list[str]] = []

    def noting(df: DataFrame) -> DataFrame:
        seen.append(df.columns)
        return df.where("id % 2 = 0")

    go(configure(f"{one},{two}"), noting)
    assert query(f'SELECT count(*), sum(amount) FROM "t_{one}"') == [(5, 30.0)]
    assert query(f'SELECT count(*), max(color) FROM "t_{two}"') == [(3, "red")]
    assert seen[0][-5:] == [f"__connect_{n}" for n in
                            ("topic", "partition", "offset", "timestamp", "key")]  # fmt: skip


@pytest.mark.long
def test_provenance_passes_through_both_commits(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go
) -> None:
    t = topic(2)
    produce(t, rows(6), timestamps=[1_700_000_000_000 + i for i in range(6)])
    for name, transform in (("a", passing), ("b", shuffled), ("c", None)):
        engine = "micro-batch" if transform else "direct"
        config = configure(t, name=name, table_name_format=name, provenance="true", engine=engine)
        progress = go(config, transform)
        assert (name, progress.records, progress.rows) == (name, 6, 6)
    of = "SELECT {0}::text FROM {0} ORDER BY id"
    assert query(of.format("a")) == query(of.format("b")) == query(of.format("c"))


@pytest.mark.parametrize("transform", some([None, passing, shuffled], {shuffled}))
def test_the_last_change_of_a_key_wins_and_tombstones_delete(
    topic: MakeTopic, produce: Produce, configure: MakeConfig, query: Query, go: Go, transform: Any
) -> None:
    t = topic(2)
    config = configure(t, **KEYED, delete_enabled="true")
    config["key.converter"] = "StringConverter"
    keys = [f"k{i % 5}" for i in range(20)]
    produce(t, rows(20), keys=keys)
    produce(t, [None, None], keys=["k1", "k2"])
    produce(t, rows(1, 99), keys=["k2"])
    go(config, transform)
    assert query("SELECT k, id FROM t ORDER BY k") == [
        ("k0", 15), ("k2", 99), ("k3", 18), ("k4", 19)
    ]  # fmt: skip
    produce(t, [None], keys=["k0"])
    go(config, transform)
    assert query("SELECT k FROM t ORDER BY k") == [("k2",), ("k3",), ("k4",)]
