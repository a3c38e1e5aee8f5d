"""An authority, and key stores with the certificates that it signs."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from semel_lab.embedded.process import LOOPBACK

Key = ec.EllipticCurvePrivateKey


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])


@dataclass(frozen=True)
class Authority:
    """Signs certificates; its own is in ``ca.pem`` and, as Java likes it, in ``ca.p12``."""

    folder: Path
    password: str = "changeit"
    key: Key = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @property
    def own(self) -> x509.Certificate:
        return self._signed("authority", self.key, is_authority=True)

    @property
    def pem(self) -> Path:
        return self._written("ca.pem", self.own.public_bytes(Encoding.PEM))

    @property
    def trust_store(self) -> Path:
        entry = pkcs12.PKCS12Certificate(self.own, b"authority")
        encryption = BestAvailableEncryption(self.password.encode())
        data = pkcs12.serialize_java_truststore([entry], encryption)
        return self._written("ca.p12", data)

    def pem_store(self, common: str) -> Path:
        """A key and its certificate in one PEM file."""
        key = ec.generate_private_key(ec.SECP256R1())
        plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        certificate = self._signed(common, key).public_bytes(Encoding.PEM)
        return self._written(f"{common}.pem", plain + certificate)

    def key_store(self, common: str) -> Path:
        """The same in PKCS12."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(common, key)
        encryption = BestAvailableEncryption(self.password.encode())
        data = pkcs12.serialize_key_and_certificates(
            common.encode(), key, certificate, [self.own], encryption
        )
        return self._written(f"{common}.p12", data)

    def _written(self, name: str, data: bytes) -> Path:
        file = self.folder / name
        file.write_bytes(data)
        return file

    def _signed(self, common: str, key: Key, *, is_authority: bool = False) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        builder = (
            x509.CertificateBuilder(
                _name("authority"), _name(common), key.public_key(), 1, now - day, now + day
            )
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address(LOOPBACK))]), critical=False
            )
        )
        return builder.sign(self.key, hashes.SHA256())
