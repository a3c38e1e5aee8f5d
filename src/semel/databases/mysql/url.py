"""URLs of MariaDB and MySQL, as the JDBC drivers of both take them."""

from __future__ import annotations

import ssl
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from semel.core.errors import misconfigured
from semel.databases.login import Login

# sslMode, in MariaDB's words and in MySQL's
_PLAIN = ("disable", "disabled")
_IF_OFFERED = ("preferred",)  # what PyMySQL does of its own accord
_UNVERIFIED = ("trust", "required")
_VERIFIED = ("verify-ca", "verify-full", "verify-identity")


class Tls(NamedTuple):
    """The TLS settings of a connection. The certificate is a PEM file of authorities; without one
    those of the system are trusted."""

    certificate: str
    verifies: bool
    checks_host: bool

    def context(self) -> ssl.SSLContext:
        """Made here: PyMySQL (1.2) checks host names only if it is given a certificate.

        Raises:
            ConfigError: the certificate cannot be read.
        """
        try:
            context = ssl.create_default_context(cafile=self.certificate or None)
        except OSError as error:
            raise misconfigured(
                "connection.serverSslCert",
                f"connection.serverSslCert={self.certificate}: {error}. Name a file of PEM "
                "certificates",
            ) from None
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # MySQL's own certificates lack some parts
        context.check_hostname = self.checks_host
        context.verify_mode = ssl.CERT_REQUIRED if self.verifies else ssl.CERT_NONE
        return context


def connect_arguments(login: Login) -> tuple[str, dict[str, Any], Tls | None]:
    """The system that a URL names, the URL as PyMySQL's arguments, and TLS if it is required."""
    url = login.url.strip().removeprefix("jdbc:")
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:  # whose message may hold the password
        raise misconfigured(
            "connection.url",
            "connection.url is not of the form jdbc:mysql://host:port/database, with one host. Set "
            "connection.user and connection.password separately",
        ) from None
    parameters, more = dict(parse_qsl(parts.query)), login.parameters
    database = unquote(parts.path.lstrip("/"))
    if parts.scheme not in ("mysql", "mariadb") or not database:
        raise misconfigured(  # not the URL itself: it may hold a password
            "connection.url",
            "connection.url does not name a MySQL or MariaDB database. "
            "Set jdbc:mysql://host:port/database or jdbc:mariadb://host:port/database",
        )
    options: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": port,
        "database": database,
        "user": login.user or parameters.get("user") or unquote(parts.username or ""),
        "password": login.password or parameters.get("password") or unquote(parts.password or ""),
    }
    mode, where = parameters.get("sslMode", parameters.get("sslmode")), "connection.url"
    if mode is None:
        mode, where = more.get("sslMode", ""), "connection.sslMode"
    mode = mode.lower().replace("_", "-")
    tls_flags = (parameters.get("useSSL"), parameters.get("requireSSL"), parameters.get("useSsl"))
    if not mode and "true" in (*tls_flags, more.get("useSSL"), more.get("requireSSL")):
        mode = "verify-full"
    modes = (*_PLAIN, *_IF_OFFERED, *_UNVERIFIED, *_VERIFIED)
    if mode and mode not in modes:
        raise misconfigured(
            where,
            f"connection.url: sslMode={mode} must be one of {', '.join(modes)}; so must "
            "connection.sslMode",
        )
    system = "MariaDB" if parts.scheme == "mariadb" else "MySQL"
    if mode in _PLAIN or (not mode and "false" in tls_flags):
        options["ssl_disabled"] = True  # else PyMySQL would try
    if not mode or mode in (*_PLAIN, *_IF_OFFERED):
        return system, options, None
    certificate = parameters.get("serverSslCert") or more.get("serverSslCert", "")
    return system, options, Tls(certificate, mode in _VERIFIED, mode in _VERIFIED[1:])
