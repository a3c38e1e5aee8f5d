"""The stores that a drill's connector may write to, and which faults befall them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from semel import sinks
from semel.drill import lakes
from semel.drill.plan import Kind
from semel.embedded import Services
from semel.embedded.opensearch import OpenSearch
from semel.errors import ConfigError
from semel.failpoints import OF_FILES
from semel.sinks.files.config import CLASSES as FILES
from semel.sinks.search.config import CLASSES as SEARCH

SESSION = 3.0
"""Seconds after which Kafka gives a frozen task's partitions to another one."""
TRANSACTION = SESSION + 2
"""Seconds after which the broker aborts a transaction; another task has the partitions by then."""

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
"""What may say, instead of ``path`` or beside it, where files are."""
_OF_POSTGRES = frozenset({Kind.POSTGRES_RESTART, Kind.POSTGRES_KILL})
_OF_KAFKA = frozenset({Kind.TIME_OUT})
_OF_LAKES = frozenset({Kind.TABLE_OPTIMIZE})
_OF_SEARCH = frozenset({Kind.SEARCH_RESTART, Kind.SEARCH_KILL})
_OF_TASKS = frozenset({Kind.REPLACED_ZOMBIE})
"""Faults of tasks that commit."""
_LONE_BROKER = frozenset({Kind.BROKER_RESTART, Kind.BROKER_KILL})
"""Faults that a lone broker's transactions do not survive: one that ends while its partitions have
no leader is complete for Kafka (4.3), though its markers were never written. It hangs for good."""


def _others(name: str, directory: Path) -> Store:
    """What is known of a store that a third party's sink writes to."""
    keys = sinks.sink_class(name).drilled(directory)
    if keys is None:
        raise ConfigError(
            f"connector.class={name}: the sink does not say where the results of a drill may go "
            "(Sink.drilled), and a drill writes nothing into the user's own store"
        )
    return Store(keys, _OF_POSTGRES | _OF_KAFKA | _OF_LAKES | _OF_TASKS, one_writer=True)


def _nothing() -> None:
    raise AssertionError("this store has no tables to rewrite")


@dataclass(frozen=True)
class Store:
    """What a drill knows of a store.

    ``keys`` put it into the drill's hands, with short timeouts; ``unlikely`` are the faults that
    cannot happen to it, and ``places`` its own failpoints. ``search`` is the server that it is, if
    it is one. With ``one_writer`` a frozen task may hold up those that replace it. ``rewrite`` does
    what the owner of its tables may do at any time.
    """

    keys: Mapping[str, str]
    unlikely: frozenset[Kind]
    postgres: bool = False
    one_writer: bool = False
    search: OpenSearch | None = None
    rewrite: Callable[[], None] = _nothing
    places: tuple[str, ...] = ()

    def possible(self, kinds: Collection[Kind], connector: str) -> list[Kind]:
        """Those of the faults that can happen.

        Raises:
            ConfigError: none of them can.
        """
        found = [k for k in kinds if k not in self.unlikely]
        if not found:
            raise ConfigError(
                f"connector {connector}: the faults {', '.join(k.value for k in kinds)} cannot "
                "happen to it; choose others (--only)"
            )
        return found


def store_of(raw: Mapping[str, str], directory: Path, services: Services) -> Store:
    """The store that a connector writes to, in a directory of the drill's or among its services.

    Raises:
        ConfigError: the sink of a third party does not say how.
    """
    name = raw["connector.class"]
    if not sinks.brought(name):
        return _others(name, directory)
    if "delta.table.path" in raw:
        lake = directory / "lake"
        return Store(
            {"delta.table.path": str(lake), "processingTime": "0 seconds"},
            _OF_POSTGRES | _OF_KAFKA | _OF_SEARCH | _OF_TASKS,
            rewrite=lambda: lakes.optimize_delta(lake),
        )
    if any(k.startswith(_CATALOG) for k in raw):
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"file://{directory}/warehouse",
        }
        keys = {f"{_CATALOG}{k}": v for k, v in catalog.items()}
        return Store(
            {
                **keys,
                "iceberg.tables.auto-create-enabled": "true",
                "processingTime": "0 seconds",
            },
            _OF_POSTGRES | _OF_KAFKA | _OF_SEARCH | _OF_TASKS,
            rewrite=lambda: lakes.rewrite_iceberg(catalog),
        )
    if raw.get("connector.class") in FILES:
        where = str(directory / "files")
        also = {k: where for k in ("hdfs.url",) if k in raw}
        nowhere = {k: "" for k in _PLACES_OF_FILES if k in raw}
        return Store(
            {"path": where, **also, **nowhere, "processingTime": "0 seconds"},
            _OF_POSTGRES | _OF_KAFKA | _OF_SEARCH | _OF_TASKS | _OF_LAKES,
            places=OF_FILES,
        )
    if raw.get("connector.class") in SEARCH:
        server = OpenSearch(directory / "opensearch")
        tombstones = raw.get("behavior.on.null.values", "fail").strip().lower()
        return Store(
            {
                "connection.url": server.url,
                "connection.username": "",
                "connection.user": "",
                "connection.password": "",
                "elastic.security.protocol": "PLAINTEXT",
                "connection.timeout.ms": "1000",
                "read.timeout.ms": "10000",
                # One that fails would end the drill.
                "behavior.on.null.values": "ignore" if tombstones == "fail" else tombstones,
            },
            _OF_POSTGRES | _OF_KAFKA | _OF_LAKES,
            search=server,
        )
    if raw.get("connector.class") == "kafka":
        return Store(
            {
                "producer.override.transaction.timeout.ms": str(int(TRANSACTION * 1000)),
                "producer.override.reconnect.backoff.ms": "50",
                "producer.override.reconnect.backoff.max.ms": "500",
            },
            _OF_POSTGRES | _OF_LAKES | _OF_SEARCH | _LONE_BROKER,
        )
    system = raw.get("connection.url", "").strip().removeprefix("jdbc:").partition(":")[0]
    if system in ("sqlite", "duckdb"):
        return Store(
            {
                "connection.url": f"jdbc:{system}:{directory / 'database'}",
                "connection.lock.timeout.ms": "1000",
            },
            _OF_POSTGRES | _OF_KAFKA | _OF_LAKES | _OF_SEARCH | _OF_TASKS,
            one_writer=True,
        )
    postgres = services.postgres
    return Store(
        {
            "connection.url": postgres.jdbc_url,
            "connection.user": postgres.user,
            "connection.password": postgres.password,
            "connection.idle.in.transaction.timeout.ms": "1000",
        },
        _OF_KAFKA | _OF_LAKES | _OF_SEARCH,
        postgres=True,
    )
