"""Kafka's security settings, translated between librdkafka's names and the Java client's.

semel's own clients are librdkafka; micro-batches are read by the Java client in Spark. A connector
gives its settings once, under the names of either client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from semel.core import keystores
from semel.core.answers import content_of
from semel.core.errors import misconfigured

_LOGIN = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "PLAIN": f"{_LOGIN}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_LOGIN}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_LOGIN}.scram.ScramLoginModule",
}
_OPTION = re.compile(
    r"""(?<!\w)(\w++)\s*+=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""", re.DOTALL
)

_BEARER = f"{_LOGIN}.oauthbearer"
_OPTIONS_OF_BEARER = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
_GETS_TOKENS = frozenset(
    f"{_BEARER}.{where}OAuthBearerLoginCallbackHandler" for where in ("", "secured.")
)
"""Java's classes that get tokens as librdkafka's method ``oidc`` does."""
_CREDENTIALS = "sasl.oauthbearer.client.credentials."
"""The prefix of Java's names for a client's id and secret, since Kafka 4.1."""
_JAVA_ONLY = ("sasl.jaas.config", "ssl.truststore.", "ssl.keystore.", _CREDENTIALS)
_IN_PEM = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
_LIBRDKAFKA_ONLY = (
    "sasl.username",
    "sasl.password",
    "sasl.mechanisms",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "enable.ssl.certificate.verification",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
)
WITHOUT_EFFECT = frozenset(
    {
        *("ssl.enabled.protocols", "ssl.protocol", "ssl.provider", "ssl.client.auth"),
        *("ssl.keymanager.algorithm", "ssl.trustmanager.algorithm"),
        "ssl.secure.random.implementation",
        *("sasl.kerberos.ticket.renew.jitter", "sasl.kerberos.ticket.renew.window.factor"),
        *("sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms"),
        *("sasl.login.retry.backoff.ms", "sasl.login.retry.backoff.max.ms"),
        *(f"sasl.login.refresh.{n}.seconds" for n in ("buffer", "min.period")),
        *(f"sasl.login.refresh.window.{n}" for n in ("factor", "jitter")),
        *(f"sasl.oauthbearer.expected.{n}" for n in ("audience", "issuer")),
        *(f"sasl.oauthbearer.jwks.endpoint.{n}" for n in ("url", "refresh.ms")),
        *(f"sasl.oauthbearer.jwks.endpoint.retry.backoff.{n}" for n in ("ms", "max.ms")),
        *(f"sasl.oauthbearer.{n}.claim.name" for n in ("scope", "sub")),
        *("sasl.oauthbearer.clock.skew.seconds", "sasl.oauthbearer.header.urlencode"),
        *(f"sasl.oauthbearer.jwt.{n}.class" for n in ("retriever", "validator")),
    }
)
"""Settings of Java's clients, or of its servers, that librdkafka lacks and can do without."""
_CLASSES = (
    "sasl.client.callback.handler.class",
    "sasl.login.class",
    "sasl.oauthbearer.assertion.template.file",
    "ssl.engine.factory.class",
)
"""Settings of Java's clients that librdkafka lacks: without them, the login would be a different
one."""


def librdkafka(given: Mapping[str, str], *, reads: bool = True) -> dict[str, str]:
    """Client settings with Java's security settings under librdkafka's names. Unless it ``reads``,
    certificates in Java's stores are left out.

    Raises:
        ConfigError: librdkafka has no counterpart for one of them.
    """
    given = _known(given)
    settings = {k: v for k, v in given.items() if not k.startswith(_JAVA_ONLY)}
    mechanism = given.get("sasl.mechanism") or given.get("sasl.mechanisms", "PLAIN")
    if "sasl.jaas.config" in given and mechanism in _LOGIN_MODULES:
        settings = _credentials(given["sasl.jaas.config"]) | settings
    if mechanism == "OAUTHBEARER":
        settings = _bearer(given) | settings
        if settings.get(_HANDLER) in _GETS_TOKENS:
            del settings[_HANDLER]
    for java_name, own in _IN_PEM.items():
        if java_name in given:
            settings.setdefault(own, given[java_name])
    location = given.get("ssl.truststore.location", "")
    if location and not settings.keys() & {"ssl.ca.location", "ssl.ca.pem"}:
        if given.get("ssl.truststore.type", "").upper() == "PEM":
            settings["ssl.ca.location"] = location
        elif reads:
            password = given.get("ssl.truststore.password", "")
            settings["ssl.ca.pem"] = keystores.authorities(location, password)
    location = given.get("ssl.keystore.location", "")
    if location and not settings.keys() & {"ssl.certificate.location", "ssl.certificate.pem"}:
        if _key_store(given) == "PEM":
            settings |= {"ssl.certificate.location": location, "ssl.key.location": location}
        else:
            settings["ssl.keystore.location"] = location
            settings["ssl.keystore.password"] = given.get("ssl.keystore.password", "")
    return settings


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """The settings that librdkafka knows by some name."""
    given = {k: v for k, v in given.items() if k not in WITHOUT_EFFECT}
    if not given.get(_HOST_NAMES, "https").strip():  # Java's way to say that none is checked
        given[_HOST_NAMES] = "none"
    settings = {k: v for k, v in given.items() if _says(k, v)}
    for name in _CLASSES:
        if name in settings:
            raise misconfigured(
                name,
                f"{name}={settings[name]} is a setting of Java's clients, which librdkafka lacks. "
                "Remove it",
            )
    return settings


