"""`python -m cpu_roofline MODEL`: compare the native kernels with the machine's peaks, and write a report."""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chairlift.bench.offline.subprocess_run import environ_with, exchange
from chairlift.bench.report import environment, model_size_fields, report, report_output
from chairlift.bench.report.machine_noise import wait_until_quiet
from cpu_roofline.hardware_peaks import TOOLS

NUM_BLOCKS = 1024
"""Blocks of the KV cache: enough for all requests of workload W1 at once."""

PATIENCE = 30.0
"""Seconds to wait before each run for the machine to become quiet."""


def main(args: list[str]) -> int:
    """Run the measurement. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="cpu_roofline", description=__doc__)
    parser.add_argument("model", type=Path, help="a model's folder")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="data type (%(default)s)")
    parser.add_argument("--quantization", default="none", help="quantization of the weights (%(default)s)")
    parser.add_argument("--cores", type=int, help="number of CPUs to use, the last ones first (all)")
    parser.add_argument("--repeat", type=int, default=3, help="runs, each in a new process (%(default)s)")
    parser.add_argument("--json", help="file to write the report to")
    arguments = parser.parse_args(args)
    source = environment.source()
    if arguments.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-arguments.cores :])
    options = {"dtype": arguments.dtype, "quantization": arguments.quantization, "num_blocks": NUM_BLOCKS}
    run_spec = json.dumps({"model": str(arguments.model.resolve()), "options": options}).encode()
    runs = []
    for number in range(arguments.repeat):
        noise = wait_until_quiet(PATIENCE)
        runs.append(
            exchange([sys.executable, "-P", "-m", "cpu_roofline.roofline_run"], run_spec, environ=environ_with(TOOLS))
        )
        runs[-1]["gaps"] = noise.lost
        _print_line(f"run {number + 1}: {runs[-1]['w1']['output_tokens_per_second']:.1f} output tokens/s")
    medians = summary(runs)
    result = {
        "model": {"name": arguments.model.resolve().name, "shape": model_size_fields.model_shape(str(arguments.model))},
        "options": options,
        "cores": len(os.sched_getaffinity(0)),
        "summary": medians,
        "turns": runs,
    }
    full_report = report.with_environment("chairlift cpu floors", result, source, ["cpu_roofline", *args])
    report_output.tell(table(medians), arguments.json, full_report, _print_line)
    return 0


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return medians over the runs; each time is compared with the lower bound measured in the same run."""

    def median_of(value: Callable[[Mapping[str, Any]], float]) -> float:
        return statistics.median(map(value, runs))

    def over_floor(part: str) -> float:
        return median_of(lambda run: statistics.median(took / floor for took, floor in run[part]["seconds_and_floor"]))

    return {
        "w1_output_tokens_per_second": median_of(lambda run: run["w1"]["output_tokens_per_second"]),
        "w1_seconds": median_of(lambda run: run["w1"]["seconds"]),
        "peak_gflops": median_of(lambda run: max(run["w1"]["peak_gflops"])),
        "w1_of_compute_floor": median_of(
            lambda run: run["w1"]["flops"] / max(run["w1"]["peak_gflops"]) / 1e9 / run["w1"]["seconds"]
        ),
        "w1_parts_seconds": {
            name: statistics.median(run["w1"]["parts"][name] for run in runs) for name in runs[0]["w1"]["parts"]
        },
        "single_tokens_per_second": median_of(
            lambda run: 1 / statistics.median(took for took, _ in run["single"]["seconds_and_floor"])
        ),
        "single_over_bandwidth_floor": over_floor("single"),
        "attention_over_bandwidth_floor": over_floor("attention"),
    }  # fmt: skip


def table(medians: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the printed table."""
    seconds = medians["w1_seconds"]
    yield f"W1: {medians['w1_output_tokens_per_second']:.1f} output tokens/s in {seconds:.2f} s"
    share, peak = medians["w1_of_compute_floor"], medians["peak_gflops"]
    yield f"    {share:.1%} of the compute bound ({peak:.0f} GFLOP/s in matrix products)"
    for name, part_seconds in medians["w1_parts_seconds"].items():
        yield f"    {name:32s} {part_seconds:6.2f} s {part_seconds / seconds:6.1%}"
    rate, ratio = medians["single_tokens_per_second"], medians["single_over_bandwidth_floor"]
    yield f"one stream: {rate:.1f} tokens/s, {1 / ratio:.1%} of the memory bandwidth bound"
    ratio = medians["attention_over_bandwidth_floor"]
    yield f"attention of 32 sequences of 2,048 tokens: {ratio:.2f} times the time of reading the KV cache"


def _print_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
