"""Expressions are about one record, and give the same again; others are refused by name."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semel.core.errors import ConfigError, SemelError
from semel.streams import Records, Streams, arrow
from semel.streams.expressions import Expression, compiled

RECORDS = Records(
    pa.array(["k1", "k2", "k3"]),
    pa.array([{"a": 1, "b": "x", "c": {"d": 5}}, None, {"a": 3, "b": "y", "c": {"d": 6}}]),
    pa.array([10, 20, 30]),
)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a + 1", [2, None, 4]),
        ("A + 1", [2, None, 4]),
        ("key || b", ["k1x", None, "k3y"]),
        ("value.b", ["x", None, "y"]),
        ("c.d", [5, None, 6]),
        ("c.missing", [None, None, None]),
        ("timestamp", [10, 20, 30]),
        ("missing", [None, None, None]),
        ("coalesce(a, 0)", [1, 0, 3]),
        ("CASE WHEN a > 1 THEN 'big' ELSE 'small' END", ["small", "small", "big"]),
        ("a IN (1, 2) AND b LIKE 'x%'", [True, None, False]),
        ("list_transform([a], lambda x: x * 2)", [[2], [None], [6]]),
        ("a -- with a comment", [1, None, 3]),
        (pc.field("a") + 1, [2, None, 4]),
        (lambda value: value and value["a"], [1, None, 3]),
        (lambda key, value: key, ["k1", "k2", "k3"]),
        (arrow(lambda records: records.times), [10, 20, 30]),
        (
            {"x": "a * 2", "y": pc.field("b")},
            [{"x": 2, "y": "x"}, {"x": None, "y": None}, {"x": 6, "y": "y"}],
        ),
    ],
)
def test_an_expression_gives_a_value_for_each_record(
    expression: Expression, expected: list[object]
) -> None:
    assert compiled(expression, "test")(RECORDS).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("now()", "differs"),
        ("random()", "differs"),
        ("uuid()", "differs"),
        ("current_timestamp", "differs"),
        ("localtime", "differs"),
        ("today()", "differs"),
        ("age(make_timestamp(timestamp))", "differs"),
        ("getvariable('x')", "differs"),
        ("nextval('x')", "differs"),
        ("sum(a)", "no function of one record"),
        ("count(*)", "no function of one record"),
        ("unnest([1])", "no function of one record"),
        ("read_text('/etc/passwd')", "no function of one record"),
        ("row_number() OVER ()", "window"),
        ("(SELECT 1)", "one expression"),
        ("a) FROM records UNION SELECT (1", "must be"),
        ("a) AS x, (b", "one expression"),
        ("a); DROP TABLE x; SELECT (1", "must be one SELECT"),
        ("*", "star"),
        ("a +", "not SQL"),
        ("  ", "empty"),
        ("(" * 2_000, "too large"),
    ],
)
def test_text_that_is_not_about_one_record_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        compiled(text, "filter")
    assert "filter" in str(refused.value)


def test_what_is_wrong_is_said_where_it_is_written() -> None:
    orders = Streams({"name": "app"}).stream("orders")
    with pytest.raises(ConfigError, match="map_values"):
        orders.map_values("a +")
    with pytest.raises(ConfigError, match=r"sum\(\)"):
        orders.group_by_key().sum("random()")


def test_a_value_that_does_not_fit_is_named() -> None:
    with pytest.raises(SemelError, match=r"map_values: .*[Cc]onver"):
        compiled("CAST(b AS INTEGER)", "map_values")(RECORDS)
