"""A router that finds registered replicas, under continuous load, while its registry or its Redis is lost."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

TESTS = Path(__file__).parent
ADMIN_KEY = "the-outage-admin"
START_SECONDS = 60.0
WAIT_SECONDS = 30.0
"""Longest wait for a condition. Only a failing test waits this long."""

NUM_STREAM_TASKS, NUM_SHORT_TASKS = 6, 3
LEASE_SECONDS = 2
COMPLETIONS = "/v1/completions"
STREAM: dict[str, Any] = {
    "model": "fake", "prompt": "once", "max_tokens": 60, "seed": 3, "ignore_eos": True, "stream": True, "user": "a",
}  # fmt: skip
SHORT: dict[str, Any] = {"model": "fake", "prompt": "twice", "max_tokens": 2, "seed": 4, "user": "b"}
FAKE = {
    "vocab_size": 128, "max_model_len": 512, "num_blocks": 2048, "windows": [None], "seconds_per_step": 0.005,
}  # fmt: skip
ROUTER_OPTIONS = (
    "--port", "0", "--probe-interval", "0.5", "--slow-start", "0", "--policy", "session", "--session-header", "x-none",
    "--tenant-max-open-requests", "1000",
)  # fmt: skip


class ChildProcess:
    """A replica's or router's process, with its log."""

    def __init__(self, command: Sequence[str], log_file: Path) -> None:
        self._log_file = log_file
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src")]),
                   "OMP_NUM_THREADS": "1", "CHAIRLIFT_ADMIN_KEY": ADMIN_KEY}  # fmt: skip
        with log_file.open("ab") as log:
            self.process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=log)
        self.url = ""

    async def ready(self) -> "ChildProcess":
        deadline = time.monotonic() + START_SECONDS
        while (match := re.search(r"^ready after .*(http://\S+)$", self.log(), re.MULTILINE)) is None:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()[-3000:]
            await asyncio.sleep(0.01)
        self.url = match[1]
        return self

    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@dataclass
class RegisteredFleet:
    """Replicas that register themselves, and a router that finds them.

    Attributes:
        registry: URL of the registry.
        folder: folder of the logs.
        http: an HTTP client of an administrator.
        processes: all processes.
        outcomes: number of requests by what their client has received.
    """

    registry: str
    folder: Path
    http: aiohttp.ClientSession
    processes: list[ChildProcess] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    router: ChildProcess | None = None

    def start_replica(self, lease_seconds: int = LEASE_SECONDS) -> ChildProcess:
        parameters = {"fake": FAKE, "registration": {"register": f"{self.registry}?ttl={lease_seconds}"}}
        return self._start([str(TESTS / "replica_main.py"), json.dumps(parameters)], "replica")

    async def start_router(self, *options: str) -> None:
        command = ["-m", "chairlift", "router", *ROUTER_OPTIONS, "--discovery", self.registry, *options]
        self.router = await self._start(command, "router").ready()

    def _start(self, command: Sequence[str], name: str) -> ChildProcess:
        log_file = self.folder / f"{name}-{len(self.processes)}.log"
        self.processes.append(ChildProcess([sys.executable, *command], log_file))
        return self.processes[-1]

    async def admin(self) -> dict[str, Any]:
        """Return what /admin/replicas of the router says."""
        assert self.router is not None
        async with self.http.get(self.router.url + "/admin/replicas") as response:
            body: dict[str, Any] = await response.json()
            return body

    async def routed(self) -> set[str]:
        """Return the URLs of the replicas that the router uses."""
        return {each["replica_id"] for each in (await self.admin())["replicas"] if each["state"] == "healthy"}

    async def listed(self) -> set[str]:
        """Return the URLs of the replicas that the router's source names."""
        return {each["replica_id"] for each in (await self.admin())["replicas"] if each["state"] != "removed"}

    async def is_shared(self) -> bool:
        return bool((await self.admin())["shared_state"]["is_connected"])

    async def source_is(self, *states: str) -> bool:
        return (await self.admin())["sources"][0]["state"] in states

    async def request(self, body: dict[str, Any]) -> str:
        """Send a request and return what its client has received: the same text each time for the same body."""
        assert self.router is not None
        try:
            async with self.http.post(self.router.url + COMPLETIONS, json=body) as response:
                text = (await response.read()).decode()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"
        if response.status != 200:
            return f"status {response.status}: {text[:300]}"
        if not body.get("stream"):
            choice = json.loads(text)["choices"][0]
            return f"{choice['finish_reason']} {choice['text']!r}"
        *events, last = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
        if last != "[DONE]" or "event: error" in text:
            return f"a stream without its end: {text[-300:]}"
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        return f"{choices[-1]['finish_reason']} {''.join(choice['text'] for choice in choices)!r}"


@asynccontextmanager
async def registered_fleet(registry: str, folder: Path) -> AsyncIterator[RegisteredFleet]:
    timeout, headers = aiohttp.ClientTimeout(total=60), {"authorization": f"Bearer {ADMIN_KEY}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout, headers=headers) as http:
        fleet = RegisteredFleet(registry, folder, http)
        try:
            yield fleet
        finally:
            for process in fleet.processes:
                process.kill()


@asynccontextmanager
async def load(fleet: RegisteredFleet) -> AsyncIterator[None]:
    """Send streams and short requests without a pause; at the end each of them must have had its whole response."""
    expected = {body["prompt"]: await fleet.request(body) for body in (STREAM, SHORT)}
    assert all(each.startswith("length ") for each in expected.values()), expected
    stop = asyncio.Event()

    async def send(body: dict[str, Any], number: int) -> None:
        while not stop.is_set():
            received = await fleet.request({**body, "user": f"{body['user']}{number}"})
            fleet.outcomes["complete" if received == expected[body["prompt"]] else received] += 1
            await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(send(STREAM, number)) for number in range(NUM_STREAM_TASKS)]
    tasks += [asyncio.create_task(send(SHORT, number)) for number in range(NUM_SHORT_TASKS)]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)
    assert set(fleet.outcomes) == {"complete"}, fleet.outcomes


async def eventually(condition: Callable[[], Awaitable[object]], seconds: float = WAIT_SECONDS) -> float:
    """Wait until a coroutine function returns something true; returns the seconds that it took."""
    started_at = time.monotonic()
    while not await condition():
        assert time.monotonic() - started_at < seconds, f"the condition is still false after {seconds:g} s"
        await asyncio.sleep(0.02)
    return time.monotonic() - started_at
