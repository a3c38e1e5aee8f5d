"""Which table and which columns: names, creation, evolution, defaults, provenance."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from semel.config import read
from semel.core.errors import ConfigError, ServiceError
from semel.core.ledger import firsts
from semel.core.records import Commit, DeadLetter, RowsRejected
from semel.databases.names import Name, parse_name
from semel.sinks.jdbc import DEBEZIUM
from semel.sinks.sql.config import PostgresConfig
from tests.engine.harness import some
from tests.patience import PATIENCE
from tests.sinks.target import Target, advance, changes, put, records

UPSERT = {"insert_mode": "upsert", "pk_mode": "record_key", "pk_fields": "id"}
CREATE = {"auto_create": "true"}


# Names


@pytest.mark.parametrize(
    ("text", "fold", "expected"),
    [
        ("orders", False, Name(None, "orders")),
        ("Orders", False, Name(None, "Orders")),
        ("Orders", True, Name(None, "orders")),
        ("shop.orders", False, Name("shop", "orders")),
        ('"shop.orders"', False, Name(None, "shop.orders")),
        ('"Shop"."Order ""s"""', True, Name("Shop", 'Order "s"')),
        ('shop."x"', False, Name("shop", "x")),
    ],
)
def test_table_names_are_parsed(text: str, fold: bool, expected: Name) -> None:
    assert parse_name(text, fold=fold) == expected


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a.b.c", 'a"b', '"a', 'a."b"c'])
def test_an_invalid_table_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not table or schema.table"):
        parse_name(text, fold=False)


def test_a_wrong_name_is_reported_with_the_key_that_holds_it() -> None:
    with pytest.raises(ConfigError, match=r"^offsets\.table=a\.b\.c is not table") as error:
        parse_name("a.b.c", fold=False, key="offsets.table")
    assert [p.key for p in error.value.problems] == ["offsets.table"]


def config(**keys: str) -> PostgresConfig:
    raw = {k.replace("_", "."): v for k, v in keys.items()}
    return read(PostgresConfig, {"connection.url": "postgresql://h/d", **raw})


@pytest.mark.parametrize(
    ("keys", "topic", "table"),
    [
        ({}, "orders", "orders"),
        ({}, "shop.orders", "shop.orders"),
        ({"table_name_format": "k_${topic}"}, "orders", "k_orders"),
        ({"table_name_format": "s.${topic}_v"}, "orders", "s.orders_v"),
        ({"collection_name_format": "all"}, "orders", "all"),
        ({"connector_class": DEBEZIUM}, "srv.shop.orders", "srv_shop_orders"),
        ({"connector_class": DEBEZIUM, "table_name_format": "s.${topic}"}, "a.b", "s.a_b"),
        ({"topics_to_tables_mapping": "a:x, b:s.y"}, "a", "x"),
        ({"topics_to_tables_mapping": "a:x, b:s.y"}, "b", "s.y"),
        ({"topics_to_tables_mapping": "a:x", "table_name_format": "k_${topic}"}, "c", "k_c"),
        ({"table_name_normalize": "true"}, "srv.shop-orders", "srv_shop_orders"),
    ],
)
def test_the_table_of_a_topic(keys: dict[str, str], topic: str, table: str) -> None:
    assert config(**keys).table(topic) == table


def test_placeholders_that_cannot_be_filled_in_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"only \$\{topic\} can be filled in"):
        config(table_name_format="${source.db}_${topic}")


def test_a_topic_with_a_dot_is_schema_and_table(target: Target) -> None:
    target.execute("CREATE SCHEMA shop", "CREATE TABLE shop.orders (a int)")
    put(target.sink(), records([{"a": 1}], topic="shop.orders"))
    assert target.values("SELECT a FROM shop.orders") == [1]


def test_a_quoted_format_keeps_the_dot_in_the_name(target: Target) -> None:
    target.execute('CREATE TABLE "shop.orders" (a int)')
    sink = target.sink(table_name_format='"${topic}"')
    put(sink, records([{"a": 1}], topic="shop.orders"))
    assert target.values('SELECT a FROM "shop.orders"') == [1]


