"""The transform of docs/write-a-transform.md, found by its entry point."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pyarrow as pa
import pytest

from semel import transforms
from semel.config import NoKeys
from semel.core.errors import ConfigError
from semel.transforms.base import Batch, Predicate
from tests.transforms.records import applied, batch, refusals, values

PAGE = Path(__file__).parents[2] / "docs" / "write-a-transform.md"
UPPER = {
    "transforms": "upper",
    "transforms.upper.type": "acme.Upper$Value",
    "transforms.upper.field": "name",
}


class Even(Predicate):
    """True for records at even offsets."""

    section = NoKeys

    def __init__(self, config: NoKeys) -> None:
        """There is nothing to configure."""

    def holds(self, batch: Batch) -> pa.Array:
        assert batch.offsets is not None
        return pa.array([offset % 2 == 0 for offset in batch.offsets.to_pylist()])


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    module = types.ModuleType("acme")
    monkeypatch.setitem(sys.modules, "acme", module)
    exec(code, module.__dict__)
    monkeypatch.setattr(module, "Even", Even, raising=False)
    found = {
        transforms.TRANSFORMS: {
            "acme.Upper": "acme:Upper",
            "acme.Wrong": "acme:UpperConfig",
            "acme.Gone": "acme:Gone",
        },
        transforms.PREDICATES: {"acme.Even": "acme:Even"},
    }
    monkeypatch.setattr(transforms, "entries", lambda group: found[group])


def test_the_transform_of_the_page_does_what_it_says() -> None:
    records = batch([{"name": "ä", "n": 1}, None])
    assert values(UPPER, records) == [{"name": "Ä", "n": 1}, None]
    assert refusals(UPPER, batch([{"n": 1}])) == ["transforms.upper: there is no field name"]


def test_a_predicate_of_another_package_chooses_records() -> None:
    config = UPPER | {
        "transforms.upper.predicate": "even",
        "predicates": "even",
        "predicates.even.type": "acme.Even",
    }
    made = applied(config, batch([{"name": c} for c in "abc"])).batch.values.array
    assert [row["name"] for row in made.to_pylist()] == ["A", "b", "C"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("acme.Wrong", "acme:UpperConfig is not a semel Transform"),
        ("acme.Gone", "cannot load acme:Gone"),
        ("acme.Uper$Value", "did you mean acme.Upper?"),
    ],
)
def test_what_is_no_transform_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        transforms.chain_of(UPPER | {"transforms.upper.type": name})
    assert message in str(refused.value)
