"""Health check of a container: exit code 0 if the server in it can serve requests, 1 if not.

Its port is the variable CHAIRLIFT_PORT. A server that asks for the certificate of its client is healthy when it asks.
"""

import http.client
import os
import ssl
import sys
import urllib.error
import urllib.request

SECONDS = 1.5
"""Longest wait for an answer, with TLS and without; both together are shorter than the time-out of the check."""


def main() -> int:
    """Ask /readyz of this container's own server, whose certificate is therefore not verified.

    Whether it has TLS may stand in its arguments or its settings file, so that both are tried.
    """
    schemes = ("https", "http") if os.environ.get("CHAIRLIFT_TLS_CERT") else ("http", "https")
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
    )
    for scheme in schemes:
        url = f"{scheme}://127.0.0.1:{os.environ.get('CHAIRLIFT_PORT', '8000')}/readyz"
        try:
            with opener.open(url, timeout=SECONDS) as response:
                return 0 if response.status == 200 else 1
        except urllib.error.HTTPError as error:
            sys.stderr.write(f"{url}: {error}\n")
            return 1
        except (OSError, http.client.HTTPException) as error:
            sys.stderr.write(f"{url}: {error}\n")
            # no URLError: the handshake is over and the request is sent; a server that needs a certificate closes then
            if scheme == "https" and isinstance(error, (ConnectionError, ssl.SSLError)):
                return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