def test_a_topic_with_two_dots_is_refused_with_advice(target: Target) -> None:
    with pytest.raises(ConfigError, match=r"Set table.name.format, with quotes"):
        target.sink().prepare(["a.b.c"])


def test_names_stay_as_they_are_unless_told_otherwise(target: Target) -> None:
    target.execute(
        'CREATE TABLE "Orders" ("Id" int PRIMARY KEY, "odd "" name" text, "select" int)',
    )
    sink = target.sink(insert_mode="upsert", pk_mode="record_key", pk_fields="Id")
    for n in (1, 2):
        rows = [{'odd " name': "x", "select": n}, {'odd " name': "y", "select": n}]
        put(sink, records(rows, topic="Orders", keys=[1, n]))
    assert target.tuples('SELECT * FROM "Orders" ORDER BY 1') == [(1, "x", 2), (2, "y", 2)]


@pytest.mark.parametrize(
    "keys",
    [
        {"quote_sql_identifiers": "never"},
        {"connector_class": DEBEZIUM},
        pytest.param(
            {"connector_class": DEBEZIUM, "quote_identifiers": "false"}, marks=pytest.mark.long
        ),
    ],
)
def test_names_without_quotes_are_lower_case(target: Target, keys: dict[str, str]) -> None:
    target.execute("CREATE TABLE orders (id int PRIMARY KEY, userid int)")
    sink = target.sink(insert_mode="upsert", pk_mode="record_key", pk_fields="Id", **keys)
    sink.prepare(["Orders"])
    put(sink, records([{"userId": 7}], topic="Orders", keys=[1]))
    assert target.tuples("SELECT * FROM orders") == [(1, 7)]
    assert sink.schema("Orders") is None  # which case the values' names have is unknown


def test_fields_that_fall_together_in_lower_case_are_refused(target: Target) -> None:
    target.execute("CREATE TABLE t (a int)")
    sink = target.sink(quote_sql_identifiers="never")
    with pytest.raises(ConfigError, match=r"connector c: fields a and A of topic t are one column"):
        put(sink, records([{"a": 1, "A": 2}]))


def test_debezium_with_quotes_keeps_names(target: Target) -> None:
    target.execute('CREATE TABLE "srv_Orders" ("userId" int)')
    sink = target.sink(connector_class=DEBEZIUM, quote_identifiers="true")
    put(sink, records([{"userId": 7}], topic="srv.Orders"))
    assert target.values('SELECT "userId" FROM "srv_Orders"') == [7]


@pytest.mark.parametrize("mode", some(["insert", "upsert"], {"insert"}))
def test_a_table_is_found_by_the_search_path(target: Target, mode: str) -> None:
    """Also in a schema that is not the first: COPY must not look in the first one only."""
    target.execute(
        "CREATE SCHEMA app", "CREATE SCHEMA lib", "CREATE TABLE lib.t (id int PRIMARY KEY, a int)"
    )
    url = target.url.replace("postgresql://", "jdbc:postgresql://") + "?currentSchema=app,lib"
    sink = target.sink(**{**UPSERT, "insert_mode": mode}, connection_url=url)
    sink.prepare(["t"])
    put(sink, records([{"a": 1}], keys=[1]))
    assert target.values("SELECT a FROM lib.t") == [1]
    assert target.values("SELECT to_regclass('app.semel_offsets') IS NOT NULL") == [True]


def test_a_temporary_table_of_the_same_name_does_not_get_in_between(target: Target) -> None:
    target.execute("CREATE TABLE t (a int)")
    sink = target.sink()
    with sink._connection.transaction():
        sink._connection.execute("CREATE TEMPORARY TABLE other (a int)")
    put(sink, records([{"a": 1}]))
    assert target.values("SELECT a FROM public.t") == [1]


# Which fields


