"""CPU placement: the API process avoids the engine's CPUs, or gets a lower share of them."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.engine.ipc.engine_priority import NICENESS
from chairlift.engine.runner.fake_model import FakeConfig
from support_process import wait_until
from support_server import COMPLETIONS, Server, events, fake_server

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="threads have no CPU affinity on this system"),
    pytest.mark.skipif(len(usable_cpus()) < 2, reason="the machine has one CPU"),
]

ALL = tuple(sorted(usable_cpus()))
PROMPT = {"model": "fake", "prompt": "hello", "max_tokens": 40, "seed": 1, "stream": True, "stream_options": None}


def allowed_cpus(pid: int) -> list[frozenset[int]]:
    """Return the CPUs of each thread of a process."""
    return [frozenset(os.sched_getaffinity(int(task.name))) for task in Path(f"/proc/{pid}/task").iterdir()]


def niceness(pid: int) -> dict[int, int]:
    """Return the niceness of each thread of a process."""
    return {
        int(task.name): os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()
    }


def fake_config(*cpus: int) -> FakeConfig:
    return FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, busy_cpus=cpus)


def text_of(server: Server) -> str:
    response = httpx.post(server.url + COMPLETIONS, json=PROMPT, timeout=60.0)
    assert response.status_code == 200, response.text
    chunks = [each for each in events(response.text) if each != "[DONE]"]
    return "".join(choice["text"] for each in chunks for choice in each["choices"])


def test_the_api_process_avoids_the_cpus_of_the_engine_and_a_new_engine_gets_all_again() -> None:
    with fake_server(fake_config(ALL[-1])) as server:
        assert set(allowed_cpus(server.process.pid)) == {frozenset(ALL[:-1])}
        first = server.engine_pid
        assert set(allowed_cpus(first)) == {frozenset(ALL)}
        assert set(niceness(first).values()) == {os.getpriority(os.PRIO_PROCESS, 0)}
        text = text_of(server)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: server.metric("engine_restarts_total") == 1)
        wait_until(lambda: httpx.get(server.url + "/readyz").status_code == 200)
        assert set(allowed_cpus(server.engine_pid)) == {frozenset(ALL)} and server.engine_pid != first
        assert text_of(server) == text
        assert set(allowed_cpus(server.process.pid)) == {frozenset(ALL[:-1])}


def test_an_engine_on_every_processor_gives_way_but_not_its_messages() -> None:
    own_niceness = os.getpriority(os.PRIO_PROCESS, 0)
    waits_for_itself = replace(fake_config(*ALL), may_have_low_priority=False)
    with fake_server(fake_config(*ALL)) as server, fake_server(waits_for_itself) as other_server:
        assert set(allowed_cpus(server.process.pid)) == {frozenset(ALL)}
        pid = server.engine_pid
        wait_until(lambda: max(niceness(pid).values()) == min(19, own_niceness + NICENESS))
        assert niceness(pid)[pid] == own_niceness
        assert set(niceness(server.process.pid).values()) == {own_niceness}
        assert set(niceness(other_server.engine_pid).values()) == {own_niceness}
        assert text_of(server) == text_of(other_server)
