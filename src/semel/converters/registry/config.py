"""The keys of converters with a schema registry, as Confluent's and Apicurio's name them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from semel.config import HIGH, LOW, Type, key
from semel.config.extras import require
from semel.converters.registry.client import TRUST_PASSWORD, TRUST_STORE, Registry, setting
from semel.core.errors import Problem, misconfigured
from semel.core.problems import refuse

_TLS = "schema.registry.ssl."
_SOURCE, _USER = "basic.auth.credentials.source", "basic.auth.user.info"
_BEARER = "bearer.auth.credentials.source"
_BEARERS = {
    "STATIC_TOKEN": ("bearer_token",),
    "OAUTHBEARER": ("bearer_issuer", "bearer_client", "bearer_secret", "bearer_scope"),
}
"""Where bearer tokens come from, and the fields that this needs."""
AUTO, LATEST = "auto.register.schemas", "use.latest.version"
STRICT = "latest.compatibility.strict"
STRATEGY = "{}.subject.name.strategy"
_BY_TOPIC = "io.confluent.kafka.serializers.subject.TopicNameStrategy"
_CCOMPAT = "/apis/ccompat/v7"


@dataclass(frozen=True)
class RegistryKeys:
    """The keys that all of Confluent's converters read."""

    URL: ClassVar[str] = "schema.registry.url"

    urls: tuple[str, ...] = key(
        URL,
        doc="The schema registry, such as http://localhost:8081; several addresses are separated "
        "by commas.",
    )
    source: str = key(
        _SOURCE,
        "URL",
        "Where the login comes from: USER_INFO (basic.auth.user.info) or URL.",
        aliases=(f"schema.registry.{_SOURCE}",),
        recommended=("URL", "USER_INFO"),
    )
    user: str = key(
        _USER, "", "The login, user:password.", aliases=(f"schema.registry.{_USER}",), secret=True
    )
    bearer_source: str = key(
        _BEARER,
        "",
        "Where bearer tokens come from: STATIC_TOKEN (bearer.auth.token) or OAUTHBEARER "
        "(bearer.auth.issuer.endpoint.url).",
        recommended=("STATIC_TOKEN", "OAUTHBEARER"),
    )
    bearer_token: str = key("bearer.auth.token", "", "The token of STATIC_TOKEN.", secret=True)
    bearer_issuer: str = key(
        "bearer.auth.issuer.endpoint.url", "", "Who issues the tokens of OAUTHBEARER."
    )
    bearer_client: str = key("bearer.auth.client.id", "", "The client of OAUTHBEARER.")
    bearer_secret: str = key(
        "bearer.auth.client.secret", "", "The secret of the client of OAUTHBEARER.", secret=True
    )
    bearer_scope: str = key("bearer.auth.scope", "", "The scope of the tokens of OAUTHBEARER.")
    bearer_cluster: str = key(
        "bearer.auth.logical.cluster", "", "The registry's id in Confluent Cloud."
    )
    bearer_pool: str = key(
        "bearer.auth.identity.pool.id", "", "The identity pool in Confluent Cloud."
    )
    ca: str = key(
        f"{_TLS}ca.location",
        "",
        "A PEM file with the authorities that sign the registry's certificate.",
    )
    certificate: str = key(
        f"{_TLS}certificate.location", "", "A PEM file with the client's certificate."
    )
    private_key: str = key(f"{_TLS}key.location", "", "A PEM file with the client's key.")
    key_password: str = key(
        f"{_TLS}key.password", "", "The password of the client's key.", secret=True
    )
    trust_store: str = key(
        f"{_TLS}truststore.location",
        "",
        "A Java trust store (JKS or PKCS12), or a PEM file.",
        importance=HIGH,
    )
    trust_type: str = key(f"{_TLS}truststore.type", "JKS", "Has no effect: semel detects the type.")
    trust_password: str = key(
        f"{_TLS}truststore.password",
        "",
        "The password of the trust store.",
        secret=True,
        importance=HIGH,
    )
    key_store: str = key(
        f"{_TLS}keystore.location",
        "",
        "The client's key and certificate in one PEM file.",
        importance=HIGH,
    )
    store_type: str = key(f"{_TLS}keystore.type", "JKS", "Must be PEM.")
    store_password: str = key(
        f"{_TLS}keystore.password", "", "Has no effect.", secret=True, importance=HIGH
    )
    timeout_ms: int = key(
        "schema.registry.request.timeout.ms",
        10_000,
        "How long the registry may take to answer.",
        at_least=0,
        type=Type.INT,
        importance=LOW,
    )
    proxy_host: str = key(
        "proxy.host", "", "An HTTP proxy in front of the registry.", importance=LOW
    )
    proxy_port: int = key("proxy.port", 80, "The port of the proxy.", type=Type.INT, importance=LOW)
    cache: str = key(
        "schemas.cache.config", "1000", "Has no effect.", type=Type.INT, importance=LOW
    )
    per_subject: str = key(
        "max.schemas.per.subject", "1000", "Has no effect.", type=Type.INT, importance=LOW
    )
    registers: bool = key(
        AUTO, True, "Whether new schemas are registered; if not, a schema must exist already."
    )
    latest: bool = key(
        LATEST,
        False,
        "With auto.register.schemas=false: write with the latest version of the subject.",
        importance=LOW,
    )
    strict: bool = key(
        STRICT,
        True,
        "With use.latest.version: refuse column types that the latest version cannot represent; "
        "otherwise refuse values only.",
        importance=LOW,
    )
    key_strategy: str = key(
        STRATEGY.format("key"),
        _BY_TOPIC,
        "Names the subject: TopicNameStrategy, RecordNameStrategy or TopicRecordNameStrategy, "
        "in the package of the default.",
        type=Type.CLASS,
    )
    value_strategy: str = key(
        STRATEGY.format("value"),
        _BY_TOPIC,
        "Names the subject: TopicNameStrategy, RecordNameStrategy or TopicRecordNameStrategy, "
        "in the package of the default.",
        type=Type.CLASS,
    )

    def __post_init__(self) -> None:
        refuse([*self._problems()])

    def _problems(self) -> Iterator[Problem]:
        yield from self._wrong_urls()
        yield from self._wrong_login()

    def _wrong_urls(self) -> Iterator[Problem]:
        wrong = [url for url in self.urls if urlsplit(url).scheme not in ("http", "https")]
        if wrong:
            unfilled = ". Shell variables are not filled in; write ${env:NAME}"
            message = f"{self.URL}={wrong[0]} must begin with http:// or https://"
            yield Problem(self.URL, message + (unfilled if wrong[0].startswith("$") else ""))
        elif not self.urls:
            yield Problem(self.URL, f"{self.URL} is required: it names no registry")

    def _wrong_login(self) -> Iterator[Problem]:
        source = self.source.upper()
        if self.bearer_source:
            yield from self._wrong_bearer()
            return
        if source == "URL":
            return
        if source != "USER_INFO":
            message = f"{_SOURCE}={source} is not available: set it to USER_INFO or URL"
            yield Problem(_SOURCE, message)
        elif ":" not in self.user:
            yield Problem(_USER, f"{_USER} must be user:password")

    def _wrong_bearer(self) -> Iterator[Problem]:
        if self.bearer_source not in _BEARERS:
            message = f"{_BEARER}={self.bearer_source} must be one of {', '.join(_BEARERS)}"
            yield Problem(_BEARER, message)
        needed = (f for f in fields(self) if f.name in _BEARERS.get(self.bearer_source, ()))
        for name in (f.metadata["name"] for f in needed if not getattr(self, f.name)):
            yield Problem(name, f"{name} is required with {_BEARER}={self.bearer_source}")

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the registry answers in Confluent's API."""
        return self.urls