@pytest.mark.parametrize(
    "keys",
    [
        {"fields_whitelist": "a,b"},
        pytest.param({"field_include_list": "t:a,t:b,other:c"}, marks=pytest.mark.long),
        pytest.param({"fields_include": "a,b"}, marks=pytest.mark.long),
        pytest.param({"field_exclude_list": "c"}, marks=pytest.mark.long),
        {"fields_exclude": "t:c,other:a"},
        pytest.param({"fields_blacklist": "c"}, marks=pytest.mark.long),
    ],
)
def test_fields_are_chosen(target: Target, keys: dict[str, str]) -> None:
    target.execute("CREATE TABLE t (a int, b int, c int DEFAULT 9)")
    sink = target.sink(**keys)
    put(sink, records([{"a": 1, "b": 2, "c": 3}]))
    assert target.tuples("SELECT a, b, c FROM t") == [(1, 2, 9)]
    schema = sink.schema("t")
    assert schema is not None
    assert schema.names == ["a", "b"]


def test_key_fields_are_taken_whatever_the_whitelist_says(target: Target) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    sink = target.sink(
        insert_mode="upsert", pk_mode="record_value", pk_fields="id", fields_whitelist="a"
    )
    put(sink, records([{"id": 1, "a": 2, "b": 3}]))
    assert target.tuples("SELECT id, a, b FROM t") == [(1, 2, None)]


# Creating and extending


def test_missing_tables_are_refused_unless_they_may_be_created(target: Target) -> None:
    message = "connector c: table nowhere for topic nowhere does not exist in PostgreSQL at .*"
    with pytest.raises(ConfigError, match=message + "set auto.create=true"):
        target.sink().prepare(["nowhere"])
    with pytest.raises(ConfigError, match=message):
        put(target.sink(), records([{"a": 1}], topic="nowhere"))
    assert target.sink().schema("nowhere") is None


@pytest.mark.parametrize(
    "keys",
    some([{"auto_create": "true"}, {"schema_evolution": "basic"}], [{"auto_create": "true"}]),
)
def test_missing_tables_are_created_with_types_and_key(
    target: Target, keys: dict[str, str]
) -> None:
    values = pa.table(
        {
            "i8": pa.array([1], pa.int8()),
            "i16": pa.array([1], pa.int16()),
            "i32": pa.array([1], pa.int32()),
            "i64": pa.array([1], pa.int64()),
            "u64": pa.array([2**64 - 1], pa.uint64()),
            "f32": pa.array([1], pa.float32()),
            "f64": pa.array([1], pa.float64()),
            "b": pa.array([True]),
            "s": pa.array(["x"]),
            "d": pa.array([1], pa.decimal128(12, 3)),
            "raw": pa.array([b"x"]),
            "day": pa.array([1], pa.date32()),
            "t": pa.array([1], pa.time32("ms")),
            "ts": pa.array([1], pa.timestamp("ms")),
            "tz": pa.array([1], pa.timestamp("ms", "UTC")),
            "l": pa.array([[1]]),
            "o": pa.array([{"a": 1}]),
            "lo": pa.array([[{"a": 1}]]),
            "only_null": pa.nulls(1),
        }
    )
    keys = {"pk_mode": "record_key", "key_converter": "JsonConverter", **keys}
    sink = target.sink(insert_mode="upsert", **keys)
    keys_column = pa.array([{"id": 1, "code": "x"}])
    sink.prepare(["t"])
    for _ in range(2):
        put(sink, records(values, keys=keys_column))
    found = target.tuples(
        "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
        "WHERE attrelid = 't'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert found == [
        ("id", "bigint", True),
        ("code", "text", True),
        ("i8", "smallint", False),
        ("i16", "smallint", False),
        ("i32", "integer", False),
        ("i64", "bigint", False),
        ("u64", "numeric(20,0)", False),
        ("f32", "real", False),
        ("f64", "double precision", False),
        ("b", "boolean", False),
        ("s", "text", False),
        ("d", "numeric(12,3)", False),
        ("raw", "bytea", False),
        ("day", "date", False),
        ("t", "time without time zone", False),
        ("ts", "timestamp without time zone", False),
        ("tz", "timestamp with time zone", False),
        ("l", "bigint[]", False),
        ("o", "jsonb", False),
        ("lo", "jsonb", False),
    ]
    keys_found = target.values(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE contype = 'p' AND conrelid = 't'::regclass"
    )
    assert keys_found == ["PRIMARY KEY (id, code)"]
    assert target.values("SELECT count(*) FROM t") == [1]


