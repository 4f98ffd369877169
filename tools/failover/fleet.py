"""Fleet: three replicas in processes of their own, TCP proxies before them, and two routers."""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from failover.faulty_proxy import FaultyProxy
from failover.request_kinds import COMPLETIONS, Model
from server_process.free_port import free_port
from server_process.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
NUM_REPLICAS = 3
START_SECONDS = 90.0
"""Longest time from the start of a process until it serves requests."""

REQUEST_SECONDS = 120.0
ADMIN_KEY = "the-failover-admin"

SECONDS_PER_STEP = 0.004
"""Time that a replica without a real model takes for a token."""

HANDOVER_SECONDS = 0.2
"""Time after which a replica that drains hands its streams over."""

ROUTER_OPTIONS = (
    "--port", "0", "--probe-interval", "0.3", "--probe-timeout", "1", "--recovery-timeout", "0.5",
    "--slow-start", "0", "--policy", "least_connections", "--log-level", "info",
)  # fmt: skip


def start_process(command: Sequence[str], log_file: Path) -> ServerProcess:
    """Start a replica or a router, which imports the modules of tests/."""
    environ = {
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(ROOT / "src")]), "OMP_NUM_THREADS": "1",
        "CHAIRLIFT_ADMIN_KEY": ADMIN_KEY,
    }  # fmt: skip
    return ServerProcess(command, log_file, environ=environ, start_seconds=START_SECONDS)


def replica_command(model: Model, port: int, more: Mapping[str, Any], *, has_drafts: bool = True) -> list[str]:
    """Return the command of a replica on a port; `more` is added to the config of a server without a real model.

    A real model decodes speculatively unless `has_drafts` is false.
    """
    server = {"drain_handover": HANDOVER_SECONDS, **more}
    if model is Model.DEMO:
        options = ["--cpu-threads", "1", "--drain-handover", str(HANDOVER_SECONDS), "--num-blocks", "4096"]
        options += [] if has_drafts else ["--speculative-config", '{"method": "none"}']
        return [sys.executable, "-m", "chairlift", "serve", "--port", str(port), *options]
    if model is Model.SCRIPTED:
        scripted = {"repeats": True, "port": port, "fake": {"seconds_per_step": SECONDS_PER_STEP}, "server": server}
        return [sys.executable, str(TESTS / "support_scripted_model.py"), json.dumps(scripted)]
    fake = {
        "vocab_size": 128, "max_model_len": 1024, "num_blocks": 8192, "windows": [None],
        "seconds_per_step": SECONDS_PER_STEP,
    }  # fmt: skip
    parameters = json.dumps({"fake": fake, "port": port, "server": server})
    return [sys.executable, str(TESTS / "replica_main.py"), parameters]


class Fleet:
    """Replicas of one model behind two routers.

    Attributes:
        replicas: the replicas' processes. The last one, which the uncut runs are on, decodes without drafts.
        proxies: one TCP proxy before each replica.
        routers: the routers' processes; the first one reaches the replicas directly, the second one by the proxies.
        http: an HTTP client without limits.
    """

    def __init__(
        self, model: Model, folder: Path | None = None, router_options: Sequence[str] = (), *,
        first_replica: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Create a fleet that is not started; `folder` keeps the logs.

        `first_replica` has further fields of the first replica's ServerConfig.
        """
        self.model = model
        self._first_replica = first_replica or {}
        self._temporary = tempfile.TemporaryDirectory() if folder is None else None
        self.folder = folder or Path(self._temporary.name if self._temporary else "")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._router_options = router_options
        self._ports: list[int] = []
        self.replicas: list[ServerProcess] = []
        self.proxies: list[FaultyProxy] = []
        self.routers: list[ServerProcess] = []

    async def __aenter__(self) -> Self:
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
            headers={"authorization": f"Bearer {ADMIN_KEY}"},
        )  # fmt: skip
        try:
            self._ports = [free_port() for _ in range(NUM_REPLICAS)]
            self.replicas = [self._start_replica(index) for index in range(NUM_REPLICAS)]
            self.proxies = [FaultyProxy(port) for port in self._ports]
            await asyncio.gather(*(proxy.start() for proxy in self.proxies))
            await asyncio.gather(*(replica.ready() for replica in self.replicas))
            self.routers = [self.start_router(index) for index in range(2)]
            await asyncio.gather(*(router.ready() for router in self.routers))
            await self.wait_until_healthy()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.close()
        await asyncio.gather(*(each.kill() for each in (*self.routers, *self.replicas)))
        await asyncio.gather(*(proxy.stop() for proxy in self.proxies))
        if self._temporary is not None:
            self._temporary.cleanup()

    def replica_ids(self, router: int) -> list[str]:
        """Return the URLs at which a router reaches the replicas."""
        return [proxy.url for proxy in self.proxies] if router else [f"http://127.0.0.1:{port}" for port in self._ports]

    def _start_replica(self, index: int) -> ServerProcess:
        more = {} if index else self._first_replica
        command = replica_command(self.model, self._ports[index], more, has_drafts=index != NUM_REPLICAS - 1)
        return start_process(command, self.folder / f"replica-{index}.log")

    def start_router(self, index: int) -> ServerProcess:
        """Start a router; `routers` does not have it yet."""
        urls = [option for url in self.replica_ids(index) for option in ("--replica", url)]
        command = [sys.executable, "-m", "chairlift", "router", *ROUTER_OPTIONS, *self._router_options, *urls]
        return start_process(command, self.folder / f"router-{index}.log")

    async def restart(self, index: int) -> None:
        """Wait for the end of a replica that was killed or drains, and start it again on its port."""
        await asyncio.to_thread(self.replicas[index].process.wait, START_SECONDS)
        self.replicas[index] = self._start_replica(index)
        await self.replicas[index].ready()

    async def statuses(self, router: int = 0) -> list[dict[str, Any]]:
        """Return how a router sees the replicas, in order."""
        async with self.http.get(self.routers[router].url + "/admin/replicas") as response:
            found = {each["replica_id"]: each for each in (await response.json())["replicas"]}
        return [found[replica_id] for replica_id in self.replica_ids(router)]

    async def wait_until_healthy(self) -> None:
        """Wait until both routers use all replicas, with nothing open. Raises RuntimeError if they never do."""
        deadline = time.monotonic() + START_SECONDS
        statuses: list[dict[str, Any]] = []
        while time.monotonic() < deadline:
            statuses = [each for router in range(len(self.routers)) for each in await self.statuses(router)]
            if all(each["state"] == "healthy" and each["resumable"] and not each["open_requests"] for each in statuses):
                return
            if any(each["state"] == "probing" for each in statuses):
                await asyncio.gather(*(self._send_trial(router) for router in range(len(self.routers))))
            await asyncio.sleep(0.05)
        raise RuntimeError(f"the routers do not use all replicas: {json.dumps(statuses)}")

    async def _send_trial(self, router: int) -> None:
        """Send a small request, which decides about a replica that the router tries again."""
        body = {"model": self.model.value, "prompt": "a", "max_tokens": 1}
        async with self.http.post(self.routers[router].url + COMPLETIONS, json=body) as response:
            await response.read()

    async def post(self, router: int, path: str, body: dict[str, Any]) -> None:
        """Send an administrator's request to a router."""
        async with self.http.post(self.routers[router].url + path, json=body) as response:
            response.raise_for_status()
