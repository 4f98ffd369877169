"""DriverProcess: a driver that hangs, ends or fails gives a clear error, and the next call has a new one."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from chairlift.cluster.ray import driver_process
from chairlift.cluster.ray.config import RayConfig
from chairlift.cluster.ray.driver_process import DriverProcess
from chairlift.core.cluster_errors import ClusterFailed
from support_process import has_ended
from support_server import run

pytestmark = pytest.mark.usefixtures("children_import_tests")

FAKE_DRIVER = """
import os, sys, time
from chairlift.cluster.ray.driver_main import lines_until_closed, serve

class Calls:
    def connect(self, *, address, namespace, fleet, token, description):
        self.fields = [address, namespace, fleet]
        self.owner = [token, description]
        if address == "hang": time.sleep(60)
        if address == "refuse": raise ConnectionError("no Ray here")

    def snapshot(self): return {"pid": os.getpid(), "fields": self.fields, "owner": self.owner}
    def create(self, *, size): return "x" * size

    def stop(self, *, how):
        if how == "hang": time.sleep(60)
        if how == "late": raise TimeoutError("late")
        raise RuntimeError("broken")

    def remove(self):
        sys.stderr.write("\\nthe head is gone\\n")
        sys.stderr.flush()
        os._exit(1)

serve(lines_until_closed(sys.stdin), sys.stdout, Calls())
"""


WRITE_RAW = """
import json, sys, time

print(json.dumps({"id": json.loads(sys.stdin.readline())["id"], "result": None}), flush=True)
sys.stdin.readline()
print(ANSWER, flush=True)
time.sleep(60)
"""


@asynccontextmanager
async def driver(address: str = "here", **options: Any) -> AsyncIterator[DriverProcess]:
    config = RayConfig(fleet="f", address=address, namespace="n", **options)
    process = DriverProcess(config, command=(sys.executable, "-c", FAKE_DRIVER))
    try:
        yield process
    finally:
        await process.close()


def test_calls_go_to_one_connected_process_which_ends_at_the_close() -> None:
    async def check() -> int:
        async with driver() as process:
            first, second = await asyncio.gather(process.call("snapshot"), process.call("snapshot"))
            assert first == second
            assert first["fields"] == ["here", "n", "f"]
            assert await process.call("create", size=200_000) == "x" * 200_000  # longer than asyncio's own limit
            return int(first["pid"])

    pid = run(check())
    assert has_ended(pid)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("call", "arguments", "text", "is_new"),
    [
        ("stop", {"how": "hang"}, "Ray at here does not answer the call 'stop' within 1 s", True),
        ("stop", {"how": "raise"}, "Ray at here failed in the call 'stop': RuntimeError: broken", True),
        ("stop", {"how": "late"}, "Ray at here failed in the call 'stop': TimeoutError: late", False),
        ("remove", {}, "Ray at here is gone: .* has ended: the head is gone", True),
    ],
)
def test_a_call_that_fails_says_why_and_the_next_one_connects_again(
    call: str, arguments: dict[str, str], text: str, is_new: bool
) -> None:
    async def check() -> None:
        async with driver(call_timeout_seconds=1.0 if arguments.get("how") == "hang" else 20.0) as process:
            before = (await process.call("snapshot"))["pid"]
            with pytest.raises(ClusterFailed, match=text):
                await process.call(call, **arguments)
            assert has_ended(before) is is_new
            assert ((await process.call("snapshot"))["pid"] != before) is is_new

    run(check())


@pytest.mark.share(1)
@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("hang", "Ray at hang cannot be reached within 0.3 s"),
        ("refuse", "Ray at refuse cannot be reached: ConnectionError: no Ray here"),
    ],
)
def test_a_ray_that_cannot_be_reached_is_named(address: str, text: str) -> None:
    async def check() -> None:
        async with driver(address, connect_timeout_seconds=0.3 if address == "hang" else 20.0) as process:
            for _ in range(2):
                with pytest.raises(ClusterFailed, match=text):
                    await process.call("snapshot")

    run(check())


def test_a_cancelled_call_takes_its_answer_with_it() -> None:
    async def check() -> None:
        async with driver() as process:
            pid = (await process.call("snapshot"))["pid"]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await process.call("stop", how="hang")
            assert has_ended(pid)
            assert (await process.call("snapshot"))["pid"] != pid

    run(check())


def test_a_program_that_does_not_start_is_an_error() -> None:
    async def check() -> None:
        process = DriverProcess(RayConfig(), command=(sys.executable, "-c", "raise SystemExit('no module ray')"))
        with pytest.raises(ClusterFailed, match="no module ray"):
            await process.call("snapshot")
        await process.close()

    run(check())


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("'no JSON'", "with nonsense"),
        ("'[]'", "with nonsense"),
        ("""'{"id": 7, "result": null}'""", "with nonsense: it answers call 7, not 2"),
        ("'x' * 100_000", "with more than 1000 bytes"),
    ],
)
def test_an_answer_of_another_form_is_an_error_of_the_cluster_and_ends_the_process(
    answer: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_process, "MAX_LINE", 1000)

    async def check() -> None:
        command = (sys.executable, "-S", "-c", WRITE_RAW.replace("ANSWER", answer))
        process = DriverProcess(RayConfig(fleet="f", address="here"), command=command)
        for _ in range(2):
            with pytest.raises(ClusterFailed, match=text):
                await process.call("snapshot")
            process._last_id = 0

    run(check())


def test_a_process_that_cannot_be_started_is_an_error_of_the_cluster() -> None:
    with pytest.raises(ClusterFailed, match="cannot be started"):
        run(DriverProcess(RayConfig(fleet="f"), command=("/does/not/exist",)).call("snapshot"))


def test_a_long_line_of_the_log_does_not_block_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_process, "MAX_LINE", 1000)
    program = "import sys; sys.stderr.write('x' * 500_000 + chr(10) + 'the end' + chr(10)); sys.stderr.flush()"

    async def check() -> None:
        process = DriverProcess(RayConfig(fleet="f"), command=(sys.executable, "-S", "-c", program))
        with pytest.raises(ClusterFailed, match="has ended: "):
            await process.call("snapshot")
        assert list(process._log)[-1:] == ["the end"]

    run(check())


@pytest.mark.full
def test_a_controller_keeps_its_token_with_a_new_process_and_has_another_one_than_others() -> None:
    async def owner(process: DriverProcess) -> list[str]:
        return list((await process.call("snapshot"))["owner"])

    async def check() -> None:
        async with driver() as first, driver() as second:
            before = await owner(first)
            assert f"process {os.getpid()} of " in before[1]
            await first.close()
            assert await owner(first) == before != await owner(second)

    run(check())
