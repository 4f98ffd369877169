"""Alerts about the load and the engine of replicas, fired for real: each is caused, reported, and resolved."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from chairlift.engine.runner.fake_model import FakeConfig
from support_certificates import CertificateAuthority
from support_prometheus import AlertReceiver, alertmanager, prometheus
from support_repeated import repeated
from support_server import Server, fake_server

pytestmark = pytest.mark.full
SMALL = FakeConfig(vocab_size=128, max_model_len=96, num_blocks=200, block_size=4, seconds_per_step=0.1)
SLOW = FakeConfig(vocab_size=128, max_model_len=96, num_blocks=200, block_size=4, seconds_per_step=0.5)
FULL = FakeConfig(vocab_size=128, max_model_len=400, num_blocks=100, block_size=4, seconds_per_step=0.2)
"""A cache that one request of 392 tokens fills."""

LOAD_ALERTS = (
    "HighTimeToFirstToken", "HighQueueTime", "LatencyTargetMissed", "RequestsRejected", "KvCacheFull",
    "PreemptionStorm",
)  # fmt: skip


def post(url: str, num_tokens: int, prompt: str = "hello") -> None:
    body = {"model": "fake", "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True}
    with suppress(httpx.HTTPError):  # the server may end first
        httpx.post(f"{url}/v1/completions", json=body, timeout=60)


def engine_pid(server: Server) -> int:
    """Return the process of the engine; a thread of the server may end while its children are read."""
    while True:
        with suppress(OSError):
            return server.engine_pid


@contextmanager
def flood(url: str, num_clients: int, num_prompt_tokens: int, num_tokens: int) -> Iterator[None]:
    """Keep requests of so many clients open until the end of the context."""

    def send(number: int) -> None:
        post(url, num_tokens - number % 4, f"client {number:2} ".ljust(num_prompt_tokens, "x"))

    with repeated([partial(send, number) for number in range(num_clients)]):
        yield


def test_an_overloaded_replica(tmp_path: Path) -> None:
    with ExitStack() as stack:
        receiver = stack.enter_context(AlertReceiver())
        address = stack.enter_context(alertmanager(tmp_path, receiver))
        small, full = stack.enter_context(fake_server(SMALL)), stack.enter_context(fake_server(FULL))
        slow = stack.enter_context(fake_server(
            SLOW, scheduler={"max_running_requests": 4},
            server={"slo_ttft_ms": 100, "admission": {"max_waiting_requests": 16}},
        ))  # fmt: skip
        jobs = {"chairlift-replica": [small.url, full.url, slow.url]}
        server = stack.enter_context(prometheus(tmp_path, jobs, address))
        server.wait_for("count(chairlift_ready == 1) == 3")
        with flood(small.url, 30, 10, 80), flood(full.url, 4, 388, 8), flood(slow.url, 24, 10, 5):
            receiver.wait_for("firing", *LOAD_ALERTS)
        receiver.wait_for("resolved", *LOAD_ALERTS)
        assert receiver.find("LatencyTargetMissed")["labels"]["model"] == "fake"


def test_engines_that_die_and_hang(tmp_path: Path) -> None:
    with ExitStack() as stack:
        receiver = stack.enter_context(AlertReceiver())
        address = stack.enter_context(alertmanager(tmp_path, receiver))
        dying = stack.enter_context(fake_server(watch={"max_restarts": 20, "first_backoff": 0.01}))
        hanging = stack.enter_context(fake_server(SMALL, watch={"heartbeat_timeout": 600.0, "step_timeout": 600.0}))
        jobs = {"chairlift-replica": [dying.url, hanging.url]}
        server = stack.enter_context(prometheus(tmp_path, jobs, address))
        server.wait_for("count(chairlift_ready == 1) == 2")
        threading.Thread(target=post, args=(hanging.url, 80), daemon=True).start()
        server.wait_for("chairlift_sequences_running == 1")
        os.kill(hanging.engine_pid, signal.SIGSTOP)
        stack.callback(os.kill, hanging.engine_pid, signal.SIGCONT)
        for _ in range(4):
            pid = engine_pid(dying)
            os.kill(pid, signal.SIGKILL)
            while engine_pid(dying) == pid:
                time.sleep(0.05)
        receiver.wait_for("firing", "EngineCrashLoop", "EngineHangs")
        os.kill(hanging.engine_pid, signal.SIGCONT)
        receiver.wait_for("resolved", "EngineCrashLoop", "EngineHangs")


def test_a_certificate_that_expires_and_is_renewed_twice(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path, "ca")
    certificate, key = authority.issue("server", days=1)
    tls = {"certificate": str(certificate), "key": str(key)}
    with ExitStack() as stack:
        receiver = stack.enter_context(AlertReceiver())
        address = stack.enter_context(alertmanager(tmp_path, receiver))
        replica = stack.enter_context(fake_server(tls=tls))
        stack.enter_context(prometheus(tmp_path, {"chairlift-replica": [replica.url]}, address))
        receiver.wait_for("firing", "CertificateExpiresInTwoDays")
        authority.issue("server", days=10)
        replica.process.send_signal(signal.SIGHUP)
        receiver.wait_for("resolved", "CertificateExpiresInTwoDays")
        receiver.wait_for("firing", "CertificateExpiresSoon")
        authority.issue("server", days=90)
        replica.process.send_signal(signal.SIGHUP)
        receiver.wait_for("resolved", "CertificateExpiresSoon")
