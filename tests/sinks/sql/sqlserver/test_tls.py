"""Whose certificate it is."""

from __future__ import annotations

import datetime
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from semel.databases.sqlserver.client import certifies


def certificate(common: str, *alternative: x509.GeneralName) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now)
    if alternative:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
    return builder.sign(key, hashes.SHA256())


@pytest.mark.parametrize(
    ("alternative", "host", "its"),
    [
        ([], "Common", True),
        ([], "other", False),
        (["db.example"], "DB.example", True),
        (["db.example"], "common", False),
        (["*.example"], "db.example", True),
        (["*.example"], "a.db.example", False),
        (["*.example"], "example", False),
        (["*."], "db", False),
        (["10.0.0.1"], "10.0.0.1", True),
        (["10.0.0.1"], "10.0.0.2", False),
        (["db.example"], "10.0.0.1", False),
    ],
)
def test_a_certificate_is_that_of_the_hosts_it_names(
    alternative: list[str], host: str, its: bool
) -> None:
    names: list[x509.GeneralName] = [
        x509.IPAddress(ip_address(a)) if a[0].isdigit() else x509.DNSName(a) for a in alternative
    ]
    assert certifies(certificate("common", *names), host) is its
