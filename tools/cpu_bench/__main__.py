"""`python -m cpu_bench prepare|run|streams FOLDER`: prepare models and other engines, then compare them with Chairlift.

`run` runs workloads against all engines; `streams` measures 1, 8 and 32 streams against llama.cpp without its server.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from chairlift.bench.report import environment, report, report_output
from chairlift.core.cpu_affinity_and_priority import usable_cpus
from cpu_bench import random_models
from cpu_bench.bench_commands import COMPARISONS, WORKLOADS, make_commands
from cpu_bench.peer_environments import AVX2_ENVIRON, PEERS, PeerEnvironments
from cpu_bench.stream_speed import PAIRS, compare_streams


def main(args: list[str]) -> int:
    """Run the command. Returns 0, or the exit code of the first benchmark that failed."""
    parser = argparse.ArgumentParser(prog="cpu_bench", description=__doc__)
    parser.add_argument("command", choices=("prepare", "run", "streams"), help="what to do")
    parser.add_argument("folder", type=Path, help="folder of the models and engines")
    parser.add_argument("--peers", default=",".join(PEERS), help="other engines to prepare (%(default)s)")
    parser.add_argument("--models", default=",".join(random_models.SHAPES), help="models to use (%(default)s)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="workloads to run (%(default)s)")
    parser.add_argument(
        "--comparisons", default=",".join(each.name for each in COMPARISONS), help="comparisons to run (%(default)s)"
    )
    parser.add_argument("--pairs", default=",".join(PAIRS), help="of `streams`: what to compare (%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each arm (%(default)s)")
    parser.add_argument("--into", type=Path, default=Path("build/bench-cpu"), help="folder of reports (%(default)s)")
    parser.add_argument("--avx2", action="store_true", help="let every engine use no more than AVX2")
    options = parser.parse_args(args)
    folder, models = options.folder.resolve(), options.models.split(",")
    environments = PeerEnvironments(folder, _print_line, forces_avx2=options.avx2)
    environ = {**os.environ, **(AVX2_ENVIRON if options.avx2 else {})}
    if options.command == "prepare":
        for name in models:
            _print_line(f"making {name}")
            random_models.make_model(name, environments.model(name))
        for name in filter(None, options.peers.split(",")):
            environments.prepare(name, models)
        return 0
    options.into.mkdir(parents=True, exist_ok=True)
    if options.command == "streams":
        os.environ |= environ
        for name in models:
            _compare_streams(environments, name, options.repeat, options.into, options.pairs.split(","))
        return 0
    exit_code = 0
    selection = (models, options.workloads.split(","), options.comparisons.split(","))
    for command in make_commands(environments, *selection, options.repeat, options.into):
        # a failed benchmark does not stop the next ones
        completed = subprocess.run([sys.executable, "-P", "-m", "chairlift", *command], env=environ, check=False)
        exit_code = exit_code or completed.returncode
    return exit_code


def _compare_streams(
    environments: PeerEnvironments, model: str, repeat: int, into: Path, pairs: Sequence[str]
) -> None:  # fmt: skip
    source, folder = environment.source(), environments.model(model)
    llama = [str(environments.batched_bench), "-t", str(len(usable_cpus()))]
    ggufs = {label: environments.gguf(label, model) for label in {PAIRS[name].label for name in pairs}}
    forced = "-avx2" if environments.forces_avx2 else ""
    path = into / f"cpu-{model}-streams{forced}.json"
    ratios: dict[str, dict[str, float]] = {}
    for number, compared in enumerate(compare_streams(folder, llama, ggufs, repeat, pairs), 1):
        _print_line(f"{model}: run {number}")
        result, ratios = {"model": model, **compared}, compared["ratios"]
        # Written after every run: a comparison that is ended early leaves what it has measured.
        document = report.with_environment("chairlift cpu streams", result, source, ["cpu_bench", "streams", model])
        report_output.write(str(path), document)
    for pair, rates in ratios.items():
        _print_line(f"{model} {pair}: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in rates.items()))


def _print_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
