"""`python -m router_overhead`: measures router and other proxies side by side, prints a table and writes a report."""

import argparse
import os
import sys
import tempfile
from collections.abc import Coroutine
from dataclasses import asdict
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from chairlift.bench.report import environment, machine_noise, report, report_output
from router_overhead.client_connection import BadResponse
from router_overhead.memory_load import NUM_READINGS, MemoryReading, growth, measure_memory
from router_overhead.proxies import ROUTER, Proxy, ProxyProcess, find_proxies
from router_overhead.scripted_replica import ScriptedReplicas
from router_overhead.stream_load import StreamLoad, StreamResult
from router_overhead.summary import DIRECT, ProxyRounds, rotated, table

WARMUP_SECONDS = 1.0
QUIET_SECONDS = 30.0
"""Longest wait until other programs leave the cores alone."""


class Measurement:
    """One run: the replicas in this process, the proxies, and the rounds of each."""

    def __init__(self, options: argparse.Namespace, proxies: list[Proxy], left_out: dict[str, str]) -> None:
        """Take the options of the command line and the proxies that are installed."""
        self._options = options
        self._proxies = proxies
        self._numbers = count(1)
        self._processes: dict[str, ProxyProcess] = {}
        self.left_out = left_out
        self.rounds: dict[str, ProxyRounds] = {}
        self.memory: list[MemoryReading] = []

    async def run(self, folder: Path, proxy_cpus: frozenset[int]) -> None:
        """Start the proxies, measure, and end them."""
        async with ScriptedReplicas(self._options.replicas) as self._replicas:
            try:
                for proxy in self._proxies:
                    self._processes[proxy.name] = ProxyProcess(
                        proxy, folder / proxy.name, self._replicas.ports, proxy_cpus
                    )
                for name, process in [*self._processes.items()]:
                    try:
                        await process.wait_until_ready()
                    except RuntimeError as error:
                        self._leave_out(name, str(error))
                await self._measure()
            finally:
                for process in self._processes.values():
                    process.stop()

    async def _measure(self) -> None:
        self.rounds = {DIRECT: ProxyRounds("")}
        self.rounds |= {name: ProxyRounds(process.proxy.version) for name, process in self._processes.items()}
        for at in range(self._options.rounds):
            for name in rotated([DIRECT, *self._processes], at):
                await self._attempt(name, self._saturate(name, at))
        for at in range(self._options.rounds):
            for name in rotated([*self._processes], at):
                await self._attempt(name, self._pace(name, at))
        for name, process in self._processes.items():
            self.rounds[name].rss_bytes = process.tree.rss_bytes()
        if self._options.memory_requests and ROUTER in self._processes:
            process, number = self._processes[ROUTER], self._options.memory_requests
            self.memory = await measure_memory(process.port, process.tree, self._numbers, number, _print_reading)

    async def _attempt(self, name: str, measurement: Coroutine[Any, Any, None]) -> None:
        """Run a measurement; a proxy whose responses are bad is left out from then on, and its rounds stay."""
        try:
            await measurement
        except (BadResponse, OSError) as error:
            if name == DIRECT:
                raise
            self._leave_out(name, str(error) or type(error).__name__)

    def _leave_out(self, name: str, reason: str) -> None:
        self._processes.pop(name).stop()
        if name in self.rounds and not self.rounds[name].saturated:
            del self.rounds[name]
        self.left_out[name] = reason

    async def _saturate(self, name: str, at: int) -> None:
        result = await self._measure_streams(name, None, self._options.seconds, at)
        self.rounds[name].saturated.append(result)
        _print(f"{name}: {result.chunks_per_second:,.0f} chunks/s")

    async def _pace(self, name: str, at: int) -> None:
        rounds = self.rounds[name]
        rounds.load = self._options.load or median(each.chunks_per_second for each in rounds.saturated) / 2
        seconds_per_step = self._options.streams / rounds.load
        results = {
            each: await self._measure_streams(each, seconds_per_step, self._options.paced_seconds, at)
            for each in rotated([name, DIRECT], at)
        }
        rounds.paced.append((results[name], results[DIRECT]))
        shown = ", ".join(f"{results[each].ttft(50) or 0:.4f} s {each}" for each in (name, DIRECT))
        _print(f"{name}, paced at {rounds.load:,.0f} chunks/s: first chunk after {shown} (p50)")

    async def _measure_streams(
        self, name: str, seconds_per_step: float | None, seconds: float, at: int
    ) -> StreamResult:  # fmt: skip
        process = self._processes.get(name)
        ports = self._replicas.ports if process is None else [process.port]
        load = StreamLoad(
            self._replicas, ports, self._numbers, num_streams=self._options.streams, num_tokens=self._options.tokens,
            seconds_per_step=seconds_per_step, seed=at,
        )  # fmt: skip
        async with load:
            await load.warm_up(WARMUP_SECONDS)
            return await load.measure(seconds, None if process is None else process.tree)


