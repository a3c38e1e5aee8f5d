"""The stores that a drill's connector may write to, and the faults that can hit each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from semel import sinks
from semel.core.errors import ConfigError
from semel.core.failpoints import OF_FILE_STREAM, OF_FILES, OF_STAGING
from semel.sinks import jdbc, protocols
from semel.sinks.delta.config import CLASSES as DELTA
from semel.sinks.files.config import CLASSES as FILES
from semel.sinks.filestream import CLASSES as FILE_STREAM
from semel.sinks.iceberg.config import CLASSES as ICEBERG
from semel.sinks.kafka.config import CLASSES as KAFKA
from semel.sinks.search.config import CLASSES as SEARCH
from semel_lab.drill.disk import Disk
from semel_lab.drill.lakes import DeltaLake, IcebergLake, Lake
from semel_lab.drill.plan import Kind
from semel_lab.embedded import Postgres
from semel_lab.embedded.hdfs import Hdfs
from semel_lab.embedded.mariadb import MariaDB
from semel_lab.embedded.opensearch import OpenSearch
from semel_lab.embedded.server import Server

SESSION = 3.0
"""Seconds after which Kafka gives a frozen task's partitions to another task."""
TRANSACTION = SESSION + 2
"""Seconds after which the broker aborts a transaction. Another task has the partitions by then."""

_CATALOG = "iceberg.catalog."
_PLACES_OF_FILES = (
    "s3.bucket.name",
    "aws.s3.bucket.name",
    "gcs.bucket.name",
    "azblob.container.name",
    "azure.storage.container.name",
    "store.url",
    "aws.s3.endpoint",
)
"""Keys that say where files are, instead of or in addition to ``path``."""

_OF_ANY = frozenset(
    {
        Kind.DRIVER_KILL,
        Kind.WORKER_KILL,
        Kind.ZOMBIE,
        Kind.ERROR,
        Kind.SECOND_DRIVER,
        Kind.EXECUTOR_KILL,
        Kind.BROKER_RESTART,
        Kind.BROKER_KILL,
        Kind.OFFSETS_DELETED,
        Kind.PARTITIONS_ADDED,
        Kind.RETENTION,
        Kind.TOPIC_RECREATED,
        Kind.LOG_TRUNCATED,
        Kind.BATCH_DAMAGED,
    }
)
_OF_SERVERS = frozenset({Kind.STORE_RESTART, Kind.STORE_KILL, Kind.STORE_AWAY})
_OF_SESSIONS = frozenset({Kind.STORE_SILENT})
"""Faults of servers that ``connection.url`` names."""
_OF_KAFKA = frozenset({Kind.TIME_OUT})
_OF_FILES = _OF_ANY - {Kind.TOPIC_RECREATED, Kind.LOG_TRUNCATED}
"""The files sink refuses to reread offsets for which it has files."""
_OF_LAKES = frozenset({Kind.TABLE_OPTIMIZE, Kind.CONCURRENT_WRITER})
_OF_DISKS = frozenset({Kind.DISK_FULL})
_OF_TASKS = frozenset({Kind.REPLACED_ZOMBIE})
"""Faults of tasks that commit."""
_CLUSTER = 3
_AT_ONCE = {"processingTime": "0 seconds"}
_SHORT_WAIT = {"connection.lock.timeout.ms": "3000"}


@dataclass(frozen=True)
class Store:
    """What a drill knows about a store.

    ``where`` holds the keys that point the connector at the drill's own store; None if the drill
    has no such store. ``keys`` sets short timeouts for it. ``faults`` can hit it, and ``places``
    are its own failpoints. ``server``, ``lake`` and ``disk`` are set if the store is or uses one.
    With ``one_writer`` a frozen task may hold up the tasks that replace it. With several
    ``brokers`` one at a time dies, even in the middle of transactions.
    """

    where: Mapping[str, str] | None
    faults: frozenset[Kind]
    keys: Mapping[str, str] = field(default_factory=dict)
    server: Server | None = None
    one_writer: bool = False
    lake: Lake | None = None
    disk: Disk | None = None
    places: tuple[str, ...] = ()
    brokers: int = 1

    def possible(self, kinds: Collection[Kind], connector: str) -> list[Kind]:
        """The faults among these that can happen.

        Raises:
            ConfigError: none of them can happen.
        """
        possible = [k for k in kinds if k in self.faults]
        if kinds and not possible:
            raise ConfigError(
                f"connector {connector}: the faults {', '.join(k.value for k in kinds)} cannot "
                "happen to its store. Choose others with --only"
            )
        return possible

    def of_the_user(self) -> Store:
        """The user's own store, at its configured place. No fault hits it."""
        faults = self.faults - _OF_SERVERS - _OF_SESSIONS - _OF_LAKES - _OF_DISKS
        return replace(self, where={}, faults=faults, server=None, lake=None, disk=None)


