"""URLs of SQL Server, as Microsoft's JDBC driver and jTDS take them."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from semel.core.errors import misconfigured
from semel.core.problems import may_read
from semel.databases.login import Login

FORM = "jdbc:sqlserver://host:port;databaseName=name"
_URL = re.compile(r"sqlserver://([^;\\:/,\s]*)(?:\\([^;:/]*))?(?::(\d+))?/?(;.*)?", re.S)
_JTDS = re.compile(r"jtds:sqlserver://([^;:/,\s]*)(?::(\d+))?(?:/([^;/]*))?(;.*)?", re.S)
_PROPERTY = re.compile(r"[\s;]*+([^=;\s][^=;]*+)=\s*+(?:\{((?:[^}]|\}\})*+)\}|([^;]*+))\s*+(?:;|$)")
_YES, _NO = ("true", "yes", "mandatory"), ("false", "no", "optional")
_SAME = {
    "database": "databasename",
    "username": "user",
    "servername": "server",
    "portnumber": "port",
}
_REFUSED = {
    "integratedsecurity": (_NO, "semel logs in by user and password"),
    "authentication": (("notspecified", "sqlpassword"), "semel logs in by user and password"),
    "truststore": ((), "a Java key store cannot be read. Name a PEM file in serverCertificate"),
}
"""Properties that semel cannot honour: property -> the values that ask for nothing, and why."""


@dataclass(frozen=True)
class Address:
    """The server, the database and the login. Without ``encrypt`` only the login itself is
    encrypted."""

    host: str
    port: int
    instance: str
    database: str
    """Empty for the login's default database."""
    user: str
    password: str
    encrypt: bool
    authorities: str | None
    """A PEM file of trusted authorities; None trusts any certificate."""
    certified_name: str | None

    @property
    def where(self) -> str:
        at = f"{self.host}\\{self.instance}" if self.instance else f"{self.host}:{self.port}"
        return f"SQL Server at {at}/{self.database}".rstrip("/")


def address(login: Login) -> Address:
    """Parse a URL.

    Raises:
        ConfigError: also if semel cannot do what the URL asks.
    """
    url = _as_microsofts(login.url.strip().removeprefix("jdbc:"))
    place = _URL.fullmatch(url)
    properties = None if place is None else _properties((place[4] or "")[1:])
    if place is None or properties is None:
        raise misconfigured(  # not the URL itself: it may hold a password
            "connection.url",
            f"connection.url is not of the form {FORM}. Set connection.user and "
            "connection.password separately, or append ;user=...;password={...} to it",
        )
    for name, (harmless, why) in _REFUSED.items():
        if properties.get(name, "").lower() not in ("", *harmless):
            raise misconfigured("connection.url", f"connection.url: {name} is not available: {why}")
    port = place[3] or properties.get("port") or "1433"
    server, _, instance = properties.get("server", "").partition("\\")
    instance = place[2] or properties.get("instancename") or instance
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise misconfigured(
            "connection.url", f"connection.url: port={port} is not a number from 1 to 65535"
        )
    host = place[1] or server or "localhost"
    encrypt = _flag("encrypt", properties, login.parameters.get("encrypt", "true"))
    trusted = _flag(
        "trustServerCertificate",
        properties,
        login.parameters.get("trustServerCertificate", "false"),
    )
    file, where = properties.get("servercertificate", ""), "connection.url"
    if not file:
        file, where = login.parameters.get("serverCertificate", ""), "connection.serverCertificate"
    return Address(
        host,
        int(port),
        "" if place[3] or properties.get("port") else instance,  # the port says which one it is
        properties.get("databasename", ""),
        login.user or properties.get("user", ""),
        login.password or properties.get("password", ""),
        encrypt,
        None if trusted or not encrypt else _authorities(file, where),
        properties.get("hostnameincertificate"),
    )


def _as_microsofts(url: str) -> str:
    """Convert a URL of the jTDS driver to Microsoft's form. The two differ in the place of the
    database and in how TLS is requested."""
    place = _JTDS.fullmatch(url)
    if place is None:
        return url
    host, port, database, rest = place[1], place[2], place[3], place[4] or ""
    encrypt = {"off": "false", "request": "false", "require": "true", "authenticate": "true"}
    ssl_of = _properties(rest[1:]) or {}
    mode = ssl_of.get("ssl", "off").lower()
    converted = f"sqlserver://{host}" + (f":{port}" if port else "")
    if database:
        converted += f";databaseName={{{database}}}"
    if mode in encrypt and "encrypt" not in ssl_of:
        converted += f";encrypt={encrypt[mode]}"
        converted += ";trustServerCertificate=true" * (mode == "require")
    return converted + rest


def _properties(text: str) -> dict[str, str] | None:
    """``name=value;name={value}``, names in lower case; None for anything else."""
    properties: dict[str, str] = {}
    text, place = text.rstrip(" ;"), 0
    while place < len(text):
        match = _PROPERTY.match(text, place)
        if match is None:
            return None
        name = match[1].rstrip().lower()
        value = match[3].rstrip() if match[2] is None else match[2].replace("}}", "}")
        properties[_SAME.get(name, name)] = value
        place = match.end()
    return properties


def _flag(name: str, properties: Mapping[str, str], otherwise: str) -> bool:
    """A property of the URL, or else the value of the key that stands for it."""
    value = properties.get(name.lower(), otherwise)
    if value.lower() not in (*_YES, *_NO):
        raise misconfigured(
            "connection.url" if name.lower() in properties else f"connection.{name}",
            f"connection.url: {name}={value} must be true or false; so must connection.{name}",
        )
    return value.lower() in _YES


def _authorities(file: str, key: str) -> str:
    """The file given with a key, or the system's."""
    if file and not may_read():
        return file
    if file and not Path(file).is_file():
        raise misconfigured(key, f"connection.url: serverCertificate={file} is not a file")
    defaults = ssl.get_default_verify_paths()
    for path in (file, defaults.cafile, defaults.openssl_cafile, *_BUNDLES):
        if path and Path(path).is_file():
            return path
    raise misconfigured(
        "connection.url",
        "connection.url: encrypt=true, but this system has no certificates to verify the server. "
        "Name a PEM file in serverCertificate, or set trustServerCertificate=true",
    )


_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
