"""Servers for tests: the ASGI app over a fake engine in this process, or a server process."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.llm.text_service import TextService
from chairlift.observability.tracing.tracer import Tracer
from chairlift.server.app import server_app
from chairlift.server.replica import Replica
from chairlift.web.auth.api_keys import KeyRing
from chairlift.web.auth.credentials import Credentials
from chairlift.web.batch_api.batch_api import BatchApi
from support_config import make_server_config
from support_forks import TORCH_MODULES, children_of, process_start
from support_process import TIMEOUT_SECONDS

TESTS = Path(__file__).parent
MODEL = "fake"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ADMIN_KEY = "the-admin-key"
HELLO: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "seed": 1}


@dataclass
class InProcessServer:
    """A server app in this process, with an HTTP client."""

    http: httpx.AsyncClient
    replica: Replica
    batches: BatchApi
    drained: list[int] = field(default_factory=list)

    async def metric(self, series: str) -> float:
        """Return the value of a series of /metrics, 0 if it is not there; `series` may have labels."""
        page = (await self.http.get("/metrics")).text
        assert is_declared(series.partition("{")[0], page), f"there is no metric {series}"
        values = [line for line in page.splitlines() if line.startswith(f"chairlift_{series} ")]
        return float(values[0].rpartition(" ")[2]) if values else 0.0


def is_declared(name: str, page: str) -> bool:
    """Return whether a page of metrics declares this metric, which may have no value yet."""
    declared = re.sub(r"_(sum|count|bucket)$", "", name)
    return f"# TYPE chairlift_{declared} " in page


@asynccontextmanager
async def open_server(
    service: TextService | None, *, keys: KeyRing | None = None, tracer: Tracer | None = None, **options: Any
) -> AsyncIterator[InProcessServer]:
    """Open a server over a service, or one that is still starting for None.

    Closes the client of the service at the end.
    """
    replica = Replica(make_server_config(MODEL, **options), tracer)
    drain_calls: list[int] = []

    async def drain() -> None:
        replica.lifecycle.drain()
        drain_calls.append(1)

    server = server_app(replica, Credentials(keys or KeyRing()), drain)
    assert server.batches is not None
    app = server.asgi
    if service is not None:
        replica.attach_service(service, lambda: None, 2048)
    try:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
            yield InProcessServer(http, replica, server.batches, drain_calls)
    finally:
        await server.batches.close()
        await replica.close()


def events(text: str) -> list[Any]:
    """Parse server-sent events without comments; "[DONE]" stays text, an error event is (event, object)."""
    result: list[Any] = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if not lines:
            continue
        data = lines["data"] if lines["data"] == "[DONE]" else json.loads(lines["data"])
        result.append((lines["event"], data) if "event" in lines else data)
    return result


class Server:
    """A server process whose stderr lines are kept."""

    def __init__(self, command: list[str], environ: dict[str, str], start: Any = subprocess.Popen) -> None:
        """Start the command; `start` is subprocess.Popen or does as it does."""
        self.process = start(
            command, env={**os.environ, **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("listening on "):
                self.url = line.split()[-1]
            if line.startswith("ready after "):
                self._ready.set()
        self._ready.set()

    def wait_until_ready(self) -> "Server":
        """Wait until the server is ready."""
        assert self._ready.wait(TIMEOUT_SECONDS), self.log
        assert self.process.poll() is None and any(line.startswith("ready") for line in self.lines), self.log
        return self

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def engine_pid(self) -> int:
        """The process id of the engine, the only child process of the server."""
        for _ in range(int(TIMEOUT_SECONDS / 0.05)):
            for pid, command in children_of(self.process.pid).items():
                if "chairlift.engine.ipc.engine_main" in command:
                    return pid
            time.sleep(0.05)
        raise AssertionError("the server has no engine process")

    def state(self) -> dict[str, Any]:
        """Return the dumps of scheduler and cache; the server must have an admin key."""
        response = httpx.get(
            self.url + "/admin/state", headers={"authorization": f"Bearer {ADMIN_KEY}"}, timeout=TIMEOUT_SECONDS
        )
        assert response.status_code == 200, response.text
        result: dict[str, Any] = response.json()
        return result

    def is_idle(self) -> bool:
        """Whether no request runs or waits and all blocks are free; fails on integrity errors."""
        state = self.state()
        cache = state["cache"]
        assert state["integrity_errors"] == []
        num_requests = state["scheduler"]["active_requests"] + state["scheduler"]["waiting_requests"]
        return num_requests == 0 and cache["allocated_blocks"] == 0

    @property
    def open_files(self) -> int:
        """The number of open file descriptors of the API process."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def metric(self, name: str) -> float:
        """Return a metric's value, of all labels together; 0 for a declared metric without a value yet."""
        page = httpx.get(self.url + "/metrics", timeout=TIMEOUT_SECONDS).text
        assert is_declared(name, page), f"there is no metric {name}"
        lines = [line for line in page.splitlines() if line.partition("{")[0].partition(" ")[0] == f"chairlift_{name}"]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        return self.wait_for_exit()

    def wait_for_exit(self) -> int:
        """Wait for the end; returns the exit code."""
        try:
            code = self.process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join(TIMEOUT_SECONDS)
        return code


