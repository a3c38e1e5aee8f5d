"""The keys of converters with a schema registry, as Confluent's and Apicurio's name them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlsplit

from semel.converters.registry.client import TRUST_PASSWORD, TRUST_STORE, Registry
from semel.errors import ConfigError, Problem
from semel.extras import require

_TIMEOUT = 10
_URL = "schema.registry.url"
_BEARER = {
    "bearer.auth.token": "bearer.auth.token",
    "bearer.auth.issuer.endpoint.url": "bearer.auth.issuer.endpoint.url",
    "bearer.auth.client.id": "bearer.auth.client.id",
    "bearer.auth.client.secret": "bearer.auth.client.secret",
    "bearer.auth.scope": "bearer.auth.scope",
    "bearer.auth.logical.cluster": "bearer.auth.logical.cluster",
    "bearer.auth.identity.pool.id": "bearer.auth.identity.pool.id",
}
_TLS = "schema.registry.ssl."
_PEM = {
    "ca.location": "ssl.ca.location",
    "certificate.location": "ssl.certificate.location",
    "key.location": "ssl.key.location",
    "key.password": "ssl.key.password",
}
_JAVA = (
    *("truststore.location", "truststore.type", "truststore.password"),
    *("keystore.location", "keystore.type", "keystore.password"),
)
KEYS = frozenset(
    {
        _URL,
        *("basic.auth.credentials.source", "basic.auth.user.info"),
        *("schema.registry.basic.auth.credentials.source", "schema.registry.basic.auth.user.info"),
        *("bearer.auth.credentials.source", *_BEARER),
        *(f"{_TLS}{name}" for name in (*_PEM, *_JAVA)),
        *("proxy.host", "proxy.port", "schemas.cache.config", "max.schemas.per.subject"),
        "schema.registry.request.timeout.ms",
    }
)
"""The keys about the registry that all of Confluent's converters read."""

APICURIO = {
    "apicurio.registry.url": _URL,
    "apicurio.registry.auto-register": "auto.register.schemas",
    "apicurio.registry.find-latest": "use.latest.version",
    "apicurio.registry.as-confluent": "",
    "apicurio.registry.id-handler": "",
    "apicurio.registry.use-id": "",
    "apicurio.registry.headers.enabled": "",
    "apicurio.registry.avro.encoding": "",
}
_AS_CONFLUENT = "apicurio.registry.as-confluent"
_CCOMPAT = "/apis/ccompat/v7"


def of_apicurio(config: Mapping[str, str], where: str) -> dict[str, str]:
    """Apicurio's keys under Confluent's names.

    Raises:
        ConfigError: Apicurio's own wire format is configured, or no format is.
    """
    handler = config.get("apicurio.registry.id-handler", "")
    if config.get(_AS_CONFLUENT, "").lower() != "true" and "4Byte" not in handler:
        key = f"{where}.{_AS_CONFLUENT}"
        raise ConfigError(
            Problem(
                key,
                f"{key}=true is needed: semel reads and writes Confluent's format, with ids of "
                "four bytes. Set it here and where records are written",
            )
        )
    if config.get("apicurio.registry.headers.enabled", "").lower() == "true":
        key = f"{where}.apicurio.registry.headers.enabled"
        raise ConfigError(
            Problem(key, f"{key}=true: semel takes ids from values, not headers. Set it to false")
        )
    found = {k: v for k, v in config.items() if k not in APICURIO}
    found |= {APICURIO[k]: v for k, v in config.items() if APICURIO.get(k)}
    given = found.get(_URL, "").rstrip("/")
    if given and "/apis/ccompat/" not in given:
        found[_URL] = given.partition("/apis/")[0] + _CCOMPAT
    return found


