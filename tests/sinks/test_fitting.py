"""What text and JSON cannot hold, named row by row."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.sinks import jsontext
from semel.sinks.casts import cast
from semel.sinks.fitting import without_json, without_text
from semel.sinks.sql.convert import json_text, text_of

FAR = [
    *((pa.timestamp(unit, "UTC"), 2**62) for unit in ("s", "ms")),
    *((pa.timestamp(unit), 2**63 - 1) for unit in ("s", "ms", "us")),
    (pa.timestamp("ms"), -(2**62)),
    (pa.date32(), 2**31 - 1),
    (pa.date32(), -20_000_000),
]
NEAR = [
    (pa.timestamp("s"), 971_890_963_199),
    (pa.timestamp("ns"), 2**63 - 1),
    (pa.date32(), 11248737),
]


@pytest.mark.parametrize(("kind", "count"), FAR, ids=str)
def test_a_time_that_no_text_can_hold_is_no_text(kind: pa.DataType, count: int) -> None:
    values = pa.array([0, count, None], kind)
    both = pa.table({"t": values, "s": pa.StructArray.from_arrays([values], ["in"])})
    for column in both.columns:
        assert list(without_json(pa.table({"c": column}))) == [1]
        with pytest.raises(pa.ArrowInvalid, match="its year is beyond 32767"):
            json_text(column)
    assert list(without_text(both)) == [1]
    for write in (jsontext.text, text_of, lambda v: cast(v, pa.string())):
        with pytest.raises(pa.ArrowInvalid, match="its year is beyond 32767"):
            write(values if write is jsontext.text else pa.chunked_array([values]))


@pytest.mark.parametrize(("kind", "count"), NEAR, ids=str)
def test_a_time_that_text_can_hold_is_written(kind: pa.DataType, count: int) -> None:
    (text,) = jsontext.text(pa.array([count], kind)).to_pylist()
    assert text.startswith(('"32767-12-31', '"2262-04-11'))


def test_a_number_that_json_lacks_is_found_however_deep() -> None:
    kind = pa.struct([("d", pa.list_(pa.map_(pa.string(), pa.float64())))])
    rows = [{"d": [[("a", 1.5)]]}, None, {"d": [None, [("a", None), ("b", float("nan"))]]}]
    table = pa.table({"s": pa.array(rows, kind), "f": [1.5, float("inf"), None]})
    assert without_json(table) == {
        1: "column f: JSON has no inf",
        2: "column s: JSON has no NaN and no infinities",
    }
