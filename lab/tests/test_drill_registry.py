"""The drill of connectors with transforms, a schema registry and a table of dead letters."""

from __future__ import annotations

import random
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pytest

from semel.config import ConnectorConfig, load, read
from semel.converters.registry.converter import RegistryConverter
from semel_lab.drill import run as drill
from semel_lab.drill.plan import Kind
from semel_lab.drill.stage import BUILT_IN, Stage
from semel_lab.drill.traffic import Shape, Traffic

AVRO = "io.confluent.connect.avro.AvroConverter"
TRANSFORMS = "org.apache.kafka.connect.transforms."
CHAIN = MappingProxyType(
    {
        **BUILT_IN,
        "topics": "shop.orders,shop.bills",
        "auto.evolve": "true",
        "value.converter": AVRO,
        "value.converter.schema.registry.url": "https://registry:8081",
        "value.converter.basic.auth.credentials.source": "USER_INFO",
        "value.converter.basic.auth.user.info": "me:secret",
        "errors.tolerance": "all",
        "errors.deadletterqueue.table": "letters",
        "transforms": "place,kind,mask,names,route",
        "transforms.place.type": f"{TRANSFORMS}InsertField$Value",
        "transforms.place.topic.field": "came_from",
        "transforms.kind.type": f"{TRANSFORMS}Cast$Value",
        "transforms.kind.spec": "amount:float32",
        "transforms.mask.type": f"{TRANSFORMS}MaskField$Value",
        "transforms.mask.fields": "note",
        "transforms.names.type": f"{TRANSFORMS}ReplaceField$Value",
        "transforms.names.renames": "id:number",
        "transforms.route.type": f"{TRANSFORMS}RegexRouter",
        "transforms.route.regex": r"shop\.(.*)",
        "transforms.route.replacement": "all_$1",
    }
)


def _values(**settings: str) -> list[str | bytes | None]:
    raw = {**BUILT_IN, "bootstrap.servers": "localhost:1"}
    raw |= {k.replace("__", "."): v for k, v in settings.items()}
    shape = Shape(read(ConnectorConfig, raw), replaces=False)
    dice = random.Random(1)
    return [shape.record(number, 0, dice)[1] for number in range(500)]


def test_a_connector_with_a_table_for_them_gets_damaged_records() -> None:
    letters = {"errors__tolerance": "all", "errors__deadletterqueue__table": "letters"}
    assert b"\0damaged" in _values(**letters)
    assert b"\0damaged" not in _values()


def test_traffic_can_be_free_of_damaged_records() -> None:
    raw = BUILT_IN | {"bootstrap.servers": "localhost:1", "errors.tolerance": "all"}
    raw |= {"errors.deadletterqueue.table": "letters"}
    shape = Shape(read(ConnectorConfig, raw), replaces=False)
    traffic, dice = Traffic("localhost:1", {"drill": 1}, shape, 1), random.Random(1)
    with traffic.sound():
        assert b"\0damaged" not in [shape.record(n, 0, dice)[1] for n in range(500)]
    assert b"\0damaged" in [shape.record(n, 0, dice)[1] for n in range(500)]


def test_the_registry_is_the_drills_own(tmp_path: Path) -> None:
    stage = Stage(load(dict(CHAIN)), tmp_path / "drill")
    assert stage.registry is not None
    assert {k: v for k, v in stage.raw.items() if k.startswith("value.converter.")} == {
        "value.converter.schemas.enable": "false",
        "value.converter.schema.registry.url": stage.registry.url,
    }


def test_values_have_two_schemas_where_columns_may_be_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = set()

    def encode(_self: RegistryConverter, values: pa.Array) -> pa.Array:
        seen.add(tuple(values.type.names))
        return pa.array([b"written"] * len(values))

    monkeypatch.setattr(RegistryConverter, "encode", encode)
    _values(**{k.replace(".", "__"): v for k, v in CHAIN.items()})
    assert seen == {("id", "amount", "note"), ("id", "amount", "note", "tag")}


@pytest.mark.long
@pytest.mark.integration
def test_faults_lose_nothing_and_write_nothing_twice() -> None:
    kinds = [Kind.WORKER_KILL, Kind.ZOMBIE, Kind.ERROR]
    report = drill.drill(dict(CHAIN), 3, 1, kinds=kinds)
    assert {r.fault.kind for r in report.results} == set(kinds)
    assert (report.lost, report.duplicated, report.kept) == (0, 0, True)
    assert report.exact
