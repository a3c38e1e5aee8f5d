"""An Iceberg catalog, and the translation of its errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from pyiceberg import exceptions as iceberg
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.typedef import RecursiveDict
from pyiceberg.utils.config import Config, merge_config

from semel.core.answers import limit_requests
from semel.core.errors import ConfigError, Refused, ServiceError, TransientError, misconfigured
from semel.core.watchdog import Watchdog, waiting
from semel.sinks.staging import CommitConflict
from semel.storage.errors import comes_from, is_of, judged

_REFUSALS = (
    iceberg.ForbiddenError,
    iceberg.BadRequestError,
    iceberg.NoSuchNamespaceError,
    iceberg.ValidationError,
)
_LOGIN = (iceberg.UnauthorizedError, iceberg.ForbiddenError, iceberg.OAuthError)
_FAILURES = (
    iceberg.NoSuchTableError,
    iceberg.SignError,
)
_STORES = {
    *("pyiceberg", "sqlalchemy", "requests", "botocore", "boto3", "thrift", "hive_metastore"),
    *("aiobotocore", "aiohttp", "azure", "google", "gcsfs"),
    "pydantic_core",  # an answer that is not the catalog's, such as a gateway's page
}
"""Packages whose errors are the catalog's or the store's: they may pass."""

_MISTAKEN = {
    "ArgumentError": "iceberg.catalog.uri",
    "NoSuchModuleError": "iceberg.catalog.uri",
    "NoRegionError": "iceberg.catalog.client.region",
}
"""Errors of SQLAlchemy and boto3 that a property's value causes, with that property."""
_CALL = "semel.call"


@contextmanager
def translated(where: str, what: str = "table") -> Iterator[None]:
    """Translate errors of catalog and store: some may pass, others will not."""
    try:
        with waiting(f"Iceberg {what} {where}"):
            yield
    except CommitFailedException as error:
        raise CommitConflict(reason(error)) from None
    except _REFUSALS as error:
        raise Refused(f"Iceberg {what} {where}: {reason(error)}") from None
    except _LOGIN as error:
        raise ServiceError(
            f"Iceberg {what} {where}: {reason(error)}. Check iceberg.catalog.credential or "
            "iceberg.catalog.token"
        ) from None
    except _FAILURES as error:
        raise ServiceError(f"Iceberg {what} {where}: {reason(error)}") from None
    except iceberg.NotInstalledError as error:
        raise ConfigError(reason(error)) from None
    except Exception as error:
        text = f"Iceberg {what} {where}: {reason(error)}"
        if isinstance(error, OSError) or is_of(error, _STORES):
            raise judged(text, error) from None
        if what == "catalog" and comes_from(error, _STORES):
            raise ServiceError(f"{text}. Check iceberg.catalog.*") from None
        raise


@contextmanager
def reading(where: str, what: str = "table") -> Iterator[None]:
    """The same where nothing is committed: a conflict may pass, too."""
    try:
        with translated(where, what):
            yield
    except CommitConflict as error:
        raise TransientError(f"Iceberg {what} {where}: {error}") from None


