"""Pool, pool: a program that starts replicas by a webhook, and those replicas, as an HTTP server in a thread."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Pool:
    """A program that starts replicas, and those replicas; all of them report `running` requests."""

    def __init__(self) -> None:
        self.replicas: list[dict[str, Any]] = []
        self.targets: list[int] = []
        self.running = 0
        self.url = ""

    def scale(self, body: dict[str, Any]) -> None:
        self.targets.append(body["target"])
        while len(self.replicas) < body["target"]:
            name = f"r{len(self.targets)}-{len(self.replicas)}"
            self.replicas.append({"replica_id": name, "url": self.url, "state": "running", "age_seconds": 5.0})

    def load(self) -> dict[str, Any]:
        return {
            "state": "ready", "waiting_requests": 0, "waiting_tokens": 0, "running_requests": self.running,
            "expected_wait_seconds": 0.0, "max_running_requests": 4, "total_blocks": 100, "free_blocks": 100,
        }  # fmt: skip


@contextmanager
def pool() -> Iterator[Pool]:
    state = Pool()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(state.load() if self.path == "/load" else state.replicas)

        def do_POST(self) -> None:
            state.scale(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self._send(state.replicas)

        def _send(self, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield state
        finally:
            server.shutdown()
