"""Run a soak test and judge it: `python -m soak --minutes 30`. The exit code is 0 if every check passes.

A real server with the embedded demo model gets mixed traffic, bad input, bursts and faults. build/soak then has the
report as soak.txt, soak.json and soak.png, and the server's log.
"""

import argparse
import asyncio
import shutil
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from soak import report
from soak.soak_result import SoakResult
from soak.soak_run import SoakOptions, SoakRun
from soak.soak_server import SoakServer
from soak.verdict import judge

SETTLE_SECONDS = 300.0
"""Time after a process's start from which on its memory is judged, in a long test."""

SETTLE_SHARE = 1 / 6
"""The same time as a share of the duration, in a short test."""

MIN_MINUTES = 1.0


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="duration (default 30, at least 1)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the traffic")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="requests per second (default: 0.6 of the measured capacity)"
    )
    parser.add_argument("--into", type=Path, default=Path("build/soak"), help="folder of the report; it is emptied")
    arguments = parser.parse_args()
    if arguments.minutes < MIN_MINUTES:
        parser.error(f"--minutes must be at least {MIN_MINUTES:g}, got {arguments.minutes:g}")
    folder: Path = arguments.into.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = SoakOptions(seconds=arguments.minutes * 60, seed=arguments.seed, rate=arguments.rate)
    server = SoakServer(folder)
    try:
        server.process.wait_until_ready()
        soak = SoakRun(server, options)
        asyncio.run(soak.run())
    finally:
        exit_code = server.process.stop()
    result = collect_result(soak, options, server, exit_code)
    findings = judge(result)
    kinds: dict[str, dict[str, int]] = defaultdict(dict)
    for (kind, summary), count in soak.clients.tally.counts.items():
        kinds[kind][summary] = count
    more = {"seed": options.seed, "rate": soak.measurements.rate, "capacity": soak.measurements.capacity,
            "kinds": kinds, "num_delayed": soak.clients.tally.num_delayed}  # fmt: skip
    sys.stdout.write(report.write_report(folder, result, findings, more))
    return 0 if all(each.passed for each in findings) else 1


def collect_result(soak: SoakRun, options: SoakOptions, server: SoakServer, exit_code: int) -> SoakResult:
    """Return the measurements and results, with times in seconds since the start."""
    tally, measurements, started_at = soak.clients.tally, soak.measurements, soak.started_at
    unexpected = [
        (request, replace(result, started_at=result.started_at - started_at, ended_at=result.ended_at - started_at))
        for request, result in tally.unexpected
    ]
    return SoakResult(
        seconds=options.seconds, settle_seconds=min(SETTLE_SECONDS, options.seconds * SETTLE_SHARE),
        samples=measurements.samples, idle_samples=measurements.idle_samples,
        faults=[soak.since_start(fault) for fault in measurements.faults], unexpected=unexpected,
        num_requests=tally.total, num_dropped=tally.num_dropped,
        num_rejected=sum(count for (_, summary), count in tally.counts.items() if summary.startswith("429")),
        exit_code=exit_code, num_temp_files=sum(1 for _ in server.temp_folder.rglob("*")),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