def test_a_created_table_of_kafka_coordinates(target: Target) -> None:
    put(target.sink(insert_mode="upsert", pk_mode="kafka", **CREATE), records([{"v": 1}]))
    found = target.tuples("SELECT * FROM t")
    assert found == [("t", 0, 0, 1)]


def test_several_tasks_may_create_one_table_at_once(target: Target) -> None:
    sinks = [target.sink(**UPSERT, **CREATE, auto_evolve="true") for _ in range(4)]
    batches = [
        records([{f"c{n}": n, "v": "x"}], keys=[n], topic="fresh") for n in range(len(sinks))
    ]
    errors: list[BaseException] = []

    def run(n: int) -> None:
        try:
            put(sinks[n], batches[n])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(sinks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not errors
    found = target.tuples("SELECT id, c0, c1, c2, c3 FROM fresh ORDER BY id")
    assert found == [(n, *(n if m == n else None for m in range(4))) for n in range(4)]


def test_fields_that_the_table_lacks_are_refused_unless_it_may_evolve(target: Target) -> None:
    target.execute("CREATE TABLE t (a int)")
    with pytest.raises(
        ConfigError, match=r"connector c: table public.t has no column b.*auto.evolve"
    ):
        put(target.sink(), records([{"a": 1, "b": 2}]))
    assert target.values("SELECT a FROM t") == []


def test_the_table_evolves(target: Target) -> None:
    target.execute("CREATE TABLE t (a int)", "INSERT INTO t VALUES (0)")
    sink = target.sink(auto_evolve="true")
    put(sink, records([{"a": 1, "b": "x"}]))
    put(sink, records([{"a": 2, "c": [1], "d": {"x": 1}}]))
    found = target.tuples("SELECT a, b, c::text, d::text FROM t ORDER BY a")
    assert found == [
        (0, None, None, None),
        (1, "x", None, None),
        (2, None, "{1}", '{"x": 1}'),
    ]


def test_a_field_that_has_only_been_null_makes_no_column_yet(target: Target) -> None:
    target.execute("CREATE TABLE t (a int)")
    sink = target.sink(auto_evolve="true")
    put(sink, records(pa.table({"a": [1], "b": pa.nulls(1)})))
    put(sink, records([{"a": 2, "b": 5}]))
    assert target.tuples("SELECT a, b FROM t ORDER BY a") == [(1, None), (2, 5)]


@pytest.mark.parametrize("mode", some(["insert", "upsert"], {"upsert"}))
def test_a_column_altered_meanwhile_is_noticed(target: Target, mode: str) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    sink = target.sink(**{**UPSERT, "insert_mode": mode})
    put(sink, records([{"a": 1}], keys=[1]))
    target.execute("ALTER TABLE t ALTER a TYPE bigint")
    put(sink, records([{"a": 2**40}], keys=[2]))
    target.execute("ALTER TABLE t ALTER a TYPE text")
    put(sink, records([{"a": 3}], keys=[3]))
    target.execute("ALTER TABLE t DROP b", "ALTER TABLE t ADD c int")
    put(sink, records([{"c": 4}], keys=[4]))
    target.execute("DROP TABLE t", "CREATE TABLE t (a text, c text, id bigint PRIMARY KEY)")
    put(sink, records([{"c": 5}], keys=[5]))
    assert target.tuples("SELECT id, c FROM t") == [(5, "5")]


@pytest.mark.parametrize(
    ("before", "after", "using"),
    [
        ("bigint", "timestamp", "to_timestamp(a)"),
        pytest.param("bigint", "double precision", "a", marks=pytest.mark.long),
        pytest.param(
            "timestamp", "bigint", "extract(epoch FROM a)::bigint", marks=pytest.mark.long
        ),
        pytest.param("integer", "real", "a", marks=pytest.mark.long),
        ("text", "bytea", "a::bytea"),
    ],
)
def test_values_are_never_mistaken_for_another_type_of_the_same_size(
    target: Target, before: str, after: str, using: str
) -> None:
    target.execute(f"CREATE TABLE t (a {before})")
    sink = target.sink()
    one = {"timestamp": dt.datetime(2024, 1, 1), "text": "x"}.get(before, 7)
    put(sink, records([{"a": one}]))
    target.execute("TRUNCATE t", f"ALTER TABLE t ALTER a TYPE {after} USING {using}")
    try:
        put(sink, records([{"a": one}]))
    except RowsRejected as rejection:
        assert "cannot take" in rejection.rejected[0].message
    else:
        assert target.values("SELECT a::text FROM t") in (["7"], ["\\x78"])


def test_accommodate_creates_and_extends_without_writing(target: Target) -> None:
    sink = target.sink(schema_evolution="basic")
    sink.accommodate(records([{"a": 1}]))
    sink.accommodate(records([{"a": 1, "b": 2}]))
    assert target.tuples("SELECT a, b FROM t") == []


# Keys of the table


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ("id int, v int", "none"),
        pytest.param("id int, v int, UNIQUE (id, v)", "id, v", marks=pytest.mark.long),
        pytest.param("id int, v int PRIMARY KEY", "v", marks=pytest.mark.long),
        ("id int, v int, UNIQUE (id) DEFERRABLE", "none"),
    ],
)
def test_an_upsert_without_a_unique_key_is_refused(
    target: Target, columns: str, found: str
) -> None:
    target.execute(f"CREATE TABLE t ({columns})")
    with pytest.raises(
        ConfigError, match=rf"needs a primary key or unique index on \(id\).*: {found}\."
    ):
        target.sink(**UPSERT).prepare(["t"])