def reason(error: Exception) -> str:
    """The first line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:500]


def connect(
    name: str, properties: Mapping[str, str], timeout: float = 60.0, connector: str = ""
) -> Catalog:
    """The catalog; a silent one fails after ``timeout`` seconds, or soon after the connector was
    asked to stop.

    Raises:
        ConfigError: properties are missing, or a package is.
    """
    try:
        return _load(name, properties, timeout, connector)
    except TransientError:
        # A catalog in a database creates its tables on first use, perhaps at the same time as
        # another process. Any other cause will show again.
        return _load(name, properties, timeout, connector)


def _load(name: str, properties: Mapping[str, str], timeout: float, connector: str) -> Catalog:
    with reading(name, "catalog"):
        try:
            if properties["type"] == "hive":
                from semel.sinks.iceberg.hive import TIMEOUT, HiveCatalog

                return HiveCatalog(name, **properties, **{TIMEOUT: str(timeout)})
            if properties["type"] == "rest":
                return _rest(name, timeout, properties)
            if properties["type"] == "sql":
                return _sql(name, connector, timeout, _merged(name, properties))
            return load_catalog(name, **properties)
        except ModuleNotFoundError as missing:
            raise misconfigured(
                "iceberg.catalog.type",
                f"iceberg.catalog.type={properties['type']} needs the package {missing.name}: "
                f"pip install 'pyiceberg[{properties['type']}]'",
            ) from None
        except (ValueError, KeyError) as error:
            if "URI missing" in str(error) or error.args == ("uri",):
                raise misconfigured(
                    "iceberg.catalog.uri",
                    f"iceberg.catalog.uri is required with iceberg.catalog.type="
                    f"{properties['type']}: the catalog's address",
                ) from None
            raise ConfigError(f"iceberg.catalog.*: {reason(error)}") from None
        except Exception as error:
            key = _MISTAKEN.get(type(error).__name__)
            if key is None:
                raise
            raise misconfigured(key, f"{key}: {reason(error)}") from None


def _rest(name: str, timeout: float, properties: Mapping[str, str]) -> Catalog:
    """A REST catalog whose requests fail when no byte has come for ``timeout`` seconds. PyIceberg's
    own client waits forever, and reads whatever comes."""

    class PatientCatalog(RestCatalog):
        def _create_session(self) -> Any:
            session: Any = super()._create_session()
            session.request = partial(session.request, timeout=timeout)
            limit_requests(session)
            return session

    return PatientCatalog(name, **_merged(name, properties))


def _sql(name: str, connector: str, timeout: float, properties: Any) -> Catalog:
    """A catalog in a database. Its transactions fail when no byte has come for ``timeout`` seconds,
    or a few seconds after the connector was asked to stop; PyIceberg's own wait forever.

    Raises:
        ConfigError: neither the properties nor PyIceberg's own configuration name the database.
    """
    from pyiceberg.catalog.sql import SqlCatalog  # it needs SQLAlchemy

    class WatchedCatalog(SqlCatalog):
        def _init_catalog(self) -> None:
            _watch(self.engine, connector, name, timeout)
            super()._init_catalog()

    if "uri" not in properties:
        raise misconfigured(
            "iceberg.catalog.uri",
            "iceberg.catalog.uri is required with iceberg.catalog.type=sql: the catalog's address",
        )
    return WatchedCatalog(name, **properties)


def _watch(engine: Any, connector: str, name: str, timeout: float) -> None:
    from sqlalchemy import event

    if engine.dialect.name not in ("postgresql", "mysql", "mariadb"):
        return  # SQLite waits for its own locks only, and has no connection

    @event.listens_for(engine, "do_connect")
    def bound(_dialect: object, _record: object, _args: object, options: dict[str, Any]) -> None:
        options.setdefault("connect_timeout", max(2, round(timeout)))

    @event.listens_for(engine, "checkout")
    def begin(connection: Any, record: Any, _proxy: object) -> None:
        dog = Watchdog(connector, f"Iceberg catalog {name}", timeout)
        stack = record.info[_CALL] = ExitStack()
        stack.callback(dog.detach)
        dog.attach(getattr(connection, "_sock", None) or _descriptor(connection))
        stack.enter_context(dog.call())

    @event.listens_for(engine, "checkin")
    def end(_connection: object, record: Any) -> None:
        stack = record.info.pop(_CALL, None)
        if stack is not None:
            stack.close()


def _descriptor(connection: Any) -> int | None:
    """The socket of a PostgreSQL driver; None if the driver does not expose it."""
    fileno = getattr(connection, "fileno", None)
    return None if fileno is None else int(fileno())


def _merged(name: str, properties: Mapping[str, str]) -> Any:
    """The properties, with those of .pyiceberg.yaml and the environment."""
    own: Any = Config().get_catalog_config(name) or {}
    return merge_config(own, RecursiveDict(properties))


def check_commits(catalog: Catalog, table: str) -> None:
    """Raises ConfigError: the catalog may accept a commit that is based on an older state."""
    compares = getattr(catalog, "compares", None)  # a Hive metastore may not; others do
    if compares is None:
        return
    with reading(table):
        if not compares(table):
            raise ConfigError(
                f"iceberg.catalog.uri={catalog.properties['uri']}: this Hive metastore does not "
                "compare a table before it replaces it (HIVE-26882). A writer that is frozen in a "
                "commit for longer than the metastore's locks last would undo what others have "
                "committed meanwhile, so no delivery can be guaranteed. Upgrade it to Hive 4.0.1 "
                "or 2.3.10, or use another catalog"
            )


def create_namespace(catalog: Catalog, table: str) -> None:
    """Create the namespace of a table and its parent namespaces, unless they exist."""
    *parts, _ = table.split(".")
    for depth in range(1, len(parts) + 1):
        namespace = tuple(parts[:depth])
        if catalog.namespace_exists(namespace):
            continue
        if catalog.properties.get("type") == "hive":
            # If two create it at once, the metastore deletes the directory when one of them fails.
            raise ConfigError(
                f"there is no namespace {parts[0]} in the Hive metastore, and it is not safe to "
                f"create one from several processes: create it first (CREATE DATABASE {parts[0]})"
            )
        try:
            catalog.create_namespace(namespace)
        except Exception:
            # If two processes create it at once, not every catalog tells the second one why.
            if not catalog.namespace_exists(namespace):
                raise
