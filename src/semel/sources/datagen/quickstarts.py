"""The schemas of Confluent's Datagen connector, by name: the same fields and types, with values of
semel's own."""

from __future__ import annotations

import json
from dataclasses import dataclass

from semel.sources.datagen import industries, retail


@dataclass(frozen=True, slots=True)
class Schema:
    """An Avro schema in JSON, and the field that is the key, if any."""

    avro: str
    keyfield: str


QUICKSTARTS = {
    name: Schema(json.dumps(avro), keyfield)
    for name, (keyfield, avro) in (retail.SCHEMAS | industries.SCHEMAS).items()
}

_WITH_SUFFIX = (
    *("orders", "ratings", "users", "pageviews", "stock_trades"),
    *("clickstream", "clickstream_codes", "clickstream_users"),
)
FILES = {
    **{f"{name}.avro": name for name in QUICKSTARTS},
    **{f"{name}_schema.avro": name for name in _WITH_SUFFIX},
    **{"purchase.avro": "purchases", "users_array_map_schema.avro": "users_"},
}
"""The names under which ``schema.filename`` finds them in Confluent's connector."""
