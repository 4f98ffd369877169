"""OfflineEngine, HttpServer: an engine without a server and a server, each in processes that live for all runs."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from chairlift.bench.offline.subprocess_run import environ_with
from server_process.server_process import ServerProcess

ENVIRON = environ_with(Path(__file__).parents[1])
STOP_TIMEOUT_SECONDS = 60.0

MAX_QUEUE_WAIT_SECONDS = 60
"""The server's --max-queue-wait: high, because a rejected request would make the measured speed useless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkSpec:
    """The workload and the engine of both arms.

    Attributes:
        model: a model's folder or name.
        options: engine options as flag names of `chairlift serve` with underscores, such as {"dtype": "bfloat16"}.
        workload: a workload's name in bench/workload/generators.py.
        num_requests: how many requests the workload has; all are sent at once.
        vocab_size: the token ids of prompts are below this.
    """

    model: str
    options: Mapping[str, str | int]
    workload: str
    num_requests: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class OfflineEngine:
    """An engine in a process of its own, without a server."""

    process: "subprocess.Popen[str]"

    def run(self, seed: int) -> float:
        """Run the workload with a seed. Returns output tokens per second. Raises RuntimeError if the process ended."""
        stdin, stdout = pipes_of(self.process)
        stdin.write(f"{seed}\n")
        stdin.flush()
        return float(read_line(stdout))


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server process; each run starts `chairlift bench serve`."""

    url: str
    spec: BenchmarkSpec

    def run(self, seed: int) -> float:
        """Run the workload with a seed. Returns output tokens per second. Raises RuntimeError if a request failed."""
        spec = self.spec
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.json"
            arguments = [
                "--url", self.url, "--workload", spec.workload, "--seed", str(seed), "--json", str(path),
                "--concurrency", str(spec.num_requests), "--requests", str(spec.num_requests),
                "--vocab-size", str(spec.vocab_size),
            ]  # fmt: skip
            command = [sys.executable, "-m", "chairlift", "bench", "serve", *arguments]
            completed = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=False)
            if completed.returncode:
                raise RuntimeError(f"bench serve failed: {completed.stderr[-500:]}")
            (phase,) = json.loads(path.read_bytes())["phases"]
        if (outcomes := phase["requests"]["by_outcome"]) != {"ok": spec.num_requests}:
            raise RuntimeError(f"only {outcomes.get('ok', 0)} of {spec.num_requests} requests succeeded: {outcomes}")
        return float(phase["output_tokens_per_second"])


@contextmanager
def run_offline_engine(spec: BenchmarkSpec) -> Iterator[OfflineEngine]:
    """Run an engine process without a server. Raises RuntimeError if it does not start."""
    engine_spec = {
        "model": spec.model, "options": dict(spec.options), "workload": spec.workload, "vocab_size": spec.vocab_size
    }  # fmt: skip
    command = [sys.executable, "-m", "http_overhead.resident_engine", json.dumps(engine_spec)]
    process = subprocess.Popen(command, env=ENVIRON, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        read_line(pipes_of(process)[1])
        yield OfflineEngine(process)
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_SECONDS)


@contextmanager
def run_http_server(spec: BenchmarkSpec) -> Iterator[HttpServer]:
    """Run a server process. Raises RuntimeError if it does not start."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in spec.options.items()]
    flags += ["--port=0", f"--max-queue-wait={MAX_QUEUE_WAIT_SECONDS}"]
    command = [sys.executable, "-m", "chairlift", "serve", spec.model, *flags]
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(command, Path(folder) / "server.log", environ=ENVIRON) as server,
    ):
        yield HttpServer(server.url, spec)


def pipes_of(process: "subprocess.Popen[str]") -> tuple[IO[str], IO[str]]:
    """Return standard input and output of a process that has both as pipes."""
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    return process.stdin, process.stdout


def read_line(stream: IO[str]) -> str:
    """Read a line of a process's output. Raises RuntimeError if the process ended."""
    if not (line := stream.readline()):
        raise RuntimeError("the process ended before it wrote a line")
    return line.strip()