def _says(name: str, value: str) -> bool:
    """Whether a setting has a value: for Java, an empty one counts as missing."""
    return bool(value.strip()) or not name.startswith(("sasl.", "ssl."))


def _key_store(given: Mapping[str, str]) -> str:
    """The type of a key store that librdkafka can read."""
    kind = given.get("ssl.keystore.type", "JKS").upper()
    if kind not in ("PEM", "PKCS12"):
        location = given["ssl.keystore.location"]
        raise misconfigured(
            "ssl.keystore.location",
            f"ssl.keystore.location={location} is of ssl.keystore.type={kind}, which librdkafka "
            f"cannot read. Convert it: keytool -importkeystore -srckeystore {location} "
            "-destkeystore client.p12 -deststoretype PKCS12. Then set ssl.keystore.location to the "
            "new file, and ssl.keystore.type=PKCS12",
        )
    return kind


def java(given: Mapping[str, str]) -> dict[str, str]:
    """Client settings with librdkafka's security settings under the Java client's names.

    Raises:
        ConfigError: a file that cannot be read, or a key in a form that Java does not take.
    """
    settings = {k: v for k, v in given.items() if k not in _LIBRDKAFKA_ONLY}
    if "sasl.mechanisms" in given:
        settings.setdefault("sasl.mechanism", given["sasl.mechanisms"])
    if "sasl.username" in given and "sasl.jaas.config" not in given:
        settings["sasl.jaas.config"] = _jaas(settings.get("sasl.mechanism", "PLAIN"), given)
    if "sasl.oauthbearer.client.id" in given and "sasl.jaas.config" not in given:
        options = {n: given.get(f"sasl.oauthbearer.{own}") for n, own in _OPTIONS_OF_BEARER.items()}
        settings["sasl.jaas.config"] = _login(f"{_BEARER}.OAuthBearerLoginModule", options)
        settings.setdefault(_HANDLER, f"{_BEARER}.OAuthBearerLoginCallbackHandler")
    trusted = _pem(given, "ssl.ca")
    if trusted and not _has(settings, "ssl.truststore."):
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
    certificate, key = _pem(given, "ssl.certificate"), _pem(given, "ssl.key")
    if certificate and key and not _has(settings, "ssl.keystore."):
        if "BEGIN PRIVATE KEY" not in key and "BEGIN ENCRYPTED PRIVATE KEY" not in key:
            raise misconfigured(
                "ssl.key.location",
                "ssl.key.location: Spark's Kafka client takes a private key in PKCS #8 only: "
                "convert it with openssl pkcs8 -topk8",
            )
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": certificate,
            "ssl.keystore.key": key,
        }
    return settings


def _has(settings: Mapping[str, str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in settings)


_HANDLER = "sasl.login.callback.handler.class"
_HOST_NAMES = "ssl.endpoint.identification.algorithm"


def _credentials(jaas: str) -> dict[str, str]:
    options = _jaas_options(jaas)
    if not {"username", "password"} <= options.keys():
        raise misconfigured(
            "sasl.jaas.config",
            "sasl.jaas.config names no username and password, which is all that librdkafka takes "
            "from it: set librdkafka's own sasl.* keys",
        )
    return {f"sasl.{name}": options[name] for name in ("username", "password")}


def _bearer(given: Mapping[str, str]) -> dict[str, str]:
    """The settings for getting tokens from an OAuth server with a client's id and secret
    (KIP-768)."""
    options = _jaas_options(given.get("sasl.jaas.config", ""))
    settings = {
        f"sasl.oauthbearer.{own}": options[name]
        for name, own in _OPTIONS_OF_BEARER.items()
        if name in options
    }
    for own in ("client.id", "client.secret"):
        if _CREDENTIALS + own in given:
            settings[f"sasl.oauthbearer.{own}"] = given[_CREDENTIALS + own]
    if "sasl.oauthbearer.token.endpoint.url" in given:
        settings["sasl.oauthbearer.method"] = "oidc"
    return settings


def _jaas_options(jaas: str) -> dict[str, str]:
    return {
        name: plain or re.sub(r"\\(.)", r"\1", double or single, flags=re.DOTALL)
        for name, double, single, plain in _OPTION.findall(jaas)
    }


def _jaas(mechanism: str, given: Mapping[str, str]) -> str:
    module = _LOGIN_MODULES.get(mechanism, _LOGIN_MODULES["PLAIN"])
    return _login(module, {k: given.get(f"sasl.{k}", "") for k in ("username", "password")})


def _login(module: str, options: Mapping[str, str | None]) -> str:
    parts = [f"{module} required"]
    for name, value in options.items():
        if value is not None:
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            parts.append(f'{name}="{escaped}"')
    return " ".join(parts) + ";"


def _pem(given: Mapping[str, str], name: str) -> str:
    location = given.get(f"{name}.location", "")
    if not location:
        return given.get(f"{name}.pem", "")
    try:
        return content_of(Path(location)).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise misconfigured(
            f"{name}.location", f"{name}.location={location} cannot be read as PEM: {error}"
        ) from None
