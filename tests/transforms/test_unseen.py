"""Stages that wait for what no record has are warned of at the start."""

from __future__ import annotations

from typing import Any

import pytest

from semel.driver.planning import plan, plan_source
from semel.transforms import chain_of
from semel.transforms.unseen import RecordFacts, unseen

KAFKA = "org.apache.kafka.connect.transforms."
PREDICATES = KAFKA + "predicates."
NO_KEYS, NO_TOMBSTONES = RecordFacts(keyed=False), RecordFacts(tombstones=False)


def stages(*given: dict[str, str]) -> dict[str, str]:
    """The configuration of transforms; ``if`` and ``unless`` are predicates."""
    raw = {"transforms": ",".join(f"s{n}" for n in range(len(given)))}
    named = []
    for n, keys in enumerate(given):
        for key, value in keys.items():
            if key in ("if", "unless"):
                kind, _, argument = value.partition(":")
                raw |= {
                    f"transforms.s{n}.predicate": f"p{n}",
                    f"predicates.p{n}.type": PREDICATES + kind,
                }
                raw[f"transforms.s{n}.negate"] = str(key == "unless").lower()
                named.append(f"p{n}")
                if argument:
                    raw[f"predicates.p{n}.{'name' if kind == 'HasHeaderKey' else 'pattern'}"] = (
                        argument
                    )
            else:
                raw[f"transforms.s{n}.{key}"] = KAFKA + value if key == "type" else value
    return raw | ({"predicates": ",".join(named)} if named else {})


FILTER = {"type": "Filter"}
RENAME = {"type": "RegexRouter", "regex": "t(.*)", "replacement": "u$1"}
KEY = {"type": "ValueToKey", "fields": "id"}
EXTRACT = {"type": "ExtractField$Value", "field": "id"}
EXTRACT_KEY = {"type": "ExtractField$Key", "field": "id"}
TOPICS = RecordFacts(topics=["t1", "t2"])
FIELDS = RecordFacts(fields=["id", "name"])


@pytest.mark.parametrize(
    ("given", "known", "told"),
    [
        (
            [FILTER | {"if": "HasHeaderKey:h"}],
            RecordFacts(headers=[]),
            "the header h, which no record",
        ),
        ([FILTER | {"if": "HasHeaderKey:h"}], RecordFacts(headers=["h"]), ""),
        ([FILTER | {"if": "HasHeaderKey:h"}], RecordFacts(), ""),
        (
            [
                {"type": "InsertHeader", "header": "h", "value.literal": "1"},
                FILTER | {"if": "HasHeaderKey:h"},
            ],
            RecordFacts(headers=[]),
            "",
        ),
        ([FILTER | {"if": "RecordIsTombstone"}], NO_TOMBSTONES, "selects no record"),
        ([FILTER | {"unless": "RecordIsTombstone"}], NO_TOMBSTONES, "selects every record"),
        ([RENAME | {"unless": "RecordIsTombstone"}], NO_TOMBSTONES, ""),
        ([EXTRACT, FILTER | {"if": "RecordIsTombstone"}], NO_TOMBSTONES, ""),
        ([FILTER | {"if": "RecordIsTombstone"}], RecordFacts(), ""),
        (
            [EXTRACT | {"if": "TopicNameMatches:u.*"}],
            TOPICS,
            "selects no record: the topics are t1",
        ),
        ([EXTRACT | {"if": "TopicNameMatches:t1"}], TOPICS, ""),
        ([EXTRACT | {"unless": "TopicNameMatches:t."}], TOPICS, "selects no record"),
        ([FILTER | {"if": "TopicNameMatches:t."}], TOPICS, "selects every record"),
        ([FILTER | {"unless": "TopicNameMatches:u."}], TOPICS, "selects every record"),
        ([EXTRACT | {"if": "TopicNameMatches:u.*"}], RecordFacts(), ""),
        ([RENAME, EXTRACT | {"if": "TopicNameMatches:u.*"}], TOPICS, ""),
        ([RENAME, EXTRACT | {"if": "TopicNameMatches:t.*"}], TOPICS, "the topics are u1, u2"),
        ([EXTRACT_KEY], NO_KEYS, "it is for keys, but the source writes records without keys"),
        ([KEY, EXTRACT_KEY], NO_KEYS, ""),
        ([EXTRACT_KEY], RecordFacts(), ""),
        ([EXTRACT], FIELDS, ""),
        ([EXTRACT | {"field": "idd"}], FIELDS, "it takes the field idd, which no value has"),
        ([KEY | {"fields": "id,x"}], FIELDS, "it takes the field x, which no value has"),
        ([KEY, EXTRACT | {"field": "x"}], FIELDS, "it takes the field x"),
        ([{"type": "HoistField$Value", "field": "x"}, EXTRACT | {"field": "x"}], FIELDS, ""),
        ([{"type": "Cast$Key", "spec": "int8"}, EXTRACT | {"field": "x"}], FIELDS, "the field x"),
    ],
)
def test_what_no_record_has_is_told(
    given: list[dict[str, str]], known: RecordFacts, told: str
) -> None:
    found = unseen(chain_of(stages(*given)), known)
    if told:
        (warning,) = found
        assert told in warning
        assert warning.startswith(f"transforms.s{len(given) - 1}.type: ")
    else:
        assert found == []


def warned(warnings: list[str]) -> list[str]:
    return [w for w in warnings if w.startswith("transforms.s")]


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        ({"connector.class": "JdbcSource", "mode": "bulk", "topic.prefix": "t-"}, 1),
        (
            {
                "connector.class": "JdbcSource",
                "mode": "bulk",
                "topic.prefix": "t",
                "query": "SELECT",
            },
            2,
        ),
        ({"connector.class": "FileStreamSource", "file": "/x", "topic": "t"}, 2),
        ({"connector.class": "FileStreamSource", "file": "/x", "topic": "u1"}, 1),
    ],
)
def test_a_source_says_what_its_records_have(keys: dict[str, str], count: int) -> None:
    raw: dict[str, Any] = {
        **{"name": "c", "bootstrap.servers": "h:1", "connection.url": "jdbc:sqlite:/x"},
        **keys,
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        **stages(EXTRACT_KEY, EXTRACT | {"if": "TopicNameMatches:u."}),
    }
    if keys["connector.class"] != "JdbcSource":
        del raw["connection.url"]
    assert len(warned(plan_source(raw).warnings)) == count


def test_a_sink_knows_its_topics_and_the_declared_fields() -> None:
    raw = {
        **{"name": "c", "bootstrap.servers": "h:1", "topics": "t1,t2", "connector.class": "sqlite"},
        "connection.url": "jdbc:sqlite:/tmp/x.db",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "value.converter.schema": "id BIGINT, name STRING",
        **stages(KEY | {"fields": "nme"}, FILTER | {"unless": "TopicNameMatches:u.*"}),
    }
    found = warned(plan(raw).warnings)
    assert len(found) == 2
    assert "the declared schema has id, name" in found[0]
    assert warned(plan({**raw, "topics": "u1,t2"} | {"value.converter.schema": ""}).warnings) == []
