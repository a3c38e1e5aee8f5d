"""A function of Arrow batches in a chain."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semel.core.errors import ConfigError
from semel.transforms import chain_of
from tests.transforms.records import applied, batch


def doubled(records: pa.RecordBatch) -> pa.RecordBatch:
    """Drops tombstones, doubles n and makes a key of it."""
    kept = records.filter(records.column("value").is_valid())
    n = pc.multiply(kept.column("value").field("n"), 2)
    kept = kept.set_column(1, "key", n)
    return kept.set_column(2, "value", pa.StructArray.from_arrays([n], ["n"]))


def strict(records: pa.RecordBatch) -> pa.RecordBatch:
    if pc.any(pc.equal(records.column("value").field("n"), 3)).as_py():
        raise KeyError("three")
    return records


def shuffled(records: pa.RecordBatch) -> pa.RecordBatch:
    return records.take(pa.array([1, 0]))


def with_function(name: str) -> dict[str, str]:
    return {
        "transforms": "t",
        "transforms.t.type": "python",
        "transforms.t.function": f"{__name__}:{name}",
    }


def test_a_function_changes_keys_and_values_and_drops_records() -> None:
    made = applied(with_function("doubled"), batch([{"n": 1}, None, {"n": 3}])).batch
    assert made.values.array.to_pylist() == [{"n": 2}, {"n": 6}]
    assert made.keys.array.to_pylist() == [2, 6]
    assert made.origin.column("__connect_offset").to_pylist() == [10, 12]


def test_what_it_raises_for_is_refused_alone() -> None:
    outcome = applied(with_function("strict"), batch([{"n": n} for n in (1, 3, 4, 3)]))
    assert [(r.index, r.exception) for r in outcome.refused] == [(1, "KeyError"), (3, "KeyError")]
    assert outcome.batch.values.array.to_pylist() == [{"n": 1}, {"n": 4}]


def test_records_must_stay_in_order() -> None:
    with pytest.raises(ConfigError, match="changed the column row"):
        applied(with_function("shuffled"), batch([{"n": 1}, {"n": 2}]))


@pytest.mark.parametrize("name", ["gone", "__name__"])
def test_what_is_no_function_is_refused_with_the_key(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        applied(with_function(name), batch([{"n": 1}]))
    assert "function=tests.transforms.test_python:" in str(refused.value)


def test_a_module_that_is_not_there_is_named_with_what_to_do() -> None:
    given = {**with_function("doubled"), "transforms.t.function": "gone.at_all:f"}
    with pytest.raises(ConfigError, match="Install it, or name its folder in PYTHONPATH"):
        applied(given, batch([{"n": 1}]))


@pytest.mark.parametrize(
    "function", ["os", "os:", ":system", "os.path:a.b", "os:system()", "a b:c"]
)
def test_a_function_is_named_by_module_and_name(function: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form module:name"):
        chain_of({**with_function("doubled"), "transforms.t.function": function})


def test_a_chain_imports_nothing_until_it_is_applied(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "surprising.py").write_text("def f(batch):\n    return batch\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    given = {**with_function("doubled"), "transforms.t.function": "surprising:f"}
    chain_of(given)
    assert "surprising" not in sys.modules
    applied(given, batch([{"n": 1}]))
    assert "surprising" in sys.modules


def test_a_worker_says_which_modules_may_be_named() -> None:
    given = with_function("doubled")
    chain_of({**given, "semel.python.modules": "acme, tests.transforms"})
    for allowed in ("", "acme", "tests.transforms.test_pyth", "tests.transforms.test_python.x"):
        with pytest.raises(ConfigError, match=r"Name its module in semel\.python\.modules"):
            chain_of({**given, "semel.python.modules": allowed})
