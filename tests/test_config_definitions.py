"""A key is declared once, with all that Kafka Connect's ConfigDef knows of one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pytest

from semel.config import ConnectorConfig, Definition, Type, default_text, definitions, key, read
from semel.core.errors import ConfigError
from semel.sinks import sink_class

SINKS = (
    *("postgresql", "sqlite", "duckdb", "mysql", "sqlserver"),
    *("kafka", "delta", "iceberg", "files", "opensearch"),
)

CONNECT = {
    "name": ("STRING", "HIGH", "Common", None),
    "connector.class": ("STRING", "HIGH", "Common", None),
    "tasks.max": ("INT", "HIGH", "Common", "1"),
    "topics": ("LIST", "HIGH", "Common", ""),
    "topics.regex": ("STRING", "HIGH", "Common", ""),
    "errors.tolerance": ("STRING", "MEDIUM", "Error Handling", "none"),
    "errors.log.enable": ("BOOLEAN", "MEDIUM", "Error Handling", "false"),
    "errors.log.include.messages": ("BOOLEAN", "MEDIUM", "Error Handling", "false"),
    "errors.deadletterqueue.topic.name": ("STRING", "MEDIUM", "Error Handling", ""),
    "errors.deadletterqueue.topic.replication.factor": ("SHORT", "MEDIUM", "Error Handling", "3"),
}
"""Definitions that Kafka Connect 4.3.1 answers for a sink: type, importance, group, default."""


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Numbers:
    int_: int = key("int", type=Type.INT)
    long: int = key("long")


def _even(number: int) -> None:
    if number % 2:
        raise ValueError("must be even")


@dataclass(frozen=True)
class Section:
    """A section of a third party's sink."""

    path: str = key("path")
    size: int = key("size", 1)
    port: int = key("port", 1, type=Type.INT)
    wheels: int = key("wheels", 4, validator=_even, at_most=8)
    on: bool = key("on", True)
    items: tuple[str, ...] = key("items", ("a", "b"))
    colour: Colour | None = key("colour", None)
    format: str = key("format", "json", recommended=("json", "avro"))
    level: str = key("level", "low", choices=("", "low", "high"))
    token: str = key("token", "", secret=True)


DEFINED = {d.name: d for d in definitions(Section)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("path", (Type.STRING, None, "HIGH", ())),
        ("size", (Type.LONG, "1", "MEDIUM", ())),
        ("port", (Type.INT, "1", "MEDIUM", ())),
        ("on", (Type.BOOLEAN, "true", "MEDIUM", ())),
        ("items", (Type.LIST, "a,b", "MEDIUM", ())),
        ("colour", (Type.STRING, None, "MEDIUM", ("auto", "red", "blue"))),
        ("format", (Type.STRING, "json", "MEDIUM", ("json", "avro"))),
        ("level", (Type.STRING, "low", "MEDIUM", ("low", "high"))),
        ("token", (Type.PASSWORD, "", "MEDIUM", ())),
    ],
)
def test_the_type_follows_from_the_annotation_and_the_values_from_the_type(
    name: str, expected: tuple[Type, str | None, str, tuple[str, ...]]
) -> None:
    found = DEFINED[name]
    values = (found.type, default_text(found), found.importance, found.recommended_values)
    assert values == expected
    assert found.required == (name == "path")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("wheels", "3", "wheels='3' must be even"),
        ("wheels", "10", "wheels='10' must be at most 8"),
        ("port", "2147483648", "port='2147483648' must be at most 2147483647"),
        ("size", "9223372036854775808", "must be at most 9223372036854775807"),
        ("colour", "green", "colour='green' must be one of auto, red, blue"),
    ],
)
def test_a_value_that_its_definition_excludes_is_refused(
    name: str, value: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(Section, {"path": "/x", name: value})


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), (" 1\t", 1), ("+1", 1), ("-1", -1), ("007", 7), ("\u0661\u0660", 10)],
)
def test_numbers_are_what_java_reads(text: str, number: int) -> None:
    assert read(Numbers, {"int": text, "long": text}) == Numbers(int_=number, long=number)


@pytest.mark.parametrize(
    "text",
    [
        "1_0",
        "1.0",
        "1e3",
        "0x1",
        "+",
        "- 1",
        "\u00b2",
        "\u00a01",
        "\U0001d7cf",
        "Infinity",
        "9" * 5000,
    ],
)
def test_numbers_are_not_what_only_python_reads(text: str) -> None:
    with pytest.raises(ConfigError, match="2 problems"):
        read(Numbers, {"int": text, "long": text})


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**63, -(2**63) - 1])
def test_a_number_is_within_its_type(number: int) -> None:
    with pytest.raises(ConfigError, match=r"int='-?\d+' must be at (most|least) -?214748364[78]"):
        read(Numbers, {"int": str(number), "long": "0"})
    if abs(number) < 2**63:
        assert read(Numbers, {"int": "0", "long": str(number)}).long == number
    else:
        with pytest.raises(ConfigError, match="long='"):
            read(Numbers, {"int": "0", "long": str(number)})


def test_a_value_that_is_only_recommended_is_no_limit() -> None:
    found = read(Section, {"path": "/x", "format": "orc", "size": "2147483648", "colour": "RED"})
    assert (found.format, found.size, found.colour) == ("orc", 2147483648, Colour.RED)


@pytest.mark.parametrize("name", CONNECT)
def test_connects_keys_are_defined_as_connect_defines_them(name: str) -> None:
    found = next(d for d in definitions(ConnectorConfig) if d.name == name)
    assert (found.type, found.importance, found.group, default_text(found)) == CONNECT[name]


@pytest.mark.parametrize("sink", ["connector", *SINKS])
def test_every_key_has_a_group_and_every_default_passes_its_own_checks(sink: str) -> None:
    section = ConnectorConfig if sink == "connector" else sink_class(sink, {}).section
    for found in definitions(section):
        assert found.group, found.name
        assert _accepts_its_default(found), found.name


def _accepts_its_default(found: Definition) -> bool:
    text = default_text(found)
    if text is None or found.validator is None:
        return text is None or not found.choices or text.lower() in found.choices
    found.validator(found.default)
    return True