@dataclass(frozen=True)
class ApicurioKeys(RegistryKeys):
    """The keys of Apicurio's converters. They take Confluent's names, too."""

    URL: ClassVar[str] = "apicurio.registry.url"

    urls: tuple[str, ...] = key(
        URL,
        doc="Apicurio's registry, such as http://localhost:8080, by the address of any of its "
        "APIs.",
        aliases=(RegistryKeys.URL,),
    )
    registers: bool = key(
        "apicurio.registry.auto-register",
        True,
        "Whether new schemas are registered; if not, a schema must exist already.",
        aliases=(AUTO,),
    )
    latest: bool = key(
        "apicurio.registry.find-latest",
        False,
        "With apicurio.registry.auto-register=false: write with the latest version of the subject.",
        aliases=(LATEST,),
        importance=LOW,
    )
    as_confluent: bool = key(
        "apicurio.registry.as-confluent", False, "Must be true: ids have four bytes."
    )
    handler: str = key("apicurio.registry.id-handler", "", "How ids are written.", type=Type.CLASS)
    use_id: str = key("apicurio.registry.use-id", "", "Has no effect.", importance=LOW)
    headers: bool = key(
        "apicurio.registry.headers.enabled", False, "Must be false: ids are in values."
    )
    encoding: str = key("apicurio.registry.avro.encoding", "", "Has no effect.", importance=LOW)

    def _problems(self) -> Iterator[Problem]:
        if not self.as_confluent and "4Byte" not in self.handler:
            name = "apicurio.registry.as-confluent"
            message = (
                f"{name}=true is needed: semel reads and writes Confluent's format, with ids of "
                "four bytes. Set it here and where records are written"
            )
            yield Problem(name, message)
        if self.headers:
            name = "apicurio.registry.headers.enabled"
            message = f"{name}=true: semel takes ids from values, not headers. Set it to false"
            yield Problem(name, message)
        yield from super()._problems()

    @property
    def addresses(self) -> tuple[str, ...]:
        stripped = (url.rstrip("/") for url in self.urls)
        return tuple(
            url if "/apis/ccompat/" in url else url.partition("/apis/")[0] + _CCOMPAT
            for url in stripped
        )


