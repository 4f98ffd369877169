"""send_request, error_reason: one HTTP request of a command to a server, with the standard library alone."""

import http.client
import json
import ssl
import time
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from chairlift.core.errors import ConfigError
from chairlift.observability.url_check_and_redaction import is_http_url, without_user_info

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


def error_reason(error: Exception) -> str:
    """Return why a server did not answer, in words: "connection refused"."""
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ssl.SSLError):
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error) or type(error).__name__
