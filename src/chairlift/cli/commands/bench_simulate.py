"""`chairlift bench simulate`: the real scheduler and cache on a machine that is played by a step model."""

import argparse
import json
from dataclasses import asdict, replace
from typing import Any

from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.report import environment, report
from chairlift.bench.simulation.sim_step_model import SMOL135_CPU, SimStepModel, read_model, write_model
from chairlift.bench.simulation.simulation import VOCAB_SIZE, SimMachine, SimResult, simulate
from chairlift.bench.simulation.step_fit import fit, read_samples
from chairlift.bench.workload.workload import Workload
from chairlift.cli.console import Console
from chairlift.cli.result_writer import check_outputs
from chairlift.cli.settings import settings
from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig

KIND = "chairlift bench simulate"
OF_MACHINE = ("num_blocks", "block_size", "enable_prefix_caching")


def run(arguments: argparse.Namespace) -> int:
    """Simulate what was asked for; returns the exit code: 0, or 1 when a request failed.

    Raises ConfigError and InvalidRequest for bad input.
    """
    console = Console(quiet=arguments.quiet)
    environ = settings.environment()
    asked = settings.given(settings.WORKLOAD, arguments, environ)
    engine = settings.given(settings.SIMULATE_SETTINGS, arguments, environ)
    check_outputs(
        {"--json": arguments.json, "--save-step-times": arguments.save_step_times},
        {"--workload": asked.get("workload"), "--fit": arguments.fit, "--step-times": arguments.step_times},
    )
    played = SimMachine(
        step_model=_step_model(arguments, console), seed=asked.get("seed", 0),
        **{name: engine.pop(name) for name in OF_MACHINE if name in engine},
    )  # fmt: skip
    config = SchedulerConfig(**engine)
    spec = WorkloadSpec(name=asked.pop("workload", settings.DEFAULT_WORKLOAD), **asked)
    workload = spec.check() if spec.is_trace else spec.make(VOCAB_SIZE)  # a trace may be of any model
    source = environment.source()
    seen = simulate(workload, config, played)
    made = report.with_environment(
        KIND, _found(seen, workload, spec, config, played), source, arguments.words, of_host=False
    )
    report.tell(_table(made), arguments.json, made, print)
    console.say(f"simulated {seen.seconds:.1f} s in {seen.host_seconds:.2f} s")
    return 1 if made["requests"]["failed"] else 0


def _step_model(arguments: argparse.Namespace, console: Console) -> SimStepModel:
    """The model of a file, or fitted to a run, or the one that is built in."""
    if arguments.step_times is not None and arguments.fit is not None:
        raise ConfigError("--step-times and --fit cannot be given together")
    model = SMOL135_CPU
    if arguments.step_times is not None:
        model = read_model(arguments.step_times)
    elif arguments.fit is not None:
        found = fit(read_samples(arguments.fit))
        told = (
            f"fitted to {found.steps} steps; error: median {found.median_error:.1%}, p90 {found.p90_error:.1%}, "
            f"spread {found.model.noise:.1%}"
        )
        console.say(told)
        model = replace(found.model, origin=told, noise=0.0)
    if arguments.noise is not None:
        model = replace(model, noise=arguments.noise)
    if arguments.save_step_times is not None:
        write_model(arguments.save_step_times, model)
    return model


def _found(
    seen: SimResult, workload: Workload, spec: WorkloadSpec, config: SchedulerConfig, played: SimMachine
) -> dict[str, Any]:
    """Put everything together that is the same for the same workload, settings and seed."""
    tokens = {"prompt": workload.prompt_tokens, "output": workload.output_tokens}
    return {
        **seen.report(),
        "seed": spec.seed,
        "workload": {**spec.shown(), "requests": len(workload.items), "tokens": tokens, "digest": workload.digest()},
        "engine": {**asdict(config), "enable_prefix_caching": played.enable_prefix_caching},
        "machine": {
            "step_times": asdict(played.step_model),
            "num_blocks": seen.total_kv_tokens // played.block_size,
            "block_size": played.block_size,
            "seed": played.seed,
        },
    }


def _table(made: dict[str, Any]) -> list[str]:
    lines = list(report.table({**made, "ratios": [], "arms": [{"runs": [made]}]}))
    wait = made["wait_seconds"]
    if wait["mean"] is not None:
        lines.append(
            f"waited {wait['mean']:.3f} s on average, {wait['max']:.3f} s at most; {made['mean_running_requests']:.1f} "
            f"running on average; {made['prefix_hit_rate']:.1%} of the prompts from the cache, "
            f"{made['computed_again']:.1%} computed again"
        )
    for name, each in made["tenants"].items():
        lines.append(f"tenant {name}: {json.dumps(each['tokens'])}")
    return lines
