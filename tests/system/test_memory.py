"""Memory of a real server: memory for large texts is returned to the system."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from support_process import TIMEOUT_SECONDS, wait_until
from support_server import COMPLETIONS, real_server

MIB = 2**20
TEXT = "e\u0301" * 300_000
"""Tokenizing this text takes 200 MB."""


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096


@pytest.mark.full
def test_large_texts_leave_nothing_behind() -> None:
    with real_server("--num-blocks", "256") as server:
        before = resident_bytes(server.process.pid)
        body = {"model": "chairlift:demo", "prompt": TEXT}
        with ThreadPoolExecutor(4) as executor:
            responses = list(
                executor.map(
                    lambda _: httpx.post(server.url + COMPLETIONS, json=body, timeout=TIMEOUT_SECONDS), range(8)
                )
            )
        assert {response.status_code for response in responses} == {400}
        wait_until(lambda: resident_bytes(server.process.pid) < before + 150 * MIB)
