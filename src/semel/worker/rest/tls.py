"""TLS for the REST API, configured with Java's settings."""

from __future__ import annotations

import re
import secrets
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from semel.config.extras import require
from semel.config.loading import under
from semel.config.rest import RestConfig
from semel.core.errors import ConfigError, misconfigured
from semel.core.keystores import authorities

LISTENERS, ADMIN = "listeners.https.", "admin.listeners.https."
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_JKS = b"\xfe\xed\xfe\xed"


@dataclass(frozen=True)
class Settings:
    """The ``ssl.*`` settings of some listeners. As in Kafka Connect, those under the prefix apply,
    or the worker's own if there are none."""

    prefix: str
    values: Mapping[str, str]

    def get(self, name: str, default: str = "") -> str:
        """A setting, or the default where it is missing or empty."""
        return self.values.get(name, "").strip() or default

    def wrong(self, name: str, why: str) -> ConfigError:
        """An error about a setting."""
        return misconfigured(f"{self.prefix}{name}", f"{self.prefix}{name}{why}")


def settings(originals: Mapping[str, str], prefix: str) -> Settings:
    """The settings of the listeners with this prefix."""
    own = under(originals, prefix)
    return Settings(prefix, own) if own else Settings("", originals)


def server_context(config: RestConfig, prefix: str = LISTENERS) -> ssl.SSLContext:
    """What ``https://`` listeners need.

    Raises:
        ConfigError: a setting is missing or cannot be used.
    """
    ssl_settings = settings(config.originals, prefix)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_protocols(context, ssl_settings)
    _load_key(context, ssl_settings)
    auth = ssl_settings.get("ssl.client.auth", "none").lower()
    if auth not in _CLIENT_AUTH:
        raise ssl_settings.wrong(
            "ssl.client.auth", f"={auth} is not one of {', '.join(_CLIENT_AUTH)}"
        )
    if auth != "none":
        context.load_verify_locations(cadata=_trusted(ssl_settings, auth))
        context.verify_mode = _CLIENT_AUTH[auth]
    return context


def demand_certificates(config: RestConfig) -> bool:
    """Whether every listener only accepts clients with a trusted certificate."""
    listeners = {LISTENERS: config.listeners, ADMIN: config.admin_listeners or ()}
    return all(
        urlsplit(each).scheme.lower() == "https"
        and settings(config.originals, prefix).get("ssl.client.auth").lower() == "required"
        for prefix, of in listeners.items()
        for each in of
    )


def client_context(config: RestConfig) -> ssl.SSLContext:
    """The context for calls to other workers over ``https://``: with this worker's own certificate,
    trusting what the settings say.

    Raises:
        ConfigError: a setting cannot be used.
    """
    ssl_settings = settings(config.originals, LISTENERS)
    context = ssl.create_default_context()
    context.check_hostname = ssl_settings.values.get(_IDENTIFICATION, "https").strip() != ""
    if _has_store(ssl_settings, "ssl.truststore", "certificates"):
        context.load_verify_locations(cadata=_trusted(ssl_settings, "requested"))
    if _has_store(ssl_settings, "ssl.keystore", "key"):
        _load_key(context, ssl_settings)
    return context


_IDENTIFICATION = "ssl.endpoint.identification.algorithm"


def _has_store(ssl_settings: Settings, store: str, inline: str) -> bool:
    return bool(ssl_settings.get(f"{store}.location") or ssl_settings.get(f"{store}.{inline}"))


def _set_protocols(context: ssl.SSLContext, ssl_settings: Settings) -> None:
    name = "ssl.enabled.protocols"
    enabled = [part.strip() for part in ssl_settings.get(name, ",".join(_VERSIONS)).split(",")]
    unknown = [each for each in enabled if each not in _VERSIONS]
    if unknown:
        raise ssl_settings.wrong(
            name, f" has {unknown[0]}: {' and '.join(_VERSIONS)} are available"
        )
    context.minimum_version = min(_VERSIONS[each] for each in enabled)
    context.maximum_version = max(_VERSIONS[each] for each in enabled)
    name = "ssl.cipher.suites"
    suites = [_openssl(part.strip()) for part in ssl_settings.get(name).split(",") if part.strip()]
    if suites:
        try:
            context.set_ciphers(":".join(suites))
        except ssl.SSLError:
            raise ssl_settings.wrong(
                name, f"={ssl_settings.get(name)}: OpenSSL knows none of them"
            ) from None


