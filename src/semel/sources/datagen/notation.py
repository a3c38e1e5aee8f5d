"""A short way to write Avro schemas with ``arg.properties``, and values that several share."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

Type = dict[str, Any]


def type_of(name: str, **rules: Any) -> Type:
    return {"type": name, "arg.properties": rules} if rules else {"type": name}


def between(name: str, least: float, most: float) -> Type:
    return type_of(name, range={"min": least, "max": most})


def count(name: str, start: int = 0, step: int = 1) -> Type:
    return type_of(name, iteration={"start": start, "step": step})


def like(pattern: str) -> Type:
    return type_of("string", regex=pattern)


def one_of(*options: Any, kind: str = "string") -> Type:
    return type_of(kind, options=list(options))


def logical(kind: Type, name: str, **more: Any) -> Type:
    return {**kind, "logicalType": name, **more}


def record(name: str, /, **fields: Any) -> Type:
    space, _, own = name.rpartition(".")
    listed = [{"name": n, "type": t} for n, t in fields.items()]
    return {"type": "record", "name": own, "namespace": space, "fields": listed}


def rows(name: str, types: dict[str, str], *rows: tuple[Any, ...]) -> Type:
    options = [dict(zip(types, row, strict=True)) for row in rows]
    return {**record(name, **types), "arg.properties": {"options": options}}


PAST = (1_500_000_000_000, 1_600_000_000_000)
DAY = logical(between("int", 18_500, 19_500), "date")
ADDRESS = like("(10|172|192)[.][1-9][0-9][.]1[0-9]{2}[.][1-9]")
USER = like("User_[1-9]")


def clock(step: int = 1000) -> Type:
    return logical(count("long", 1_600_000_000_000, step), "timestamp-millis")


FIRST = ("Ada", "Bela", "Carla", "Dimitri", "Edda", "Farid", "Greta", "Hugo", "Ines", "Jonas")
LAST = ("Abel", "Berg", "Costa", "Dahl", "Engel", "Fiala", "Gruber")
CITIES = ("Berlin", "Lisbon", "Oslo", "Porto", "Turin", "Vienna")
PEOPLE = list(islice(zip(cycle(FIRST), cycle(LAST), strict=False), 50))
NAMES = [f"{first} {last}" for first, last in PEOPLE]
INSURED = list(range(400, 450))


def mail(first: str, last: str) -> str:
    return f"{first}.{last}@example.com".lower()
