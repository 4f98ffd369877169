"""Health check of a container: exit code 0 if the server in it can serve requests, 1 if not.

Its port is the variable CHAIRLIFT_PORT. A server that asks for the certificate of its client is healthy when it asks.
"""

import http.client
import os
import ssl
import sys

SECONDS = 1.5
"""Longest wait for an answer, with TLS and without; both together are shorter than the time-out of the check."""


def main() -> int:
    """Ask /readyz of this container's own server, whose certificate is therefore not verified.

    Whether it has TLS may stand in its arguments or its settings file, so that both are tried.
    """
    port = int(os.environ.get("CHAIRLIFT_PORT", "8000"))
    for scheme in ("https", "http") if os.environ.get("CHAIRLIFT_TLS_CERT") else ("http", "https"):
        try:
            status = status_of(scheme, port)
        except (OSError, http.client.HTTPException) as error:
            sys.stderr.write(f"{scheme}, port {port}: {error}\n")
            continue
        if status != 200:
            sys.stderr.write(f"{scheme}, port {port}: status {status}\n")
        return 0 if status == 200 else 1
    return 1


def status_of(scheme: str, port: int) -> int:
    """Return the status of /readyz; 200 if a server with TLS ends the connection after the handshake.

    A server that needs a certificate of its client does so: in TLS 1.3 the client's part of the handshake is over then.

    Raises:
        OSError: No connection, no TLS, or no answer in time.
        http.client.HTTPException: The answer is not HTTP.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    if scheme == "https":
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=context)
    try:
        connection.connect()
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status
        except (ConnectionError, ssl.SSLError):
            if scheme == "https":
                return 200
            raise
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
