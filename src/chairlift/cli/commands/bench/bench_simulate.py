"""`chairlift bench simulate`: runs a workload on the real scheduler in simulated time."""

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
from chairlift.cli.settings import bench_settings, settings
from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig

KIND = "chairlift bench simulate"
MACHINE_SETTINGS = ("num_blocks", "block_size", "enable_prefix_caching")


def run(arguments: argparse.Namespace) -> int:
    """Run the simulation; returns the exit code: 0, or 1 when a request failed.

    Raises ConfigError and InvalidRequest for invalid input.
    """
    console = Console(quiet=arguments.quiet)
    environ = settings.process_environment()
    workload_settings = settings.resolve_group(bench_settings.WORKLOAD, arguments, environ)
    engine = settings.resolve_group(settings.SIMULATE_SETTINGS, arguments, environ)
    check_outputs(
        {"--json": arguments.json, "--save-step-times": arguments.save_step_times},
        {"--workload": workload_settings.get("workload"), "--fit": arguments.fit, "--step-times": arguments.step_times},
    )
    machine = SimMachine(
        step_model=_step_model(arguments, console), seed=workload_settings.get("seed", 0),
        **{name: engine.pop(name) for name in MACHINE_SETTINGS if name in engine},
    )  # fmt: skip
    config = SchedulerConfig(**engine)
    spec = WorkloadSpec(name=workload_settings.pop("workload", bench_settings.DEFAULT_WORKLOAD), **workload_settings)
    workload = spec.check() if spec.is_trace else spec.make(VOCAB_SIZE)  # a trace may have token ids of any model
    source = environment.source()
    result = simulate(workload, config, machine)
    content = report.with_environment(
        KIND, _build_report(result, workload, spec, config, machine), source, arguments.argv, of_host=False
    )
    report.tell(_table(content), arguments.json, content, print)
    console.print_line(f"simulated {result.seconds:.1f} s in {result.host_seconds:.2f} s")
    return 1 if content["requests"]["failed"] else 0


def _step_model(arguments: argparse.Namespace, console: Console) -> SimStepModel:
    """Return the step model of --step-times, of --fit, or else the built-in one."""
    if arguments.step_times is not None and arguments.fit is not None:
        raise ConfigError("--step-times and --fit cannot be given together")
    model = SMOL135_CPU
    if arguments.step_times is not None:
        model = read_model(arguments.step_times)
    elif arguments.fit is not None:
        fitted = fit(read_samples(arguments.fit))
        summary = (
            f"fitted to {fitted.steps} steps; error: median {fitted.median_error:.1%}, p90 {fitted.p90_error:.1%}, "
            f"spread {fitted.model.noise:.1%}"
        )
        console.print_line(summary)
        model = replace(fitted.model, origin=summary, noise=0.0)
    if arguments.noise is not None:
        model = replace(model, noise=arguments.noise)
    if arguments.save_step_times is not None:
        write_model(arguments.save_step_times, model)
    return model


def _build_report(
    result: SimResult, workload: Workload, spec: WorkloadSpec, config: SchedulerConfig, machine: SimMachine
) -> dict[str, Any]:
    """Return the part of the report that workload, settings and seed determine."""
    tokens = {"prompt": workload.prompt_tokens, "output": workload.output_tokens}
    return {
        **result.report(),
        "seed": spec.seed,
        "workload": {**spec.shown(), "requests": len(workload.items), "tokens": tokens, "digest": workload.digest()},
        "engine": {**asdict(config), "enable_prefix_caching": machine.enable_prefix_caching},
        "machine": {
            "step_times": asdict(machine.step_model),
            "num_blocks": result.total_kv_tokens // machine.block_size,
            "block_size": machine.block_size,
            "seed": machine.seed,
        },
    }


def _table(content: dict[str, Any]) -> list[str]:
    lines = list(report.table({**content, "ratios": [], "arms": [{"runs": [content]}]}))
    wait = content["wait_seconds"]
    if wait["mean"] is not None:
        lines.append(
            f"queue wait {wait['mean']:.3f} s on average, {wait['max']:.3f} s at most; "
            f"{content['mean_running_requests']:.1f} running requests on average; {content['prefix_hit_rate']:.1%} of "
            f"prompt tokens from the prefix cache, {content['computed_again']:.1%} of tokens recomputed"
        )
    for name, each in content["tenants"].items():
        lines.append(f"tenant {name}: {json.dumps(each['tokens'])}")
    return lines