def store_of(raw: Mapping[str, str], directory: Path, *, own: bool = False) -> Store:
    """The store that a connector writes to, in the drill's directory or on a server there.

    Args:
        raw: the connector's configuration.
        directory: the drill's directory.
        own: use the store that the configuration names.

    Raises:
        ConfigError: the drill has no such store, or a third party's sink does not provide one.
    """
    store, name = _store(raw, directory), raw.get("connector.class", "")
    if own and name == "kafka":
        raise ConfigError(
            "connector.class=kafka: a drill kills brokers, so it uses its own Kafka. Leave "
            "--own-store out"
        )
    if own:
        return store.of_the_user()
    if store.where is None:
        why = (
            "the drill has no such store"
            if sinks.is_built_in(name)
            else "the sink does not say where the results of a drill may go (Drillable.drilled)"
        )
        raise ConfigError(
            f"connector.class={name}: {why}. Name an empty store of yours in the configuration, "
            "and use --own-store"
        )
    return store


def _store(raw: Mapping[str, str], directory: Path) -> Store:
    name = raw.get("connector.class", "")
    if not sinks.is_built_in(name):
        return _others(name, directory)
    if name in _STORES:
        return _STORES[name](raw, directory)
    return _DATABASES[_system(name, raw)](directory)


def _others(name: str, directory: Path) -> Store:
    """The store of a third party's sink."""
    return Store(protocols.drilled(sinks.sink_class(name), directory), _OF_ANY, one_writer=True)


# Lakes and files


def _delta(_raw: Mapping[str, str], directory: Path) -> Store:
    lake = directory / "lake"
    return Store(
        {"delta.table.path": str(lake)},
        _OF_ANY | _OF_LAKES | _OF_DISKS,
        _AT_ONCE,
        places=OF_STAGING,
        lake=DeltaLake(lake),
        disk=Disk(lake),
    )


def _iceberg(_raw: Mapping[str, str], directory: Path) -> Store:
    lake = directory / "lake"
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{lake}/catalog.db",
        "warehouse": f"file://{lake}/warehouse",
    }
    return Store(
        {f"{_CATALOG}{k}": v for k, v in catalog.items()},
        _OF_ANY | _OF_LAKES | _OF_DISKS,
        {**_AT_ONCE, "iceberg.tables.auto-create-enabled": "true"},
        places=OF_STAGING,
        lake=IcebergLake(catalog),
        disk=Disk(lake),
    )


def _files(raw: Mapping[str, str], directory: Path) -> Store:
    from semel.storage.store import protocol_of  # needs an optional package

    places = (raw.get(k, "") for k in ("path", "hdfs.url", "store.url"))
    keys = {**_AT_ONCE, "behavior.on.null.values": "ignore"}  # "fail" would end the drill
    if "webhdfs" in map(protocol_of, places):
        server = Hdfs(directory / "hdfs")
        where = _place_of_files(raw, f"{server.url}/files")
        where["storage.options.user"] = server.user
        # On a busy machine it takes seconds to answer, and the connector needs it when it starts.
        keys["store.timeout.ms"] = "20000"
        return Store(where, _OF_FILES | _OF_SERVERS, keys, server=server, places=OF_FILES)
    disk = Disk(directory / "files")
    where = _place_of_files(raw, str(disk.directory))
    return Store(where, _OF_FILES | _OF_DISKS, keys, places=OF_FILES, disk=disk)


def _place_of_files(raw: Mapping[str, str], where: str) -> dict[str, str]:
    return {
        "path": where,
        **{k: where for k in ("hdfs.url",) if k in raw},
        **{k: "" for k in _PLACES_OF_FILES if k in raw},
        **{k: "false" for k in ("hdfs.authentication.kerberos",) if k in raw},
    }


def _file_stream(_raw: Mapping[str, str], directory: Path) -> Store:
    disk = Disk(directory / "lines")
    where = {"file": str(disk.directory / "lines.txt"), "file.directory": ""}
    counted = {"provenance": "false"}  # lines have none
    faults = _OF_ANY | _OF_DISKS
    return Store(where, faults, counted, places=OF_FILE_STREAM, one_writer=True, disk=disk)


