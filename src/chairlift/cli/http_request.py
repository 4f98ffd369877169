"""send_request: one HTTP request of a command to a running server, with nothing but the standard library."""

import http.client
import json
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

MAX_RESPONSE_BYTES = 2**26


def send_request(
    url: str, key: str, method: str = "GET", fields: Any = None, *, timeout_seconds: float
) -> tuple[int, bytes]:
    """Return status and body of a response; `fields` are sent as JSON. Raises OSError and HTTPException.

    A response of more than MAX_RESPONSE_BYTES is an HTTPException.
    """
    parts = urlsplit(url)
    connection_type = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"authorization": f"Bearer {key}"} if key else {}
    content = None
    if fields is not None:
        content, headers["content-type"] = json.dumps(fields), "application/json"
    with closing(connection_type(parts.hostname or "", parts.port, timeout=timeout_seconds)) as connection:
        connection.request(method, parts.path, content, headers)
        response = connection.getresponse()
        body = response.read(MAX_RESPONSE_BYTES + 1)
        if len(body) > MAX_RESPONSE_BYTES:
            raise http.client.HTTPException(f"the response is longer than {MAX_RESPONSE_BYTES} bytes")
        return response.status, body