@pytest.mark.parametrize("index", some(["(id) WHERE v > 0", "((id + 1))"], {"(id) WHERE v > 0"}))
def test_partial_and_expression_indexes_are_no_keys(target: Target, index: str) -> None:
    target.execute("CREATE TABLE t (id int, v int)", f"CREATE UNIQUE INDEX ON t {index}")
    with pytest.raises(ConfigError, match=r"needs a primary key or unique index"):
        target.sink(**UPSERT).prepare(["t"])


@pytest.mark.parametrize(
    "index", some(["(id)", "(id) INCLUDE (v)", "(id DESC)"], {"(id) INCLUDE (v)"})
)
def test_unique_indexes_are_keys(target: Target, index: str) -> None:
    target.execute("CREATE TABLE t (id int, v int)", f"CREATE UNIQUE INDEX ON t {index}")
    sink = target.sink(**UPSERT)
    sink.prepare(["t"])
    for n in (1, 2):
        put(sink, records([{"v": n}], keys=[1]))
    assert target.tuples("SELECT id, v FROM t") == [(1, 2)]


def test_a_key_column_that_the_table_lacks_is_named(target: Target) -> None:
    target.execute("CREATE TABLE t (ident int PRIMARY KEY, v int)")
    with pytest.raises(ConfigError, match=r"pk.fields=id: .*has no column id; it has ident, v"):
        target.sink(**UPSERT).prepare(["t"])


def test_a_key_that_the_server_computes_is_refused(target: Target) -> None:
    target.execute("CREATE TABLE t (a int, id int GENERATED ALWAYS AS (a) STORED PRIMARY KEY)")
    with pytest.raises(ConfigError, match=r"computes column id itself, so it cannot take a key"):
        target.sink(**UPSERT).prepare(["t"])


# Columns that the server fills in


