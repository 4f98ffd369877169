"""llama.cpp: its server with continuous batching, asked over HTTP on the loopback interface, the only way in.

    python -m chairlift.bench.peers.llama_cpp ORDER.json RESULT.json

It is asked on its own path (/completion), where prompts are token ids and tokens come back as ids.
"""

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from chairlift.bench.offline.offline_benchmark import WARM_UP, peak_memory, warm_up_items
from chairlift.bench.offline.request_records import RequestRecord
from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.subprocess_run import exit_with_parent, run_child
from chairlift.bench.peers.external_python import cpus, longest, told, workload_of
from chairlift.bench.report import environment
from chairlift.bench.server.http_client import Client, ExchangeEndKind, Headers, NoResponse
from chairlift.bench.server.server_address import Address
from chairlift.bench.workload.workload import WorkloadRequest
from chairlift.core.errors import ChairliftError, ConfigError, ModelError
from chairlift.protocol.sse import EventReader

MAX_SLOTS = 64
START_SECONDS = 300.0
ANSWER_SECONDS = 3600.0
LAST_WORDS = 300


class Answer:
    """Takes the events of one answer: the tokens of each chunk, and the count at the end."""

    def __init__(self, began: float) -> None:
        """`began` is the run's time.monotonic()."""
        self.stamps: list[float] = []
        self.tokens = 0
        self.status = 0
        self.error = ""
        self._began = began
        self._reader = EventReader()

    def head(self, status: int, headers: Headers) -> None:
        """See Taker."""
        self.status = status

    def body(self, piece: bytes, now: float) -> None:
        """See Taker."""
        if self.status != 200:
            self.error = f"http_{self.status}"
            return
        for event in self._reader.push(piece):
            said = json.loads(event.data)
            if "error" in said:
                self.error = "request_failed"
            elif count := len(said.get("tokens") or ()):
                self.stamps.append(now - self._began)
                self.tokens += count


def asked(item: WorkloadRequest) -> bytes:
    """Return the body that asks for an item."""
    return json.dumps({
        "prompt": list(item.prompt_token_ids), "n_predict": item.output_tokens, "ignore_eos": True, "temperature": 0,
        "top_k": 1, "samplers": ["top_k"], "stream": True, "cache_prompt": True, "return_tokens": True,
    }).encode()  # fmt: skip


async def run(client: Client, items: Sequence[WorkloadRequest]) -> tuple[list[RequestRecord], float]:
    """Ask for all items at once."""
    began = time.monotonic()

    async def one(item: WorkloadRequest) -> RequestRecord:
        answer = Answer(began)
        ended = await client.ask(client.request("POST", "/completion", asked(item)), answer, ANSWER_SECONDS)
        error = answer.error or ("" if ended.how is ExchangeEndKind.COMPLETE else ended.how.value)
        return RequestRecord(item, answer.stamps, answer.tokens, ended=ended.at - began, error=error)

    rides = await asyncio.gather(*(one(item) for item in items))
    return list(rides), time.monotonic() - began


async def _ready(client: Client, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(NoResponse):
            if (await client.fetch("GET", "/health"))[0] == 200:
                return
        await asyncio.sleep(0.1)
    raise ModelError("llama-server did not become ready")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


class Server:
    """A llama-server of our own, which ends with this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()

    @contextlib.contextmanager
    def started(self, command: Sequence[str], said: BinaryIO) -> Iterator["subprocess.Popen[bytes]"]:
        """Start it and end it."""
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said
        ) as self._process:
            try:
                yield self._process
            finally:
                self._process.kill()


def measure(server: Server, order: RunSpec) -> dict[str, Any]:
    """Start the server, warm it up, run the workload. Raises ConfigError, ModelError."""
    workload, vocab_size = workload_of(order)
    settings, threads = order.settings, str(len(cpus()))
    program = shutil.which(str(Path(settings.get("server", "llama-server")).expanduser()))
    if program is None:
        raise ConfigError("there is no llama-server on PATH; --peer llama.cpp.server=.. names one", option="peer")
    slots = int(settings.get("slots", min(len(workload.items), MAX_SLOTS)))
    context = int(settings.get("context", longest(workload)))
    port = _free_port()
    words = ["-m", str(Path(settings["model"]).expanduser()), "-t", threads, "-tb", threads, "--port", str(port)]
    words += ["-np", str(slots), "-c", str(slots * context), "-cb", "--host", "127.0.0.1"]
    with tempfile.TemporaryFile() as said, server.started([program, *words], said) as process:

        async def asking() -> tuple[list[RequestRecord], float]:
            client = Client(Address("http", "127.0.0.1", port, ""))
            try:
                await _ready(client, process)
                await run(client, warm_up_items(WARM_UP[1], vocab_size))
                return await run(client, workload.items)
            finally:
                client.close()

        try:
            rides, seconds = asyncio.run(asking())
        except ModelError as error:
            said.seek(0)
            last = said.read().decode("utf-8", "replace").strip()[-LAST_WORDS:]
            raise ModelError(f"{error.message}: {last}") from None
    return {
        **told(workload, vocab_size, rides, seconds),
        "engine": {
            "version": version_of(program),
            "slots": slots,
            "context": context,
            "settings": environment.shown_options(settings),
        },
        "peak_memory_bytes": peak_memory(),
    }


def version_of(program: str) -> str:
    """Return what a llama.cpp program says of its version."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChairliftError(f"llama-server cannot be asked for its version: {error}") from None
    lines = (done.stdout + done.stderr).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("version")), "unknown")


def main(words: Sequence[str], ending: Callable[[Callable[[], None]], None] = lambda first: None) -> int:
    """Obey an order from a file; `ending` hears what has to happen before this process is ended from outside."""
    server = Server()
    ending(server.kill)
    return run_child(words, lambda order: measure(server, order))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], exit_with_parent))
