"""`chairlift bench cost`: measures the scheduler's time per step for every policy."""

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from chairlift.bench.micro.scheduler_cost import FLATNESS, all_cases, flatness_cases, measure
from chairlift.bench.report import environment, report
from chairlift.cli.console import Console
from chairlift.cli.result_writer import check_outputs
from chairlift.core.errors import ConfigError
from chairlift.engine.scheduler.waiting_queue.base import POLICIES

KIND = "chairlift bench cost"


def run(arguments: argparse.Namespace) -> int:
    """Measure every policy, then each with longer queues; returns the exit code.

    Raises ConfigError for invalid input.
    """
    console = Console(quiet=arguments.quiet)
    for name in ("windows", "steps"):
        if (value := getattr(arguments, name)) < 1:
            raise ConfigError(f"--{name} must be at least 1, got {value}")
    policies = arguments.policies or list(POLICIES)
    if unknown := [name for name in policies if name not in POLICIES]:
        raise ConfigError(f"unknown policy {unknown[0]!r}; available are {', '.join(POLICIES)}")
    check_outputs({"--json": arguments.json})
    source = environment.source()
    options = {
        "windows": arguments.windows,
        "steps": arguments.steps,
        "seed": arguments.seed,
        "note": console.print_line,
    }
    cases = measure([case for case in all_cases() if case.scheduling_policy in policies], **options)
    _print_table(cases)
    flatness = {policy: measure(flatness_cases(policy), **options) for policy in policies}
    for entries in flatness.values():
        _print_table(entries)
    results = {
        "arms": cases,
        "flatness": {"waiting": list(FLATNESS), "policies": flatness},
        "windows": arguments.windows,
        "steps_in_a_window": arguments.steps,
        "seed": arguments.seed,
    }
    if arguments.json is not None:
        report.write(arguments.json, report.with_environment(KIND, results, source, arguments.argv))
    return 0


def _print_table(cases: Iterable[Mapping[str, Any]]) -> None:
    print(f"{'policy':<12} {'batching':<13} {'running':>7} {'waiting':>7} {'ms/step':>8} {'cpu ms':>7} {'of first':>8}")
    for each in cases:
        print(
            f"{each['scheduling_policy']:<12} {each['batching_policy']:<13} {each['running']:>7} {each['waiting']:>7} "
            f"{each['ms_per_step']:>8.3f} {each['cpu_ms']:>7.3f} {each['over_first']:>8.2f}"
        )
