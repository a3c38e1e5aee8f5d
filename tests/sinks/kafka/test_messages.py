"""What the Kafka sink writes for values of each type."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from semel.config import read
from semel.converters import create
from semel.core.records import OFFSET, PARTITION, TOPIC, ConnectRecords
from semel.sinks.flatten import flattened
from semel.sinks.kafka.config import KafkaConfig
from semel.sinks.kafka.sender import Encoder

JSON: dict[str, Any] = {"schemas.enable": "false"}
BLOB = pa.array([{"value": b"x"}], pa.struct([("value", pa.binary())]))


def written(
    name: str, values: pa.Array, keys: pa.Array | None = None
) -> tuple[bytes | None, bytes | None]:
    """The key and the value of the one message that a record becomes."""
    settings = JSON if name == "JsonConverter" else {}
    key, value = (
        create(name, settings, is_key=is_key, where="a converter") for is_key in (True, False)
    )
    encoder = Encoder(read(KafkaConfig, {}), provenance=False, key=key, value=value)
    origin = pa.table({TOPIC: ["t"], PARTITION: pa.array([0], pa.int32()), OFFSET: [0]})
    records = ConnectRecords("t", origin, pa.nulls(1) if keys is None else keys, values)
    (message,) = encoder.messages([flattened(records, deletes=True)], "t").each()
    return message.key, message.value


@pytest.mark.parametrize(
    ("converter", "values", "value"),
    [
        ("JsonConverter", pa.array([7]), b"7"),
        ("JsonConverter", pa.array(["x"]), b'"x"'),
        ("JsonConverter", pa.array([[1, 2]]), b"[1,2]"),
        ("JsonConverter", pa.array([{"value": 7}]), b'{"value":7}'),
        ("JsonConverter", pa.array([b"\xff"]), b"\xff"),
        ("JsonConverter", BLOB, b'{"value":"eA=="}'),
        ("LongConverter", pa.array([7]), b"\0\0\0\0\0\0\0\7"),
        ("StringConverter", pa.array(["x"]), b"x"),
        ("StringConverter", pa.array([b"\xff"]), b"\xff"),
        ("ByteArrayConverter", pa.array([b"x"]), b"x"),
    ],
    ids=str,
)
def test_the_converter_writes_what_a_transform_has_made_of_keys_and_values(
    converter: str, values: pa.Array, value: bytes
) -> None:
    assert written(converter, values) == (None, value)
    assert written(converter, values, values) == (value, value)
