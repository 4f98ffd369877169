"""`python -m cpu_roofline MODEL`: measure in turns, print how near to its floors each part is, write a report."""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chairlift.bench.offline.subprocess_run import environ_with, exchange
from chairlift.bench.report import environment, report
from chairlift.bench.report.machine_noise import wait_until_quiet
from cpu_roofline.peaks import TOOLS

BLOCKS = 1024
"""Of the KV cache: enough for all of W1 at once."""

PATIENCE = 30.0
"""Seconds in which the machine may become quiet before each turn."""


def main(words: list[str]) -> int:
    """Measure what was asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="cpu_roofline", description=__doc__)
    parser.add_argument("model", type=Path, help="a model's folder")
    parser.add_argument("--quantization", default="none", help="of the weights (%(default)s)")
    parser.add_argument("--cores", type=int, help="that everything may use, from the last one on (all)")
    parser.add_argument("--repeat", type=int, default=3, help="turns, each in a fresh process (%(default)s)")
    parser.add_argument("--json", help="write the report there")
    asked = parser.parse_args(words)
    source = environment.source()
    if asked.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-asked.cores :])
    options = {"dtype": "bfloat16", "quantization": asked.quantization, "num_blocks": BLOCKS}
    order = json.dumps({"model": str(asked.model.resolve()), "options": options}).encode()
    turns = []
    for number in range(asked.repeat):
        calm = wait_until_quiet(PATIENCE)
        turns.append(
            exchange([sys.executable, "-P", "-m", "cpu_roofline.measurement"], order, environ=environ_with(TOOLS))
        )
        turns[-1]["gaps"] = calm.lost
        _say(f"turn {number + 1}: {turns[-1]['w1']['output_tokens_per_second']:.1f} output tokens/s")
    medians = summary(turns)
    found = {
        "model": {"name": asked.model.resolve().name, "shape": environment.model_shape(str(asked.model))},
        "options": options,
        "cores": len(os.sched_getaffinity(0)),
        "summary": medians,
        "turns": turns,
    }
    made = report.with_environment("chairlift cpu floors", found, source, ["cpu_roofline", *words])
    report.tell(table(medians), asked.json, made, _say)
    return 0


def summary(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return medians over the turns; each floor is held against what was measured around it, in the same turn."""

    def middle(of: Callable[[Mapping[str, Any]], float]) -> float:
        return statistics.median(map(of, turns))

    def over_floor(part: str) -> float:
        return middle(lambda turn: statistics.median(took / floor for took, floor in turn[part]["seconds_and_floor"]))

    return {
        "w1_output_tokens_per_second": middle(lambda turn: turn["w1"]["output_tokens_per_second"]),
        "w1_seconds": middle(lambda turn: turn["w1"]["seconds"]),
        "peak_gflops": middle(lambda turn: max(turn["w1"]["peak_gflops"])),
        "w1_of_compute_floor": middle(
            lambda turn: turn["w1"]["flops"] / max(turn["w1"]["peak_gflops"]) / 1e9 / turn["w1"]["seconds"]
        ),
        "w1_parts_seconds": {
            name: statistics.median(turn["w1"]["parts"][name] for turn in turns) for name in turns[0]["w1"]["parts"]
        },
        "single_tokens_per_second": middle(
            lambda turn: 1 / statistics.median(took for took, _ in turn["single"]["seconds_and_floor"])
        ),
        "single_over_bandwidth_floor": over_floor("single"),
        "attention_over_bandwidth_floor": over_floor("attention"),
    }  # fmt: skip


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that a person reads."""
    seconds = found["w1_seconds"]
    yield f"W1: {found['w1_output_tokens_per_second']:.1f} output tokens/s in {seconds:.2f} s"
    share, peak = found["w1_of_compute_floor"], found["peak_gflops"]
    yield f"    {share:.1%} of the compute floor ({peak:.0f} GFLOP/s of products)"
    for name, spent in found["w1_parts_seconds"].items():
        yield f"    {name:32s} {spent:6.2f} s {spent / seconds:6.1%}"
    rate, over = found["single_tokens_per_second"], found["single_over_bandwidth_floor"]
    yield f"one stream: {rate:.1f} tokens/s, {1 / over:.1%} of its bandwidth floor"
    over = found["attention_over_bandwidth_floor"]
    yield f"attention of 32 sequences of 2,048 tokens: {over:.2f} times its bandwidth floor"


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
