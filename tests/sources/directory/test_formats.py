"""What each format makes of files, and where it finds them broken."""

from __future__ import annotations

import bz2
import gzip
import json
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.core.errors import ConfigError, ServiceError
from semel.sources.directory import csvrows, streams, tables
from semel.sources.directory.source import DirectorySource
from semel.sources.directory.texts import JsonFormat, TextFormat
from tests.sources.directory.conftest import Reading
from tests.test_answers import deflated_zeros

Make = Callable[..., DirectorySource]

CONNECT = "org.apache.kafka.connect.data."


def schema(**fields: Any) -> str:
    """A schema as spooldir writes it; a field's type, or all that is said of it."""
    given = {
        name: {"isOptional": True, **({"type": f} if isinstance(f, str) else f)}
        for name, f in fields.items()
    }
    return json.dumps({"name": "n", "type": "STRUCT", "isOptional": False, "fieldSchemas": given})


VALUE = schema(
    id={"type": "INT64", "isOptional": False},
    name="STRING",
    at={"name": f"{CONNECT}Timestamp", "type": "INT64", "version": 1},
    amount={"name": f"{CONNECT}Decimal", "type": "BYTES", "parameters": {"scale": "2"}},
    on={"name": f"{CONNECT}Date", "type": "INT32"},
    good="BOOLEAN",
)
AT = datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC)
ROW = {
    "id": 1,
    "name": 'Zoë, "the" one\nof two',
    "at": AT,
    "amount": Decimal("1.50"),
    "on": date(2020, 9, 13),
    "good": True,
}
CSV_ROW = '1,"Zoë, ""the"" one\nof two",2020-09-13 12:26:40,1.5,2020-09-13,true\n'
HEAD = "id,name,at,amount,on,good\n"


