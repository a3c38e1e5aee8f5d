"""What a URL says to the client of MariaDB and MySQL."""

from __future__ import annotations

import contextlib
import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymysql
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from semel.config import read
from semel.core.errors import ConfigError, ServiceError, TransientError
from semel.databases.login import Login
from semel.databases.mysql import Tls, connect_arguments
from semel.databases.mysql.driver import translated
from semel.sinks.sql.config import MysqlConfig


def connection(parameters: str) -> tuple[dict[str, Any], Tls | None]:
    _, found, tls = connect_arguments(Login(f"jdbc:mysql://h/d?{parameters}"))
    return found, tls


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of server.test, followed by its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server.test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("server.test")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)
    return path


def shake_hands(context: ssl.SSLContext, certificate: Path, host: str) -> None:
    """Both sides of a connection's beginning, to a server that is called ``host``."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context.wrap_bio(there, here, server_hostname=host)
    theirs = server.wrap_bio(here, there, server_side=True)
    done = 0
    while done < 2:
        done = 0
        for side in (ours, theirs):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                done += 1


@pytest.mark.parametrize(
    ("parameters", "verified"),
    [
        ("sslMode=REQUIRED", (False, False)),
        ("sslMode=trust", (False, False)),
        ("sslMode=VERIFY_CA", (True, False)),
        ("sslMode=verify-full", (True, True)),
        ("sslMode=VERIFY_IDENTITY", (True, True)),
        ("useSSL=true", (True, True)),
        ("requireSSL=true", (True, True)),
    ],
)
def test_tls_is_what_the_url_asks_for(parameters: str, verified: tuple[bool, bool]) -> None:
    _, tls = connection(f"{parameters}&serverSslCert=/ca.pem")
    assert tls == ("/ca.pem", *verified)


def test_confluents_driver_parameters_are_those_of_the_url() -> None:
    keys = {"connection.sslMode": "VERIFY_CA", "connection.serverSslCert": "/ca.pem"}
    for url, verified in (("jdbc:mysql://h/d", True), ("jdbc:mysql://h/d?sslMode=trust", False)):
        _, _, tls = connect_arguments(read(MysqlConfig, {"connection.url": url, **keys}).login)
        assert tls is not None
        assert (tls.certificate, tls.verifies) == ("/ca.pem", verified)


@pytest.mark.parametrize("parameters", ["", "sslMode=disable", "sslMode=DISABLED", "useSSL=false"])
def test_no_tls_where_it_is_not_asked_for(parameters: str) -> None:
    found, tls = connection(parameters)
    assert tls is None
    assert ("ssl_disabled" in found) is bool(parameters)


@pytest.mark.parametrize(
    ("key", "query", "disabled"),
    [
        ("connection.useSSL", "", True),
        ("connection.useSSL", "?useSSL=true", False),
        ("connection.useSSL", "?useSsl=true", False),
        ("connection.requireSSL", "", False),
        ("connection.sslMode", "?requireSSL=false", False),
    ],
)
def test_only_use_ssl_turns_tls_off(key: str, query: str, *, disabled: bool) -> None:
    keys = {"connection.url": f"jdbc:mysql://h/d{query}", key: "" if "Mode" in key else "false"}
    _, arguments, _ = connect_arguments(read(MysqlConfig, keys).login)
    assert ("ssl_disabled" in arguments) is disabled


def test_preferred_takes_tls_where_the_server_offers_it() -> None:
    """As PyMySQL does where nothing is said."""
    assert connection("sslMode=PREFERRED") == connection("")


@pytest.mark.parametrize(
    ("parameters", "host", "refused"),
    [
        ("sslMode=trust", "another", ""),
        ("sslMode=verify-ca&serverSslCert={ca}", "another", ""),
        ("sslMode=verify-ca", "server.test", "self-signed certificate"),
        ("sslMode=verify-full&serverSslCert={ca}", "server.test", ""),
        ("sslMode=verify-full&serverSslCert={ca}", "another", "Hostname mismatch"),
        ("sslMode=verify-full", "server.test", "self-signed certificate"),
        ("useSSL=true&serverSslCert={ca}", "another", "Hostname mismatch"),
    ],
)
def test_a_server_is_verified_as_the_url_asks_for(
    parameters: str, host: str, refused: str, certificate: Path
) -> None:
    _, tls = connection(parameters.format(ca=certificate))
    assert tls is not None
    if refused:
        with pytest.raises(ssl.SSLCertVerificationError, match=refused):
            shake_hands(tls.context(), certificate, host)
    else:
        shake_hands(tls.context(), certificate, host)


def test_an_untrusted_certificate_is_not_a_transient_error() -> None:
    """PyMySQL gives it the same number, 2003, as a server that is away."""
    away = pymysql.err.OperationalError(2003, "Can't connect")
    away.original_exception = ConnectionRefusedError()
    assert isinstance(translated("MySQL at h", away), TransientError)
    refused = pymysql.err.OperationalError(2003, "Can't connect (self-signed certificate)")
    refused.original_exception = ssl.SSLCertVerificationError("self-signed certificate")
    found = translated("MySQL at h", refused)
    assert isinstance(found, ServiceError)
    assert not isinstance(found, TransientError)
    assert re.search(r"MySQL at h: .*self-signed.*connection\.serverSslCert.*sslMode", str(found))


def test_full_verification_looks_at_the_host_with_the_systems_certificates_too() -> None:
    _, tls = connection("sslMode=verify-full")
    assert tls is not None
    assert tls.context().check_hostname


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    _, tls = connection(f"sslMode=verify-ca&serverSslCert={tmp_path}/none.pem")
    assert tls is not None
    with pytest.raises(ConfigError, match=r"serverSslCert=.*none\.pem: .*No such file"):
        tls.context()


def test_a_mode_of_tls_that_is_misspelt_is_not_mistaken_for_a_weaker_one() -> None:
    with pytest.raises(ConfigError, match=r"sslMode=verify-ful must be one of disable, .*verify-f"):
        connection("sslMode=verify_ful")


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:mysql:loadbalance://one,two/d",
        "jdbc:mariadb:sequential://one/d",
        "jdbc:mysql:one/d",
        "jdbc:mysql:/one/d",
        "jdbc:mariadb://one,two/d",
        "jdbc:mysql://address=(host=one)(port=1)/d",
        "jdbc:mysql://(host=one,port=1)/d",
    ],
)
def test_a_url_that_does_not_name_one_host_is_refused(url: str) -> None:
    """And not taken to mean this machine."""
    with pytest.raises(ConfigError, match=r"connection.url is not of the form .* with one host"):
        connect_arguments(Login(url))


@pytest.mark.parametrize(
    ("url", "password"),
    [
        ("jdbc:mariadb://h/d?password=a+b%41#c", "a+b%41#c"),
        ("jdbc:mysql://h/d?password=a+b%41", "a bA"),
        ("mariadb://h/d?password=a+b%41", "a bA"),
    ],
)
def test_a_password_in_the_url_is_read_as_its_driver_reads_it(url: str, password: str) -> None:
    assert connect_arguments(Login(url))[1]["password"] == password
