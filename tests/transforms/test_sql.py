"""Queries as transforms."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from semel.core.errors import ConfigError
from semel.core.records import OFFSET
from semel.transforms import Outcome, chain_of
from semel.transforms.base import Batch
from tests.transforms.records import STAMP, applied, batch

ROWS: list[Any] = [
    {"id": 1, "name": "a", "tags": [1, 2]},
    {"id": 2, "name": None, "tags": []},
    None,
    {"id": 4, "name": "d", "tags": None},
]


def queried(query: str, records: Batch) -> Outcome:
    return applied(config(query), records)


def config(query: str) -> dict[str, str]:
    return {"transforms": "t", "transforms.t.type": "sql", "transforms.t.query": query}


def values(query: str, records: Batch) -> list[Any]:
    outcome = queried(query, records)
    assert not outcome.refused
    return outcome.batch.values.array.to_pylist()


def test_rows_are_chosen_and_changed_and_tombstones_pass() -> None:
    query = "SELECT id * 2 AS id, upper(name) AS name FROM records WHERE id <> 2;"
    outcome = queried(query, batch(ROWS, ["k1", "k2", "k3", "k4"]))
    made = outcome.batch
    assert made.values.array.to_pylist() == [
        {"id": 2, "name": "A"},
        None,
        {"id": 8, "name": "D"},
    ]
    assert made.keys.array.to_pylist() == ["k1", "k3", "k4"]
    assert made.origin.column(OFFSET).to_pylist() == [10, 12, 13]


RULE = f"-- {'-' * 90}\n"


def test_signs_in_comments_and_texts_do_not_count() -> None:
    query = f"{RULE * 20} SELECT {'(' * 9}id{')' * 9} AS n, '{'(' * 2000}' AS t FROM records {RULE}"
    assert values(query, batch([{"id": 1}])) == [{"n": 1, "t": "(" * 2000}]


@pytest.mark.parametrize(
    "hidden",
    [r"E'\'' {}", '"\'" {} "\'"', "$$'$$ {} $$'$$", "/* /* */ ' */ {} /* ' */", "-- '\r {} -- '"],
)
def test_no_text_or_comment_hides_signs(hidden: str) -> None:
    query = f"SELECT {hidden.replace('{}', '(' * 1001)} FROM records"
    with pytest.raises(ConfigError, match="1,000 brackets and signs"):
        chain_of(config(query))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT sum(id) AS n FROM records",
        "SELECT row_number() OVER (ORDER BY name) * id AS n FROM records",
        "WITH one AS (SELECT id AS n FROM records) SELECT n FROM one ORDER BY n LIMIT 1",
        "FROM records SELECT id AS n",
    ],
)
def test_a_query_sees_one_record(query: str) -> None:
    assert values(query, batch(ROWS)) == [{"n": 1}, {"n": 2}, None, {"n": 4}]


def test_several_rows_of_a_record_are_refused_and_the_others_pass() -> None:
    outcome = queried("SELECT unnest(tags) AS tag FROM records", batch([ROWS[0], {"tags": [7]}]))
    assert outcome.batch.values.array.to_pylist() == [{"tag": 7}]
    (refused,) = outcome.refused
    assert (refused.index, refused.message) == (
        0,
        "transforms.t: the query returns several rows for this record",
    )


def test_a_record_that_a_query_fails_for_is_refused_alone() -> None:
    rows = [{"t": str(n)} for n in range(100)]
    rows[41] = {"t": "many"}
    outcome = queried("SELECT t::INT AS n FROM records", batch(rows))
    assert outcome.batch.values.array.field("n").to_pylist() == [n for n in range(100) if n != 41]
    (refused,) = outcome.refused
    assert (refused.index, refused.exception) == (41, "duckdb.ConversionException")
    assert "Could not convert string 'many'" in refused.message
    assert "LINE" not in refused.message


def test_a_field_that_no_record_has_is_null_or_refused() -> None:
    query = "SELECT *, r.other AS o, upper(more) AS m, list_transform(tags, lambda x: x + 1) AS l "
    query += "FROM records r"
    assert values(query, batch(ROWS[:1])) == [{**ROWS[0], "o": None, "m": None, "l": [2, 3]}]
    outcome = queried("SELECT more FROM records", batch(ROWS[:1], has_schema=True))
    assert [r.message for r in outcome.refused] == [
        "transforms.t: the query reads more, which is not a field of the value"
    ]
    assert values("SELECT id, more FROM records", batch(ROWS[:1])) == [{"id": 1}]


def test_fields_that_differ_by_case_are_not_mixed_up() -> None:
    outcome = queried("SELECT * FROM records", batch([{"id": 1, "ID": 2}]))
    assert "the fields id and ID differ only in case" in outcome.refused[0].message


def test_where_a_record_was_read_and_its_key() -> None:
    query = "SELECT id, __connect_offset + 0 AS at, __connect_timestamp AS ts, __connect_key || "
    query += "'!' AS __connect_key FROM records"
    made = queried(query, batch(ROWS, ["a", "b", "c", None])).batch
    rows = made.values.array.to_pylist()
    assert [r and r["at"] for r in rows] == [10, 11, None, 13]
    assert made.values.array.field("ts").cast(pa.int64())[0].as_py() == STAMP * 1000
    assert made.keys.array.to_pylist() == ["a!", "b!", "c", None]


def test_types_come_back_as_they_were() -> None:
    json = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', None]))
    field = pa.field("id", pa.int32(), True, {"connect": "something"})
    given = pa.StructArray.from_arrays(
        [
            pa.array([1, 2], pa.int32()),
            json,
            pa.array([1, None]).cast(pa.decimal128(24, 2)),
            pa.array([1, 2], pa.timestamp("us", "UTC")),
            pa.array([b"x", None]),
            pa.array([{"b": [1]}, None]),
        ],
        fields=[
            field,
            pa.field("j", pa.json_()),
            pa.field("d", pa.decimal128(24, 2)),
            pa.field("ts", pa.timestamp("us", "UTC")),
            pa.field("raw", pa.binary()),
            pa.field("s", pa.struct([("b", pa.list_(pa.int64()))])),
        ],
    )
    made = queried("SELECT * FROM records", batch(given, has_schema=True)).batch.values.array
    assert [f.type for f in made.type] == [f.type for f in given.type]
    assert made.to_pylist() == given.to_pylist()
    assert made.type.field("id").metadata == field.metadata
    plain = queried("SELECT value || '!' AS text FROM records", batch(["a", None])).batch
    assert plain.values.array.to_pylist() == [{"text": "a!"}, None]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELEC 1", r"query=.*is not SQL: Parser Error: syntax error at or near"),
        ("DELETE FROM records", "must be one SELECT"),
        ("SELECT 1 FROM records; SELECT 2 FROM records", "must be one SELECT"),
        ("SELECT 1", "must select from records"),
        ("", "transforms.t.query is required"),
        ("SELECT " + "(" * 1500 + "1 FROM records", "is too large"),
        ("SELECT " + "-+" * 1500 + "1 FROM records", "is too large"),
    ],
)
def test_what_is_no_query_is_refused_before_the_start(query: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chain_of(config(query))


def test_a_query_reads_nothing_but_records() -> None:
    secret = pa.table({"a": [1]})
    assert len(secret) == 1
    for query in ("SELECT nope(id) FROM records", "SELECT a FROM records, secret"):
        with pytest.raises(ConfigError, match="does not exist"):
            queried(query, batch(ROWS))
    outcome = queried("SELECT * FROM records, read_text('/etc/hostname')", batch(ROWS[:1]))
    assert "disabled by configuration" in outcome.refused[0].message


@pytest.mark.parametrize(
    "expression",
    [
        "CAST(1 AS UHUGEINT) << 127",
        "TIMETZ '10:00:00+02'",
        "INTERVAL 1 DAY",
        "'101'::BIT",
        "[{'n': 5::BIGNUM}]",
        "MAP {'k': TIMETZ '10:00:00+02'}",
    ],
)
def test_a_type_that_would_become_another_value_is_refused(expression: str) -> None:
    """In Arrow, the first would be negative, the second lose its zone, the third be a text of
    Python's, and the others be bytes."""
    with pytest.raises(ConfigError, match=r"query: column x has the type .* Convert it"):
        queried(f"SELECT {expression} AS x FROM records", batch(ROWS))


def test_a_number_of_too_many_digits_is_refused_alone() -> None:
    most = 2**127 - 1
    query = f"SELECT CASE id WHEN 1 THEN 0::HUGEINT ELSE {most} END AS x FROM records"
    outcome = queried(query, batch(ROWS))
    assert outcome.batch.values.array.to_pylist() == [{"x": 0}, None]
    assert {r.message for r in outcome.refused} == {
        "transforms.t: Out of Range Error: a number of more than 38 digits"
    }
