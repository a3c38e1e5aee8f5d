"""Jeremy Custenborder's transforms, as his tests and classes have them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.core.errors import ConfigError
from semel.transforms import chain_of, routed
from semel.transforms.jcustenborder import recased
from tests.transforms.records import applied, batch, refusals, values

COMMON = "com.github.jcustenborder.kafka.connect.transform.common."


def stage(name: str, **options: str) -> dict[str, str]:
    given = {f"transforms.t.{k.replace('_', '.')}": v for k, v in options.items()}
    return {"transforms": "t", "transforms.t.type": COMMON + name, **given}


@pytest.mark.parametrize("side", ["Key", "Value"])
def test_a_field_of_the_value_is_the_time(side: str) -> None:
    config = stage(f"ExtractTimestamp${side}", field_name="at")
    made = applied(config, batch([{"at": 5}, {"at": 6}])).batch
    assert made.timestamps.cast(pa.int64()).to_pylist() == [5, 6]
    at = pa.array([{"at": 7}], pa.struct([("at", pa.timestamp("ms", "UTC"))]))
    made = applied(config, batch(at, has_schema=True)).batch
    assert made.timestamps.cast(pa.int64()).to_pylist() == [7]


def test_a_record_without_a_time_is_refused_alone() -> None:
    config = stage("ExtractTimestamp$Value", field_name="at")
    outcome = applied(config, batch([{"at": 5}, {"at": None}, None]))
    assert outcome.batch.timestamps.cast(pa.int64()).to_pylist() == [5]
    assert sorted(r.index for r in outcome.refused) == [1, 2]
    (why,) = refusals(config, batch([{"at": "x"}]))
    assert why.endswith("Cannot convert java.lang.String to timestamp.")
    (why,) = refusals(config, batch([{"b": 1}], has_schema=True))
    assert why.endswith("Schema does not have field 'at'")


def test_a_pattern_renames_fields() -> None:
    config = stage("PatternRename$Value", field_pattern=r"^PREFIX(\w)", field_replacement="$1")
    records = batch([{"prefixed": 1, "prefix": 2, "other": 3}, None])
    assert values(config, records) == [{"ed": 1, "prefix": 2, "other": 3}, None]
    config["transforms.t.field.pattern.flags"] = "DOTALL"
    assert values(config, batch([{"prefixed": 1}])) == [{"prefixed": 1}]
    every = stage("PatternRename$Value", field_pattern=r"\.", field_replacement="_")
    assert values(every, batch([{"a.b.c": 1}])) == [{"a_b_c": 1}]
    without = stage("PatternRename$Value", field_pattern="^p_", field_replacement="")
    assert values(without, batch([{"p_a": 1}])) == [{"a": 1}]
    suffixed = stage("PatternRename$Value", field_pattern="$", field_replacement="_x")
    assert values(suffixed, batch([{"a": 1}])) == [{"a_x": 1}]
    both = stage("PatternRename$Value", field_pattern="[ab]", field_replacement="c")
    (why,) = refusals(both, batch([{"a": 1, "b": 2}], has_schema=True))
    assert "duplication c" in why
    config["transforms.t.field.pattern.flags"] = "LITERAL"
    with pytest.raises(ConfigError, match="LITERAL is not one of"):
        chain_of(config)


def test_a_pattern_drops_records() -> None:
    config = stage("PatternFilter$Value", pattern="x.*", fields="a,b")
    records = batch([{"a": "xy", "b": ""}, {"a": "yx", "b": None}, {"a": "", "b": "x"}, None])
    assert values(config, records) == [{"a": "yx", "b": None}, None]
    assert values(config, batch([{"c": "x"}])) == [{"c": "x"}]


def test_a_side_becomes_null_and_the_topic_a_field() -> None:
    made = applied(stage("SetNull$Key"), batch([{"a": 1}], ["k"])).batch
    assert (made.keys.array.to_pylist(), made.values.array.to_pylist()) == ([None], [{"a": 1}])
    assert values(stage("SetNull$Value"), batch([{"a": 1}])) == [None]
    config = stage("TopicNameToField$Value", field="t")
    assert values(config, batch([{"a": 1}, None])) == [{"a": 1, "t": "orders"}, None]


@pytest.mark.parametrize(
    ("given", "name", "wanted", "expected"),
    [
        ("UPPER_UNDERSCORE", "TOPIC_NAME", "LOWER_CAMEL", "topicName"),
        ("LOWER_CAMEL", "topicName", "UPPER_UNDERSCORE", "TOPIC_NAME"),
        ("LOWER_HYPHEN", "topic-name", "LOWER_UNDERSCORE", "topic_name"),
        ("LOWER_HYPHEN", "day-12-sys", "UPPER_CAMEL", "Day12Sys"),
        ("UPPER_CAMEL", "TopicName", "LOWER_HYPHEN", "topic-name"),
        ("LOWER_CAMEL", "aBC", "LOWER_UNDERSCORE", "a_b_c"),
        ("LOWER_UNDERSCORE", "_a__b", "UPPER_CAMEL", "AB"),
        ("LOWER_CAMEL", "Same", "LOWER_CAMEL", "Same"),
        ("LOWER_HYPHEN", "plain", "UPPER_UNDERSCORE", "PLAIN"),
    ],
)
def test_the_case_of_a_topic_changes(given: str, name: str, wanted: str, expected: str) -> None:
    assert recased(name, given.lower(), wanted.lower()) == expected
    config = stage("ChangeTopicCase", **{"from": given, "to": wanted})
    assert routed(config, name) == expected
    assert routed(stage("LowerCaseTopic"), name) == name.lower()


@pytest.mark.parametrize("name", ["TimestampNowField$Value", "TimestampNow", "ChangeCase$Value"])
def test_others_are_refused_with_what_to_use(name: str) -> None:
    with pytest.raises(ConfigError, match="not available: "):
        chain_of(stage(name))
