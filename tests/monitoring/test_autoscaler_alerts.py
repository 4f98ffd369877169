"""Alerts about an autoscaler, fired for real: its cluster is down, its replica does not start, or does not answer."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support_prometheus import AlertReceiver, alertmanager, prometheus
from support_server import fake_server, running_server

pytestmark = pytest.mark.full


class Hook:
    """A cluster's webhook that answers what a test says.

    Attributes:
        status: HTTP status of the answers.
        replicas: the list of replicas.
    """

    def __init__(self) -> None:
        self.status, self.replicas = 200, list[dict[str, Any]]()


@contextmanager
def serving(hook: Hook) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(hook.replicas).encode()
            self.send_response(hook.status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook"
    finally:
        server.shutdown()
        server.server_close()


def test_an_autoscaler_that_cannot_do_its_work(tmp_path: Path) -> None:
    hook = Hook()
    with ExitStack() as stack:
        receiver = stack.enter_context(AlertReceiver())
        address = stack.enter_context(alertmanager(tmp_path, receiver))
        replica = stack.enter_context(fake_server())
        url = stack.enter_context(serving(hook))
        command = [sys.executable, "-m", "chairlift", "autoscaler", "--port", "0", "--cluster", url,
                   "--min-replicas", "1", "--scale-interval", "0.3"]  # fmt: skip
        scaler = stack.enter_context(running_server(command, {})).wait_until_ready()
        server = stack.enter_context(prometheus(tmp_path, {"chairlift-autoscaler": [scaler.url]}, address))
        server.wait_for("chairlift_autoscaler_target_replicas == 1")
        receiver.wait_for("firing", "AutoscalerStuck")  # no replica comes
        running = {"replica_id": "a", "state": "running"}
        hook.replicas = [running | {"url": replica.url}]
        receiver.wait_for("resolved", "AutoscalerStuck")
        hook.status = 403
        receiver.wait_for("firing", "AutoscalerFailing")
        hook.status = 200
        receiver.wait_for("resolved", "AutoscalerFailing")
        replica.process.kill()
        receiver.wait_for("firing", "AutoscalerDataMissing")
        hook.replicas = [running | {"url": stack.enter_context(fake_server()).url}]
        receiver.wait_for("resolved", "AutoscalerDataMissing")
        scaler.stop()
        receiver.wait_for("firing", "AutoscalerDown")