def registry(keys: RegistryKeys, where: str) -> Registry:
    """The registry of a converter.

    Raises:
        ConfigError: a package is missing, or a file cannot be used.
    """
    client = "httpx2" if find_spec("httpx") is None else "httpx"  # older releases take httpx
    packages = {client: "confluent-kafka[schemaregistry]"}
    require(f"{where} with a schema registry", "registry", packages, key=where)
    settings: dict[str, Any] = {"timeout": keys.timeout_ms / 1000, "max.retries": 2}
    settings |= _login(keys) | _tls(keys, where)
    settings["url"] = ",".join(map(_without_login, keys.addresses))
    if keys.proxy_host:
        settings["proxy"] = f"http://{keys.proxy_host}:{keys.proxy_port}"
    return Registry(settings, where)


def _login(keys: RegistryKeys) -> dict[str, Any]:
    if keys.bearer_source:
        own = _settings(keys, "bearer.auth.")
        return {"bearer.auth.logical.cluster": "", **own}
    if keys.source.upper() == "USER_INFO":
        return {"basic.auth.user.info": keys.user}
    parts = urlsplit(keys.addresses[0])
    if parts.username is None:
        return {}
    return {"basic.auth.user.info": f"{unquote(parts.username)}:{unquote(parts.password or '')}"}


def _settings(keys: RegistryKeys, prefix: str) -> dict[str, Any]:
    """The settings with this prefix that have a value; the client has the same names for them."""
    named = ((field.metadata.get("name", ""), getattr(keys, field.name)) for field in fields(keys))
    return {name: value for name, value in named if name.startswith(prefix) and value}


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _tls(keys: RegistryKeys, where: str) -> dict[str, str]:
    settings = {
        name.removeprefix("schema.registry."): value
        for part in ("ca", "certificate", "key")
        for name, value in _settings(keys, f"{_TLS}{part}.").items()
    }
    if keys.trust_store and not keys.ca:
        settings[TRUST_STORE] = keys.trust_store
        settings[TRUST_PASSWORD] = keys.trust_password
    location = keys.key_store
    if not location or keys.certificate:
        return settings
    kind = keys.store_type.upper()
    if kind != "PEM":
        name = setting(where, f"{_TLS}keystore.location")
        raise misconfigured(
            name,
            f"{name}={location}: semel reads the keys of PEM files, not of {kind}. Convert it: "
            f"keytool -importkeystore -srckeystore {location} -destkeystore store.p12 "
            "-deststoretype PKCS12, then openssl pkcs12 -in store.p12 -out store.pem "
            f"-nodes; set {name}=store.pem and {setting(where, f'{_TLS}keystore.type')}=PEM",
        )
    settings["ssl.certificate.location"] = location
    return settings
