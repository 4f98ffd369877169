"""`python -m api_overhead`: measures the API process, prints a table and writes a report."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any

from api_overhead.fake_engine_replica import engine_pid, start_service
from api_overhead.measure import IN_PROCESS, measure_in_process, measure_requests, measure_streams
from api_overhead.running_replica import on_one_core, running_replica
from chairlift.bench.report import environment, report, report_output
from chairlift.bench.server.loadgen import in_own_loop

STREAMS = 100
STEP_SECONDS_OF_STREAMS = (0.005, 0.004, 0.003)
"""Step times of the fake engine in the stream measurement. They set how many tokens per second the engine produces."""

STEP_SECONDS = 0.01
TOKENS = 100
RATE = 100.0
"""Requests per second. Each takes 100 steps of 10 ms, so about 100 requests run at the same time."""

SCRAPES_PER_SECOND = 20.0


def main(words: list[str]) -> int:
    """Run all measurements and return the exit code."""
    parser = argparse.ArgumentParser(prog="api_overhead", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement")
    parser.add_argument("--repeat", type=int, default=5, help="number of runs of each measurement")
    parser.add_argument("--json", help="path of the report to write")
    arguments = parser.parse_args(words)
    source = environment.source()
    results = {
        "chunks": [
            _streams(step_seconds, arguments.seconds)
            for _ in range(arguments.repeat)
            for step_seconds in STEP_SECONDS_OF_STREAMS
        ],
        "scraped": _scraped_streams(arguments.seconds),
        "requests": [
            measurement(2 * arguments.seconds)
            for _ in range(arguments.repeat)
            for measurement in (_in_process_requests, _whole_requests, _streamed_requests)
        ],
    }
    document = report.with_environment("chairlift api overhead", results, source, ["api_overhead", *words])
    report_output.tell(_table(results), arguments.json, document, _print_line)
    return 0


def _streams(step_seconds: float, seconds: float) -> dict[str, Any]:
    with running_replica(step_seconds) as replica:
        return {"seconds_per_step": step_seconds, **in_own_loop(partial(measure_streams, replica, STREAMS, seconds))}


def _scraped_streams(seconds: float) -> list[dict[str, Any]]:
    with running_replica(2 * STEP_SECONDS) as replica:
        return [
            in_own_loop(partial(measure_streams, replica, STREAMS, seconds, scrapes_per_second=rate))
            for rate in (0.0, SCRAPES_PER_SECOND)
        ]


def _in_process_requests(seconds: float) -> dict[str, Any]:
    service = start_service(STEP_SECONDS)
    with closing(service.client), on_one_core(engine_pid(service) or 0):
        return in_own_loop(partial(measure_in_process, service, RATE, TOKENS, seconds))


def _whole_requests(seconds: float, *, stream: bool = False) -> dict[str, Any]:
    with running_replica(STEP_SECONDS) as replica:
        return in_own_loop(partial(measure_requests, replica, RATE, TOKENS, seconds, stream=stream))


_streamed_requests = partial(_whole_requests, stream=True)


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _table(results: dict[str, Any]) -> Iterator[str]:
    for each in results["chunks"]:
        yield (
            f"{each['streams']} streams, steps of {each['seconds_per_step'] * 1000:g} ms: "
            f"{each['chunks_per_second']:,.0f} chunks/s, {each['api_core_share']:.0%} of a core"
        )
    yield f"best: {max(each['chunks_per_second'] for each in results['chunks']):,.0f} chunks/s"
    for each in results["scraped"]:
        gaps = each["gap_seconds"]
        yield (
            f"{each['scrapes_per_second']:g} scrapes/s: time between chunks {gaps['p50'] * 1000:.1f} ms (p50), "
            f"{gaps['p99'] * 1000:.1f} ms (p99), {gaps['max'] * 1000:.1f} ms (max)"
        )
    outside: dict[str, list[float]] = {}
    for each in results["requests"]:
        outside.setdefault(each["how"], []).append(each["outside_seconds"]["p50"] * 1000)
    baseline = median(outside.pop(IN_PROCESS))
    for mode, values in outside.items():
        yield f"{mode} requests, {RATE:g}/s: {median(values) - baseline:+.2f} ms per request (p50, median of all runs)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
