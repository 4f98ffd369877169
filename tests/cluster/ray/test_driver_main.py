"""The driver process: calls are answered in order, a timeout is marked, and it ends with its input in any case."""

import io
import json
import subprocess
import sys
from typing import Any

import pytest

from chairlift.cluster.ray.driver_main import serve
from chairlift.cluster.ray.snapshot import RaySnapshot
from support_process import child_environment


class FakeCalls:
    def connect(self, *, address: str) -> None:
        raise ConnectionError(f"no Ray\n  at {address}")

    def snapshot(self) -> RaySnapshot:
        return RaySnapshot()

    def stop(self, *, group: str) -> None:
        raise TimeoutError("x" * 1000)

    def private(self) -> None:
        raise SystemExit


def answers(*calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    lines = [json.dumps({"id": i, "call": name, "arguments": each}) + "\n" for i, (name, each) in enumerate(calls, 5)]
    output = io.StringIO()
    serve(lines, output, FakeCalls())
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_each_call_has_its_answer() -> None:
    first, second, third = answers(("snapshot", {}), ("connect", {"address": "a:1"}), ("stop", {"group": "g"}))
    assert first == {"id": 5, "result": {"nodes": [], "groups": [], "actors": {}}}
    assert second == {"id": 6, "error": "ConnectionError: no Ray at a:1", "is_timeout": False}
    assert (third["id"], third["is_timeout"], len(third["error"])) == (7, True, 500)


def test_other_methods_cannot_be_called() -> None:
    (answer,) = answers(("private", {}))
    assert answer["error"] == "AssertionError: private"


@pytest.mark.parametrize(("does_hang", "code"), [(False, 0), (True, 1)])
def test_the_process_ends_with_its_input_even_in_a_call_that_hangs(does_hang: bool, code: int) -> None:
    program = """
import sys, time
from chairlift.cluster.ray.driver_main import lines_until_closed
for line in lines_until_closed(sys.stdin, 0.2):
    time.sleep(60 if line == "hang\\n" else 0)
"""
    text = "hang\n" if does_hang else "x\n"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=child_environment(), input=text, text=True, timeout=30)
    assert done.returncode == code