# Servers


def _search(raw: Mapping[str, str], directory: Path) -> Store:
    server = OpenSearch(directory / "search")
    tombstones = raw.get("behavior.on.null.values", "fail").strip().lower()
    return Store(
        {
            "connection.url": server.url,
            "connection.username": "",
            "connection.user": "",
            "connection.password": "",
            "elastic.security.protocol": "PLAINTEXT",
        },
        _OF_ANY | _OF_SERVERS | _OF_SESSIONS | _OF_TASKS,
        {
            "connection.timeout.ms": "1000",
            "read.timeout.ms": "10000",
            # "fail" would end the drill. Its producers keep each key in its partition.
            "behavior.on.new.partitions": "continue",
            "behavior.on.null.values": "ignore" if tombstones == "fail" else tombstones,
        },
        server=server,
    )


def _kafka(_raw: Mapping[str, str], _directory: Path) -> Store:
    """A cluster, because transactions do not survive the death of a single broker: if one ends
    while its partitions have no leader, Kafka 4.3 considers it complete although its markers were
    never written, and it hangs for good. With three brokers, any single one may die."""
    return Store(
        {},
        _OF_ANY | _OF_KAFKA | _OF_TASKS,
        {
            "dest.topic.replication.factor": "-1",
            "replication.factor": "-1",
            "errors.deadletterqueue.topic.replication.factor": str(_CLUSTER),
            "producer.override.transaction.timeout.ms": str(int(TRANSACTION * 1000)),
            "producer.override.reconnect.backoff.ms": "50",
            "producer.override.reconnect.backoff.max.ms": "500",
        },
        brokers=_CLUSTER,
    )


def _postgresql(directory: Path) -> Store:
    return _server(server := Postgres(directory / "postgres"), server.jdbc_url, server.password)


def _mariadb(directory: Path) -> Store:
    return _server(server := MariaDB(directory / "mariadb"), server.jdbc_url, "")


def _server(server: Postgres | MariaDB, url: str, password: str) -> Store:
    return Store(
        {
            "connection.url": url,
            "connection.user": server.user,
            "connection.password": password,
        },
        _OF_ANY | _OF_SERVERS | _OF_SESSIONS | _OF_TASKS,
        {"connection.idle.in.transaction.timeout.ms": "5000"},
        server=server,
    )


def _in_a_file(system: str, directory: Path) -> Store:
    where = directory / system
    return Store(
        {"connection.url": f"jdbc:{system}:{where / 'database'}"},
        _OF_ANY | _OF_DISKS,
        _SHORT_WAIT,
        one_writer=True,
        disk=Disk(where),
    )


_STORES: Mapping[str, Callable[[Mapping[str, str], Path], Store]] = {
    **dict.fromkeys(DELTA, _delta),
    **dict.fromkeys(ICEBERG, _iceberg),
    **dict.fromkeys(FILES, _files),
    **dict.fromkeys(FILE_STREAM, _file_stream),
    **dict.fromkeys(SEARCH, _search),
    **dict.fromkeys(KAFKA, _kafka),
}
"""Stores other than SQL databases, by ``connector.class``."""

_DATABASES: Mapping[str, Callable[[Path], Store]] = {
    "postgresql": _postgresql,
    "postgres": _postgresql,
    "mariadb": _mariadb,
    "mysql": _mariadb,  # one code serves both
    "sqlite": lambda directory: _in_a_file("sqlite", directory),
    "duckdb": lambda directory: _in_a_file("duckdb", directory),
    "sqlserver": lambda _directory: Store(None, _OF_ANY, _SHORT_WAIT, one_writer=True),
}
"""SQL databases, by their name in both JDBC URLs and ``connector.class``."""


def _system(name: str, raw: Mapping[str, str]) -> str:
    """The database that the configuration names.

    Raises:
        ConfigError: the drill has no such database for this class.
    """
    own = _DATABASES.get(name)
    systems = [s for s, create in _DATABASES.items() if name in jdbc.CLASSES or create is own]
    url = raw.get("connection.url", "").strip().removeprefix("jdbc:")
    system = url.partition(":")[0] if url or own is None else name
    if system not in systems:  # not the URL itself: it may hold a password
        raise ConfigError(
            f"connector.class={name}: the drill has no database for connection.url={system}:... "
            f"Set one that begins with {' or '.join(f'jdbc:{s}:' for s in systems)}"
        )
    return system
