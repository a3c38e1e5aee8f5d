"""TimestampConverter and TimestampRouter, and the dates that they read and write."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

import pyarrow as pa
import pytest

from semel.core.errors import ConfigError
from semel.transforms import chain_of
from semel.transforms.texts import DateFormat
from tests.engine.harness import some
from tests.transforms.records import batch, refusals, stage, values

AT = 1_700_000_000_123
MOMENT = datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
ISO = "yyyy-MM-dd'T'HH:mm:ss.SSSX"


@pytest.mark.parametrize("given", [AT, MOMENT, "2023-11-14T22:13:20.123Z"])
@pytest.mark.parametrize(
    ("target", "made"),
    [
        ("unix", AT),
        ("Timestamp", MOMENT),
        ("Date", date(2023, 11, 14)),
        ("Time", time(22, 13, 20, 123000)),
        ("string", "2023-11-14T22:13:20.123Z"),
    ],
)
def test_every_kind_of_time_becomes_every_other(given: Any, target: str, made: Any) -> None:
    for has_schema in (True, False):
        whole = stage("TimestampConverter$Value", target_type=target, format=ISO)
        assert values(whole, batch([given, None], has_schema=has_schema)) == [made, None]
        field = whole | {"transforms.t.field": "f"}
        rows = [{"f": given, "n": 1}, {"f": None, "n": 2}, None]
        assert values(field, batch(rows, has_schema=has_schema)) == [
            {"f": made, "n": 1},
            {"f": None, "n": 2},
            None,
        ]


@pytest.mark.parametrize(
    ("precision", "number", "back"),
    [
        ("seconds", 1_700_000_000, 1_700_000_000),
        ("milliseconds", AT, AT),
        ("microseconds", 1_700_000_000_123_456, 1_700_000_000_123_000),
        ("nanoseconds", 1_700_000_000_123_456_789, 1_700_000_000_123_000_000),
        ("microseconds", -1, 0),
        ("seconds", 2**60, 2**63 // 1000),
    ],
)
def test_numbers_count_what_unix_precision_says(precision: str, number: int, back: int) -> None:
    config = stage("TimestampConverter$Value", target_type="unix", unix_precision=precision)
    assert values(config, batch([number])) == [back]


def test_a_time_without_a_date_is_refused_alone() -> None:
    """A date counts days in 32 bits."""
    config = stage("TimestampConverter$Value", target_type="Date")
    (why,) = refusals(config, batch([AT, 2**63 - 1, None]))
    assert why == "transforms.t: there is no such date"


def test_what_is_no_time_is_refused_alone() -> None:
    config = stage("TimestampConverter$Value", target_type="unix", format="yyyy-MM-dd")
    (why,) = refusals(config, batch(["2024-01-01", "soon"]))
    assert why.endswith(
        "Could not parse timestamp: value (soon) does not match pattern (yyyy-MM-dd)"
    )
    (why,) = refusals(config, batch([1.5]))
    assert why.endswith("does not support class java.lang.Double objects as timestamps")
    (why,) = refusals(config, batch([True], has_schema=True))
    assert why.endswith("does not correspond to a known timestamp type format")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_type": "invalid"}, "transforms.t.target.type='invalid' must be one of"),
        ({"target_type": "string"}, "requires format option"),
        ({"target_type": "unix", "format": "bad-format"}, "Illegal pattern character 'b'"),
        ({"target_type": "unix", "format": "YYYY-MM-dd"}, "use y for the year of a date"),
        ({"target_type": "unix", "unix_precision": "x"}, "must be one of seconds"),
        ({}, "transforms.t.target.type is required"),
    ],
)
def test_a_configuration_that_says_nothing_is_refused(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        chain_of(stage("TimestampConverter$Value", **options))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "text", "stamp"),
    [
        ("yyyy-MM-dd", "2024-02-29", datetime(2024, 2, 29, tzinfo=UTC)),
        ("yyyy-MM-dd", "2024-14-01 and more", datetime(2025, 2, 1, tzinfo=UTC)),
        ("yyyyMMddHHmmss", "20240229101112", datetime(2024, 2, 29, 10, 11, 12, tzinfo=UTC)),
        ("dd/MM/yy", "01/02/24", datetime(2024, 2, 1, tzinfo=UTC)),
        (
            "EEE, d MMM yyyy hh:mm a",
            "Thu, 1 Feb 2024 12:30 PM",
            datetime(2024, 2, 1, 12, 30, tzinfo=UTC),
        ),
        (
            "yyyy-MM-dd'T'HH:mm:ssXXX",
            "2024-02-01T01:00:00+02:00",
            datetime(2024, 1, 31, 23, tzinfo=UTC),
        ),
        (
            "yyyy-MM-dd HH:mm:ss Z",
            "2024-02-01 01:00:00 -0130",
            datetime(2024, 2, 1, 2, 30, tzinfo=UTC),
        ),
        ("yyyy-MM-dd HH:mm z", "2024-02-01 01:00 GMT", datetime(2024, 2, 1, 1, tzinfo=UTC)),
        ("s.S", "1.123456", datetime(1970, 1, 1, 0, 2, 4, 456000, UTC)),
        ("yyyy-DDD", "2024-060", datetime(2024, 2, 29, tzinfo=UTC)),
        ("MMMM d, yyyy", "february 9, 2024", datetime(2024, 2, 9, tzinfo=UTC)),
    ],
)
def test_text_is_read_as_leniently_as_java_reads_it(
    pattern: str, text: str, stamp: datetime
) -> None:
    (found,) = DateFormat(pattern).parse(pa.array([text])).to_pylist()
    assert found == round(stamp.timestamp() * 1000)


@pytest.mark.parametrize(
    "pattern", ["yyyy-MM-dd HH:mm:ss.SSS", "yyyyMMdd", "dd.MM.yyyy'T'HH", "yyyy-M-d", "yyyy-MMM-dd"]
)
def test_texts_of_one_width_are_read_as_one_by_one(pattern: str) -> None:
    form = DateFormat(pattern)
    stamps = pa.array([AT + n * 86_500_123 for n in range(-50_000, 50_000, 997)] + [None])
    texts = form.format(stamps)[3:]
    alone = [form.parse(pa.array([t, "x"]))[0].as_py() for t in texts.to_pylist()]
    assert form.parse(texts).to_pylist() == alone


@pytest.mark.parametrize(
    "text", ["2024-02-0x", "2024/02/01", "2024-02-01 ", "٢٠٢٤-02-01", "-024-02-01"]
)
def test_a_text_of_another_shape_is_judged_by_itself(text: str) -> None:
    form = DateFormat("yyyy-MM-dd")
    both = form.parse(pa.array(["2024-02-01", text])).to_pylist()
    assert both == [
        form.parse(pa.array(["2024-02-01"]))[0].as_py(),
        form.parse(pa.array([text]))[0].as_py(),
    ]


def test_dates_before_the_gregorian_calendar_are_julian() -> None:
    form = DateFormat("yyyy-MM-dd")
    stamps = pa.array([-62_135_769_600_000, -12_219_292_800_000, -12_219_379_200_000])
    texts = ["0001-01-01", "1582-10-15", "1582-10-04"]
    assert form.format(stamps).to_pylist() == texts
    assert form.parse(pa.array(texts)).to_pylist() == stamps.to_pylist()


@pytest.mark.parametrize(
    ("pattern", "earliest", "latest"),
    [
        ("yyyy", "292269055", "292278994"),
        ("yyyy-MM-dd HH", "292269055-12-02 16", "292278994-08-17 07"),
        ("HH:mm:ss.SSS", "16:47:04.192", "07:12:55.807"),
    ],
)
def test_the_earliest_and_the_latest_time_are_written(
    pattern: str, earliest: str, latest: str
) -> None:
    form, stamps = DateFormat(pattern), [-(2**63), 2**63 - 1]
    assert form.format(pa.array(stamps)).to_pylist() == [earliest, latest]
    assert form.format(pa.array(stamps * 3)).to_pylist() == [earliest, latest] * 3


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd HH:mm:ss.SSS", "2023-11-14 22:13:20.123"),
        ("EEEE d MMMM yy, h:mm a z", "Tuesday 14 November 23, 10:13 PM UTC"),
        ("D 'o''clock' k K u SSSSSS Z", "318 o'clock 22 10 2 000123 +0000"),
    ],
)
def test_times_are_written_as_java_writes_them(pattern: str, text: str) -> None:
    assert DateFormat(pattern).format(pa.array([AT, None])).to_pylist() == [text, None]


def test_the_year_of_a_week_is_that_of_its_saturday() -> None:
    days = [datetime(2024, 12, 28, tzinfo=UTC), datetime(2024, 12, 29, tzinfo=UTC)]
    stamps = pa.array([int(d.timestamp() * 1000) for d in days])
    assert DateFormat("YYYY-MM-dd YY YYYYY").format(stamps).to_pylist() == [
        "2024-12-28 24 02024",
        "2025-12-29 25 02025",
    ]


@pytest.mark.parametrize(
    "pattern",
    some(["yyyy-MM-dd", "HH", "h a", "mm", "ss", "SSS", "EEE", "'x'"], {"h a", "SSS"}),
)
def test_times_that_read_the_same_are_written_like_each_alone(pattern: str) -> None:
    stamps = [*(n * 7_919_333 - 10**9 for n in range(300)), None] * 3
    made = DateFormat(pattern).format(pa.array(stamps, pa.int64())).to_pylist()
    alone = [DateFormat(pattern).format(pa.array([s], pa.int64()))[0].as_py() for s in stamps]
    assert made == alone
