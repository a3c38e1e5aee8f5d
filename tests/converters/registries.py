"""What the tests of formats with a schema registry share."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from semel.converters.registry.client import Schema, UnknownSchema

ROW = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("small", pa.int8()),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("time", pa.time64("us")),
        ("tags", pa.list_(pa.string())),
        ("inner", pa.struct([("x", pa.float64())])),
        ("by_name", pa.map_(pa.string(), pa.int32())),
        ("by_number", pa.map_(pa.int32(), pa.string())),
        ("data", pa.binary()),
    ]
)
VALUES: list[dict[str, Any]] = [
    {
        "id": 1,
        "small": -5,
        "price": Decimal("-1.50"),
        "day": datetime.date(2024, 1, 2),
        "at": datetime.datetime(2024, 1, 2, 3, 4, 5, 678_000, datetime.UTC),
        "time": datetime.time(1, 2, 3, 4_000),
        "tags": ["a", None],
        "inner": {"x": 0.5},
        "by_name": [("k", 1)],
        "by_number": [(7, "v")],
        "data": b"\0\xff",
    },
    {"id": 2, "tags": []},
]


class Memory:
    """A registry that keeps what it is given."""

    url = "http://registry"

    def __init__(self) -> None:
        self.subjects: dict[str, list[Schema]] = {}

    def schema(self, schema_id: int) -> Schema:
        for versions in self.subjects.values():
            for version in versions:
                if version.id == schema_id:
                    return version
        raise UnknownSchema("Schema not found")

    def latest(self, subject: str) -> Schema | None:
        versions = self.subjects.get(subject)
        return versions[-1] if versions else None

    def id_of(self, subject: str, kind: str, text: str, *, register: bool) -> int:
        versions = self.subjects.setdefault(subject, [])
        for version in versions:
            if version.text == text:
                return version.id
        if not register:
            raise UnknownSchema("Schema not found")
        number = 1 + sum(map(len, self.subjects.values()))
        versions.append(Schema(kind, text, id=number))
        return number

    def add(self, kind: str, text: str, references: tuple[tuple[str, str], ...] = ()) -> int:
        """A schema that somebody else has registered."""
        number = self.id_of(f"other-{len(self.subjects)}", kind, text, register=True)
        (found,) = self.subjects[f"other-{len(self.subjects) - 1}"]
        self.subjects[f"other-{len(self.subjects) - 1}"] = [Schema(kind, text, references, number)]
        assert found.id == number
        return number


def framed(number: int, content: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + content