def registry(config: Mapping[str, str], where: str) -> Registry:
    """The registry of a converter.

    Raises:
        ConfigError: a key is missing, or has a value that cannot be used.
    """
    client = "httpx2" if find_spec("httpx") is None else "httpx"  # older releases take httpx
    require(
        f"{where} with a schema registry",
        "registry",
        {client: "confluent-kafka[schemaregistry]"},
        key=where,
    )
    urls = [url.strip() for url in config.get(_URL, "").split(",") if url.strip()]
    wrong = [url for url in urls if urlsplit(url).scheme not in ("http", "https")]
    if not urls or wrong:
        key = f"{where}.{_URL}"
        unfilled = ". Shell variables are not filled in; write ${env:NAME}"
        said = (
            f"{key}={wrong[0]} must begin with http:// or https://"
            + (unfilled if wrong[0].startswith("$") else "")
            if wrong
            else (f"{key} is required: the schema registry, such as http://localhost:8081")
        )
        raise ConfigError(Problem(key, said))
    settings: dict[str, Any] = {"timeout": _timeout(config, where), "max.retries": 2}
    settings |= _login(config, urls, where) | _tls(config, where)
    settings["url"] = ",".join(_without_login(url) for url in urls)
    if config.get("proxy.host"):
        settings["proxy"] = f"http://{config['proxy.host']}:{config.get('proxy.port', '80')}"
    return Registry(settings, where)


def flag(config: Mapping[str, str], name: str, default: bool, where: str) -> bool:
    """A key that is true or false."""
    text = config.get(name, "").strip().lower()
    if text not in ("", "true", "false"):
        key = f"{where}.{name}"
        raise ConfigError(Problem(key, f"{key}={config[name]!r} must be true or false"))
    return text == "true" if text else default


def _timeout(config: Mapping[str, str], where: str) -> float:
    name = "schema.registry.request.timeout.ms"
    text = config.get(name, "").strip()
    if text and not text.isdigit():
        raise ConfigError(Problem(f"{where}.{name}", f"{where}.{name}={text!r} must be a number"))
    return int(text) / 1000 if text else _TIMEOUT


def _login(config: Mapping[str, str], urls: list[str], where: str) -> dict[str, Any]:
    source = config.get("bearer.auth.credentials.source", "").strip()
    if source:
        given = {new: config[old] for old, new in _BEARER.items() if config.get(old)}
        given.setdefault("bearer.auth.logical.cluster", "")
        return {"bearer.auth.credentials.source": source, **given}
    names = ("basic.auth.credentials.source", "schema.registry.basic.auth.credentials.source")
    source = next((config[n].strip().upper() for n in names if config.get(n)), "URL")
    if source == "USER_INFO":
        names = ("basic.auth.user.info", "schema.registry.basic.auth.user.info")
        given_info = next((config[n] for n in names if config.get(n)), "")
        if ":" not in given_info:
            key = f"{where}.{names[0]}"
            raise ConfigError(Problem(key, f"{key} must be user:password"))
        return {"basic.auth.user.info": given_info}
    if source != "URL":
        key = f"{where}.{names[0]}"
        raise ConfigError(
            Problem(key, f"{key}={source} is not available: set it to USER_INFO or URL")
        )
    parts = urlsplit(urls[0])
    if parts.username is None:
        return {}
    return {"basic.auth.user.info": f"{unquote(parts.username)}:{unquote(parts.password or '')}"}


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _tls(config: Mapping[str, str], where: str) -> dict[str, str]:
    found = {new: config[_TLS + old] for old, new in _PEM.items() if config.get(_TLS + old)}
    location = config.get(f"{_TLS}truststore.location", "")
    if location and "ssl.ca.location" not in found:
        found[TRUST_STORE] = location
        found[TRUST_PASSWORD] = config.get(f"{_TLS}truststore.password", "")
    location = config.get(f"{_TLS}keystore.location", "")
    if not location or "ssl.certificate.location" in found:
        return found
    kind = config.get(f"{_TLS}keystore.type", "JKS").upper()
    if kind != "PEM":
        key = f"{where}.{_TLS}keystore.location"
        raise ConfigError(
            Problem(
                key,
                f"{key}={location}: semel reads the keys of PEM files, not of {kind}. Convert it: "
                f"keytool -importkeystore -srckeystore {location} -destkeystore store.p12 "
                "-deststoretype PKCS12, then openssl pkcs12 -in store.p12 -out store.pem "
                f"-nodes; set {key}=store.pem and {where}.{_TLS}keystore.type=PEM",
            )
        )
    found["ssl.certificate.location"] = location
    return found
