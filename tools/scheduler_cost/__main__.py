"""`python -m scheduler_cost [POLICY ..]`: measures the CPU time of the scheduler per step, for every policy.

It has 256 and 1,024 running requests, and then 100 to 100,000 waiting ones. In each step one sequence in twenty
finishes. Cases alternate.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from chairlift.bench.report import environment, report, report_output
from chairlift.engine.scheduler.waiting_queue.base import POLICIES
from scheduler_cost.scheduler_cost import FLATNESS, all_cases, flatness_cases, measure


def main(words: Sequence[str]) -> int:
    """Measure every policy, then each with longer queues; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scheduler_cost", description=__doc__)
    parser.add_argument("policies", nargs="*", metavar="POLICY", help="scheduling policy to measure (default: all)")
    parser.add_argument("--windows", type=int, default=5, help="measured windows of each case (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="steps in a window (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the requests (%(default)s)")
    parser.add_argument("--json", help="file to write the report to")
    options = parser.parse_args(words)
    for name in ("windows", "steps"):
        if (value := getattr(options, name)) < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    if unknown := [name for name in options.policies if name not in POLICIES]:
        parser.error(f"unknown policy {unknown[0]!r}; available are {', '.join(POLICIES)}")
    source = environment.source()
    results = measure_policies(options.policies or list(POLICIES), options.windows, options.steps, options.seed)
    document = report.with_environment("chairlift scheduler cost", results, source, ["scheduler_cost", *words])
    entries = [results["arms"], *results["flatness"]["policies"].values()]
    report_output.tell(
        (line for each in entries for line in _table(each)), options.json, document, report_output.print_line
    )
    return 0


def measure_policies(policies: Sequence[str], windows: int, steps: int, seed: int) -> dict[str, Any]:
    """Return the results of the policies at both numbers of running requests, and with longer and longer queues."""
    options: dict[str, Any] = {"windows": windows, "steps": steps, "seed": seed, "note": _print_note}
    cases = measure([case for case in all_cases() if case.scheduling_policy in policies], **options)
    flatness = {policy: measure(flatness_cases(policy), **options) for policy in policies}
    return {
        "arms": cases,
        "flatness": {"waiting": list(FLATNESS), "policies": flatness},
        "windows": windows,
        "steps_in_a_window": steps,
        "seed": seed,
    }


def _print_note(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _table(cases: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{'policy':<12} {'batching':<13} {'running':>7} {'waiting':>7} {'ms/step':>8} {'cpu ms':>7} {'of first':>8}"
    for each in cases:
        yield (
            f"{each['scheduling_policy']:<12} {each['batching_policy']:<13} {each['running']:>7} {each['waiting']:>7} "
            f"{each['ms_per_step']:>8.3f} {each['cpu_ms']:>7.3f} {each['over_first']:>8.2f}"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
