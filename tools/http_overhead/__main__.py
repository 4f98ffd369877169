"""`python -m http_overhead MODEL`: measure how much of an engine's speed remains when it is reached over HTTP.

Each round runs the workload offline and over HTTP with the same seed. Prints a table and writes a report.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.report import environment, report, report_output
from http_overhead.engine_and_server_processes import BenchmarkSpec, run_http_server, run_offline_engine

NUM_BLOCKS = 1200
"""Blocks of the KV cache in both engines: more than workload W1 needs."""


def main(args: list[str]) -> int:
    """Run the measurement. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="http_overhead", description=__doc__)
    parser.add_argument("model", help="a model's folder or name")
    parser.add_argument("--dtype", default="bfloat16", help="dtype of the weights (%(default)s)")
    parser.add_argument("--quantization", default="none", help="quantization of the weights (%(default)s)")
    parser.add_argument("--workload", default="w1", help="name of the workload (%(default)s)")
    parser.add_argument(
        "--vocab-size", type=int, default=2000, help="the token ids of prompts are below this (%(default)s)"
    )
    parser.add_argument("--turns", type=int, default=7, help="rounds after the first, which is discarded (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round (%(default)s)")
    parser.add_argument("--json", help="file to write the report to")
    options = parser.parse_args(args)
    source = environment.source()
    engine_options = {"dtype": options.dtype, "quantization": options.quantization, "num_blocks": NUM_BLOCKS}
    spec = BenchmarkSpec(
        model=options.model,
        options=engine_options,
        workload=options.workload,
        num_requests=len(WorkloadSpec(name=options.workload).make(options.vocab_size).items),
        vocab_size=options.vocab_size,
    )
    with ExitStack() as stack:
        arms = {
            "offline": stack.enter_context(run_offline_engine(spec)).run,
            "http": stack.enter_context(run_http_server(spec)).run,
        }
        result = compare_arms(arms, options.turns, options.seed, report_output.print_line)
    full_report = report.with_environment("chairlift http share", result, source, ["http_overhead", *args])
    report_output.tell(_table(result), options.json, full_report, report_output.print_line)
    return 0


def compare_arms(
    arms: Mapping[str, Callable[[int], float]], num_rounds: int, seed: int, print_line: Callable[[str], None]
) -> dict[str, Any]:
    """Run both arms in each round, in random order, after one round that is discarded.

    Returns each arm's output tokens per second by round, the ratios of "http" to "offline", and their median.
    """
    rng = random.Random(seed)
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(num_rounds + 1):
        order = list(arms)
        rng.shuffle(order)
        for name in order:
            speed = arms[name](seed + number)
            print_line(f"round {number} of {num_rounds}: {name} {speed:.1f} output tokens/s")
            if number:
                speeds[name].append(speed)
    shares = http_shares(speeds)
    return {"output_tokens_per_second": speeds, "shares": shares, "median_share": median(shares)}


def http_shares(speeds: Mapping[str, Sequence[float]]) -> list[float]:
    """Return the ratio of the speed of "http" to that of "offline" for each round."""
    return [http / offline for http, offline in zip(speeds["http"], speeds["offline"], strict=True)]


def _table(result: Mapping[str, Any]) -> Iterator[str]:
    for name, speeds in result["output_tokens_per_second"].items():
        yield f"{name:10} {median(speeds):8.1f} output tokens/s (median)"
    shares = result["shares"]
    yield f"http over offline: {result['median_share']:.3f} (median; {min(shares):.3f} to {max(shares):.3f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
