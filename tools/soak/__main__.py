"""Run a soak and judge it: `python -m soak --minutes 30`; the exit code is 0 where every finding is good.

A real server with the embedded demo model and its engine under mixed traffic, bad input, bursts and faults. The report
lies in build/soak: soak.txt, soak.json, soak.png, and what the server logged.
"""

import argparse
import asyncio
import shutil
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from soak import report
from soak.server_fixture import Place
from soak.soak_run import Soak, SoakOptions
from soak.verdict import Course, findings

SETTLE_SECONDS = 300.0
SETTLE_SHARE = 1 / 6
LEAST_MINUTES = 1.0


def main() -> int:
    """Do it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default 30, at least 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the traffic")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second; 0.6 of what is measured by default")
    parser.add_argument("--into", type=Path, default=Path("build/soak"), help="a folder, which is emptied")
    arguments = parser.parse_args()
    if arguments.minutes < LEAST_MINUTES:
        parser.error(f"--minutes must be at least {LEAST_MINUTES:g}, got {arguments.minutes:g}")
    folder: Path = arguments.into.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wishes = SoakOptions(seconds=arguments.minutes * 60, seed=arguments.seed, rate=arguments.rate)
    place = Place(folder)
    try:
        place.wait()
        soak = Soak(place, wishes)
        asyncio.run(soak.run())
    finally:
        code = place.stop()
    course = seen(soak, wishes, place, code)
    found = findings(course)
    kinds: dict[str, dict[str, int]] = defaultdict(dict)
    for (kind, end), count in soak.riders.tally.kinds.items():
        kinds[kind][end] = count
    more = {"seed": wishes.seed, "rate": soak.seen.rate, "capacity": soak.seen.capacity, "kinds": kinds,
            "held_back": soak.riders.tally.held_back}  # fmt: skip
    sys.stdout.write(report.write(folder, course, found, more))
    return 0 if all(each.good for each in found) else 1


def seen(soak: Soak, wishes: SoakOptions, place: Place, code: int) -> Course:
    """Return what was seen, in seconds since the beginning."""
    tally = soak.riders.tally
    odd = [
        (asked, replace(ending, began=ending.began - soak.began, ended=ending.ended - soak.began))
        for asked, ending in tally.odd
    ]
    return Course(
        seconds=wishes.seconds, settle=min(SETTLE_SECONDS, wishes.seconds * SETTLE_SHARE), samples=soak.seen.samples,
        rests=soak.seen.rests, harms=[soak.since(done) for done in soak.seen.harms], odd=odd, total=tally.total,
        dropped=tally.dropped,
        refused=sum(count for (_, end), count in tally.kinds.items() if end.startswith("429")), exit_code=code,
        left_files=sum(1 for _ in place.temporary.rglob("*")),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
