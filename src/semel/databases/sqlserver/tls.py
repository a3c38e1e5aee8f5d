"""TLS for python-tds: verified as in JDBC's driver, or not at all if the user asks for that.

python-tds always verifies, and its check of host names fails with newer versions of pyOpenSSL.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import pytds.tls
from cryptography import x509
from OpenSSL import SSL

from semel.core.errors import ServiceError

_replaced = threading.Lock()


@contextmanager
def used(authorities: str | None, host: str) -> Iterator[None]:
    """A connection that is opened in this context is verified by a PEM file of authorities and the
    server's name, or not at all if ``authorities`` is None.

    Raises:
        ServiceError: the server's certificate is not valid for it.
    """

    def context(_file: str) -> Any:
        ssl_context = SSL.Context(SSL.TLSv1_2_METHOD)  # the newest in this version of the protocol
        if authorities is not None:
            ssl_context.set_verify(SSL.VERIFY_PEER, lambda *args: bool(args[-1]))
            ssl_context.load_verify_locations(authorities)
        return ssl_context

    def validate(cert: Any, **_kwargs: Any) -> bool:
        if authorities is None or certifies(cert.to_cryptography(), host):
            return True
        raise ServiceError(
            f"the server's certificate is not for {host}. Set hostNameInCertificate in "
            "connection.url to the name in the certificate"
        )

    module = pytds.tls
    with _replaced:
        theirs = module.create_context, module.validate_host
        module.create_context, module.validate_host = context, validate
        try:
            yield
        except SSL.Error as error:
            if "verify failed" not in str(error):
                raise ConnectionError(f"TLS: {error}") from None
            raise ServiceError(
                "the server's certificate was not issued by any authority in "
                f"{authorities}. Name a PEM file with its own in serverCertificate of "
                "connection.url, or set trustServerCertificate=true"
            ) from None
        finally:
            module.create_context, module.validate_host = theirs


def certifies(certificate: x509.Certificate, host: str) -> bool:
    """Whether a certificate belongs to a host, by its alternative names or else by its common
    name."""
    try:
        extensions = certificate.extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return any(_matches(str(c.value), host) for c in common)
    if any(_matches(name, host) for name in names.get_values_for_type(x509.DNSName)):
        return True
    try:
        return ip_address(host) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        return False


def _matches(pattern: str, host: str) -> bool:
    """Whether a certificate's name is the host's; an asterisk stands for the whole first label."""
    pattern, host = pattern.lower(), host.lower()
    if pattern.startswith("*."):
        return host.partition(".")[2] == pattern[2:] != ""
    return pattern == host
