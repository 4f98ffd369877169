"""load_certificate: one sentence that names the setting and the file, and the former certificate stays."""

import ssl
import subprocess
import time
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.web.service.tls_files import certificate_expiry, load_certificate
from support_certificates import CertificateAuthority


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two pairs of a certificate and its key, and invalid files."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("one", "two"):
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        command += ["-days", "2", "-subj", f"/CN={name}", "-keyout", str(folder / f"{name}.key")]
        subprocess.run([*command, "-out", str(folder / f"{name}.pem")], check=True, capture_output=True)
    encrypt = ["openssl", "pkey", "-in", str(folder / "one.key"), "-aes128", "-passout", "pass:x"]
    subprocess.run([*encrypt, "-out", str(folder / "locked.key")], check=True, capture_output=True)
    (folder / "text").write_text("nonsense", encoding="utf-8")
    (folder / "cut.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n", encoding="utf-8")
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "directory").mkdir()
    return folder


def test_a_pair_is_loaded(folder: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(context, folder / "one.pem", folder / "one.key")


@pytest.mark.parametrize(
    ("certificate", "key", "option", "message"),
    [
        ("none", "one.key", "tls_cert", "cannot read tls_cert {}/none: No such file or directory"),
        ("one.pem", "none", "tls_key", "cannot read tls_key {}/none: No such file or directory"),
        ("one.pem", "directory", "tls_key", "cannot read tls_key {}/directory: Is a directory"),
        ("text", "one.key", "tls_cert", "tls_cert {}/text has no certificate in PEM format"),
        ("binary", "one.key", "tls_cert", "tls_cert {}/binary has no certificate in PEM format"),
        ("one.pem", "text", "tls_key", "tls_key {}/text has no private key in PEM format"),
        ("one.pem", "one.pem", "tls_key", "tls_key {}/one.pem has no private key in PEM format"),
        ("one.pem", "locked.key", "tls_key", "tls_key {}/locked.key is encrypted"),
        ("one.pem", "two.key", "tls_key",
         "tls_key {}/two.key is not the private key of the certificate in tls_cert {}/one.pem"),
        ("cut.pem", "one.key", "tls_cert", "tls_cert {}/cut.pem and tls_key {}/one.key cannot be loaded: "),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_named(
    folder: Path, certificate: str, key: str, option: str, message: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(ConfigError) as caught:
        load_certificate(context, folder / certificate, folder / key)
    assert caught.value.message.startswith(message.replace("{}", str(folder)))
    assert caught.value.details["option"] == option


def test_a_chain_expires_with_its_first_certificate(folder: Path, tmp_path: Path) -> None:
    days = (certificate_expiry(folder / "one.pem") - time.time()) / 86_400
    assert 1.9 < days <= 2
    authority = CertificateAuthority(tmp_path, "ca")
    leaf, _ = authority.issue("leaf", days=30)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(leaf.read_bytes() + authority.file.read_bytes())
    assert certificate_expiry(chain) == certificate_expiry(authority.file) < certificate_expiry(leaf)


@pytest.mark.parametrize("name", ["none", "text", "cut.pem", "directory"])
def test_without_a_certificate_there_is_no_time(folder: Path, name: str) -> None:
    assert certificate_expiry(folder / name) == 0
