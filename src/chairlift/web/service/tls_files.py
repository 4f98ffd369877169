"""load_certificate, load_client_ca, certificate_expiry: load TLS files, or name the file that cannot be used."""

import ssl
from pathlib import Path

from chairlift.core.errors import ConfigError


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load the PEM files of the settings `tls_cert` and `tls_key` into a context.

    Raises ConfigError with the setting and the file. The context is unchanged then, so that a server can keep its
    former certificate.
    """
    chain, private = _read("tls_cert", certificate), _read("tls_key", key)
    if "-----BEGIN CERTIFICATE-----" not in chain:
        raise ConfigError(f"tls_cert {certificate} has no certificate in PEM format", option="tls_cert")
    if "PRIVATE KEY-----" not in private:
        raise ConfigError(f"tls_key {key} has no private key in PEM format", option="tls_key")
    if "ENCRYPTED" in private:
        raise ConfigError(
            f"tls_key {key} is encrypted, and the server asks for no passphrase; decrypt it with openssl pkey",
            option="tls_key",
        )
    # A context replaces its certificate before it checks the key, so a separate context tries the pair first.
    for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
        try:
            each.load_cert_chain(certificate, key)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
                message = f"tls_key {key} is not the private key of the certificate in tls_cert {certificate}"
                raise ConfigError(message, option="tls_key") from None
            reason = getattr(error, "reason", None) or error
            message = f"tls_cert {certificate} and tls_key {key} cannot be loaded: {reason}"
            raise ConfigError(message, option="tls_cert") from None


def load_client_ca(context: ssl.SSLContext, file: Path) -> None:
    """Add the CAs in the PEM file of the setting `tls_client_ca` to a context. Raises ConfigError with the file."""
    try:
        context.load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if not isinstance(error, ssl.SSLError) else "it has no certificate (PEM)"
        raise ConfigError(f"cannot read the tls_client_ca file {file}: {reason}", option="tls_client_ca") from None


def certificate_expiry(certificate: Path) -> float:
    """Return when the first of a chain's certificates expires, in seconds since 1970; 0 if none can be read."""
    from cryptography import x509

    try:
        chain = x509.load_pem_x509_certificates(certificate.read_bytes())
    except (OSError, ValueError):
        return 0.0
    return min((each.not_valid_after_utc.timestamp() for each in chain), default=0.0)


def _read(setting: str, file: Path) -> str:
    try:
        return file.read_text(encoding="latin-1")
    except OSError as error:
        raise ConfigError(f"cannot read {setting} {file}: {error.strerror or error}", option=setting) from None
