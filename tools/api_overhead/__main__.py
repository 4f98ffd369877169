"""`python -m api_overhead`: measure, print a table, write a report."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any

from api_overhead.measure import chunks, direct, requests
from api_overhead.replica import engine_pid, service
from api_overhead.server_fixture import on_one_core, replica
from chairlift.bench.report import environment, report
from chairlift.bench.server.loadgen import in_own_loop

STREAMS = 100
PACES = (0.005, 0.004, 0.003)
"""Seconds of the fake engine's steps: how many tokens a second it offers to the API process."""

STEP = 0.01
TOKENS = 100
RATE = 100.0
"""Requests of a hundred steps of ten milliseconds, a hundred a second: about a hundred at the same time."""

SCRAPES = 20.0


def main(words: list[str]) -> int:
    """Measure what was asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="api_overhead", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=5, help="turns of the streams")
    parser.add_argument("--json", help="write the report there")
    asked = parser.parse_args(words)
    source = environment.source()
    found = {
        "chunks": [_chunks(pace, asked.seconds) for _ in range(asked.repeat) for pace in PACES],
        "scraped": _scraped(asked.seconds),
        "requests": [way(2 * asked.seconds) for _ in range(asked.repeat) for way in (_direct, _whole, _streamed)],
    }
    made = report.with_environment("chairlift door cost", found, source, ["api_overhead", *words])
    report.tell(_table(found), asked.json, made, _say)
    return 0


def _chunks(pace: float, seconds: float) -> dict[str, Any]:
    with replica(pace) as place:
        return {"seconds_per_step": pace, **in_own_loop(partial(chunks, place, STREAMS, seconds))}


def _scraped(seconds: float) -> list[dict[str, Any]]:
    with replica(2 * STEP) as place:
        return [in_own_loop(partial(chunks, place, STREAMS, seconds, scrapes=each)) for each in (0.0, SCRAPES)]


def _direct(seconds: float) -> dict[str, Any]:
    made = service(STEP)
    with closing(made.client), on_one_core(engine_pid(made) or 0):
        return in_own_loop(partial(direct, made, RATE, TOKENS, seconds))


def _whole(seconds: float, *, stream: bool = False) -> dict[str, Any]:
    with replica(STEP) as place:
        return in_own_loop(partial(requests, place, RATE, TOKENS, seconds, stream=stream))


_streamed = partial(_whole, stream=True)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _table(found: dict[str, Any]) -> Iterator[str]:
    for each in found["chunks"]:
        yield (
            f"{each['streams']} streams, steps of {each['seconds_per_step'] * 1000:g} ms: "
            f"{each['chunks_per_second']:,.0f} chunks/s, {each['api_core_share']:.0%} of a core"
        )
    yield f"best: {max(each['chunks_per_second'] for each in found['chunks']):,.0f} chunks/s"
    for each in found["scraped"]:
        gaps = each["gap_seconds"]
        yield (
            f"{each['scrapes_per_second']:g} scrapes/s: a stream's gaps {gaps['p50'] * 1000:.1f} ms (p50), "
            f"{gaps['p99'] * 1000:.1f} ms (p99), {gaps['max'] * 1000:.1f} ms (max)"
        )
    outside: dict[str, list[float]] = {}
    for each in found["requests"]:
        outside.setdefault(each["how"], []).append(each["outside_seconds"]["p50"] * 1000)
    least = median(outside.pop("without a door"))
    for how, values in outside.items():
        yield f"{how} requests, {RATE:g} a second: {median(values) - least:+.2f} ms each (p50, medians of the turns)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