def test_defaults_fill_in_for_nulls_row_by_row(target: Target) -> None:
    target.execute(
        "CREATE TABLE t (id int GENERATED BY DEFAULT AS IDENTITY, s serial, "
        "a text DEFAULT 'a', b int NOT NULL DEFAULT 7, c int)"
    )
    rows: list[dict[str, Any]] = [
        {"id": None, "s": None, "a": "x", "b": None, "c": None},
        {"id": 50, "s": None, "a": None, "b": 1, "c": 2},
        {"id": None, "s": 9, "a": None, "b": None, "c": 3},
    ]
    schema = pa.schema(
        [
            ("id", pa.int32()),
            ("s", pa.int32()),
            ("a", pa.string()),
            ("b", pa.int32()),
            ("c", pa.int32()),
        ]
    )
    put(target.sink(), records(pa.Table.from_pylist(rows, schema)))
    found = target.tuples("SELECT a, b, c FROM t ORDER BY c NULLS FIRST")
    assert found == [("x", 7, None), ("a", 1, 2), ("a", 7, 3)]
    assert target.values("SELECT s FROM t WHERE c = 3") == [9]
    assert target.values("SELECT count(DISTINCT id) FROM t") == [3]
    for row in rows:  # one by one it is the same
        put(target.sink(), records(pa.Table.from_pylist([row], schema)))
    found = target.tuples("SELECT a, b, c, count(*) FROM t GROUP BY 1, 2, 3 ORDER BY c NULLS FIRST")
    assert found == [("x", 7, None, 2), ("a", 1, 2, 2), ("a", 7, 3, 2)]


def test_a_null_does_not_overwrite_a_column_with_a_default(target: Target) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 5, b int)")
    sink = target.sink(**UPSERT)
    put(sink, records([{"a": 1, "b": 1}, {"a": 2, "b": 2}], keys=[1, 2]))
    rows = [{"a": None, "b": None}, {"a": 9, "b": 9}, {"a": None, "b": 3}]
    put(sink, records(rows, keys=[1, 2, 3]))
    assert target.tuples("SELECT * FROM t ORDER BY id") == [(1, 1, None), (2, 9, 9), (3, 5, 3)]


def test_a_null_that_a_record_holds_is_written_where_the_column_allows_it(target: Target) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 5, b int DEFAULT 7 NOT NULL)")
    sink = target.sink(**UPSERT)
    put(sink, records([{"a": 1, "b": 1}], keys=[1]))
    rows = records([{"a": None, "b": None}] * 2, keys=[1, 2])
    put(sink, replace(rows, tells_nulls=True))
    assert target.tuples("SELECT * FROM t ORDER BY id") == [(1, None, 1), (2, None, 7)]


def test_changes_of_a_key_end_the_same_in_one_batch_and_in_several(target: Target) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 5, b int)")
    steps = [
        (1, {"a": 1, "b": 1}),
        (1, {"a": None, "b": 2}),
        (2, {"a": 8, "b": 8}),
        (2, None),
        (2, {"a": None, "b": 3}),
        (3, {"a": None, "b": 4}),
    ]
    expected = [(1, 1, 2), (2, 5, 3), (3, 5, 4)]
    put(target.sink(delete_enabled="true", **UPSERT), changes(*steps))
    assert target.tuples("SELECT * FROM t ORDER BY id") == expected
    target.execute("TRUNCATE t")
    sink = target.sink(delete_enabled="true", **UPSERT)
    for step in steps:
        put(sink, changes(step))
    assert target.tuples("SELECT * FROM t ORDER BY id") == expected


def test_rows_of_nothing_but_defaults(target: Target) -> None:
    target.execute("CREATE TABLE t (id serial, a int DEFAULT 5)")
    put(target.sink(), records(pa.table({"a": pa.nulls(3, pa.int32())})))
    assert target.tuples("SELECT id, a FROM t ORDER BY id") == [(1, 5), (2, 5), (3, 5)]


