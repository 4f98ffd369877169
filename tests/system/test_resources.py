"""Use of CPUs and memory of a real server and its engine process: in /load, in /metrics, under load and without."""

import os
import sys
import threading

import httpx
import pytest

from chairlift.engine.runner.fake_model import FakeConfig
from support_process import wait_until
from support_server import COMPLETIONS, Server, fake_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the use is measured on Linux alone")

FAKE = FakeConfig(vocab_size=128, max_model_len=4096, num_blocks=2048)
PROMPT = {"model": "fake", "prompt": "hello", "max_tokens": 500, "ignore_eos": True, "seed": 1, "stream": True}


def resident_bytes(server: Server) -> float:
    return server.metric("process_memory_bytes")


def test_a_server_reports_the_memory_of_both_its_processes() -> None:
    host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with fake_server(FAKE) as server:
        wait_until(lambda: server.metric("memory_usage_ratio") > 0 and resident_bytes(server) > 0)
        page = httpx.get(server.url + "/metrics").text
        report = httpx.get(server.url + "/load").json()
    assert 0 < report["memory_ratio"] <= 1 and report["gpu_ratio"] is None and report["gpu_memory_ratio"] is None
    assert "chairlift_host_memory_usage_ratio 0." in page and "chairlift_gpu_utilization_ratio{" not in page
    assert report["memory_ratio"] * host_bytes > 20e6, "two Python processes, whatever the limit"


@pytest.mark.full
def test_the_cpu_use_rises_under_load_and_falls_after_it() -> None:
    with fake_server(FAKE) as server:
        wait_until(lambda: cpu_ratio(server) is not None)
        ended = threading.Event()

        def send() -> None:
            while not ended.is_set():
                httpx.post(server.url + COMPLETIONS, json=PROMPT, timeout=60)

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: (cpu_ratio(server) or 0) > 0.1)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        wait_until(lambda: (ratio := cpu_ratio(server)) is not None and ratio < 0.05)


def cpu_ratio(server: Server) -> float | None:
    ratio = httpx.get(server.url + "/load").json()["cpu_ratio"]
    return None if ratio is None else float(ratio)
