"""Alerts about routers, discovery and errors, fired for real: each is caused, reported to the webhook, and resolved."""

import itertools
import json
import threading
from contextlib import AbstractContextManager, ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import httpx
import pytest

from chairlift.engine.runner.fake_model import FakeConfig
from support_prometheus import AlertReceiver, alertmanager, prometheus
from support_repeated import repeated
from support_server import fake_server, router_server
from support_services_processes import free_port
from support_services_redis import RedisServer

pytestmark = pytest.mark.full
FAKE = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, poison=ord("~"))


def post(url: str, prompt: str) -> int:
    body = {"model": "fake", "prompt": prompt, "max_tokens": 2}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=20).status_code


class NamedProcess:
    """A replica that answers health checks, and whose process has a name in its load report.

    Attributes:
        name: the name; another one is another process.
        url: its URL.
    """

    def __init__(self) -> None:
        self.name = "first"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                load = {"instance_id": outer.name, "state": "ready", "waiting_tokens": 0, "running_requests": 0}
                body = json.dumps({**load, "data": [{"id": "fake"}]}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def sent(url: str, *prompts: str) -> AbstractContextManager[None]:
    """Send requests one after the other until the end of the context."""
    remaining = itertools.cycle(prompts)
    return repeated([lambda: post(url, next(remaining))])


def test_health_errors_and_ends_of_replicas(tmp_path: Path) -> None:
    with ExitStack() as stack:
        receiver = stack.enter_context(AlertReceiver())
        address = stack.enter_context(alertmanager(tmp_path, receiver))
        ports = [free_port(), free_port()]
        replicas = [stack.enter_context(fake_server(FAKE, port=port)) for port in ports]
        urls = [each.url for each in replicas]
        router = stack.enter_context(router_server(
            *(word for url in urls for word in ("--replica", url)), "--probe-interval", "0.3", "--probe-timeout", "2",
            "--max-failures", "1", "--recovery-timeout", "1",
        ))  # fmt: skip
        jobs = {"chairlift-replica": urls, "chairlift-router": [router.url]}
        server = stack.enter_context(prometheus(tmp_path, jobs, address))
        server.wait_for('chairlift_router_replicas{state="healthy"} == 2')
        with sent(router.url, "a", "~"):  # each second request fails on every replica
            receiver.wait_for("firing", "ReplicaEjected", "ErrorRateFastBurn")
        receiver.wait_for("resolved", "ReplicaEjected", "ErrorRateFastBurn")
        assert receiver.find("ErrorRateFastBurn")["annotations"]["summary"].endswith("fail")
        replicas[0].process.kill()
        receiver.wait_for("firing", "ReplicaDown", "ReplicaUnhealthy")
        replicas[1].process.kill()
        receiver.wait_for("firing", "NoHealthyReplica", "ErrorRateMediumBurn")
        for port in ports:
            stack.enter_context(fake_server(FAKE, port=port))
        receiver.wait_for(
            "resolved", "ReplicaDown", "ReplicaUnhealthy", "NoHealthyReplica", "ErrorRateMediumBurn"
        )  # fmt: skip
        router.stop()
        receiver.wait_for("firing", "RouterDown")


def test_a_replica_that_restarts_again_and_again(tmp_path: Path) -> None:
    """Four replicas restart once, as in an update, which raises no alert; then one restarts three times more."""
    with ExitStack() as stack:
        receiver = stack.enter_context(AlertReceiver())
        address = stack.enter_context(alertmanager(tmp_path, receiver))
        replicas = [stack.enter_context(NamedProcess()) for _ in range(4)]
        words = [word for each in replicas for word in ("--replica", each.url)]
        router = stack.enter_context(router_server(*words, "--probe-interval", "0.2", "--probe-timeout", "2"))
        server = stack.enter_context(prometheus(tmp_path, {"chairlift-router": [router.url]}, address))
        server.wait_for('chairlift_router_replicas{state="healthy"} == 4')
        for each in replicas:
            each.name = "second"
        server.wait_for("sum(chairlift_router_replica_restarts_total) == 4")
        replicas[0].name = "third"
        # each restart of this replica is in the alert's range, and the alert has been evaluated several times
        server.wait_for("min_over_time(max(chairlift_router_replica_restarts_total)[2s:250ms]) == 2")
        assert not server.values('ALERTS{alertname="ReplicaCrashLoop"}')
        assert not receiver.has("ReplicaCrashLoop", "firing")
        for number, name in enumerate(("fourth", "fifth"), 3):
            replicas[0].name = name
            server.wait_for(f"max(chairlift_router_replica_restarts_total) == {number}")
        receiver.wait_for("firing", "ReplicaCrashLoop")
        assert receiver.find("ReplicaCrashLoop")["labels"]["replica"] == replicas[0].url
        receiver.wait_for("resolved", "ReplicaCrashLoop")


def test_a_source_and_the_shared_state_that_are_down(tmp_path: Path) -> None:
    with ExitStack() as stack:
        receiver = stack.enter_context(AlertReceiver())
        address = stack.enter_context(alertmanager(tmp_path, receiver))
        replica = stack.enter_context(fake_server(FAKE))
        redis = RedisServer(tmp_path / "redis").start()
        stack.callback(redis.kill)
        file = tmp_path / "replicas.yaml"
        good = f"- {replica.url}\n"
        file.write_text(good)
        router = stack.enter_context(router_server("--discovery", f"file:{file}", "--shared-state", redis.url))
        server = stack.enter_context(prometheus(tmp_path, {"chairlift-router": [router.url]}, address))
        server.wait_for("chairlift_router_source_up == 1 and on () chairlift_router_shared_state_up == 1")
        file.write_text("- [")
        redis.kill()
        receiver.wait_for("firing", "DiscoverySourceDown", "SharedStateDown")
        file.write_text(good)
        redis.start()
        receiver.wait_for("resolved", "DiscoverySourceDown", "SharedStateDown")
