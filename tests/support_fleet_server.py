"""FleetServer: an HTTP server that answers what a test says on each route, in a thread."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FleetServer:
    """Serves `routes`: path -> body (JSON unless text); other paths are 404.

    Attributes:
        routes: body of each path.
        keys: key that each path needs; a path without one needs none.
        num_requests: number of requests so far.
        url: URL of the server.
    """

    def __init__(self) -> None:
        self.routes: dict[str, Any] = {}
        self.keys: dict[str, str] = {}
        self.num_requests = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.num_requests += 1
                needed = outer.keys.get(self.path)
                body = outer.routes.get(self.path)
                status = 404 if body is None else 200
                if needed is not None and self.headers.get("authorization") != f"Bearer {needed}":
                    status = 401
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@contextmanager
def open_fleet_server() -> Iterator[FleetServer]:
    server = FleetServer()
    try:
        yield server
    finally:
        server.stop()
