"""Both ways to the engine, each in processes that stay while the other is measured."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from chairlift.bench.offline.subprocess_run import environ_with

ENVIRON = environ_with(Path(__file__).parents[1])
STOP_SECONDS = 60.0

MAX_WAIT = 60
"""Seconds that a request may wait for its first token: speed is measured here, so nobody is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is run both ways.

    Attributes:
        model: a folder, or a name.
        options: of the engine, as `chairlift serve` spells them, less the dashes: dtype -> bfloat16.
        workload: a name of bench/workload/generators.py.
        requests: how many that workload has, and all of them at once.
        vocab_size: token ids of prompts are below this.
    """

    model: str
    options: Mapping[str, str | int]
    workload: str
    requests: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Offline:
    """An engine in a process of its own, without a server."""

    process: "subprocess.Popen[str]"

    def run(self, seed: int) -> float:
        """Return output tokens per second of the workload with that seed. Raises RuntimeError where it died."""
        source, answers = pipes(self.process)
        source.write(f"{seed}\n")
        source.flush()
        return float(line_of(answers))


@dataclass(frozen=True, slots=True)
class Served:
    """A server, and `chairlift bench serve` for each run."""

    url: str
    task: Task

    def run(self, seed: int) -> float:
        """Return output tokens per second of the workload with that seed. Raises RuntimeError where one failed."""
        task = self.task
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.json"
            words = [
                "--url", self.url, "--workload", task.workload, "--seed", str(seed), "--json", str(path),
                "--concurrency", str(task.requests), "--requests", str(task.requests),
                "--vocab-size", str(task.vocab_size),
            ]  # fmt: skip
            command = [sys.executable, "-m", "chairlift", "bench", "serve", *words]
            done = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"bench serve failed: {done.stderr[-500:]}")
            (phase,) = json.loads(path.read_bytes())["phases"]
        if (ended := phase["requests"]["by_outcome"]) != {"ok": task.requests}:
            raise RuntimeError(f"not every request ended well: {ended}")
        return float(phase["output_tokens_per_second"])


@contextmanager
def offline(task: Task) -> Iterator[Offline]:
    """Start an engine without a server. Raises RuntimeError where it does not start."""
    order = {
        "model": task.model, "options": dict(task.options), "workload": task.workload, "vocab_size": task.vocab_size
    }  # fmt: skip
    command = [sys.executable, "-m", "http_overhead.resident_engine", json.dumps(order)]
    with _started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        line_of(pipes(process)[1])
        yield Offline(process)


@contextmanager
def served(task: Task) -> Iterator[Served]:
    """Start a server. Raises RuntimeError where it does not start."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in task.options.items()]
    command = [
        sys.executable,
        "-m",
        "chairlift",
        "serve",
        task.model,
        "--port=0",
        f"--max-queue-wait={MAX_WAIT}",
        *words,
    ]
    with _started(command, stderr=subprocess.PIPE) as process:
        said = ""
        while (match := re.match(r"ready after .*: (http://\S+)$", said)) is None:
            said = line_of(process.stderr)
        threading.Thread(target=shutil.copyfileobj, args=(process.stderr, sys.stderr), daemon=True).start()
        yield Served(match[1], task)


@contextmanager
def _started(
    command: Sequence[str], *, stdin: int | None = None, stdout: int | None = None, stderr: int | None = None
) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(command, env=ENVIRON, stdin=stdin, stdout=stdout, stderr=stderr, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def pipes(process: "subprocess.Popen[str]") -> tuple[IO[str], IO[str]]:
    """Return standard input and output of a process that has both as pipes."""
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    return process.stdin, process.stdout


def line_of(source: IO[str] | None) -> str:
    """Read a line. Raises RuntimeError at the end, which is that of the process."""
    assert source is not None, "it is a pipe"
    if not (line := source.readline()):
        raise RuntimeError("the process ended before it answered")
    return line.strip()
