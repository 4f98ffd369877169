"""`python -m live_overhead`: measures what watchers of the live data cost a busy engine, and prints a table.

A real server computes a constant number of requests. Each round measures it once without watchers and once with them,
in random order, so that a machine that becomes slower costs both the same.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from random import Random
from statistics import median, quantiles
from typing import Any

from api_overhead.running_replica import RunningReplica, running_server
from chairlift.bench.report import environment, report, report_output
from chairlift.bench.server.loadgen import in_own_loop
from live_overhead.watcher_phase import SETTLE_SECONDS, Phase, find_model, measure_phase, running, send_requests

WARMUP_SECONDS = 3.0
QUARTILES = 4


def main(words: list[str]) -> int:
    """Run the measurement and return the exit code."""
    parser = argparse.ArgumentParser(prog="live_overhead", description=__doc__)
    parser.add_argument("model", nargs="?", help="a model's folder or name; the embedded demo model by default")
    parser.add_argument("--watchers", type=int, default=5, help="streams of live data (%(default)s)")
    parser.add_argument("--requests", type=int, default=32, help="requests that run at once (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=200, help="most output tokens of a request (%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of two measurements (%(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of a measurement (%(default)s)")
    parser.add_argument("--json", help="file to write the report to")
    options = parser.parse_args(words)
    source = environment.source()
    with running_server(["chairlift", "serve", *filter(None, [options.model]), "--port=0"]) as replica:
        rounds = in_own_loop(partial(_measure, replica, options))
    result = summarize(rounds) | {"rounds": [[asdict(phase) for phase in pair] for pair in rounds]}
    document = report.with_environment("chairlift live overhead", result, source, ["live_overhead", *words])
    report_output.tell(_table(result), options.json, document, report_output.print_line)
    return 0


async def _measure(replica: RunningReplica, options: argparse.Namespace) -> list[tuple[Phase, Phase]]:
    """Return the measurements without and with watchers of each round."""
    client, random, rounds = replica.client(), Random(0), list[tuple[Phase, Phase]]()
    model = await find_model(client)
    load = (send_requests(client, model, options.max_tokens, Random(number)) for number in range(options.requests))
    report_output.print_line(f"about {options.rounds * 2 * (options.seconds + SETTLE_SECONDS) + WARMUP_SECONDS:.0f} s")
    async with running(*load):
        await asyncio.sleep(WARMUP_SECONDS)
        for _ in range(options.rounds):
            order = [0, options.watchers]
            random.shuffle(order)
            phases = {number: await measure_phase(replica, number, options.seconds) for number in order}
            rounds.append((phases[0], phases[options.watchers]))
    client.close()
    return rounds


def summarize(rounds: Sequence[tuple[Phase, Phase]]) -> dict[str, Any]:
    """Return the quartiles of the ratios with watchers / without, and the medians of the measurements.

    `ratios` are "speed" (decode tokens a second), "engine_cpu_per_step" and "api_cpu" (CPU time a second).
    """
    measures = {
        "speed": lambda phase: phase.num_tokens / phase.seconds,
        "engine_cpu_per_step": lambda phase: phase.engine_cpu_seconds / phase.num_steps,
        "api_cpu": lambda phase: phase.api_cpu_seconds / phase.seconds,
    }
    values = {name: [tuple(map(measure, pair)) for pair in rounds] for name, measure in measures.items()}
    return {
        "ratios": {
            name: _quartiles([after / before for before, after in pairs if before]) for name, pairs in values.items()
        },
        "without": {name: median(before for before, _ in pairs) for name, pairs in values.items()},
        "with": {name: median(after for _, after in pairs) for name, pairs in values.items()},
        "num_watchers": rounds[0][1].num_watchers,
        "batch_events_per_watcher_and_second": median(
            after.num_batch_events / after.num_watchers / after.seconds for _, after in rounds
        ),
    }


def _quartiles(values: Sequence[float]) -> list[float]:
    return quantiles(values, n=QUARTILES, method="inclusive") if len(values) > 1 else [*values] * 3


def _table(result: Mapping[str, Any]) -> Iterator[str]:
    names = {
        "speed": "decode tokens a second", "engine_cpu_per_step": "CPU seconds of the engine a step",
        "api_cpu": "CPU seconds of the API server a second",
    }  # fmt: skip
    yield f"{'':40} {'0 watchers':>12} {result['num_watchers']:>3} watchers  ratio (quartiles)"
    for name, title in names.items():
        low, middle, high = result["ratios"][name] or (0.0, 0.0, 0.0)
        before, after = result["without"][name], result["with"][name]
        yield f"{title:40} {before:12.5g} {after:12.5g}  {middle:.4f} ({low:.4f} to {high:.4f})"
    yield f"snapshots a second, each watcher: {result['batch_events_per_watcher_and_second']:.2f}"
    yield f"cost of {result['num_watchers']} watchers: {100 * (1 - result['ratios']['speed'][1]):.2f} % of the speed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
