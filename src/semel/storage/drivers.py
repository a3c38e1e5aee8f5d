"""The store that a URL names, its driver's options, and whether a ledger there can fence."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import fsspec

from semel.core.errors import ConfigError, Problem, misconfigured
from semel.storage.store import LOCAL, WEBHDFS, LocalStore, Store, protocol_of, split_url

_EXCLUSIVE = frozenset({*LOCAL, "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", WEBHDFS})
"""Stores that create a file only if there is none, in one step: ``If-None-Match`` on S3 and
Azure, ``ifGenerationMatch=0`` on GCS, a rename that replaces nothing in HDFS."""

_S3 = ("s3", "s3a")
_GCS = ("gs", "gcs")
_AZURE = ("abfs", "abfss", "az", "adl")
_HANDED_ON = frozenset(
    {"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache"}
)
"""Options that drivers pass on to fsspec."""

_DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", WEBHDFS: "requests"} | (
    dict.fromkeys(_AZURE, "adlfs")
)
"""The package that fsspec needs for a protocol."""

_BOTO = (
    " Options of boto3's client are in storage.options.client_kwargs, of its Config in "
    "storage.options.config_kwargs, as JSON"
)

_WHY_NOT = {
    "memory": "each process has a memory of its own",
    "hdfs": "libhdfs offers no exclusive creation, and Arrow's rename replaces an existing file",
}


def cannot_create_exclusively(where: str) -> str | None:
    """Why a store cannot hold a ledger that fences; None if it can. Contacts no store."""
    protocol = protocol_of(where)
    if protocol in _EXCLUSIVE:
        return None
    why = _WHY_NOT.get(protocol, "its driver does not promise exclusive creation")
    return f"{protocol}:// cannot create a file exclusively: {why}"


def instead_of(where: str) -> str:
    """What to set if a store cannot hold a ledger that fences."""
    if protocol_of(where) == "hdfs":
        parts = split_url(where)
        return (
            f"Set path to webhdfs://{parts.hostname or 'namenode'}:9870{parts.path} (the "
            "NameNode's dfs.namenode.http-address), which renames exclusively"
        )
    return "Use a local directory, S3, GCS, Azure or webhdfs://"


def open_store(
    where: str, options: Mapping[str, Any], timeout: float = 60.0, key: str = "path"
) -> Store:
    """The store of a URL or directory; ``timeout`` is the seconds for which its driver waits for an
    answer, and ``key`` the one that names the URL.

    Raises:
        ConfigError: no installed driver knows it.
    """
    protocol = protocol_of(where)
    if protocol in LOCAL:
        return LocalStore(where)
    try:
        driver = fsspec.get_filesystem_class(protocol)
    except ImportError as missing:
        driver = _DRIVERS.get(protocol, "")
        install = f". pip install {driver}" if driver and driver not in str(missing) else ""
        lacking = f"{key}={where}: {missing}{install}"
        raise ConfigError(Problem(key, lacking, not_installed=True)) from None
    except ValueError:
        raise misconfigured(
            key,
            f"{key}={where}: {protocol}:// is not a store that fsspec knows; use s3://, gs://, "
            "abfs://, webhdfs:// or a directory",
        ) from None
    if protocol in _S3:
        _check_names(where, driver, options.keys() - {"profile"}, _BOTO)
        options = {**options, "config_kwargs": _boto(timeout) | options.get("config_kwargs", {})}
    if protocol in _GCS:
        options = {"requests_timeout": _aiohttp(timeout), **options}
    if protocol in _AZURE:
        options = {"connection_timeout": int(timeout), "read_timeout": int(timeout), **options}
    if protocol == WEBHDFS:
        _check_names(where, driver, options)
        from semel.storage.webhdfs import WebHdfsStore  # it needs requests

        return WebHdfsStore(where, options, timeout, key)
    return Store(where, options, key)


def _boto(timeout: float) -> dict[str, Any]:
    """Timeouts, and no retries by botocore: s3fs makes five attempts itself, so its five would take
    25 times as long."""
    return {
        "connect_timeout": timeout,
        "read_timeout": timeout,
        "retries": {"total_max_attempts": 1},
    }


def _aiohttp(timeout: float) -> Any:
    """A limit on silence. As a plain number, aiohttp would apply it to whole requests."""
    from aiohttp import ClientTimeout

    return ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)


def _check_names(where: str, driver: Any, options: Iterable[str], hint: str = "") -> None:
    """Raises ConfigError for unknown options: s3fs fails when first used; WebHDFS ignores them."""
    taken = inspect.signature(driver.__init__).parameters.keys() - {"self", "kwargs"}
    accepted = taken | _HANDED_ON
    for name in sorted(options):
        if name not in accepted:
            near = difflib.get_close_matches(name, accepted, n=1)
            raise misconfigured(
                f"storage.options.{name}",
                f"storage.options.{name} is not an option of the driver of {where}"
                + (f": did you mean storage.options.{near[0]}?" if near else ".")
                + hint,
            )
