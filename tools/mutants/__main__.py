"""Run the tests of each mutant: `PYTHONPATH=tools python -m mutants --only kv-hash-chain --json FILE`.

The exit code is 0 if the tests kill every mutant, and 1 if one survives or proves nothing.
"""

import argparse
import json
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mutants.mutant import TABLE, read_mutants
from mutants.mutant_run import MutantResult, Verdict, judge_mutants

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT, table: Path = TABLE) -> int:
    """Run the command line; returns the exit code."""
    mutants = read_mutants(table)
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ID", choices=[mutant.id for mutant in mutants],
                        help="ids of the mutants to run (default: all of mutants.toml)")  # fmt: skip
    parser.add_argument("--full", action="store_true", help="run all seeds and steps of the tests, as `make test-all`")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write the results to")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in mutants if options.only is None or mutant.id in options.only]
    results: list[MutantResult] = []
    faults = {mutant.id: mutant.fault for mutant in chosen}
    for result in judge_mutants(root, chosen, full=options.full, jobs=options.jobs):
        results.append(result)
        durations = f"{result.seconds:6.1f} s (without it {result.baseline_seconds:.1f} s)"
        _print(f"{result.verdict:<9} {result.id:<28} {durations}  {result.reason}")
        if result.verdict is Verdict.SURVIVED:
            _print(f"{'':<9} {faults[result.id]}")
    counts = Counter(result.verdict for result in results)
    _print(", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict) + f" of {len(results)} mutants")
    if options.json is not None:
        report = {
            "machine": f"{platform.machine()}, Python {platform.python_version()}",
            "full": options.full,
            "counts": {verdict.value: counts[verdict] for verdict in Verdict},
            "results": [asdict(result) for result in results],
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if counts[Verdict.KILLED] == len(results) else 1


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
