"""Tables and their columns as a database's catalog describes them, with their Arrow types; and the
types of new columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from semel.converters.semantic import SemanticType
from semel.core.quoting import named
from semel.databases.names import Name


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a target table.

    ``arrow`` is the type that converters are asked for, ``copied`` the one in which values are
    written (by COPY to PostgreSQL), None where the server must cast text to ``cast``: the column's
    type without length or scale, because a cast to ``varchar(3)`` would cut what an assignment
    refuses. ``digits`` counts those after the point: of seconds, if the column keeps fewer
    than six, or of a numeric. Values that the server casts for a column that ``rounds`` must be
    compared with the stored result.
    """

    name: str
    oid: int
    type: str
    cast: str
    arrow: pa.DataType
    copied: pa.DataType | None
    has_default: bool = False
    nullable: bool = True
    generated: bool = False
    fixed: bool = False  # inserted like any other, and never changed (GENERATED ALWAYS AS IDENTITY)
    element: Column | None = None
    any_numeric: bool = False  # without bounds, or with bounds that no Arrow decimal has
    digits: int | None = None
    rounds: bool = False
    length: int | None = None  # of text, in characters
    base: str = ""  # the type that a domain is made of, as the catalog names it
    collation: str | None = None  # quoted, if different texts can be equal by it
    exact: bool = True  # whether values are equal only if they are the same

    @property
    def is_json(self) -> bool:
        return bool(self.arrow == pa.json_())


def column(
    name: str,
    type_: str,
    arrow: pa.DataType,
    *,
    stored: pa.DataType | None = None,
    has_default: bool = False,
    nullable: bool = True,
    generated: bool = False,
    digits: int | None = None,
    exact: bool = True,
) -> Column:
    """A column whose values converters give as ``arrow`` and the database takes as ``stored``."""
    if stored is None:
        stored = pa.string() if arrow == pa.json_() else arrow
    return Column(
        name,
        0,
        type_,
        type_,
        arrow,
        stored,
        has_default,
        nullable,
        generated,
        digits=digits,
        exact=exact,
    )


@dataclass(frozen=True, slots=True)
class Table:
    """An existing table: its columns, and the column sets that are unique.

    ``name`` always has the schema. Views, foreign tables, and tables with row level security are
    not ``copyable``.
    """

    name: Name
    columns: dict[str, Column]
    keys: Sequence[frozenset[str]]
    oid: int = 0
    copyable: bool = True

    def key_columns(self, declared: Sequence[str]) -> list[str]:
        """The declared columns of the key, or those of the first unique key if none are.

        Raises:
            ValueError: the table has no unique key, or lacks a column.
        """
        chosen = list(declared) or sorted(next(iter(self.keys), ()))
        if not chosen:
            raise ValueError(f"table {named(self.name)} has no unique key; set provenance=true")
        missing = [n for n in chosen if n not in self.columns]
        if missing:
            raise ValueError(
                f"table {named(self.name)} has no column {named(missing[0])}; set provenance=true"
            )
        return chosen

    def twin(self, name: str) -> str | None:
        """The column of another name that a database without cases takes for this one."""
        if name in self.columns:
            return None
        return next((n for n in self.columns if in_one_case(n) == in_one_case(name)), None)

    def schema_of(self, names: Sequence[str]) -> pa.Schema:
        """Some columns, in the types that converters are asked for."""
        return pa.schema([(n, self.columns[n].arrow) for n in names])

    @property
    def writable(self) -> dict[str, Column]:
        return {n: c for n, c in self.columns.items() if not c.generated}


def in_one_case(name: str) -> bytes:
    """The name with its A to Z in lower case, and no other letter changed."""
    return name.encode().lower()


def is_text(field: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(field) or pa.types.is_large_string(field) or field == pa.string_view()
    )


def is_binary(field: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(field)
        or pa.types.is_large_binary(field)
        or pa.types.is_fixed_size_binary(field)
        or field == pa.binary_view()
    )


def is_list(field: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(field)
        or pa.types.is_large_list(field)
        or pa.types.is_fixed_size_list(field)
    )


def is_number(field: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(field) or pa.types.is_floating(field) or pa.types.is_decimal(field)
    )


