"""The types of new columns for semantic types. See :mod:`semel.converters.semantic`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from semel.converters.semantic import SemanticType

_UNBOUNDED = 2**31 - 1
"""The length of Debezium's bits if the column's type has none."""
_WIDEST_BIT = 64
"""The bits of MySQL's widest BIT."""
_MEMBERS = {"enum": 65_535, "set": 64}

New = str | Callable[[Mapping[str, str]], str | None]


def length_of(parameters: Mapping[str, str]) -> int | None:
    text = parameters.get("length", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) < _UNBOUNDED else None


def _bits(parameters: Mapping[str, str]) -> str:
    length = length_of(parameters)
    return f"bit({length})" if length else "bit varying"


def _bits_of_mysql(parameters: Mapping[str, str]) -> str | None:
    length = length_of(parameters) or 0
    return f"BIT({length})" if 0 < length <= _WIDEST_BIT else None


def _members(kind: str) -> Callable[[Mapping[str, str]], str | None]:
    def made(parameters: Mapping[str, str]) -> str | None:
        allowed = parameters.get("allowed", "")
        members = allowed.split(",") if allowed else []
        if not 0 < len(members) <= _MEMBERS[kind] or any(m != m.rstrip(" ") for m in members):
            return None
        quoted = ",".join("'" + member.replace("'", "''") + "'" for member in members)
        return f"{kind}({quoted})"

    return made


_MYSQL, _MARIADB = "MySQL", "MariaDB"
_DURATION = {"PostgreSQL": "interval", "DuckDB": "INTERVAL"}

NEW: Mapping[str, Mapping[str, New]] = {
    "data.Bits": {"PostgreSQL": _bits, _MYSQL: _bits_of_mysql, "DuckDB": "BIT"},
    "data.Enum": {_MYSQL: _members("enum")},
    "data.EnumSet": {_MYSQL: _members("set")},
    "data.Ltree": {"PostgreSQL": "ltree"},
    "data.Tsvector": {"PostgreSQL": "tsvector"},
    "data.Uuid": {"PostgreSQL": "uuid", "DuckDB": "UUID"},
    "data.VariableScaleDecimal": {"PostgreSQL": "numeric", _MYSQL: "DECIMAL(65, 30)"},
    "data.Xml": {"PostgreSQL": "xml", "SQL Server": "XML"},
    # A halfvec, which Debezium's sink makes of a FloatVector, would round.
    "data.DoubleVector": {"PostgreSQL": "vector"},
    "data.FloatVector": {"PostgreSQL": "vector"},
    "data.SparseDoubleVector": {"PostgreSQL": "sparsevec"},
    "data.geometry.Geometry": {"PostgreSQL": "geometry", _MYSQL: "GEOMETRY"},
    "data.geometry.Geography": {"PostgreSQL": "geography", _MYSQL: "GEOMETRY"},
    "data.geometry.Point": {"PostgreSQL": "point", _MYSQL: "POINT"},
    "time.Interval": _DURATION,
    "time.MicroDuration": _DURATION,
    "time.NanoDuration": _DURATION,
    "time.Year": {_MYSQL: "YEAR"},
    "time.ZonedTime": {
        "PostgreSQL": "timetz",
        _MYSQL: "TIME(6)",
        "SQL Server": "TIME(6)",
        "DuckDB": "TIMETZ",
    },
}
"""The types of new columns, by system, where the Arrow type does not decide them."""

_OPTIONAL = {"ltree", "vector", "sparsevec", "geometry", "geography", "xml"}
"""Types of PostgreSQL that not every server has."""
_NOT_IN_KEYS = {"point", "xml", "geometry", "geography", "vector", "sparsevec"}


def new_type(
    kind: pa.DataType, system: str, exists: Callable[[str], bool], *, in_key: bool
) -> str | None:
    """The type of a new column for a semantic type; None if its Arrow type decides. ``exists``
    tells whether PostgreSQL has a type."""
    if not isinstance(kind, SemanticType):
        return None
    named = NEW.get(kind.name, {}).get(_MYSQL if system == _MARIADB else system)
    type_name = named if isinstance(named, str) or named is None else named(kind.parameters)
    if type_name is None or (in_key and type_name.lower() in _NOT_IN_KEYS):
        return None
    return None if type_name in _OPTIONAL and not exists(type_name) else type_name


def stored(kind: pa.DataType) -> pa.DataType:
    """A type without what is known beyond it."""
    return kind.storage_type if isinstance(kind, SemanticType) else kind


SPATIAL = {
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"),
    *("multipolygon", "geometrycollection", "geomcollection"),
}
"""MySQL's spatial types."""