def test_computed_columns_are_left_to_the_server_and_take_no_values(target: Target) -> None:
    target.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, double int GENERATED ALWAYS AS (a * 2) STORED)"
    )
    sink = target.sink(**UPSERT)
    put(sink, records([{"a": 1, "double": 99}], keys=[1]))
    put(sink, records([{"a": 3, "double": 99}], keys=[1]))
    assert target.tuples("SELECT id, a, double FROM t") == [(1, 3, 6)]
    schema = sink.schema("t")
    assert schema is not None
    assert schema.names == ["a"]  # the key fills id
    for evolves in ("false", "true"):
        evolving = target.sink(**{**UPSERT, "auto_evolve": evolves})
        assert list(evolving.lacking("t", ["a", "double"])) == ["double"]
    assert "computes column double itself" in sink.no_column("t", "double")


@pytest.mark.parametrize("mode", ["insert", "upsert"])
@pytest.mark.parametrize("rows", [1, 3000])
def test_a_given_id_is_kept_where_the_server_always_generates_one(
    mode: str, rows: int, target: Target
) -> None:
    target.execute("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int)")
    keys = {"insert_mode": mode, "pk_mode": "record_value", "pk_fields": "id"}
    sink = target.sink(**(keys if mode == "upsert" else {}))
    put(sink, records([{"id": 7 + n, "v": n} for n in range(rows)]))
    if mode == "upsert":
        put(sink, records([{"id": 7 + n, "v": n + 1} for n in range(rows)]))
    found = target.tuples("SELECT id, v FROM t ORDER BY id")
    assert found == [(7 + n, n + (mode == "upsert")) for n in range(rows)]


def test_an_id_that_the_server_always_generates_is_not_changed(target: Target) -> None:
    target.execute("CREATE TABLE t (id int PRIMARY KEY, a int, n int GENERATED ALWAYS AS IDENTITY)")
    sink = target.sink(**UPSERT)
    put(sink, records([{"a": 1, "n": 77}], keys=[1]))
    put(sink, records([{"a": 2, "n": 78}], keys=[1]))
    put(sink, records([{"a": 3, "n": None}], keys=[2]))
    assert target.tuples("SELECT id, a, n FROM t ORDER BY id") == [(1, 2, 77), (2, 3, 1)]


def test_a_trigger_may_fill_in_a_required_column(target: Target) -> None:
    target.execute(
        "CREATE TABLE t (a int, filled int NOT NULL)",
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.filled := 1; RETURN NEW; END $$",
        "CREATE TRIGGER fill BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fill()",
    )
    put(target.sink(), records([{"a": 1, "filled": None}]))
    assert target.tuples("SELECT a, filled FROM t") == [(1, 1)]


# Kinds of relations


@pytest.mark.parametrize("mode", some(["insert", "upsert"], {"upsert"}))
def test_partitioned_tables(target: Target, mode: str) -> None:
    target.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (10) TO (20)",
    )
    sink = target.sink(delete_enabled="true", **{**UPSERT, "insert_mode": mode})
    sink.prepare(["t"])
    put(sink, changes((1, {"v": 1}), (11, {"v": 2})))
    put(sink, changes((1, None), (2, {"v": 3})))
    assert target.tuples("SELECT tableoid::regclass::text, id, v FROM t ORDER BY id") == [
        ("t_low", 2, 3),
        ("t_high", 11, 2),
    ]


def test_inserts_through_a_view(target: Target) -> None:
    target.execute(
        "CREATE TABLE base (a int, b int DEFAULT 3)", "CREATE VIEW t AS SELECT a FROM base"
    )
    sink = target.sink()
    sink.prepare(["t"])
    put(sink, records([{"a": 1}]))
    assert target.tuples("SELECT a, b FROM base") == [(1, 3)]


def test_row_level_security_is_obeyed(target: Target) -> None:
    target.execute(
        "CREATE TABLE t (a int)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON t USING (true) WITH CHECK (a < 10)",
        "DROP ROLE IF EXISTS clerk",
        "CREATE ROLE clerk LOGIN PASSWORD 'clerk'",
        "GRANT INSERT ON t TO clerk",
    )
    try:
        sink = target.sink(connection_user="clerk", connection_password="clerk")
        put(sink, records([{"a": 1}]))
        assert target.values("SELECT a FROM t") == [1]
        with pytest.raises(ServiceError, match=r"row-level security"):
            put(sink, records([{"a": 10}]))
    finally:
        target.execute("DROP OWNED BY clerk", "DROP ROLE clerk")