@pytest.fixture(params=[None, 7], ids=["whole", "blocks of 7 bytes"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(streams, "BLOCK", request.param)


@pytest.mark.usefixtures("block")
class TestCsv:
    def test_rows_have_the_types_of_the_schema(self, make: Make, folder: Path) -> None:
        (folder / "a.csv").write_text(HEAD + CSV_ROW * 3 + "\n", encoding="utf-8")
        source = make("csv", value_schema=VALUE, csv_first_row_as_header="true")
        assert Reading(source).all() == [ROW] * 3

    def test_without_a_header_columns_are_in_the_schemas_order(
        self, make: Make, folder: Path
    ) -> None:
        (folder / "a.csv").write_text("skipped\n" + CSV_ROW)
        assert Reading(make("csv", value_schema=VALUE, csv_skip_lines="1")).all() == [ROW]

    def test_columns_of_the_header_may_be_in_any_order_and_more(
        self, make: Make, folder: Path
    ) -> None:
        (folder / "a.csv").write_text("\ufeffNAME,other,Id\r\na,x,1\r\nb,y,2")
        fields = schema(id="INT32", name="STRING", no="STRING")
        source = make("csv", value_schema=fields, csv_first_row_as_header="true")
        assert Reading(source).all() == [
            {"id": 1, "name": "a", "no": None},
            {"id": 2, "name": "b", "no": None},
        ]

    def test_characters_may_be_numbers_even_of_one_digit(self, make: Make, folder: Path) -> None:
        (folder / "a.csv").write_text("id\tname\n1\ta\\b\n")
        source = make(
            "csv",
            value_schema=schema(id="INT32", name="STRING"),
            csv_first_row_as_header="true",
            csv_separator_char="9",
            csv_escape_char="0",
        )
        assert Reading(source).all() == [{"id": 1, "name": "a\\b"}]

    @pytest.mark.parametrize("rfc", ["false", "true"])
    def test_a_quote_that_is_never_closed_is_refused_before_it_takes_in_the_whole_file(
        self, make: Make, folder: Path, rfc: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(csvrows.CsvFormat, "largest", 2000)
        (folder / "a.csv").write_text('1,a\n2,"5 pipe\n' + "3,c\n" * 10000)
        keys = {"value_schema": schema(id="INT32", n="STRING"), "halt_on_error": "false"}
        reading = Reading(make("csv", csv_rfc_4180_parser_enabled=rfc, **keys))
        assert reading.all() == [{"id": 1, "n": "a"}]
        assert reading.stored["a.csv"]["state"] == "broken"

    @pytest.mark.parametrize("end", ["", "\n"])
    def test_a_last_row_of_blanks_is_a_row(self, make: Make, folder: Path, end: str) -> None:
        (folder / "a.tsv").write_text(f"1\t2\t3\n\t\t{end}")
        fields = schema(a="STRING", b="STRING", c="STRING")
        source = make("csv", value_schema=fields, csv_separator_char="9")
        assert Reading(source).all() == [
            {"a": "1", "b": "2", "c": "3"},
            {"a": "", "b": "", "c": ""},
        ]

    def test_generated_fields_are_text(self, make: Make, folder: Path) -> None:
        (folder / "a.csv").write_text("id;n\n1;2\n'3;4';5\n")
        source = make(
            "csv",
            schema_generation_enabled="true",
            csv_first_row_as_header="true",
            csv_separator_char=";",
            csv_quote_char="39",
            schema_generation_key_fields="id",
        )
        reading = Reading(source)
        assert reading.all() == [{"id": "1", "n": "2"}, {"id": "3;4", "n": "5"}]
        assert reading.keys == [{"id": "1"}, {"id": "3;4"}]

    def test_reading_continues_after_any_batch(self, make: Make, folder: Path) -> None:
        rows = [f'{n},"a\n{n}""",,,,\n' if n % 3 else f'{n},a\\"b,,,,\n' for n in range(40)]
        (folder / "a.csv").write_text(HEAD + "".join(rows))
        keys = {"value_schema": VALUE, "csv_first_row_as_header": "true", "cleanup_policy": "none"}
        whole = Reading(make("csv", **keys)).all()
        assert [(v["id"], v["name"]) for v in whole] == [
            (n, f'a\n{n}"' if n % 3 else 'a"b') for n in range(40)
        ]
        reading = Reading(make("csv", batch_size="7", **keys))
        while reading.step():
            reading.restart()
        assert reading.values == whole

    def test_a_quote_that_is_never_closed_is_reported(
        self, make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (folder / "a.csv").write_text(CSV_ROW + '2,"open,,,,\n' + CSV_ROW.replace('"', "") * 100)
        with pytest.raises(ServiceError, match="record 2: a quote is not closed"):
            Reading(make("csv", value_schema=VALUE, cleanup_policy="none")).all()
        (folder / "b.csv").write_text(CSV_ROW + '2,"open,,,,\n' + "1,,,,,\n" * 1000)
        monkeypatch.setattr(streams, "LARGEST", 1000)
        monkeypatch.setattr(streams, "BLOCK", 100)
        reading = Reading(make("csv", value_schema=VALUE))
        with pytest.raises(ServiceError, match=r"has more than 1,000 bytes\. Is a quote not"):
            reading.all()
        assert reading.values == [ROW]

    @pytest.mark.parametrize(
        ("nulls", "expected"),
        [("NEITHER", ["", ""]), ("EMPTY_SEPARATORS", [None, ""]), ("BOTH", [None, None])],
    )
    def test_empty_text_is_null_as_the_key_says(
        self, nulls: str, expected: list[Any], make: Make, folder: Path
    ) -> None:
        (folder / "a.csv").write_text(',""\n')
        fields = schema(a="STRING", b="STRING")
        source = make("csv", value_schema=fields, csv_null_field_indicator=nulls)
        assert [[*row.values()] for row in Reading(source).all()] == [expected]

    @pytest.mark.parametrize(
        ("bad", "why"),
        [
            ("x,,,,,", "field id: 'x' is not of type int64"),
            ("0xFF,,,,,", "field id: '0xFF' is not of type int64"),
            (",,,,,", "field id is null, but isOptional is false"),
            ("1,,today,,,", r"field at: 'today' is not of type timestamp"),
            ("1,,,,99999999-01-01,", r"field on: '99999999-01-01' is not of type date32"),
            ("1,,,1.234,,", r"field amount: '1.234' is not of type decimal128"),
            ("1,,,,,perhaps", "field good: 'perhaps' is not of type bool"),
            ("1,2", "Expected 6 columns, got 2"),
        ],
    )
    def test_a_bad_row_is_named_and_those_before_it_are_read(
        self, bad: str, why: str, make: Make, folder: Path
    ) -> None:
        (folder / "a.csv").write_text(CSV_ROW * 5 + f"{bad}\n" + CSV_ROW * 5)
        reading = Reading(make("csv", value_schema=VALUE))
        with pytest.raises(ServiceError, match=f"record 6: .*{why}"):
            reading.all()
        assert reading.values == [ROW] * 5

    @pytest.mark.parametrize(
        ("row", "read"),
        [
            ("a,b,c\n", [("a", "b")]),  # more columns than names
            ("a,b\na,b,c,d\n", [("a", "b")] * 2),
            ("x\\,y,b\n", [("x", "y")]),  # no escape before a separator without quotes
            ('"x\\,y",b\n', [("x,y", "b")]),
            ('\\"a\nb",b\n', [("a\nb", "b")]),  # nor at the beginning of a value
            ("C:\\dir\\,b\n", [("C:dir", "b")]),
            ('abc"d"e,b\n', [('abc"d"e', "b")]),
            ('a"b,c\na,",d\n', [("ab,c\na,", "d")]),
            ('1, "b"\n', [("1", "b")]),
            ('"a\r\nb",c\r\n', [("a\nb", "c")]),
            ("\n\na,b\n\n\nc,d\n\n", [("a", "b"), ("c", "d")]),
        ],
    )
    def test_rows_are_those_of_opencsv(
        self, row: str, read: list[tuple[str, str]], make: Make, folder: Path
    ) -> None:
        (folder / "a.csv").write_bytes(f"one,two\n{row}".encode())
        source = make("csv", schema_generation_enabled="true", csv_first_row_as_header="true")
        assert [(v["one"], v["two"]) for v in Reading(source).all()] == read

    def test_an_integer_may_have_a_sign(self, make: Make, folder: Path) -> None:
        (folder / "a.csv").write_text("+5,-5\n")
        source = make("csv", value_schema=schema(one="INT32", two="INT64"))
        assert Reading(source).all() == [{"one": 5, "two": -5}]

    def test_a_header_may_have_line_ends(self, make: Make, folder: Path) -> None:
        (folder / "a.csv").write_text('skipped "\n\n"one\nand more",two\n1,2\n')
        keys = {"schema_generation_enabled": "true", "csv_first_row_as_header": "true"}
        source = make("csv", csv_skip_lines="1", **keys)
        assert Reading(source).all() == [{"one\nand more": "1", "two": "2"}]

    def test_a_blank_line_is_an_empty_text_in_a_file_of_one_column(
        self, make: Make, folder: Path
    ) -> None:
        (folder / "a.csv").write_text("one\n1\n\n2\n")
        keys = {"schema_generation_enabled": "true", "csv_first_row_as_header": "true"}
        assert Reading(make("csv", **keys)).all() == [{"one": "1"}, {"one": ""}, {"one": "2"}]

    def test_a_separator_of_zero_is_nul_with_the_rules_of_rfc_4180(
        self, make: Make, folder: Path
    ) -> None:
        (folder / "a.csv").write_text('one\0two\n"a\0b"\0c\\\n')
        keys = {"schema_generation_enabled": "true", "csv_first_row_as_header": "true"}
        source = make("csv", csv_separator_char="0", **keys)
        assert Reading(source).all() == [{"one": "a\0b", "two": "c\\"}]

    @pytest.mark.parametrize(
        ("key", "read"),
        [("csv.strict.quotes", ["a,b", ""]), ("csv.ignore.quotations", ["a", "b"])],
    )
    def test_quotes_are_taken_as_the_keys_say(
        self, key: str, read: list[str], make: Make, folder: Path
    ) -> None:
        (folder / "a.csv").write_text('"a,b",x\n')
        source = make("csv", value_schema=schema(one="STRING", two="STRING"), **{key: "true"})
        assert [[*v.values()] for v in Reading(source).all()] == [read]

    def test_characters_must_differ(self, make: Make) -> None:
        with pytest.raises(ConfigError, match=r"csv\.separator\.char=34 must differ from"):
            make("csv", value_schema=VALUE, csv_separator_char="34")


@pytest.mark.usefixtures("block")
class TestJson:
    def test_objects_have_the_types_of_the_schema(self, make: Make, folder: Path) -> None:
        row = {**ROW, "at": "2020-09-13T12:26:40", "amount": 1.5, "on": "2020-09-13", "more": {}}
        (folder / "a.json").write_text(f"\n{json.dumps(row)}\n\n{json.dumps(row)}")
        source = make("json", value_schema=VALUE, key_schema=schema(id="INT64"))
        reading = Reading(source)
        assert reading.all() == [ROW] * 2
        assert reading.keys == [{"id": 1}] * 2

    def test_without_a_schema_values_are_as_they_are(self, make: Make, folder: Path) -> None:
        values = ['{"a": 1, "b": [1, "ß"]}', "[1]", '"x"']
        (folder / "a.json").write_text("\n".join(values))
        assert Reading(make("json")).all() == values

    def test_values_may_have_several_lines_and_lines_several_values(
        self, make: Make, folder: Path
    ) -> None:
        values = ['{\n  "a": "}\\"{",\n  "b": []\n}', "[1,\r\n2]", "{}", '"x y"', "1", "true", "{}"]
        (folder / "a.json").write_text(" ".join(values[:3]) + "".join(values[3:5]) + "\ntrue{}\n")
        reading = Reading(make("json", batch_size="2"))
        while reading.step():
            reading.restart()
        assert reading.values == values

    def test_objects_of_a_schema_may_have_several_lines(self, make: Make, folder: Path) -> None:
        rows = [{"id": n, "name": f"{{{n}"} for n in range(20)]
        text = "".join(json.dumps(row, indent=n % 3 or None) for n, row in enumerate(rows))
        (folder / "a.json").write_text(text)
        source = make("json", value_schema=schema(id="INT64", name="STRING"))
        assert Reading(source).all() == rows

    def test_objects_may_hold_others(self, make: Make, folder: Path) -> None:
        rows = [
            {"in": {"x": n, "far": {"y": "z"}}, "items": [{"x": n}, None], "map": {"a": n}}
            for n in range(3)
        ]
        (folder / "a.json").write_text("\n".join(map(json.dumps, [*rows, {"in": {"x": "no"}}])))
        number = {"type": "INT32"}
        inner = {"x": number, "far": {"type": "STRUCT", "fieldSchemas": {"y": {"type": "STRING"}}}}
        struct = {"type": "STRUCT", "fieldSchemas": inner}
        fields = {
            "in": struct,
            "items": {"type": "ARRAY", "valueSchema": struct},
            "map": {"type": "MAP", "valueSchema": number},
        }
        reading = Reading(make("json", value_schema=schema(**fields)))
        with pytest.raises(ServiceError, match='record 4: field in: field x: "no" is not a whole'):
            reading.all()
        assert reading.values == [
            {**r, "items": [{"x": n, "far": None}, None], "map": [("a", n)]}
            for n, r in enumerate(rows)
        ]

    @pytest.mark.parametrize("bad", ["{", '{"a":1,}', '{"a": NaN}', "[nan]", "// c", '"\\x"', "}"])
    def test_what_is_not_json_is_named(self, bad: str, make: Make, folder: Path) -> None:
        good = ['{"a":"b:NaN,]"}', '{"a": "inf, }"}']
        (folder / "a.json").write_text(f"{good[0]}\n{good[1]}\n{bad}\n")
        reading = Reading(make("json"))
        with pytest.raises(ServiceError, match=r"record 3: it is not JSON"):
            reading.all()
        assert reading.values == good

    @pytest.mark.parametrize("bad", ['{"id": 1', '{"id": "x"}', '{"name": "none"}'])
    def test_a_bad_line_is_named_and_those_before_it_are_read(
        self, bad: str, make: Make, folder: Path
    ) -> None:
        (folder / "a.json").write_text('{"id": 1}\n' * 5 + f"{bad}\n" + '{"id": 1}\n')
        fields = schema(id={"type": "INT64", "isOptional": False})
        reading = Reading(make("json", value_schema=fields))
        with pytest.raises(ServiceError, match="record 6: "):
            reading.all()
        assert reading.values == [{"id": 1}] * 5


@pytest.mark.usefixtures("block")
class TestText:
    @pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
    @pytest.mark.parametrize("last", ["", "last"])
    def test_all_line_ends_are_understood(
        self, end: str, last: str, make: Make, folder: Path
    ) -> None:
        expected = ["", "größe", "", "x" * 50, ""]
        (folder / "a.txt").write_bytes((end.join(expected) + end + last).encode())
        assert Reading(make()).all() == [*expected, *([last] if last else [])]

    @pytest.mark.parametrize("charset", ["ISO-8859-1", "windows-1252", "UTF-16", "GBK"])
    def test_other_character_sets_are_read(self, charset: str, make: Make, folder: Path) -> None:
        expected = [f"ü {n}" for n in range(30)]
        (folder / "a.txt").write_bytes("\n".join(expected).encode(charset))
        reading = Reading(make(file_charset=charset, batch_size="7", cleanup_policy="none"))
        while reading.step():
            reading.restart()
        assert reading.values == expected

    @pytest.mark.parametrize("ending", ["gz", "bz2", "zst", "lz4"])
    def test_compressed_files_are_read_and_reading_resumes(
        self, ending: str, make: Make, folder: Path
    ) -> None:
        expected = [f"line {n}" for n in range(30)]
        path = folder / f"a.txt.{ending}"
        content = "\n".join(expected).encode()
        if ending in ("gz", "bz2"):
            path.write_bytes({"gz": gzip, "bz2": bz2}[ending].compress(content))  # type: ignore[attr-defined]
        else:
            with pa.CompressedOutputStream(str(path), {"zst": "zstd"}.get(ending, ending)) as out:
                out.write(content)
        reading = Reading(make(batch_size="7", cleanup_policy="none"))
        while reading.step():
            reading.restart()
        assert reading.values == expected

    def test_a_compressed_file_that_was_cut_is_broken(self, make: Make, folder: Path) -> None:
        content = "".join(f"line {n}\n" for n in range(30)).encode()
        (folder / "a.txt.gz").write_bytes(gzip.compress(content)[:-20])
        reading = Reading(make())
        with pytest.raises(ServiceError, match="its content cannot be read"):
            reading.all()

    @pytest.mark.parametrize(
        ("name", "content", "charset", "lines"),
        [
            ("a.txt.gz", b"never compressed\n", "UTF-8", []),
            ("a.txt.zst", b"never compressed\n", "UTF-8", []),
            ("a.txt", "ü\n".encode("utf-16")[:-1], "UTF-16", []),
            ("a.txt", b"\xff\xfe\x00\xdca\x00\n\x00", "UTF-16", []),
            ("a.txt", "\n".join("abcdefgh\n").encode("utf-16")[:-1], "UTF-16", list("abcdefgh")),
        ],
    )
    def test_content_that_cannot_be_read_is_broken_there(
        self, name: str, content: bytes, charset: str, lines: list[str], make: Make, folder: Path
    ) -> None:
        (folder / name).write_bytes(content)
        reading = Reading(make(file_charset=charset))
        with pytest.raises(ServiceError, match=rf"record {len(lines) + 1}: its content cannot be"):
            reading.all()
        assert reading.values == lines

    def test_a_machine_without_memory_breaks_no_file(
        self, make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def values(*_: object) -> pa.Array:
            raise pa.lib.ArrowMemoryError("malloc of size 64 failed")

        (folder / "a.txt").write_text("a\n")
        monkeypatch.setattr(TextFormat, "values", values)
        with pytest.raises(MemoryError):
            Reading(make()).all()


def test_timestamps_are_the_files_or_of_a_field(make: Make, folder: Path) -> None:
    (folder / "a.csv").write_text(CSV_ROW)
    field = {"timestamp_mode": "FIELD", "timestamp_field": "at"}
    reading = Reading(make("csv", value_schema=VALUE, cleanup_policy="none", **field))
    reading.all()
    assert reading.timestamps == [AT]
    reading = Reading(make("csv", value_schema=VALUE, timestamp_mode="FILE_TIME"))
    reading.all()
    assert reading.timestamps[0].year > 2020


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("13.09.2020 14:26", datetime(2020, 9, 13, 12, 26, tzinfo=UTC)),
        ("31.03.2024 02:30", datetime(2024, 3, 31, 1, 30, tzinfo=UTC)),  # skipped
        ("27.10.2024 02:30", datetime(2024, 10, 27, 1, 30, tzinfo=UTC)),  # shown twice
        ("01.07.2040 14:26", datetime(2040, 7, 1, 12, 26, tzinfo=UTC)),
        ("13.09.2020 14:26 +05:00", datetime(2020, 9, 13, 9, 26, tzinfo=UTC)),
    ],
)
def test_times_are_of_their_zone_as_java_reads_them(
    text: str, hour: datetime, make: Make, folder: Path
) -> None:
    (folder / "a.csv").write_text(f"{text}\n")
    fields = schema(at={"name": f"{CONNECT}Timestamp", "type": "INT64"})
    source = make(
        "csv",
        value_schema=fields,
        parser_timestamp_date_formats="dd.MM.yyyy HH:mm XXX,dd.MM.yyyy HH:mm:ss,dd.MM.yyyy HH:mm",
        parser_timestamp_timezone="Europe/Berlin",
    )
    assert Reading(source).all() == [{"at": hour}]


@pytest.mark.parametrize("text", ["24:00:00", "2024-01-01T10:00:00"])
def test_a_time_that_is_not_within_a_day_is_refused(text: str, make: Make, folder: Path) -> None:
    (folder / "a.csv").write_text(f"23:59:59\n{text}\n")
    fields = schema(at={"name": f"{CONNECT}Time", "type": "INT32"})
    reading = Reading(make("csv", value_schema=fields))
    with pytest.raises(ServiceError, match=f"record 2: field at: '{text}' is not of type time"):
        reading.all()
    assert reading.values == [{"at": time(23, 59, 59)}]


class TestTables:
    @pytest.fixture(params=["parquet", "null", "deflate", "bzip2"])
    def kind(self, request: pytest.FixtureRequest, folder: Path) -> str:
        rows = [{"id": n, "name": f"ß{n}" if n % 3 else None} for n in range(1000)]
        path = folder / "a.data"
        if request.param == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=130)
            return "parquet"
        avro = {
            "type": "record",
            "name": "r",
            "fields": [
                {"name": "id", "type": "long"},
                {"name": "name", "type": ["null", "string"]},
            ],
        }
        out = BytesIO()
        fastavro.writer(out, avro, rows, codec=request.param, sync_interval=1000)
        path.write_bytes(out.getvalue())
        return "avro"

    def test_rows_are_read_and_reading_resumes(self, kind: str, make: Make, folder: Path) -> None:
        expected = [{"id": n, "name": f"ß{n}" if n % 3 else None} for n in range(1000)]
        reading = Reading(make(kind, batch_size="100", cleanup_policy="none", key_fields="id"))
        while reading.step():
            reading.restart()
        assert reading.values == expected
        assert reading.keys == [{"id": n} for n in range(1000)]

    def test_a_file_that_was_cut_is_broken(self, kind: str, make: Make, folder: Path) -> None:
        path = folder / "a.data"
        path.write_bytes(path.read_bytes()[:-30])
        reading = Reading(make(kind, halt_on_error="false"))
        reading.all()
        assert (folder.parent / "bad" / "a.data").exists()
        if kind == "avro":
            assert len(reading.values) > 500

    def test_another_format_is_broken(self, kind: str, make: Make, folder: Path) -> None:
        (folder / "a.data").write_bytes(zlib.compress(b"nothing"))
        with pytest.raises(ServiceError, match=r"it is not a whole (Parquet|Avro file)"):
            Reading(make(kind)).all()


def test_parquet_has_the_types_that_records_have(make: Make, folder: Path) -> None:
    words, large = pa.array(["a", None]).dictionary_encode(), pa.array([1, 2**63 - 1], pa.uint64())
    columns = {
        "category": words,
        "categories": pa.ListArray.from_arrays([0, 1, 2], words),
        "half": pa.array([0.5, None], pa.float16()),
        "large": large,
        "map": pa.MapArray.from_arrays([0, 1, 2], ["k", "k"], large),
    }
    pq.write_table(pa.table(columns), folder / "a.data")
    last = 2**63 - 1
    assert Reading(make("parquet")).all() == [
        {"category": "a", "categories": ["a"], "half": 0.5, "large": 1, "map": [("k", 1)]},
        {"category": None, "categories": [None], "half": None, "large": last, "map": [("k", last)]},
    ]


@pytest.mark.parametrize(
    ("table", "read", "why"),
    [
        (
            pa.table({"n": pa.array([1, 2, 2**63, 3], pa.uint64())}),
            [{"n": 1}, {"n": 2}],
            "record 3: field n: Integer value 9223372036854775808 not in range",
        ),
        (
            pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["n", "n"]),
            [],
            "record 1: it has several columns named n",
        ),
    ],
)
def test_parquet_that_makes_no_records_is_broken(
    table: pa.Table, read: list[Any], why: str, make: Make, folder: Path
) -> None:
    pq.write_table(table, folder / "a.data")
    reading = Reading(make("parquet"))
    with pytest.raises(ServiceError, match=why):
        reading.all()
    assert reading.values == read


def test_avro_of_any_schema_is_read_as_fastavro_reads_it(make: Make, folder: Path) -> None:
    avro = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "list", "type": {"type": "array", "items": ["null", "string"]}},
            {"name": "map", "type": {"type": "map", "values": "double"}},
            {"name": "flag", "type": ["null", "boolean"]},
            {"name": "kind", "type": {"type": "enum", "name": "e", "symbols": ["A", "B"]}},
            {"name": "mark", "type": {"type": "fixed", "name": "f", "size": 3}},
            {"name": "bytes", "type": "bytes"},
            {
                "name": "inner",
                "type": {
                    "type": "record",
                    "name": "i",
                    "fields": [{"name": "x", "type": "float"}, {"name": "y", "type": "int"}],
                },
            },
        ],
    }
    rows = [
        {
            "id": n * 10**9,
            "list": ["x" * (n % 200), None][: n % 3],
            "map": {f"k{i}": i / 2 for i in range(n % 4)},
            "flag": None if n % 2 else True,
            "kind": "AB"[n % 2],
            "mark": b"abc",
            "bytes": bytes(n % 300),
            "inner": {"x": n / 4, "y": -n},
        }
        for n in range(500)
    ]
    out = BytesIO()
    fastavro.writer(out, avro, rows, sync_interval=3000)
    (folder / "a.avro").write_bytes(out.getvalue())
    expected = [{**row, "map": [*row["map"].items()]} for row in rows]  # type: ignore[attr-defined]
    assert Reading(make("avro")).all() == expected


