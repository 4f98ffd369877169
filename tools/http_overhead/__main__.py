"""`python -m http_overhead MODEL`: a workload offline and over HTTP, in turns, equal seeds; a table and a report."""

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.report import environment, report
from http_overhead.paths import Task, offline, served

BLOCKS = 1200
"""Of the KV cache, in both processes: more than W1 takes."""


def main(words: list[str]) -> int:
    """Measure what was asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="http_overhead", description=__doc__)
    parser.add_argument("model", help="a model's folder, or its name")
    parser.add_argument("--dtype", default="bfloat16", help="(%(default)s)")
    parser.add_argument("--quantization", default="none", help="of the weights (%(default)s)")
    parser.add_argument("--workload", default="w1", help="(%(default)s)")
    parser.add_argument(
        "--vocab-size", type=int, default=2000, help="token ids of prompts are below this (%(default)s)"
    )
    parser.add_argument("--turns", type=int, default=7, help="behind a first one that does not count (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first turn (%(default)s)")
    parser.add_argument("--json", help="write the report there")
    asked = parser.parse_args(words)
    source = environment.source()
    options = {"dtype": asked.dtype, "quantization": asked.quantization, "num_blocks": BLOCKS}
    requests = len(WorkloadSpec(name=asked.workload).make(asked.vocab_size).items)
    task = Task(
        model=asked.model, options=options, workload=asked.workload, requests=requests, vocab_size=asked.vocab_size
    )  # fmt: skip
    with ExitStack() as held:
        ways = {"offline": held.enter_context(offline(task)).run, "http": held.enter_context(served(task)).run}
        found = compared(ways, asked.turns, asked.seed, _say)
    made = report.with_environment("chairlift http share", found, source, ["http_overhead", *words])
    report.tell(_table(found), asked.json, made, _say)
    return 0


def compared(
    ways: Mapping[str, Callable[[int], float]], turns: int, seed: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run both ways in each turn, who is first by chance, and one turn more that does not count.

    Returns output tokens per second of each turn by way, the share of "http" in "offline", and the shares' median.
    """
    rng = random.Random(seed)
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        order = list(ways)
        rng.shuffle(order)
        for name in order:
            speed = ways[name](seed + turn)
            say(f"turn {turn} of {turns}: {name} {speed:.1f} output tokens/s")
            if turn:
                speeds[name].append(speed)
    shares = shares_of(speeds)
    return {"output_tokens_per_second": speeds, "shares": shares, "median_share": median(shares)}


def shares_of(speeds: Mapping[str, Sequence[float]]) -> list[float]:
    """Return what "http" reached of "offline" in each turn."""
    return [http / alone for http, alone in zip(speeds["http"], speeds["offline"], strict=True)]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _table(found: Mapping[str, Any]) -> Iterator[str]:
    for name, speeds in found["output_tokens_per_second"].items():
        yield f"{name:10} {median(speeds):8.1f} output tokens/s (median)"
    shares = found["shares"]
    yield f"http over offline: {found['median_share']:.3f} (median; {min(shares):.3f} to {max(shares):.3f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
