"""Memory of a real server: what large texts take is given back."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from support_process import PATIENCE, wait_until
from support_server import COMPLETIONS, real_server

MIB = 2**20
TEXT = "e\u0301" * 300_000
"""It takes two hundred megabytes to make tokens of it."""


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096


def test_large_texts_leave_nothing_behind() -> None:
    with real_server("--num-blocks", "256") as server:
        before = resident(server.process.pid)
        body = {"model": "chairlift:demo", "prompt": TEXT}
        with ThreadPoolExecutor(4) as scenario:
            responses = list(
                scenario.map(lambda _: httpx.post(server.url + COMPLETIONS, json=body, timeout=PATIENCE), range(8))
            )
        assert {response.status_code for response in responses} == {400}
        wait_until(lambda: resident(server.process.pid) < before + 150 * MIB)
