"""Sinks: one module or folder per store. Third parties add theirs through the entry point
group ``semel.sinks``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from importlib import import_module

from semel.config import ConnectorConfig, extras
from semel.config.definition import refers
from semel.config.extras import entries, load
from semel.core.errors import misconfigured
from semel.databases.login import POSTGRESQL
from semel.sinks import jdbc
from semel.sinks.base import Sink

_MODULES = {
    "semel.sinks.delta.sink:DeltaSink": "semel.sinks.delta.config",
    "semel.sinks.kafka:KafkaSink": "semel.sinks.kafka.config",
    "semel.sinks.postgresql:PostgresSink": "semel.sinks.sql.config:POSTGRESQL",
    "semel.sinks.sql.sqlite:SqliteSink": "semel.sinks.sql.config:SQLITE",
    "semel.sinks.sql.duckdb:DuckdbSink": "semel.sinks.sql.config:DUCKDB",
    "semel.sinks.sql.mysql:MysqlSink": "semel.sinks.sql.config:MYSQL",
    "semel.sinks.sql.sqlserver:SqlServerSink": "semel.sinks.sql.config:SQLSERVER",
    "semel.sinks.search.sink:SearchSink": "semel.sinks.search.config",
    "semel.sinks.iceberg.sink:IcebergSink": "semel.sinks.iceberg.config",
    "semel.sinks.files.sink:FilesSink": "semel.sinks.files.config",
    "semel.sinks.filestream:FileStreamSink": "semel.sinks.filestream",
}
"""Sink -> the module of its keys, and where in it the ``connector.class`` names are that it answers
to, if not in ``CLASSES``."""

_LIKELY = ("semel.sinks.kafka", "semel.sinks.postgresql")
"""Sinks that Spark's workers import before a connector asks for one."""

MODULE = "SEMEL_SINK_MODULE"
"""The environment variable that tells Spark's Python workers which module their tasks will need."""

_SYSTEMS = ("postgresql", "mariadb", "mysql", "sqlserver", "sqlite", "duckdb")


_INSTEAD = {
    **dict.fromkeys(
        ("org.apache.kafka.connect.mirror.", "Mirror", "io.confluent.connect.replicator."),
        "connector.class=kafka, a sink, copies topics from one cluster to another, exactly once "
        "(docs/kafka.md)",
    ),
    "com.github.jcustenborder.kafka.connect.spooldir.": "connector.class=Directory reads files of "
    "CSV, JSON, text, Parquet and Avro (docs/directory.md)",
}
"""What to use instead of other projects' connectors, by name prefix."""

_FROM_A_LAKE = "It can read Iceberg tables (connector.class=iceberg) or load files from a bucket "
_FROM_A_LAKE += "(connector.class=files) that semel writes, exactly once. "
_OF_SYSTEMS = {
    "databricks": "It reads Delta Lake tables (connector.class=delta) that semel writes, exactly "
    "once. ",
    **dict.fromkeys(("snowflake", "bigquery", "redshift", "azuresqldw", "spanner"), _FROM_A_LAKE),
}
"""The same, by the system that a name mentions."""

_THERE_ARE = (
    "semel writes to PostgreSQL, MySQL, MariaDB, SQL Server, SQLite, DuckDB, Elasticsearch, "
    "OpenSearch, Delta Lake, Iceberg, files on disks, in S3, GCS, Azure and HDFS, and to Kafka. It "
    "reads databases (connector.class=JdbcSource), directories (Directory), the lines of a file "
    "(FileStreamSource) and generated records (Datagen). docs/write-a-sink.md and "
    "docs/write-a-source.md say how to add others"
)


def sink_class(name: str, raw: Mapping[str, str] | None = None) -> type[Sink]:
    """The sink for a ``connector.class``; for a JDBC sink, the one its ``connection.url`` selects.

    Raises:
        ConfigError: no sink has this name; lists the known ones.
    """
    classes = _known()
    name = full_name(name, raw)
    if name not in classes:
        raise misconfigured(
            "connector.class",
            f"connector.class={name!r} is not a connector that semel has. "
            f"{_instead(name, classes)}",
        )
    url = (raw or {}).get("connection.url", "").strip()
    if refers(url):  # to something that only the connector's machine has
        url = ""
    system = url.removeprefix("jdbc:").removeprefix("jtds:").partition(":")[0]
    if name in jdbc.CLASSES and system in classes:
        name = system
    elif name in jdbc.CLASSES and system and system not in POSTGRESQL:
        urls = (f"jdbc:{s}:" for s in _SYSTEMS)
        raise misconfigured(  # not the URL itself: it may hold a password
            "connection.url",
            f"connection.url={url[: url.find(system)]}{_word(system)}...: semel does not write to "
            f"this database. The URL must begin with one of {', '.join(urls)}",
        )
    sink: type[Sink] = load(classes[name], Sink, "connector.class", name)
    return sink


def _instead(name: str, classes: Iterable[str]) -> str:
    """What to use instead of a connector that does not exist."""
    for begin, text in _INSTEAD.items():
        if name.startswith(begin):
            return text
    alike = [c for c in classes if difflib.get_close_matches(_system(name), [_system(c)])]
    near = difflib.get_close_matches(name, alike, n=1, cutoff=0.85)
    hint = f"Did you mean {near[0]}? " if near else ""
    lower = name.lower()
    return hint + next((t for of, t in _OF_SYSTEMS.items() if of in lower), "") + _THERE_ARE


def full_name(name: str, raw: Mapping[str, str] | None = None) -> str:
    """The class that a name stands for in a configuration; the name itself if there is none.

    Raises:
        ConfigError: it may stand for several.
    """

    def differ(candidates: list[str]) -> bool:
        return jdbc.DEBEZIUM in candidates and not jdbc.OF_DEBEZIUM.isdisjoint(raw or {})

    return extras.full_name(name, _known(), "Connector", key="connector.class", differ=differ)


def create(connector: ConnectorConfig) -> Sink:
    """The sink of a connector.

    Raises:
        ConfigError: see :func:`sink_class`, or the sink refuses its configuration.
    """
    return sink_class(connector.connector_class, connector.originals)(connector)


def _system(name: str) -> str:
    """The system that a class is for."""
    return re.split(r"sink|connector", name.lower().rpartition(".")[2], maxsplit=1)[0]


def _word(text: str) -> str:
    return re.split(r"\W", text, maxsplit=1)[0]


def is_sink(name: str) -> bool:
    """Whether a ``connector.class`` is a sink's."""
    classes = _known()
    return name in classes or bool(extras.matches(name, classes, "Connector"))


def names() -> frozenset[str]:
    """All values of ``connector.class``."""
    return frozenset(_known())


def import_likely() -> None:
    """Import the sinks that are often used, and the configurations of all others."""
    for module in (*_MODULES.values(), *_LIKELY):
        import_module(module.partition(":")[0])


def is_built_in(name: str) -> bool:
    """Whether the sink of this name is one of semel's own."""
    return name in _own()


def _known() -> Mapping[str, str]:
    return {**entries("semel.sinks"), **_own()}


def _own() -> dict[str, str]:
    targets: dict[str, str] = {}
    for target, keys in _MODULES.items():
        module, _, names = keys.partition(":")
        targets |= dict.fromkeys(getattr(import_module(module), names or "CLASSES"), target)
    return targets
