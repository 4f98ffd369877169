"""`python -m cpu_bench prepare|run FOLDER`: make models and peers ready, and measure everybody in turns."""

import argparse
import subprocess
import sys
from pathlib import Path

from cpu_bench import models
from cpu_bench.matrix import MEETINGS, WORKLOADS, commands
from cpu_bench.peers import NAMES, Peers


def main(words: list[str]) -> int:
    """Do what was asked for; returns the exit code: 0, or that of the first run that failed."""
    parser = argparse.ArgumentParser(prog="cpu_bench", description=__doc__)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path, help="of models and peers")
    parser.add_argument("--peers", default=",".join(NAMES), help="to prepare (%(default)s)")
    parser.add_argument("--models", default=",".join(models.SHAPES), help="(%(default)s)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="(%(default)s)")
    parser.add_argument("--meetings", default=",".join(each.name for each in MEETINGS), help="(%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="turns of each arm (%(default)s)")
    parser.add_argument("--into", type=Path, default=Path("build/bench-cpu"), help="the reports (%(default)s)")
    asked = parser.parse_args(words)
    folder, shapes = asked.folder.resolve(), asked.models.split(",")
    peers = Peers(folder, _say)
    if asked.what == "prepare":
        for name in shapes:
            _say(f"making {name}")
            models.make(name, peers.model(name))
        for name in filter(None, asked.peers.split(",")):
            peers.prepare(name, shapes)
        return 0
    asked.into.mkdir(parents=True, exist_ok=True)
    code = 0
    wanted = (shapes, asked.workloads.split(","), asked.meetings.split(","))
    for command in commands(peers, *wanted, asked.repeat, asked.into):
        done = subprocess.run([sys.executable, "-P", "-m", "chairlift", *command], check=False)  # the others run yet
        code = code or done.returncode
    return code


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
