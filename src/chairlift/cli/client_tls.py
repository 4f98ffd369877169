"""tls_context: the TLS context of a command's requests, with its CA file and client certificate."""

import ssl

from chairlift.core.errors import ConfigError


def tls_context(
    ca_file: str | None, client_cert: str | None = None, client_key: str | None = None
) -> ssl.SSLContext | None:
    """Return the context of connections with TLS, None if no file is given. Raises ConfigError.

    Args:
        ca_file: PEM file of authorities that are trusted besides the system's.
        client_cert: PEM file of this client's certificate chain, for a server that asks for one (mutual TLS).
        client_key: PEM file of its private key.
    """
    if (client_cert is None) != (client_key is None):
        given, missing = ("cert", "key") if client_key is None else ("key", "cert")
        raise ConfigError(
            f"--tls-client-{given} needs --tls-client-{missing}, too: a certificate and its private key",
            option=f"tls_client_{given}",
        )
    if ca_file is None and client_cert is None:
        return None
    context = ssl.create_default_context()
    try:
        if ca_file is not None:
            context.load_verify_locations(ca_file)
    except OSError as error:  # ssl.SSLError is one, of a file that is not PEM
        reason = "it has no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(f"cannot read the authorities in {ca_file}: {reason}", option="tls_ca") from None
    if client_cert is not None:
        try:
            context.load_cert_chain(client_cert, client_key, password="")  # else OpenSSL asks the terminal
        except OSError as error:
            reason = "they are no pair in PEM" if isinstance(error, ssl.SSLError) else error.strerror
            raise ConfigError(
                f"cannot use the certificate {client_cert} with the key {client_key}: {reason}",
                option="tls_client_cert",
            ) from None
    return context
