"""A problem of a configuration names its key, so that consoles show it beside the value."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from semel.core.errors import Problem, prefixed
from semel.core.problems import Problems, located
from semel.driver.validation import validate

SOURCE = Path(__file__).parents[1] / "src" / "semel"

NOWHERE = {"name": "c", "topics": "t", "bootstrap.servers": "localhost:1"}
KAFKA = {**NOWHERE, "connector.class": "kafka", "topic.rename.format": "copy"}
FILES = {**NOWHERE, "connector.class": "files", "path": "/nowhere"}
ICEBERG = {
    **NOWHERE,
    "connector.class": "iceberg",
    "iceberg.tables": "shop.orders",
    "iceberg.catalog.type": "rest",
    "iceberg.catalog.uri": "http://localhost:1",
}
MYSQL = {**NOWHERE, "connector.class": "mysql", "connection.url": "jdbc:mysql://localhost:1/d"}
MSSQL = {
    **NOWHERE,
    "connector.class": "sqlserver",
    "connection.url": "jdbc:sqlserver://localhost:1;databaseName=d",
}
POSTGRES = {
    **NOWHERE,
    "connector.class": "postgresql",
    "connection.url": "jdbc:postgresql://localhost:1/d",
}
AVRO = {
    **FILES,
    "value.converter": "io.confluent.connect.avro.AvroConverter",
    "value.converter.schema.registry.url": "http://localhost:1",
}
TRANSFORM = {"transforms": "x", "transforms.x.type": "ExtractField$Value"}

MODULES = [
    *(
        "config/*.py",
        "driver/planning/*.py",
        "core/delivery.py",
        "core/keystores.py",
        "kafka/security.py",
    ),
    *("sinks/**/config.py", "sinks/jdbc.py"),
    *("databases/mysql/__init__.py", "databases/*/url.py"),
    *("sinks/__init__.py", "storage/__init__.py"),
    *("sources/__init__.py", "sources/*/config.py"),
    *("converters/__init__.py", "converters/json/converter.py", "converters/registry/config.py"),
    "transforms/*.py",
]
"""What reads and checks configurations."""
OF_NO_KEY = {
    ("config/loading.py", "load"): "about a whole file",
    ("config/loading.py", "_properties"): "about a whole file",
    ("config/loading.py", "_flatten"): "about a key that is not a string",
    ("driver/planning/sink.py", "plan_sink"): "about an argument",
    ("driver/planning/sink.py", "check_runnable"): "about an argument",
    ("driver/planning/programs.py", "with_query"): "about an argument",
    ("driver/planning/programs.py", "with_topology"): "about the topology",
    ("transforms/python.py", "_called"): "found while it runs",
    ("transforms/python.py", "_checked"): "found while it runs",
}


def told(raw: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """The value and the problem of each key that has one."""
    infos, _warnings = validate(raw)
    return {c.value.name: (c.value.value, e) for c in infos.configs for e in c.value.errors}


@pytest.mark.parametrize(
    ("raw", "key", "value", "said"),
    [
        # the message mentions another key first
        ({**KAFKA, "engine": "micro-batch"}, "engine", "micro-batch", "connector.class=kafka "),
        ({**FILES, "format": "bytes", "provenance": "true"}, "provenance", "true", "format=bytes"),
        ({**MYSQL, "connection.sslMode": "odd"}, "connection.sslMode", "odd", "sslMode=odd"),
        ({**MSSQL, "connection.encrypt": "odd"}, "connection.encrypt", "odd", "encrypt=odd"),
        ({**POSTGRES, "connection.sslmode": "odd"}, "connection.sslmode", "odd", "sslmode=odd"),
        # it mentions none
        (
            {**ICEBERG, "iceberg.table.shop.orders.partition-by": "week(t)"},
            *("iceberg.table.shop.orders.partition-by", "week(t)", "'week(t)' is not a column"),
        ),
        (
            {**ICEBERG, "iceberg.tables.default-partition-by": "week(t)"},
            *("iceberg.tables.default-partition-by", "week(t)", "'week(t)' is not a column"),
        ),
        (
            {
                **FILES,
                **TRANSFORM,
                "transforms.x.field": "`a",
                "transforms.x.field.syntax.version": "V2",
            },
            *("transforms.x.field", "`a", "Incomplete backtick pair"),
        ),
        (
            {
                **FILES,
                "transforms": "x",
                "transforms.x.type": "python",
                "transforms.x.function": "a",
            },
            *(
                "transforms.x.function",
                "a",
                "transforms.x.function='a' is not of the form module:name",
            ),
        ),
        # it mentions this one
        ({**FILES, "value.converter": "Odd"}, "value.converter", "Odd", "no such converter"),
        (
            {**FILES, "consumer.override.ssl.key.location": "/nowhere", "engine": "direct"}
            | {"consumer.override.ssl.engine.factory.class": "Odd"},
            *("consumer.override.ssl.engine.factory.class", "Odd", "which librdkafka lacks"),
        ),
        (
            {**POSTGRES, "delivery.mechanism": "idempotent", "insert.mode": "insert"},
            *("delivery.mechanism", "idempotent", "delivery=exactly-once cannot be kept"),
        ),
        (
            {**FILES, "timezone": "Nowhere", "partitioner.class": "daily"},
            *("timezone", "Nowhere", ""),
        ),
        (  # and not once more for the admin client, which takes it over
            {**FILES, "consumer.override.ssl.engine.factory.class": "Odd"},
            *("consumer.override.ssl.engine.factory.class", "Odd", "which librdkafka lacks"),
        ),
        (
            {**AVRO, "value.converter.basic.auth.credentials.source": "USER_INFO"}
            | {"value.converter.schema.registry.basic.auth.user.info": "secret"},
            *("value.converter.schema.registry.basic.auth.user.info", "[hidden]"),
            "value.converter.schema.registry.basic.auth.user.info must be user:password",
        ),
        ({**FILES, "storage.options.key": ""}, "storage.options.key", "", "is empty"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_problem_is_reported_with_its_key_and_value(
    raw: Mapping[str, str], key: str, value: str, said: str
) -> None:
    ((where, (shown, message)),) = told(raw).items()
    assert (where, shown) == (key, value)
    assert said in message


def test_a_problem_found_by_a_check_is_reported_with_the_key_as_it_was_written() -> None:
    raw = {**POSTGRES, "primary.key.mode": "record_key", "key.converter": "StringConverter"}
    ((where, (shown, message)),) = told(raw).items()
    assert (where, shown) == ("primary.key.mode", "record_key")
    assert "pk.mode=record_key without pk.fields" in message


def test_a_key_that_was_given_is_never_replaced_by_a_guess() -> None:
    raw = {"first": "1", "second": "2"}
    assert located(Problem("second", "first=1 is odd"), raw, raw, ()).key == "second"
    assert located(Problem("absent", "first=1 is odd"), raw, raw, ()).key == "absent"
    guessed = located(Problem("", "odd: second=2, first=1"), raw, raw, ())
    assert (guessed.key, guessed.value) == ("second", "2")


@pytest.mark.parametrize(
    ("key", "text", "prefix", "said"),
    [
        ("schema", "schema=1 is odd", "x.", "x.schema=1 is odd"),
        ("schema", "schema.content=1 is odd", "x.", "x: schema.content=1 is odd"),
        ("", "it is odd", "x.", "x: it is odd"),
        ("", "it is odd", "", "it is odd"),
    ],
)
def test_a_message_has_the_prefix_of_its_key_once(
    key: str, text: str, prefix: str, said: str
) -> None:
    (problem,) = prefixed([Problem(key, text)], prefix, otherwise="other").problems
    assert (problem.key, problem.message) == (prefix + key if key else "other", said)


def test_problems_with_an_unusable_key_are_left_out_whatever_they_say() -> None:
    problems = Problems()
    problems.unusable.add("tasks.max")
    problems.add([Problem("tasks.max", "too many"), Problem("", "tasks.max=0 is too few")])
    assert problems.items == []


@pytest.mark.parametrize(
    "module",
    sorted({p for m in MODULES for p in SOURCE.glob(m)}),
    ids=lambda m: str(m.relative_to(SOURCE)),
)
def test_errors_of_configurations_name_a_key(module: Path) -> None:
    name = str(module.relative_to(SOURCE))
    bare = [(name, where) for where in _without_key(ast.parse(module.read_text()), "")]
    assert [each for each in bare if each not in OF_NO_KEY] == []


def test_each_exception_is_still_needed() -> None:
    found = {
        (name, where)
        for name, _ in OF_NO_KEY
        for where in _without_key(ast.parse((SOURCE / name).read_text()), "")
    }
    assert found == OF_NO_KEY.keys()


def _without_key(tree: ast.AST, where: str) -> Iterator[str]:
    """The functions that make a ConfigError of text alone."""
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef) else where
        if isinstance(node, ast.Call) and _name(node) == "ConfigError":
            texts = (ast.Constant, ast.JoinedStr, ast.BinOp)
            if any(isinstance(a, texts) or _name(a) == "str" for a in node.args):
                yield inside
        if _name(node) in ("Problem", "misconfigured") and not _given(node):
            yield inside
        yield from _without_key(node, inside)


def _name(node: ast.AST) -> str:
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return node.func.id if named else ""


def _given(node: ast.AST) -> bool:
    """Whether a call's first argument, the key, may be more than empty."""
    assert isinstance(node, ast.Call)
    return not (isinstance(node.args[0], ast.Constant) and not node.args[0].value)
