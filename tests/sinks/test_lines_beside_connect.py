"""Lines of values that are no objects, as Kafka Connect 4.3.1 and semel write them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from semel_lab.embedded import Kafka
from semel_lab.embedded.connect import ConnectWorker
from tests.conftest import MakeTopic
from tests.engine.harness import caught_up, name, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONVERTERS = "org.apache.kafka.connect.converters."
JSON = "org.apache.kafka.connect.json.JsonConverter"
CONNECT = "org.apache.kafka.connect.data."
TEXTS = ["foo", "", 'say "ü"\\', "two\nlines", "\U0001f600"]
DOUBLES = [0.0, 1.0, 1.5, 1e7, 12345678.9, 1e-3, 1e-5, 1e300, 0.1, -2.5e-12]


def envelopes(schema: dict[str, object], *payloads: object) -> list[bytes | None]:
    return [json.dumps({"schema": schema, "payload": p}).encode() for p in payloads]


def kind(type_: str, **more: object) -> dict[str, object]:
    return {"type": type_, "optional": True, **more}


CASES: dict[str, tuple[dict[str, str], list[bytes | None]]] = {
    "texts": ({"value.converter": JSON}, envelopes(kind("string"), *TEXTS, None)),
    "longs": ({"value.converter": JSON}, envelopes(kind("int64"), 0, -1, 2**62)),
    "doubles": ({"value.converter": JSON}, envelopes(kind("double"), *DOUBLES)),
    "floats": ({"value.converter": JSON}, envelopes(kind("float"), 1.1, 1e10, 3.0)),
    "booleans": ({"value.converter": JSON}, envelopes(kind("boolean"), True, False)),
    "decimals": (
        {"value.converter": JSON},
        envelopes(
            kind("bytes", name=f"{CONNECT}Decimal", version=1, parameters={"scale": "2"}),
            *("AJY=", "AA==", "/w=="),
        ),
    ),
    "moments": (
        {"value.converter": JSON},
        envelopes(kind("int64", name=f"{CONNECT}Timestamp", version=1), 0, 1_700_000_000_123),
    ),
    "plain": (
        {"value.converter": JSON, "value.converter.schemas.enable": "false"},
        [json.dumps(v).encode() for v in (*TEXTS, 1, -5, 2.50, 1e22, True, None)] + [None],
    ),
    "text": (
        {"value.converter": "org.apache.kafka.connect.storage.StringConverter"},
        [*[t.encode() for t in TEXTS], None],
    ),
    "long": (
        {"value.converter": f"{CONVERTERS}LongConverter"},
        [struct.pack(">q", v) for v in (1, -2)],
    ),
    "double": (
        {"value.converter": f"{CONVERTERS}DoubleConverter"},
        [struct.pack(">d", v) for v in (*DOUBLES, -0.0, float("inf"), float("nan"))],
    ),
    "boolean": ({"value.converter": f"{CONVERTERS}BooleanConverter"}, [b"\1", b"\0"]),
    "a field": (
        {
            "value.converter": JSON,
            "value.converter.schemas.enable": "false",
            "transforms": "a",
            "transforms.a.type": "org.apache.kafka.connect.transforms.ExtractField$Value",
            "transforms.a.field": "a",
        },
        [b'{"a": "x"}', b'{"a": null}', b'{"a": "\\u00fc"}'],
    ),
}


def test_both_write_the_same_lines(kafka: Kafka, topic: MakeTopic, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    configs = {}
    for case, (keys, values) in CASES.items():
        there = topic(values=values)
        configs[case] = {
            "name": name(),
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "topics": there,
            "consumer.override.auto.offset.reset": "earliest",
            **keys,
        }
    with ConnectWorker(tmp_path / "connect", kafka.bootstrap_servers, plugin=None) as worker:
        for case, config in configs.items():
            worker.create(config["name"], {**config, "file": str(theirs / case)})
        for case, config in configs.items():
            wait_until(lambda config=config: worker.check(config["name"]))
            lines = len(CASES[case][1]) + (case in ("texts", "plain", "text"))
            wait_until(
                lambda case=case, lines=lines: (theirs / case).read_bytes().count(b"\n") >= lines
            )
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    for case, config in configs.items():
        own = {**config, "name": name(), "file": str(ours / case), **servers}
        caught_up(own)
    found = {case: (ours / case).read_text() for case in configs}
    assert found == {case: (theirs / case).read_text() for case in configs}