# Provenance and dead letters


def test_provenance_columns_are_created_and_filled(target: Target) -> None:
    sink = target.sink(provenance="true", **CREATE)
    put(sink, records([{"a": 1}], offsets=[7], partition=2))
    found = target.tuples(
        "SELECT a, __connect_topic, __connect_partition, __connect_offset, "
        "extract(epoch FROM __connect_timestamp)::bigint FROM t"
    )
    assert found == [(1, "t", 2, 7, 1_700_000_000)]
    assert target.values(
        "SELECT format_type(atttypid, -1) FROM pg_attribute "
        "WHERE attrelid = 't'::regclass AND attname = '__connect_timestamp'"
    ) == ["timestamp with time zone"]


def test_provenance_columns_may_have_other_names(target: Target) -> None:
    target.execute("CREATE TABLE t (a int, src text, p int, o bigint, at timestamp)")
    sink = target.sink(
        provenance="true",
        provenance_topic_column="src",
        provenance_partition_column="p",
        provenance_offset_column="o",
        provenance_timestamp_column="at",
    )
    put(sink, records([{"a": 1}], offsets=[7]))
    assert target.tuples("SELECT a, src, p, o, at::text FROM t") == [
        (1, "t", 0, 7, "2023-11-14 22:13:20.007")
    ]
    schema = sink.schema("t")
    assert schema is not None
    assert schema.names == ["a"]


def letter(offset: int, message: str = "bad") -> DeadLetter:
    return DeadLetter(
        topic="t",
        partition=0,
        offset=offset,
        key=b"k\xff",
        value=None if offset % 2 else b"\x00raw",
        headers=[("h", b"x"), ("n", None), ("odd", b"\xff\x00")],
        timestamp=1_700_000_000_000,
        stage="VALUE_CONVERTER",
        exception="org.apache.kafka.connect.errors.DataException",
        message=message,
    )


def test_dead_letters_are_committed_with_the_rows(target: Target) -> None:
    target.execute("CREATE TABLE t (a int)")
    sink = target.sink(errors_deadletterqueue_table="dead")
    sink.prepare(["t"])
    sink.start(firsts({advance(0, 3).range.topic_partition: 0}))
    commit = Commit([records([{"a": 1}])], [letter(1), letter(2, "NUL \0 and \udcff")])
    sink.commit([advance(0, 3)], commit)
    found = target.query('SELECT *, headers::text AS h FROM dead ORDER BY "offset"')
    assert [(d["connector"], d["topic"], d["partition"], d["offset"]) for d in found] == [
        ("c", "t", 0, 1),
        ("c", "t", 0, 2),
    ]
    assert [(d["key"], d["value"]) for d in found] == [(b"k\xff", None), (b"k\xff", b"\x00raw")]
    assert found[0]["h"] == '[["h", "x"], ["n", null], ["odd", "\\\\xff\\\\0"]]'
    assert found[1]["message"] == "NUL \\0 and \\udcff"
    assert found[0]["timestamp"].timestamp() == 1_700_000_000
    assert found[0]["failed_at"] is not None
    assert target.values("SELECT a FROM t") == [1]


def test_a_dead_letter_there_already_is_replaced(target: Target) -> None:
    """Positions may be set back by hand."""
    sink = target.sink(errors_deadletterqueue_table="dead")
    sink.prepare([])
    sink.write(Commit([], [letter(1, "first"), letter(2, "other")]))
    sink.write(Commit([], [letter(1, "again")]))
    found = target.tuples('SELECT "offset", message FROM dead ORDER BY 1')
    assert found == [(1, "again"), (2, "other")]


def test_dead_letters_without_a_table_are_not_kept(target: Target) -> None:
    sink = target.sink()
    sink.prepare([])
    sink.write(Commit([], [letter(1)]))