def _openssl(suite: str) -> str:
    """OpenSSL's name of a cipher suite that is given by its standard name."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not cipher:
        return suite
    cipher = re.sub(r"AES_(\d+)", r"AES\1", cipher).replace("_CBC", "")
    cipher = cipher.replace("POLY1305_SHA256", "POLY1305")
    return f"{exchange}_{cipher}".removeprefix("RSA_").replace("_", "-")


def _load_key(context: ssl.SSLContext, ssl_settings: Settings) -> None:
    """Give the context its key and its certificates."""
    store = "ssl.keystore"
    inline = ssl_settings.get(f"{store}.key")
    if inline:
        chain = ssl_settings.get(f"{store}.certificate.chain")
        data, where = f"{inline}\n{chain}\n".encode(), f"{store}.key"
    else:
        where = f"{store}.location"
        data = _content(ssl_settings, where, "an https:// listener needs a key and a certificate")
    password = ssl_settings.get("ssl.key.password") or ssl_settings.get(f"{store}.password")
    if not _is_pem(data):
        data, password = _pem_of_pkcs12(data, ssl_settings, store)
    with tempfile.TemporaryDirectory(prefix="semel-rest-") as folder:  # only its owner may enter
        file = Path(folder, "key.pem")
        file.write_bytes(data)
        try:
            context.load_cert_chain(file, password=lambda: password)
        except (ssl.SSLError, ValueError, OSError) as error:
            why = getattr(error, "reason", None) or error
            hint = "it must hold a private key and its certificates, and the password must be right"
            raise ssl_settings.wrong(where, f" cannot be used ({why}): {hint}") from None


def _trusted(ssl_settings: Settings, auth: str) -> str:
    """The certificates of authorities whose clients are trusted, as PEM."""
    store = "ssl.truststore"
    inline = ssl_settings.get(f"{store}.certificates")
    if inline:
        return inline
    why = f"ssl.client.auth={auth} needs the authorities that sign clients' certificates"
    location = _location(ssl_settings, f"{store}.location", "PEM, PKCS12 or JKS", why)
    return authorities(location, ssl_settings.get(f"{store}.password"), ssl_settings.prefix)


def _location(ssl_settings: Settings, name: str, kinds: str, why: str) -> str:
    location = ssl_settings.get(name)
    if not location:
        where = f"{ssl_settings.prefix}{name}"
        raise misconfigured(where, f"{why}: set {where} to a {kinds} file")
    return location


def _content(ssl_settings: Settings, name: str, why: str) -> bytes:
    location = _location(ssl_settings, name, "PEM or PKCS12", why)
    try:
        data = Path(location).read_bytes()
    except OSError as error:
        raise ssl_settings.wrong(name, f"={location} cannot be read: {error.strerror}") from None
    if data.startswith(_JKS):
        target = Path(location).with_suffix(".p12")
        raise ssl_settings.wrong(
            name,
            f"={location} is a JKS key store, which only Java reads. Convert it: keytool "
            f"-importkeystore -srckeystore {location} -destkeystore {target} -deststoretype pkcs12",
        )
    return data


def _is_pem(data: bytes) -> bool:
    return b"-----BEGIN " in data


def _pem_of_pkcs12(data: bytes, ssl_settings: Settings, store: str) -> tuple[bytes, str]:
    """Key and certificates as PEM, and a password: the key is encrypted, as it goes to disk."""
    key_store, serialization = _pkcs12(data, ssl_settings, store)
    if key_store.key is None or key_store.cert is None:
        raise ssl_settings.wrong(f"{store}.location", " holds no private key with a certificate")
    password = secrets.token_hex()
    parts = [
        key_store.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()),
        )
    ]
    chain = (key_store.cert, *key_store.additional_certs)
    parts += [entry.certificate.public_bytes(serialization.Encoding.PEM) for entry in chain]
    return b"".join(parts), password


def _pkcs12(data: bytes, ssl_settings: Settings, store: str) -> tuple[Any, Any]:
    """A key store, and cryptography's names for writing what is in it."""
    require("a PKCS12 key store", "worker", {"cryptography": "cryptography"})
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    password = ssl_settings.get(f"{store}.password").encode() or None
    try:
        return pkcs12.load_pkcs12(data, password), serialization
    except ValueError as error:
        raise ssl_settings.wrong(
            f"{store}.location",
            f"={ssl_settings.get(f'{store}.location')} cannot be read as PEM or PKCS12 with "
            f"{ssl_settings.prefix}{store}.password: {error}",
        ) from None