def main(words: list[str]) -> int:
    """Run all measurements and return the exit code."""
    options = _parser().parse_args(words)
    source = environment.source()
    proxies, left_out = find_proxies(options.litellm, options.sglang_router)
    if options.only:
        left_out |= {each.name: "--only does not name it" for each in proxies if each.name not in options.only}
        proxies = [each for each in proxies if each.name in options.only]
    if not options.rounds:
        proxies = [each for each in proxies if each.name == ROUTER]
    generator_cpus, proxy_cpus = divided_cpus(os.sched_getaffinity(0))
    quiet = machine_noise.wait_until_quiet(QUIET_SECONDS if options.rounds else 0.0)
    os.sched_setaffinity(0, generator_cpus)
    measurement = Measurement(options, proxies, left_out)
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measurement.run(Path(folder), proxy_cpus))
    results = {
        "settings": {
            **{name: getattr(options, name) for name in ("streams", "tokens", "replicas", "rounds")},
            "load": options.load or "half of the chunks per second at saturation of each proxy",
            "pinned": proxy_cpus != generator_cpus,
        },
        "gaps_before": quiet.lost,
        "left_out": left_out,
        "proxies": {name: each.fields() for name, each in measurement.rounds.items()},
        "memory": [asdict(each) for each in measurement.memory],
    }  # fmt: skip
    document = report.with_environment("chairlift router overhead", results, source, ["router_overhead", *words])
    lines = [*(table(measurement.rounds, left_out) if options.rounds else ()), *_memory_lines(measurement.memory)]
    report_output.tell(lines, options.output, document, _print)
    return 0


def divided_cpus(usable: set[int]) -> tuple[frozenset[int], frozenset[int]]:
    """Return the CPU of load generator and replicas, and the one of the proxies: two, if there are two."""
    first_two = sorted(usable)[:2]
    return frozenset(first_two[-1:]), frozenset(first_two[:1])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="router_overhead", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of each proxy; 0 leaves the streams out (default: 5)"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="duration at saturation (default: 2)")
    parser.add_argument("--paced-seconds", type=float, default=3.0, help="duration at a set load (default: 3)")
    parser.add_argument("--streams", type=int, default=100, help="concurrent streams (default: 100)")
    parser.add_argument("--tokens", type=int, default=100, help="tokens, and chunks, of a stream (default: 100)")
    parser.add_argument("--replicas", type=int, default=4, help="scripted replicas behind each proxy (default: 4)")
    parser.add_argument(
        "--load", type=float, metavar="N", help="chunks per second of the paced measurements (default: half of the "
        "chunks per second at saturation of each proxy)",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"proxies to measure, such as {ROUTER} nginx")
    parser.add_argument("--litellm", metavar="PROGRAM", help="path of LiteLLM's program")
    parser.add_argument("--sglang-router", metavar="PYTHON", help="path of a Python interpreter with sglang-router")
    parser.add_argument(
        "--memory-requests", type=int, default=0, metavar="N",
        help=f"requests during which the router's memory is read {NUM_READINGS} times (default: 0)",
    )  # fmt: skip
    parser.add_argument("--output", metavar="FILE", help="path of the report to write")
    return parser


def _memory_lines(readings: list[MemoryReading]) -> list[str]:
    if not readings:
        return []
    last = readings[-1]
    return [
        f"memory of the router: {', '.join(f'{each.rss_bytes / 1e6:.1f}' for each in readings)} MB over "
        f"{last.num_requests:,} requests at {last.num_requests / last.seconds:,.0f}/s; last half by second quarter: "
        f"{growth(readings):.3f}"
    ]


def _print_reading(reading: MemoryReading) -> None:
    _print(f"{reading.num_requests:,} requests: {reading.rss_bytes / 1e6:.1f} MB after {reading.seconds:.0f} s")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