def test_snappy_and_zstandard_are_unpacked() -> None:
    content = b"content " * 100
    packed = pa.compress(content, "snappy", asbytes=True)
    checksum = zlib.crc32(content).to_bytes(4, "big")
    assert tables._snappy(packed + checksum) == content
    with pytest.raises(tables._Cut, match="checksum"):
        tables._snappy(packed + checksum[::-1])
    assert tables._zstd(pa.compress(content, "zstd", asbytes=True)) == content


def number(value: int) -> bytes:
    """A number as Avro writes it."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def avro_file(kind: Any, count: int, content: bytes, codec: str = "null") -> bytes:
    """A file of one block."""
    facts = {b"avro.schema": json.dumps(kind).encode(), b"avro.codec": codec.encode()}
    header = number(2) + b"".join(number(len(x)) + x for each in facts.items() for x in each)
    mark = b"m" * 16
    block = number(count) + number(len(content)) + content
    return b"Obj\x01" + header + b"\0" + mark + block + mark


FEW_NULLS = number(2**60) + b"\0"
NULLS: dict[str, Any] = {"type": "array", "items": "null"}
DEEP = {"type": "record", "name": "r", "fields": [{"name": "n", "type": ["null", "r"]}]}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(
            avro_file(NULLS, 1, FEW_NULLS), "items that take no bytes", id="a list of nulls"
        ),
        pytest.param(
            avro_file({"type": "record", "name": "r", "fields": []}, 2**60, b""),
            "cannot hold 1152921504606846976 records",
            id="empty records",
        ),
        pytest.param(avro_file("int", 2**60, b"\0"), "cannot hold", id="records"),
        pytest.param(avro_file("int", -1, b"\0"), "negative number", id="fewer than none"),
        pytest.param(
            avro_file({"type": "array", "items": "int"}, 1, number(-1) + number(-4) + b"\0"),
            "a length is negative",
            id="a block that leads back",
        ),
        pytest.param(
            avro_file("bytes", 1, b"\xff" * 1_000_000), "more than ten bytes", id="a long number"
        ),
        pytest.param(
            avro_file(DEEP, 1, b"\2" * 100_000 + b"\0"), "nested too deeply", id="a deep record"
        ),
        pytest.param(
            avro_file("int", 1, deflated_zeros(700), "deflate"), "more than 268435456", id="zeros"
        ),
        pytest.param(
            avro_file("int", 1, number(2**40), "snappy"), "more than 268435456", id="a large claim"
        ),
        pytest.param(
            b"Obj\x01" + number(1) + number(2**40), "more than 268435456", id="a large name"
        ),
        pytest.param(
            b"Obj\x01" + number(1) + number(2**27), "ends too early", id="a name without an end"
        ),
    ],
)
def test_an_avro_file_that_claims_more_than_it_holds_is_broken(
    content: bytes, why: str, make: Make, folder: Path
) -> None:
    (folder / "a.avro").write_bytes(content)
    with pytest.raises(ServiceError, match=rf"it is not a whole Avro file: .*{why}"):
        Reading(make("avro")).all()


def test_blanks_behind_the_last_value_of_a_block_are_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "BLOCK", 7)
    found = streams.blocks(
        BytesIO(b'{"a":1} \t'), streams.value_ends, blank=False, space=JsonFormat.space
    )
    assert [block for block, _ in found] == [b'{"a":1}']
