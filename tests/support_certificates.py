"""Certificates for tests of TLS: a CA, and what it signs."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class CertificateAuthority:
    """Signs certificates for 127.0.0.1.

    Attributes:
        file: PEM file of its own certificate.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = self._write(name, self._sign(self._name, self._key, is_ca=True))

    def issue(self, name: str, days: float = 1) -> tuple[Path, Path]:
        """Return the PEM files of a certificate and its private key, which replace those of this name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._write(name, self._sign(subject, key, is_ca=False, days=days))
        key_file = self._folder / f"{name}.key"
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, key_file

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_ca: bool, days: float = 1
    ) -> x509.Certificate:  # fmt: skip
        now = datetime.datetime.now(datetime.UTC)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject).issuer_name(self._name).public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(authority, critical=False).add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )  # fmt: skip

    def _write(self, name: str, certificate: x509.Certificate) -> Path:
        file = self._folder / f"{name}.pem"
        file.write_bytes(certificate.public_bytes(Encoding.PEM))
        return file
