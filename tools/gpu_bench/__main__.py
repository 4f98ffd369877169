"""`python -m gpu_bench`: measure one GPU in at most eight minutes, print the figures beside their goals, write JSON."""

import argparse
import datetime
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from chairlift.bench.report import environment, report, report_output
from chairlift.core.clock import SystemClock
from chairlift.core.errors import ConfigError
from chairlift.model.config.device_option import pick_device
from gpu_bench.bench_shapes import SIZES
from gpu_bench.goals import figure_rows, table
from gpu_bench.measurements import Measurements
from gpu_bench.part_budget import PartOutcome, run_parts

KIND = "chairlift gpu bench"
RESULTS = Path("benchmarks/results")
MINUTES = 8.0


def main(args: Sequence[str]) -> int:
    """Run the benchmark. Returns 0, 1 if a part failed, 2 without a usable device or for a wrong part."""
    options = _parser().parse_args(args)
    clock, source = SystemClock(), environment.source()
    try:
        device = _device(options.device)
        measurements = Measurements(device, SIZES[options.shapes])
        parts = _chosen_parts(measurements, options.parts)
        output = options.output or RESULTS / default_name(device)
        output.parent.mkdir(parents=True, exist_ok=True)
    except (ConfigError, OSError) as error:
        _print_line(f"error: {error}")
        return 2
    outcomes: list[PartOutcome] = []

    def keep(outcome: PartOutcome) -> None:
        outcomes.append(outcome)
        ending = f": {outcome.reason}" if outcome.reason else ""
        _print_line(f"{outcome.name}: {outcome.status} after {outcome.seconds:.1f} s{ending}")
        result = build_result(outcomes, options.shapes, options.minutes)
        report_output.write(str(output), report.with_environment(KIND, result, source, ["gpu_bench", *args]))

    try:
        run_parts(parts, options.minutes * 60, clock, keep)
    finally:
        measurements.close()
    for line in table(build_result(outcomes, options.shapes, options.minutes)["figures"]):
        _print_line(line)
    _print_line(f"written to {output}")
    return int(any(outcome.status == "failed" for outcome in outcomes))


def build_result(outcomes: Sequence[PartOutcome], shapes: str, minutes: float) -> dict[str, Any]:
    """Return the fields of the report: what became of each part, and the figures beside their goals."""
    return {
        "shapes": shapes,
        "budget_minutes": minutes,
        "figures": figure_rows(
            {outcome.name: finite(outcome.result) for outcome in outcomes}, goals_apply=shapes == "full"
        ),
        "parts": {
            outcome.name: {
                "status": outcome.status, "seconds": outcome.seconds, "reason": outcome.reason,
                "result": finite(outcome.result), "trace": list(outcome.trace),
            }
            for outcome in outcomes
        },
    }  # fmt: skip


def finite(value: Any) -> Any:
    """Return a JSON value with None for numbers that are infinite or not numbers, which JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def default_name(device: torch.device) -> str:
    """Return a file name with the device's name and today's date (UTC)."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"gpu-{slug}-{datetime.datetime.now(datetime.UTC).date()}.json"


def _device(name: str) -> torch.device:
    """Return the device of the option. Raises ConfigError where there is none."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        build = f"torch {torch.__version__} has no CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        raise ConfigError(
            f"the GPU benchmark needs an NVIDIA GPU, but {build}; run it on a machine with a GPU and torch's CUDA "
            "build, or try it out with --device cpu --shapes tiny", option="device",
        )  # fmt: skip
    return pick_device(name)


def _chosen_parts(measurements: Measurements, names: str | None) -> list[Any]:
    """Return the parts of the option --parts in their own order. Raises ConfigError for an unknown one."""
    known = [part.name for part in measurements.parts]
    chosen = known if names is None else names.split(",")
    if unknown := [name for name in chosen if name not in known]:
        raise ConfigError(f"unknown parts {', '.join(unknown)}; available are {', '.join(known)}", option="parts")
    return [part for part in measurements.parts if part.name in chosen]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu_bench", description=__doc__)
    parser.add_argument("--parts", help="parts to run, separated by commas (all)")
    parser.add_argument("--output", type=Path, help=f"file of the report ({RESULTS}/gpu-NAME-DATE.json)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="time budget (%(default)s)")
    parser.add_argument("--device", default="cuda", help="device to measure (%(default)s)")
    parser.add_argument("--shapes", choices=tuple(SIZES), default="full", help="models and numbers of tokens")
    return parser


def _print_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
