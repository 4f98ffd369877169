"""llama.cpp: runs a workload on llama-server with continuous batching, over HTTP on the loopback interface.

    python -m chairlift.bench.peers.llama_cpp SPEC.json RESULT.json

Requests go to its own path (/completion), which takes prompts as token ids and returns token ids.
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

from chairlift.bench.offline.child_process import exit_with_parent, run_child
from chairlift.bench.offline.request_records import RequestRecord
from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.torch_threads_and_peak_memory import peak_memory
from chairlift.bench.offline.warm_up import WARM_UP, warm_up_items
from chairlift.bench.peers.peer_workload_and_report import cpus, max_request_tokens, run_report, workload_of
from chairlift.bench.report.redaction import shown_options
from chairlift.bench.server.http_client import Client, ExchangeEndKind, Headers, NoResponse
from chairlift.bench.server.server_address import Address
from chairlift.bench.workload.workload import WorkloadRequest
from chairlift.core.errors import ChairliftError, ConfigError, ModelError
from chairlift.protocol.sse import EventReader

MAX_SLOTS = 64
START_TIMEOUT_SECONDS = 300.0
RESPONSE_TIMEOUT_SECONDS = 3600.0
STDERR_TAIL_CHARS = 300


class CompletionRecorder:
    """Records the events of one response: the time of each chunk and the number of tokens."""

    def __init__(self, started_at: float) -> None:
        """Start a recording; `started_at` is the run's start by time.monotonic()."""
        self.stamps: list[float] = []
        self.tokens = 0
        self.status = 0
        self.error = ""
        self._started_at = started_at
        self._reader = EventReader()

    def head(self, status: int, headers: Headers) -> None:
        """See ResponseHandler."""
        self.status = status

    def body(self, piece: bytes, now: float) -> None:
        """See ResponseHandler."""
        if self.status != 200:
            self.error = f"http_{self.status}"
            return
        for event in self._reader.push(piece):
            chunk = json.loads(event.data)
            if "error" in chunk:
                self.error = "request_failed"
            elif count := len(chunk.get("tokens") or ()):
                self.stamps.append(now - self._started_at)
                self.tokens += count


def request_body(item: WorkloadRequest) -> bytes:
    """Return the JSON body of a request."""
    return json.dumps({
        "prompt": list(item.prompt_token_ids), "n_predict": item.output_tokens, "ignore_eos": True, "temperature": 0,
        "top_k": 1, "samplers": ["top_k"], "stream": True, "cache_prompt": True, "return_tokens": True,
    }).encode()  # fmt: skip


async def run(client: Client, items: Sequence[WorkloadRequest]) -> tuple[list[RequestRecord], float]:
    """Send all requests at once; returns their records and the seconds until the last one ended."""
    started_at = time.monotonic()

    async def one(item: WorkloadRequest) -> RequestRecord:
        recorder = CompletionRecorder(started_at)
        ended = await client.send(
            client.request("POST", "/completion", request_body(item)), recorder, RESPONSE_TIMEOUT_SECONDS
        )
        error = recorder.error or ("" if ended.how is ExchangeEndKind.COMPLETE else ended.how.value)
        return RequestRecord(item, recorder.stamps, recorder.tokens, ended=ended.at - started_at, error=error)

    records = await asyncio.gather(*(one(item) for item in items))
    return list(records), time.monotonic() - started_at


async def _wait_until_ready(client: Client, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(NoResponse):
            if (await client.fetch("GET", "/health"))[0] == 200:
                return
        await asyncio.sleep(0.1)
    raise ModelError("llama-server did not become ready")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Server:
    """A llama-server process that ends with this one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """Kill the server if it runs."""
        if self._process is not None:
            self._process.kill()

    @contextlib.contextmanager
    def started(self, command: Sequence[str], stderr: BinaryIO) -> Iterator["subprocess.Popen[bytes]"]:
        """Run the server while the context is entered."""
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
        ) as self._process:
            try:
                yield self._process
            finally:
                self._process.kill()


def measure(server: Server, spec: RunSpec) -> dict[str, Any]:
    """Start the server, warm it up and run the workload.

    Raises ConfigError, and ModelError when the server does not start.
    """
    workload, vocab_size = workload_of(spec)
    settings, threads = spec.settings, str(len(cpus()))
    program = shutil.which(str(Path(settings.get("server", "llama-server")).expanduser()))
    if program is None:
        raise ConfigError("there is no llama-server on PATH; set --peer llama.cpp.server=PROGRAM", option="peer")
    slots = int(settings.get("slots", min(len(workload.items), MAX_SLOTS)))
    context = int(settings.get("context", max_request_tokens(workload)))
    port = _free_port()
    arguments = ["-m", str(Path(settings["model"]).expanduser()), "-t", threads, "-tb", threads, "--port", str(port)]
    arguments += ["-np", str(slots), "-c", str(slots * context), "-cb", "--host", "127.0.0.1"]
    with tempfile.TemporaryFile() as stderr, server.started([program, *arguments], stderr) as process:

        async def run_workload() -> tuple[list[RequestRecord], float]:
            client = Client(Address("http", "127.0.0.1", port, ""))
            try:
                await _wait_until_ready(client, process)
                await run(client, warm_up_items(WARM_UP[1], vocab_size))
                return await run(client, workload.items)
            finally:
                client.close()

        try:
            records, seconds = asyncio.run(run_workload())
        except ModelError as error:
            stderr.seek(0)
            stderr_tail = stderr.read().decode("utf-8", "replace").strip()[-STDERR_TAIL_CHARS:]
            raise ModelError(f"{error.message}: {stderr_tail}") from None
    return {
        **run_report(workload, vocab_size, records, seconds),
        "engine": {
            "version": version_of(program),
            "slots": slots,
            "context": context,
            "settings": shown_options(settings),
        },
        "peak_memory_bytes": peak_memory(),
    }


def version_of(program: str) -> str:
    """Return the version that a llama.cpp program prints."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChairliftError(f"cannot get the version of llama-server: {error}") from None
    lines = (done.stdout + done.stderr).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("version")), "unknown")


def main(arguments: Sequence[str], set_exit_hook: Callable[[Callable[[], None]], None] = lambda first: None) -> int:
    """Run the specification in a file; returns the exit code.

    `set_exit_hook` receives a function that must be called before this process is ended.
    """
    server = Server()
    set_exit_hook(server.kill)
    return run_child(arguments, lambda spec: measure(server, spec))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], exit_with_parent))
