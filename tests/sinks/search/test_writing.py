"""Documents in a real server: ids, versions, deletes, mappings, and what it refuses."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from semel.converters.json.plain import PlainReader
from semel.core.delivery import Delivery
from semel.core.errors import ConfigError, TransientError
from semel.core.ledger import firsts
from semel.core.records import METADATA, Commit, DeadLetter, Records
from semel.driver.planning import plan
from semel.sinks.search.writing import GENERATION
from tests.sinks.search.conftest import Cluster
from tests.sinks.target import advance, changes, metadata, records, refused

pytestmark = pytest.mark.integration


def test_without_keys_the_id_is_the_place_in_kafka(either: Cluster) -> None:
    sink = either.sink()
    sink.write(Commit([records([{"x": 1}, {"x": 2}], topic=either.topic, offsets=[4, 5])]))
    t = either.topic
    assert either.documents() == {f"{t}+0+4": {"x": 1}, f"{t}+0+5": {"x": 2}}
    assert either.versions() == {f"{t}+0+4": 4, f"{t}+0+5": 5}


def test_keys_are_ids_and_offsets_versions(either: Cluster) -> None:
    sink = either.keyed()
    steps = [("a", {"v": 1}), ("b", {"v": 2}), ('q"ü', {"v": 3}), ("a", {"v": 4}), ("b", None)]
    sink.write(Commit([changes(*steps, topic=either.topic)]))
    assert either.documents() == {"a": {"v": 4}, 'q"ü': {"v": 3}}
    assert either.versions() == {"a": 3, 'q"ü': 2}


def test_a_field_or_the_key_decides_the_shard(either: Cluster) -> None:
    field = {"routing.enabled": "true", "routing.field.path": "who.id"}
    rows = [{"x": 1, "who": {"id": 7}}, {"x": 2, "who": {"id": None}}, {"x": 3, "who": {"id": 8}}]
    commit = Commit([records(rows, topic=either.topic)])
    for _ in range(2):
        either.sink(field).write(commit)
    assert either.routes() == {1: "7", 2: None, 3: "8"}

    key = {"routing.enabled": "true", "routing.key": "true"}
    sink = either.keyed({**key, "index.name.format": f"{either.topic}-k"})
    steps = [("a", {"x": 1}), ("b", {"x": 2}), ("b", None)]
    sink.write(Commit([changes(*steps, topic=either.topic)]))
    assert either.routes(f"{either.topic}-k") == {1: '"a"'}  # as Aiven's sink has it


def test_a_replay_changes_nothing_and_something_older_replaces_nothing(either: Cluster) -> None:
    sink = either.keyed()
    old = changes(("a", {"v": 1}), ("b", {"v": 2}), ("c", {"v": 3}), topic=either.topic)
    sink.write(Commit([old]))
    newer = records([{"v": 9}], topic=either.topic, keys=["a"], offsets=[7])
    gone = Records(
        either.topic,
        newer.rows,
        pa.table(metadata(either.topic, [8], pa.array(["b"]))),
    )
    sink.write(Commit([gone]))
    before = either.hits()
    assert either.versions() == {"a": 7, "c": 2}
    sink.write(Commit([old]))  # a zombie that had passed the ledger
    sink.write(Commit([gone]))
    assert either.hits() == before


def telling_absence(made: Records, values: Sequence[Mapping[str, Any]]) -> Records:
    """The same records, with fields that a value lacks told apart from those that are null."""
    reader = PlainReader(None, evolve=True, dates=False)
    reader.tells_absence = True
    read = reader.read(pa.array([json.dumps(value) for value in values]), None)[0]
    columns = dict(zip([f.name for f in read.type], read.flatten(), strict=True))
    columns |= {n: made.rows.column(n) for n in made.rows.column_names if n in METADATA}
    return replace(made, rows=pa.table(columns), has_schema=False)


def test_upserts_change_the_fields_that_records_have_in_their_order(either: Cluster) -> None:
    plain = {"value.converter": "JsonConverter", "value.converter.schemas.enable": "false"}
    sink = either.keyed({"write.method": "upsert", "batch.size": "1", **plain})
    steps: list[tuple[str, Any]] = [
        ("a", {"v": 1, "to": {"city": "x", "zip": 1}, "w": 1}),
        ("b", {"v": 2}),
        ("a", {"to": {"city": "y"}, "w": 3}),
        ("b", None),
        ("b", {"w": 5, "to": None}),
    ]
    first = telling_absence(changes(*steps, topic=either.topic), [v for _, v in steps if v])
    expected = {"a": {"v": 1, "to": {"city": "y", "zip": 1}, "w": 3}, "b": {"w": 5, "to": None}}
    for _ in range(2):  # a replay ends with the same documents
        sink.write(Commit([first]))
        assert either.documents() == expected
    later = records([{"v": 9}], topic=either.topic, keys=["a"], offsets=[7])
    sink.write(Commit([later]))
    assert either.documents()["a"] == {**expected["a"], "v": 9}


def test_inserts_replace_what_upserts_have_written(either: Cluster) -> None:
    """Each update raises the version by one. A replay raises it above the offsets that follow."""

    def written(first: int, until: int, **keys: str) -> None:
        sink = either.keyed({k.replace("_", "."): v for k, v in keys.items()})
        made = range(first, until)
        rows, ids = [{"v": n} for n in made], ["a"] * len(made)
        for _ in range(2):
            sink.write(Commit([records(rows, topic=either.topic, keys=ids, offsets=made)]))
        sink.advance([advance(first, until, topic=either.topic)])

    written(0, 2)
    for first in (2, 12):
        written(first, first + 9, write_method="upsert")
        written(first + 9, first + 10)
        assert either.documents() == {"a": {"v": first + 9}}
    assert either.versions() == {"a": 2 * GENERATION + 21}
    written(22, 23)  # no update came between
    assert either.versions() == {"a": 2 * GENERATION + 22}


def test_an_upsert_with_a_schema_writes_nulls(cluster: Cluster) -> None:
    sink = cluster.keyed({"write.method": "upsert"})
    steps = [("a", {"v": 1, "w": 2}), ("a", {"v": None, "w": 3})]
    sink.write(Commit([changes(*steps, topic=cluster.topic)]))
    assert cluster.documents() == {"a": {"v": None, "w": 3}}


def test_upserts_are_at_least_once_and_need_ids() -> None:
    raw = {
        "name": "c",
        "connector.class": "elasticsearch",
        "connection.url": "http://nowhere:9200",
        "bootstrap.servers": "nowhere:9092",
        "topics": "t",
        "write.method": "UPSERT",
    }
    planned = plan(raw)
    planned.close()
    assert planned.guarantee.delivery is Delivery.AT_LEAST_ONCE
    with pytest.raises(ConfigError, match="an update takes no external version"):
        plan(raw | {"delivery": "exactly-once"})
    with pytest.raises(ConfigError, match="needs ids that follow from records"):
        plan(raw | {"use.autogenerated.ids": "true"})


def test_a_whole_key_is_an_id_also_when_it_is_a_number(cluster: Cluster) -> None:
    sink = cluster.keyed()
    sink.write(Commit([records([{"x": 1}], topic=cluster.topic, keys=pa.array([42]))]))
    assert list(cluster.documents()) == ["42"]


def test_keys_that_cannot_be_ids_are_named(cluster: Cluster) -> None:
    sink = cluster.keyed()
    keys = ["a", None, "", "x" * 513, "y" * 512]
    found = refused(sink, records([{"x": i} for i in range(5)], topic=cluster.topic, keys=keys))
    assert {o: r.message.rpartition(", ")[2] for o, r in found.items()} == {
        1: "is null",
        2: "is empty",
        3: "is longer than 512 bytes",
    }
    with pytest.raises(ConfigError, match=r"keys of topic .* are of type struct"):
        sink.write(Commit([records([{"x": 1}], topic=cluster.topic, keys=[{"k": 1}])]))


def test_tombstones_fail_unless_they_may_delete(cluster: Cluster) -> None:
    sink = cluster.keyed({"behavior.on.null.values": "fail"})
    found = refused(sink, changes(("a", {"v": 1}), ("a", None), topic=cluster.topic))
    assert list(found) == [1]
    assert "behavior.on.null.values=fail" in found[1].message


def test_a_tombstone_without_a_key_deletes_nothing(cluster: Cluster) -> None:
    sink = cluster.keyed()
    sink.write(Commit([changes(("a", {"v": 1}), (None, None), topic=cluster.topic)]))
    assert cluster.documents() == {"a": {"v": 1}}


def test_types_and_the_mapping_that_is_made_of_them(either: Cluster) -> None:
    sink = either.sink({"provenance": "true"})
    table = pa.table(
        {
            "whole": pa.array([2**53 + 1]),
            "exact": pa.array([Decimal("1.50")]),
            "at": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)]),
            "on": pa.array([dt.date(2026, 1, 2)]),
            "raw": pa.array([b"\x01"]),
            "text": pa.array(["ü"]),
            "inner": pa.array([{"a": 1, "b": [True]}]),
            "nothing": pa.nulls(1),
        }
    )
    sink.write(Commit([records(table, topic=either.topic)]))
    (document,) = either.documents().values()
    assert document == {
        "whole": 2**53 + 1,
        "exact": 1.5,
        "at": "2026-01-02T03:04:05.678901Z",
        "on": "2026-01-02",
        "raw": "AQ==",
        "text": "ü",
        "inner": {"a": 1, "b": [True]},
        "nothing": None,
        "__connect_topic": either.topic,
        "__connect_partition": 0,
        "__connect_offset": 0,
        "__connect_timestamp": "2023-11-14T22:13:20.000Z",
    }
    kinds = {name: kind.get("type") for name, kind in either.mapping().items()}
    assert kinds == {
        "whole": "long",
        "exact": "double",
        "at": "date",
        "on": "date",
        "raw": "binary",
        "text": "text",
        "inner": None,
        "__connect_topic": "keyword",
        "__connect_partition": "integer",
        "__connect_offset": "long",
        "__connect_timestamp": "date",
    }


def test_new_fields_are_added_to_the_mapping(cluster: Cluster) -> None:
    sink = cluster.sink()
    sink.write(Commit([records([{"a": 1}], topic=cluster.topic)]))
    other = cluster.sink()
    sink.write(Commit([records([{"b": "x"}], topic=cluster.topic, offsets=[1])]))
    other.write(Commit([records([{"b": 1.5, "c": True}], topic=cluster.topic, offsets=[2])]))
    kinds = {name: kind["type"] for name, kind in cluster.mapping().items()}
    assert kinds == {"a": "long", "b": "text", "c": "boolean"}
    assert len(cluster.documents()) == 3


def test_json_passes_through_as_it_came(cluster: Cluster) -> None:
    keys = {
        "schema.ignore": "true",
        "value.converter.schemas.enable": "false",
        "provenance": "true",
    }
    sink = cluster.sink(keys)
    assert sink.capabilities.takes_bytes
    values = [b'{"a":1e2,"o":{"b":[1.50]}}', b' {\n"a" : 2}', b"{ }", b"[1]"]
    table = pa.table({"value": pa.array(values, pa.binary())})
    found = refused(sink, records(table, topic=cluster.topic))
    assert list(found) == [3]
    documents = [document for _, document in sorted(cluster.documents().items())]
    assert [d["__connect_offset"] for d in documents] == [0, 1, 2]
    assert (documents[0]["a"], documents[0]["o"]) == (100, {"b": [1.5]})
    assert documents[1]["a"] == 2
    assert cluster.mapping()["__connect_topic"] == {"type": "keyword"}


def test_documents_that_the_server_refuses_are_named_and_the_others_are_there(
    either: Cluster,
) -> None:
    sink = either.sink({"batch.size": 3})
    sink.write(Commit([records([{"n": 1}], topic=either.topic)]))
    values = pa.table({"n": pa.array(["5", "no number", "6", "7", "neither"])})
    found = refused(sink, records(values, topic=either.topic, offsets=range(10, 15)))
    assert set(found) == {11, 14}
    assert "no number" in found[11].message
    assert found[11].exception.endswith("parsing_exception")
    assert len(either.documents()) == 4


def test_a_missing_index_is_an_error_unless_it_may_be_created(cluster: Cluster) -> None:
    sink = cluster.sink({"auto.create": "false"}, started=False)
    with pytest.raises(ConfigError, match=r"does not exist at .* or set auto\.create=true"):
        sink.prepare([cluster.topic])
    assert cluster.sink().schema(cluster.topic) is None


def test_indices_that_forget_are_refused(cluster: Cluster) -> None:
    settings = {"index.translog.durability": "async"}
    cluster.server.request("PUT", f"/{cluster.topic}", {"settings": settings})
    with pytest.raises(ConfigError, match=r"index\.translog\.durability=async"):
        cluster.sink()
    assert cluster.sink({"delivery": "at-most-once"})
    settings = {"index.translog.durability": "request", "index.gc_deletes": "10s"}
    cluster.server.request("PUT", f"/{cluster.topic}/_settings", settings)
    with pytest.raises(ConfigError, match=r"has index\.gc_deletes=10s"):
        cluster.keyed()
    assert cluster.sink()


def test_an_alias_means_its_index_and_one_of_several_is_refused(cluster: Cluster) -> None:
    for number in (1, 2):
        body = {"aliases": {cluster.topic: {}}}
        cluster.server.request("PUT", f"/{cluster.topic}-{number}", body)
        if number == 1:
            cluster.sink().write(Commit([records([{"x": 1}], topic=cluster.topic)]))
            assert len(cluster.documents(f"{cluster.topic}-1")) == 1
    with pytest.raises(ConfigError, match="is an alias of 2 indices"):
        cluster.sink()


def test_an_index_that_is_dropped_meanwhile_is_made_again(cluster: Cluster) -> None:
    sink = cluster.sink()
    sink.write(Commit([records([{"x": 1}], topic=cluster.topic)]))
    cluster.server.request("DELETE", f"/{cluster.topic}")
    batch = Commit([records([{"x": 2}], topic=cluster.topic, offsets=[1])])
    with pytest.raises(TransientError, match="no such index"):
        sink.write(batch)
    sink.write(batch)
    assert list(cluster.documents().values()) == [{"x": 2}]


def test_a_closed_index_makes_no_record_bad(either: Cluster) -> None:
    sink = either.sink({"errors.tolerance": "all"})
    batch = Commit([records([{"x": 1}], topic=either.topic)])
    sink.write(batch)
    either.server.request("POST", f"/{either.topic}/_close")
    later = Commit([records([{"x": 2}], topic=either.topic, offsets=[1])])
    with pytest.raises(TransientError, match="closed"):
        sink.write(later)
    either.server.request("POST", f"/{either.topic}/_open?wait_for_active_shards=1")
    sink.write(later)
    assert len(either.documents()) == 2


def test_dead_letters_are_there_once_each(either: Cluster) -> None:
    index = f"{either.topic}-letters"
    sink = either.sink({"errors.tolerance": "all", "errors.deadletterqueue.table": index})
    headers = [("h", b"1"), ("n", None)]
    letters = [
        DeadLetter(either.topic, 0, o, None, b"\xff", headers, 5, "TASK_PUT", "E", "why")
        for o in (3, 4)
    ]
    for _ in range(2):
        sink.write(Commit([], letters))
    found = either.documents(index)
    assert set(found) == {f"{either.name}/{either.topic}+0+{o}" for o in (3, 4)}
    one = found[f"{either.name}/{either.topic}+0+3"]
    assert (one["value"], one["stage"], one["message"]) == ("/w==", "TASK_PUT", "why")
    dead = sink.snapshot([either.topic]).dead[either.topic]
    assert sorted(dead.column("offset").to_pylist()) == [3, 4]
    assert dead.column("timestamp").to_pylist() == [5, 5]


def test_what_is_read_again_after_positions_were_set_by_hand_is_newer(cluster: Cluster) -> None:
    sink = cluster.keyed()
    sink.write(Commit([records([{"v": 1}], topic=cluster.topic, keys=["a"], offsets=[50])]))
    cluster.sink().set_positions(firsts({cluster.first: 0}))
    again = cluster.keyed()
    again.write(Commit([records([{"v": 2}], topic=cluster.topic, keys=["a"], offsets=[3])]))
    assert cluster.versions() == {"a": GENERATION + 3}
    assert cluster.documents() == {"a": {"v": 2}}


def test_requests_are_compressed_if_wanted(cluster: Cluster) -> None:
    sink = cluster.sink({"connection.compression": "true"})
    sink.write(Commit([records([{"x": "y" * 1000}], topic=cluster.topic)]))
    assert len(cluster.documents()) == 1


def test_a_server_that_is_not_there_is_transient(cluster: Cluster) -> None:
    sink = cluster.sink({"connection.url": "http://127.0.0.1:1"}, started=False)
    with pytest.raises(TransientError, match=r"no answer from http://127\.0\.0\.1:1"):
        sink.prepare([cluster.topic])
    both = cluster.sink({"connection.url": f"http://127.0.0.1:1,{cluster.server.url}"})
    both.write(Commit([records([{"x": 1}], topic=cluster.topic)]))
    assert json.dumps(cluster.documents())


def test_what_is_no_number_in_json_is_refused(either: Cluster) -> None:
    found = refused(either.sink(), records([{"x": 1.5}, {"x": float("nan")}], topic=either.topic))
    assert list(found) == [1]
    assert "column x: JSON has no nan" in found[1].message