# The types of new columns

NewTypes = Sequence[tuple[Callable[[pa.DataType], bool], str | Callable[[pa.DataType], str]]]
"""The types of new columns, by conditions on their Arrow types, the first that holds."""


def new_type(kind: pa.DataType, types: NewTypes) -> str | None:
    """The type of a new column; None if no condition holds."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    for matches, name in types:
        if matches(kind):
            return name if isinstance(name, str) else name(kind)
    return None


def digits_of(kind: pa.DataType) -> tuple[int, int]:
    """The precision and scale of a column for decimals. No scale is negative in SQL."""
    return kind.precision - min(kind.scale, 0), max(kind.scale, 0)


def decimal(precision: int, scale: int) -> Callable[[pa.DataType], str]:
    """DECIMAL with these limits."""

    def name(kind: pa.DataType) -> str:
        digits, fraction = digits_of(kind)
        return f"DECIMAL({min(precision, digits)}, {min(scale, fraction)})"

    return name


def timestamp(zoned: str, plain: str) -> Callable[[pa.DataType], str]:
    """One type for timestamps with a time zone, another for those without."""
    return lambda k: zoned if k.tz else plain


# Those of semantic types: see :mod:`semel.converters.semantic`

SPATIAL = {
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"),
    *("multipolygon", "geometrycollection", "geomcollection"),
}
"""MySQL's spatial types."""

_UNBOUNDED = 2**31 - 1
"""The length of Debezium's bits if the column's type has none."""
_WIDEST_BIT = 64
"""The bits of MySQL's widest BIT."""
_MEMBERS = {"enum": 65_535, "set": 64}

_Named = str | Callable[[Mapping[str, str]], str | None]


def length_of(parameters: Mapping[str, str]) -> int | None:
    text = parameters.get("length", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) < _UNBOUNDED else None


def _bits(parameters: Mapping[str, str]) -> str:
    length = length_of(parameters)
    return f"bit({length})" if length else "bit varying"


def _bits_of_mysql(parameters: Mapping[str, str]) -> str | None:
    length = length_of(parameters) or 0
    return f"BIT({length})" if 0 < length <= _WIDEST_BIT else None


_MEMBER, _ESCAPED = re.compile(r"(?:^|,)((?:\\[\\,]|[^,])*)"), re.compile(r"\\([\\,])")
"""Debezium puts a backslash before commas and backslashes inside members."""


def _members(kind: str) -> Callable[[Mapping[str, str]], str | None]:
    def made(parameters: Mapping[str, str]) -> str | None:
        allowed = parameters.get("allowed", "")
        found = _MEMBER.findall(allowed) if allowed else []
        members = [_ESCAPED.sub(r"\1", member) for member in found]
        if not 0 < len(members) <= _MEMBERS[kind] or any(m != m.rstrip(" ") for m in members):
            return None
        if kind == "set" and any("," in member for member in members):
            return None
        quoted = ",".join("'" + member.replace("'", "''") + "'" for member in members)
        return f"{kind}({quoted})"

    return made


_MYSQL, _MARIADB = "MySQL", "MariaDB"
_DURATION = {"PostgreSQL": "interval", "DuckDB": "INTERVAL"}

_OF_SEMANTIC: Mapping[str, Mapping[str, _Named]] = {
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


def new_semantic_type(
    kind: pa.DataType, system: str, exists: Callable[[str], bool], *, in_key: bool
) -> str | None:
    """The type of a new column for a semantic type; None if its Arrow type decides. ``exists``
    tells whether PostgreSQL has a type."""
    if not isinstance(kind, SemanticType):
        return None
    named = _OF_SEMANTIC.get(kind.name, {}).get(_MYSQL if system == _MARIADB else system)
    type_name = named if isinstance(named, str) or named is None else named(kind.parameters)
    if type_name is None or (in_key and type_name.lower() in _NOT_IN_KEYS):
        return None
    return None if type_name in _OPTIONAL and not exists(type_name) else type_name


def stored_type(kind: pa.DataType) -> pa.DataType:
    """A type without what is known beyond it."""
    return kind.storage_type if isinstance(kind, SemanticType) else kind
