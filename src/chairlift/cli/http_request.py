"""send_request: one HTTP request of a command to a running server, with nothing but the standard library."""

import http.client
import json
import ssl
import time
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from chairlift.core.errors import ConfigError
from chairlift.observability.url_text import is_http_url, without_user_info

MAX_RESPONSE_BYTES = 2**26
PIECE_BYTES = 2**16


def server_url(url: str) -> str:
    """Return the --url of a server without a slash or /v1 at its end. Raises ConfigError."""
    if not is_http_url(url):
        shown = without_user_info(url)
        raise ConfigError(f"--url must begin with http:// or https:// and name a host, got {shown!r}", option="url")
    parts = urlsplit(url)
    if parts.username is not None:
        raise ConfigError("--url must have no user name; a key is read from CHAIRLIFT_API_KEY", option="url")
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        raise ConfigError("--url must end with its path: no '?', no '#'", option="url")
    return url.rstrip("/").removesuffix("/v1")


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


def send_request(
    url: str, key: str, method: str = "GET", fields: Any = None, *, timeout_seconds: float,
    tls: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:  # fmt: skip
    """Return status and body of a response; `fields` are sent as JSON. Raises OSError and HTTPException.

    `timeout_seconds` limits each wait, and all of them together once the head of the response is there. A response of
    more than MAX_RESPONSE_BYTES is an HTTPException.
    """
    parts, until = urlsplit(url), time.monotonic() + timeout_seconds
    host = parts.hostname or ""
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(host, parts.port, timeout=timeout_seconds, context=tls)
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=timeout_seconds)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    content = None
    if fields is not None:
        content, headers["content-type"] = json.dumps(fields), "application/json"
    with closing(connection):
        connection.request(method, parts._replace(scheme="", netloc="").geturl(), content, headers)
        response = connection.getresponse()
        body = bytearray()
        while piece := response.read1(PIECE_BYTES):
            body += piece
            if len(body) > MAX_RESPONSE_BYTES:
                raise http.client.HTTPException(f"the response is longer than {MAX_RESPONSE_BYTES} bytes")
            if time.monotonic() > until:
                raise TimeoutError(f"the response was not complete within {timeout_seconds:g} s")
        if response.length:  # read1 does not say that the connection ended too early
            raise http.client.IncompleteRead(bytes(body), response.length)
        return response.status, bytes(body)