@contextmanager
def fake_server(
    config: FakeConfig | None = None, *, admin: bool = False, environ: Mapping[str, str] | None = None,
    is_forked: bool = True, **options: Any,
) -> Iterator[Server]:  # fmt: skip
    """Start a server process with a fake engine, and stop it at the end.

    tests/replica_main.py lists the options.
    With `admin` the admin routes are open to ADMIN_KEY; `environ` has more variables; a process that is not forked
    (support_forks.py) starts as a user's does.
    """
    with starting_server(config, admin=admin, environ=environ, is_forked=is_forked, **options) as server:
        yield server.wait_until_ready()


@contextmanager
def starting_server(
    config: FakeConfig | None = None, *, admin: bool = False, environ: Mapping[str, str] | None = None,
    is_forked: bool = True, **options: Any,
) -> Iterator[Server]:  # fmt: skip
    """Start a server as `fake_server` does, without waiting until it is ready."""
    parameters = {"fake": asdict(config or FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512)), **options}
    variables = {**({"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY} if admin else {}), **(environ or {})}
    command = [sys.executable, str(TESTS / "replica_main.py"), json.dumps(parameters)]
    with running_server(command, variables, is_forked=is_forked) as server:
        yield server


@contextmanager
def real_server(*args: str, is_forked: bool = True, **environ: str) -> Iterator[Server]:
    """Start `chairlift serve` on a free port, with one thread of the native kernels, as workers share the CPUs."""
    environ = {"CHAIRLIFT_CPU_THREADS": "1", **environ}
    command = [sys.executable, "-m", "chairlift", "serve", "--port", "0", *args]
    with running_server(command, environ, is_forked=is_forked, modules=TORCH_MODULES) as server:
        yield server.wait_until_ready()


@contextmanager
def scripted_model_server(**parameters: Any) -> Iterator[Server]:
    """Start a server with scripted replies; support_scripted_model.py has the script and the parameters."""
    command = [sys.executable, str(TESTS / "support_scripted_model.py"), json.dumps(parameters)]
    with running_server(command, {}) as server:
        yield server.wait_until_ready()


@contextmanager
def router_server(*args: str, is_forked: bool = True, **environ: str) -> Iterator[Server]:
    """Start `chairlift router` on a free port, and wait until it is ready."""
    command = [sys.executable, "-m", "chairlift", "router", "--port", "0", *args]
    with running_server(command, environ, is_forked=is_forked) as server:
        yield server.wait_until_ready()


@contextmanager
def running_server(
    command: list[str], environ: dict[str, str], *, is_forked: bool = True, **options: Any
) -> Iterator[Server]:
    """Start a server process, and kill it at the end; `options` are those of process_start()."""
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    server = Server(command, {"PYTHONPATH": paths, **environ}, process_start(is_forked, **options))
    try:
        yield server
    finally:
        server.process.kill()
        server.wait_for_exit()


def run(coroutine: Any, timeout_seconds: float = TIMEOUT_SECONDS) -> Any:
    """Run a test's coroutine with a timeout."""
    return asyncio.run(asyncio.wait_for(coroutine, timeout_seconds))
