"""Health check of a container: exit code 0 if the server in it can serve requests, 1 if not."""

import os
import ssl
import sys
import urllib.request

SECONDS = 3.0
"""Longest wait for the answer."""


def main() -> int:
    """Ask /readyz of this container's own server, whose certificate is therefore not verified."""
    scheme = "https" if os.environ.get("CHAIRLIFT_TLS_CERT") else "http"
    url = f"{scheme}://127.0.0.1:{os.environ.get('CHAIRLIFT_PORT', '8000')}/readyz"
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
    )
    try:
        with opener.open(url, timeout=SECONDS) as response:
            return 0 if response.status == 200 else 1
    except OSError as error:
        sys.stderr.write(f"{url}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
