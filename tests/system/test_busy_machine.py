"""A real server beside busy processes: its engine gets their priority, and gives the same tokens."""

import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from busy_machine.__main__ import busy_processes
from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.model.kernels.cpu.kernel_cpus import chosen_cpus
from support_process import TIMEOUT_SECONDS, wait_until
from support_server import COMPLETIONS, Server, real_server

TOKENS = 200


def lowest_priority(pid: int) -> int:
    """Return the highest niceness of a process's threads."""
    return max(os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir())


def answer(server: Server) -> dict[str, Any]:
    body = {"model": "chairlift:demo", "prompt": "Once", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    response = httpx.post(server.url + COMPLETIONS, json=body, timeout=TIMEOUT_SECONDS)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel reports no delays")
@pytest.mark.skipif(
    {*chosen_cpus(len(usable_cpus()))} != {*usable_cpus()}, reason="an engine does not use all processors here"
)
def test_an_engine_that_others_delay_gets_their_priority() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    threads = str(len(usable_cpus()))  # else it does not compute on all processors of its API server
    with real_server("--num-blocks", "256", "--log-level", "info", CHAIRLIFT_CPU_THREADS=threads) as server:
        wait_until(lambda: lowest_priority(server.engine_pid) == min(19, own + 5))
        expected = answer(server)
        with busy_processes(4 * len(usable_cpus()), own_sessions=True):

            def has_changed() -> bool:
                assert answer(server) == expected
                return "it runs at normal priority" in server.log

            wait_until(has_changed)
        assert answer(server) == expected
