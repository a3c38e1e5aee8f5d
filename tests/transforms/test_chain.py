"""The chain: predicates, order, what is refused and what is dropped; routers and headers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.config import HINTS
from semel.converters.json.converter import JsonConverter
from semel.core.errors import ConfigError
from semel.transforms import chain_of, routed, warnings_of
from tests.transforms.records import KAFKA, applied, batch, stage, values

ROWS = [{"a": 1}, None, {"a": 3}]
TOMBSTONES = {
    "predicates": "p",
    "predicates.p.type": f"{KAFKA}predicates.RecordIsTombstone",
    "transforms.t.predicate": "p",
}


def test_a_predicate_chooses_and_the_order_stays() -> None:
    config = stage("HoistField$Value", field="gone") | TOMBSTONES
    assert values(config, batch(ROWS)) == [
        {"a": 1},
        {"gone": None},
        {"a": 3},
    ]
    config |= {"transforms.t.negate": "true", "transforms.t.field": "there"}
    assert values(config, batch(ROWS)) == [{"there": {"a": 1}}, None, {"there": {"a": 3}}]


def test_filter_drops_what_its_predicate_chooses() -> None:
    outcome = applied(stage("Filter") | TOMBSTONES, batch(ROWS))
    assert outcome.batch.values.array.to_pylist() == [{"a": 1}, {"a": 3}]
    assert outcome.batch.origin.column("__connect_offset").to_pylist() == [10, 12]
    assert not outcome.refused
    assert len(applied(stage("Filter"), batch(ROWS)).batch) == 0


def test_predicates_go_by_the_topic_that_a_router_has_left() -> None:
    config = stage("RegexRouter", regex="or(.*)", replacement="new_$1") | {
        "transforms": "t,f",
        "transforms.f.type": f"{KAFKA}Filter",
        "transforms.f.predicate": "p",
        "predicates": "p",
        "predicates.p.type": f"{KAFKA}predicates.TopicNameMatches",
        "predicates.p.pattern": "new_.*",
    }
    assert len(applied(config, batch(ROWS)).batch) == 0
    assert len(applied(config, batch(ROWS, topic="x")).batch) == 3


def test_headers_are_chosen_dropped_and_added() -> None:
    headers = [[("h", b"1")], [], [("x", b"2"), ("h", b"3")]]
    config = stage("DropHeaders", headers="h") | {
        "transforms": "f,t,i,g",
        "transforms.f.type": f"{KAFKA}Filter",
        "transforms.f.predicate": "p",
        "transforms.f.negate": "true",
        "predicates": "p",
        "predicates.p.type": f"{KAFKA}predicates.HasHeaderKey",
        "predicates.p.name": "h",
        "transforms.i.type": f"{KAFKA}InsertHeader",
        "transforms.i.header": "n",
        "transforms.i.value.literal": "5",
        "transforms.g.type": f"{KAFKA}HeaderFrom$Value",
        "transforms.g.fields": "a",
        "transforms.g.headers": "m",
        "transforms.g.operation": "move",
    }
    made = applied(config, batch(ROWS, headers=headers)).batch
    assert made.values.array.to_pylist() == [{}, {}]
    found = [[(h["key"], h["value"]) for h in each] for each in made.headers.to_pylist()]
    assert found == [[("n", b"5"), ("m", b"1")], [("x", b"2"), ("n", b"5"), ("m", b"3")]]
    config |= {"transforms": "i", "transforms.i.value.literal": ""}
    made = applied(config, batch(ROWS, headers=headers)).batch
    assert made.headers[1].as_py() == [{"key": "n", "value": b""}]


def test_a_header_takes_arrays_maps_and_bytes_as_text() -> None:
    fields = {
        "l": pa.array([[1, 2], None]),
        "m": pa.array([[("a", "x")], None], pa.map_(pa.string(), pa.string())),
        "b": pa.array([b"ab", None], pa.binary(2)),
    }
    config = stage("HeaderFrom$Value", fields="l,m,b", headers="l,m,b", operation="copy")
    rows = pa.StructArray.from_arrays([*fields.values()], [*fields])
    made = applied(config, batch(rows, headers=[[], []])).batch
    found = [[h["value"] for h in each] for each in made.headers.to_pylist()]
    assert found == [[b"[1,2]", b'{"a":"x"}', b"YWI="], [None, None, None]]


def test_a_header_takes_each_value_of_plain_json_by_its_own_type() -> None:
    texts = [b'{"f":"a\\"b"}', b'{"f":5}', b'{"f":{"x":"y"}}', b'{"f":1e2}', b'{"f":null}', b"{}"]
    converter = JsonConverter(schemas_enable=False)
    converter.keep_text()
    decoded = converter.decode(pa.array(texts)).values
    config = stage("HeaderFrom$Value", fields="f", headers="h", operation="copy")
    made = applied(config, batch(decoded, headers=[[]] * 6)).batch
    expected = [b'a"b', b"5", b'{"x":"y"}', b"100.0", None, None]
    assert [h[0]["value"] for h in made.headers.to_pylist()] == expected


def test_one_refused_record_leaves_the_others() -> None:
    config = stage("Cast$Value", spec="int32") | {
        "transforms": "t,h",
        "transforms.h.type": f"{KAFKA}HoistField$Value",
        "transforms.h.field": "n",
    }
    outcome = applied(config, batch(["1", "x", "3", "y"]))
    assert outcome.batch.values.array.to_pylist() == [{"n": 1}, {"n": 3}]
    assert outcome.batch.rows.tolist() == [0, 2]
    assert [r.index for r in outcome.refused] == [1, 3]


def test_nothing_in_nothing_out() -> None:
    config = stage("InsertField$Value", topic_field="t")
    assert len(applied(config, batch(pa.array([], pa.struct([("a", pa.int64())])))).batch) == 0


@pytest.mark.parametrize(
    ("regex", "replacement", "topic", "there"),
    [
        (".*", "$0", "a", "a"),
        ("(.*)-(\\d+)", "$1_$2", "a-b-7", "a-b_7"),
        ("([^.]+)\\.([^.]+)\\.(?<table>[^.]+)", "${table}", "s.db.orders", "orders"),
        ("foo", "bar", "food", "food"),
        ("(a|b)(x)?", "$1\\$$2", "a", "a$"),
        ("(.*)", "$10", "t", "t0"),
    ],
)
def test_regex_router_replaces_as_java_does(
    regex: str, replacement: str, topic: str, there: str
) -> None:
    config = stage("RegexRouter", regex=regex, replacement=replacement)
    assert routed(config, topic) == there
    assert applied(config, batch(ROWS, topic=topic)).batch.topics.to_pylist() == [there] * 3


def test_a_topic_that_kafka_would_not_have_is_not_routed() -> None:
    """RE2 takes time for each state of the pattern and each character."""
    raw = {
        "transforms": "t",
        "transforms.t.type": KAFKA + "RegexRouter",
        "transforms.t.regex": "(a+)",
        "transforms.t.replacement": "b",
    }
    assert routed(raw, "a" * 249) == "b"
    assert routed(raw, "a" * 250) == "a" * 250


_AIVEN, _CONFLUENT = "io.aiven.kafka.connect.transforms.", "io.confluent.connect.transforms."


@pytest.mark.parametrize(
    ("name", "options", "left", "refused"),
    [
        (f"{_CONFLUENT}ExtractTopic$Value", {"field": "f"}, [0, 1], [2, 3]),
        (f"{_AIVEN}Hash$Value", {"field.name": "f", "function": "md5"}, [0], [1, 2, 3]),
        (f"{_AIVEN}FilterByFieldValue$Value", {"field.name": "f", "field.value": "a"}, [0], [2, 3]),
        (f"{_AIVEN}CaseTransform$Value", {"field.names": "f", "case": "upper"}, [0, 1, 3], [2]),
        (f"{_AIVEN}ExtractTimestamp$Value", {"field.name": "f"}, [1], [0, 2, 3]),
        (
            f"{KAFKA}TimestampConverter$Value",
            {"field": "f", "target.type": "string", "format": "yyyy"},
            [1, 3],
            [0, 2],
        ),
    ],
)
def test_each_value_of_plain_json_is_judged_by_its_own_type(
    name: str, options: dict[str, str], left: list[int], refused: list[int]
) -> None:
    texts = [b'{"id":0,"f":"a"}', b'{"id":1,"f":5}', b'{"id":2,"f":{"x":1}}', b'{"id":3}']
    converter = JsonConverter(schemas_enable=False)
    converter.keep_text()
    config = {"transforms": "t", "transforms.t.type": name}
    config |= {f"transforms.t.{key}": value for key, value in options.items()}
    outcome = applied(config, batch(converter.decode(pa.array(texts)).values))
    assert outcome.batch.values.array.field("id").to_pylist() == left
    assert sorted(r.index for r in outcome.refused) == refused


def test_timestamp_router_names_by_the_day() -> None:
    config = stage(
        "TimestampRouter", topic_format="x-${topic}.${timestamp}", timestamp_format="yyyyMM"
    )
    records = batch(ROWS, timestamps=[0, 2_678_400_000, 0])
    found = applied(config, records).batch.topics.to_pylist()
    assert found == ["x-orders.197001", "x-orders.197002", "x-orders.197001"]
    unknown = applied(config, batch(ROWS, timestamps=[0, -1, 0]))
    assert [r.message for r in unknown.refused] == ["transforms.t: Timestamp missing on record"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"transforms": "t"}, "transforms.t.type is required"),
        ({"transforms": "t,t"}, "transforms names t twice"),
        ({"predicates": "unused"}, "predicates.unused.type is required"),
        (stage("ExtractFeld$Value"), "no such transform; did you mean"),
        (
            stage("com.github.jcustenborder.kafka.connect.json.FromJson$Value"),
            "transform; available",
        ),
        (
            stage("org.apache.kafka.connect.transforms.RegExRouter"),
            "transforms.RegexRouter?; avail",
        ),
        (
            stage("io.debezium.connector.mongodb.transforms.ExtractNewDocumentState"),
            "not available: set it in Debezium's source connector",
        ),
        (stage("ExtractField", field="a"), "add $Key or $Value"),
        (stage("ValueToKey$Key", fields="a"), "without $Key"),
        (stage("Filter", predicate="p"), "transforms.t.predicate=p: predicates does not name it"),
        (stage("InsertField$Value"), "transforms.t: No field insertion configured"),
        (stage("Filter", negate="true"), "no config 'transforms.t.predicate'"),
        (
            stage("RegexRouter", regex="(", replacement="x"),
            "transforms.t.regex='(' is not a regular expression",
        ),
        (stage("RegexRouter", regex="a", replacement="$1"), "No group 1"),
        (
            stage("RegexRouter", regex="[a-z&&[^b]]", replacement="x"),
            "only Java's regular expressions",
        ),
    ],
)
def test_mistakes_name_the_key(config: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        chain_of(config)
    assert message in str(refused.value)


def test_short_names_and_unknown_keys() -> None:
    config = stage("Cast$Value", spec="int8", spek="x") | {"transforms.t.type": "Cast$Value"}
    config["transforms.u.type"] = "Cast$Value"
    assert len(chain_of(config).stages) == 1
    assert warnings_of(config) == [
        "unknown configuration key transforms.t.spek; did you mean transforms.t.spec?",
        "transforms.u.type has no effect: transforms does not name u",
    ]


def test_near_keys_are_looked_for_among_the_first_unknown_ones_only() -> None:
    spellings = {f"transforms.t.spec{at:03}": "x" for at in range(300)}
    warnings = warnings_of(stage("Cast$Value", spec="int8") | spellings)
    assert len(warnings) == 300
    assert sum("did you mean" in warning for warning in warnings) == HINTS
