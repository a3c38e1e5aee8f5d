"""The keys of the sink for MariaDB and MySQL, and its URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from semel.config import key
from semel.errors import ConfigError
from semel.sinks.jdbc import JdbcConfig

CLASSES = ("mysql", "mariadb")

_PARAMETER = "As the parameter of connection.url."

# sslMode, in MariaDB's words and in MySQL's
_PLAIN = ("disable", "disabled")
_UNVERIFIED = ("trust", "preferred", "required")
_VERIFIED = ("verify-ca", "verify-full", "verify-identity")


@dataclass(frozen=True)
class MysqlConfig(JdbcConfig):
    """What the sink writes where, and under which key."""

    connector_class: str = key("connector.class", "mysql")
    connection_url: str = key(
        "connection.url", doc="jdbc:mysql://host:port/database or jdbc:mariadb://...", secret=True
    )
    idle_timeout_ms: int = key(
        "connection.idle.in.transaction.timeout.ms",
        30_000,
        "The server ends a transaction whose process is frozen for that long (whole seconds).",
        at_least=1000,
    )
    ssl_mode: str = key("connection.sslMode", "", _PARAMETER)
    ssl_certificate: str = key("connection.serverSslCert", "", _PARAMETER)
    use_ssl: bool = key("connection.useSSL", False, _PARAMETER)
    require_ssl: bool = key("connection.requireSSL", False, _PARAMETER)


def connect_arguments(config: MysqlConfig) -> tuple[str, dict[str, Any]]:
    """The system that a URL names, and the URL as PyMySQL's arguments."""
    url = config.connection_url.strip().removeprefix("jdbc:")
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:  # whose message may hold the password
        raise ConfigError(
            "connection.url is not of the form jdbc:mysql://host:port/database, with one host. Set "
            "connection.user and connection.password apart"
        ) from None
    given = dict(parse_qsl(parts.query))
    database = unquote(parts.path.lstrip("/"))
    if parts.scheme not in ("mysql", "mariadb") or not database:
        raise ConfigError(  # not the URL itself: it may hold a password
            "connection.url does not name a MySQL or MariaDB database. "
            "Set jdbc:mysql://host:port/database or jdbc:mariadb://host:port/database"
        )
    options: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": port,
        "database": database,
        "user": config.connection_user or given.get("user") or unquote(parts.username or ""),
        "password": config.connection_password
        or given.get("password")
        or unquote(parts.password or ""),
    }
    mode = given.get("sslMode", given.get("sslmode", config.ssl_mode)).lower().replace("_", "-")
    wanted = (given.get("useSSL"), given.get("requireSSL"), given.get("useSsl"))
    if not mode and ("true" in wanted or config.use_ssl or config.require_ssl):
        mode = "verify-full"
    if mode not in ("", *_PLAIN, *_UNVERIFIED, *_VERIFIED):
        known = (*_PLAIN, *_UNVERIFIED, *_VERIFIED)
        raise ConfigError(
            f"connection.url: sslMode={mode} must be one of {', '.join(known)}; so must "
            "connection.sslMode"
        )
    if mode and mode not in _PLAIN:
        options["ssl"] = {"ca": given.get("serverSslCert") or config.ssl_certificate or None}
        options["ssl_verify_cert"] = mode in _VERIFIED
        options["ssl_verify_identity"] = mode in ("verify-full", "verify-identity")
    return "MariaDB" if parts.scheme == "mariadb" else "MySQL", options
