"""`python -m busy_machine`: measures a server beside busy processes of the same priority, and prints what it lost.

    alone       one stream: milliseconds a token on the idle machine
    beside      the same stream while the busy processes run
    mixed       several streams of prompts up to 1,500 tokens at once, beside the busy processes
    stopped     the engine gets SIGSTOP: seconds until the server starts another one, and until it answers again

Words behind `--` go to `chairlift serve`. The exit code is 1 when a request failed or the engine was
started again before it was stopped.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chairlift.bench.report import environment, report, report_output
from chairlift.core.cpu_affinity_and_priority import usable_cpus
from server_process.server_process import ServerProcess

MIXED_PROMPTS = (8, 20, 100, 300, 800, 1500)
MIXED_OUTPUTS = (8, 32, 64)
MIXED_REQUESTS = 2000
ANSWER_SECONDS = 600.0
POLL_SECONDS = 0.1


def main(words: list[str]) -> int:
    """Run the measurement and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="busy_machine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="a model's folder or name; the embedded demo model by default")
    parser.add_argument("--busy", type=int, default=4 * len(usable_cpus()), help="busy processes (%(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, help="duration of the mixed requests (%(default)s)")
    parser.add_argument("--streams", type=int, default=6, help="mixed requests that run at once (%(default)s)")
    parser.add_argument("--tokens", type=int, default=60, help="output tokens of the single stream (%(default)s)")
    parser.add_argument("--json", help="file to write the report to")
    own, serve = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    options = parser.parse_args(own)
    source = environment.source()
    command = [sys.executable, "-m", "chairlift", "serve", *filter(None, [options.model]), "--port=0", *serve]
    with tempfile.TemporaryDirectory() as folder, ServerProcess(command, Path(folder) / "log") as server:
        result = measure(server, options, Path(folder))
    document = report.with_environment("chairlift busy machine", result, source, ["busy_machine", *words])
    report_output.tell(table(result), options.json, document, report_output.print_line)
    return 1 if result["failed"] or result["restarts"] else 0


def measure(server: ServerProcess, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the measurements of a server that is ready."""
    single = [{"prompt_tokens": 16, "output_tokens": options.tokens}]
    drawn = random.Random(0)
    mixed = [
        {"prompt_tokens": drawn.choice(MIXED_PROMPTS), "output_tokens": drawn.choice(MIXED_OUTPUTS)}
        for _ in range(MIXED_REQUESTS)
    ]
    run_bench(server.url, single, folder, ["--requests=1"])
    alone = run_bench(server.url, single, folder, ["--requests=1"])
    with busy_processes(options.busy):
        first = run_bench(server.url, single, folder, ["--requests=1"])
        beside = run_bench(server.url, single, folder, ["--requests=1"])
        load = [f"--concurrency={options.streams}", f"--duration={options.seconds}"]
        requests = run_bench(server.url, mixed, folder, load)
        restarts = server.log().count("the engine is started again")
        stopped = stop_engine(server)
    phases = {"alone": alone, "beside_first": first, "beside": beside, "mixed": requests}
    return {
        "busy_processes": options.busy,
        "ms_a_token": {
            name: 1000 * phases[name]["tpot_seconds"]["mean"] for name in ("alone", "beside_first", "beside")
        },
        "ratio": beside["tpot_seconds"]["mean"] / alone["tpot_seconds"]["mean"],
        "failed": sum(each["requests"]["total"] - each["requests"]["ok"] for each in phases.values()),
        "restarts": restarts,
        "stopped": stopped,
        "phases": phases,
    }


def run_bench(url: str, requests: Sequence[Mapping[str, int]], folder: Path, load: Sequence[str]) -> dict[str, Any]:
    """Send requests with `chairlift bench serve`; return the phase of its report."""
    trace, result = folder / "trace.jsonl", folder / "result.json"
    trace.write_text("".join(json.dumps(each) + "\n" for each in requests))
    result.unlink(missing_ok=True)
    words = ["--url", url, "--workload", str(trace), "--json", str(result), f"--timeout={ANSWER_SECONDS}", *load]
    subprocess.run(
        [sys.executable, "-m", "chairlift", "bench", "serve", *words], stdout=subprocess.DEVNULL, check=False
    )  # a request that failed is in the report
    (phase,) = json.loads(result.read_text())["phases"]
    return {name: value for name, value in phase.items() if name != "samples"}


@contextlib.contextmanager
def busy_processes(count: int, *, own_sessions: bool = False) -> Iterator[None]:
    """Run processes that use all the time that they get.

    With `own_sessions`, each has a session of its own: some kernels share time among sessions.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            processes.append(
                subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=own_sessions)
            )
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def stop_engine(server: ServerProcess) -> dict[str, float]:
    """Stop the engine process; return the seconds until it is replaced, and until the server answers again."""
    assert server.engine_pid is not None
    began, log = time.monotonic(), server.log()
    os.kill(server.engine_pid, signal.SIGSTOP)
    while "the engine is started again" not in server.log()[len(log) :]:
        _wait(began)
    replaced = time.monotonic() - began
    while not _is_ready(server.url):
        _wait(began)
    return {"replaced_seconds": replaced, "ready_seconds": time.monotonic() - began}


def _wait(began: float) -> None:
    if time.monotonic() - began > ANSWER_SECONDS:
        raise TimeoutError(f"the stopped engine was not replaced within {ANSWER_SECONDS:g} s")
    time.sleep(POLL_SECONDS)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/readyz", timeout=ANSWER_SECONDS) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def table(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines for a person."""
    mixed, times = result["phases"]["mixed"], result["ms_a_token"]
    yield f"one stream: {times['alone']:.1f} ms a token alone"
    yield f"beside {result['busy_processes']} busy processes: {times['beside']:.1f} ms, {result['ratio']:.1f} times"
    yield f"in the first seconds beside them: {times['beside_first']:.1f} ms"
    yield f"mixed requests: {mixed['requests']['by_outcome']}, {mixed['output_tokens_per_second']:.1f} tokens/s"
    yield f"time to first token {_span(mixed['ttft_seconds'])}, whole requests {_span(mixed['e2e_seconds'])}"
    yield f"{result['failed']} requests failed, the engine was started again {result['restarts']} times"
    yield "stopped engine: replaced after {replaced_seconds:.1f} s, ready after {ready_seconds:.1f} s".format_map(
        result["stopped"]
    )


def _span(seconds: Mapping[str, float]) -> str:
    return f"{seconds['p50']:.1f} s (p50), {seconds['p99']:.1f} s (p99)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
