"""`chairlift bench simulate`: runs a workload on the real scheduler in simulated time, or on a simulated fleet."""

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from typing import Any

from chairlift.bench.fleet_simulation.fleet_spec import FleetSpec
from chairlift.bench.fleet_simulation.load.conversations import CONVERSATION_LOADS
from chairlift.bench.fleet_simulation.routing_policy_comparison import compare_policies, policy_table
from chairlift.bench.fleet_simulation.scaling_rule_comparison import DEFAULT_RULE_NAMES, compare_rules
from chairlift.bench.fleet_simulation.scaling_rule_report import build_fleet_report, fleet_table
from chairlift.bench.fleet_simulation.sim_replica_settings import SimReplicaSettings
from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.report import environment, report, report_output
from chairlift.bench.simulation.sim_step_model import SMOL135_CPU, SimStepModel, read_model, write_model
from chairlift.bench.simulation.simulation import VOCAB_SIZE, SimMachine, SimResult, simulate
from chairlift.bench.simulation.step_fit import fit
from chairlift.bench.simulation.step_samples import read_samples
from chairlift.bench.workload.workload import Workload
from chairlift.cli.console import Console
from chairlift.cli.interrupt_report import reporting_interrupt
from chairlift.cli.output_file_checks import check_outputs
from chairlift.cli.settings import bench_settings, settings
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.cli.terminal_fold import print_folded, terminal_columns
from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig, with_auto_length

KIND = "chairlift bench simulate"
FLEET_KIND = f"{KIND} --fleet"
DEFAULT_COLD_START_SECONDS = 60.0
FLEET_FIELDS = {
    "slo": "slo", "slo_goal": "slo_goal", "min_replicas": "min_replicas", "period": "period_seconds",
    "prompt_tokens": "prompt_tokens", "output_tokens": "output_tokens", "concurrency_ratio": "concurrency_ratios",
}  # fmt: skip
"""Setting -> field of FleetSpec."""
MACHINE_SETTINGS = ("num_blocks", "block_size", "enable_prefix_caching")


def run(arguments: argparse.Namespace) -> int:
    """Run the simulation; returns the exit code: 0, or 1 when a request failed.

    Raises ConfigError and InvalidRequest for invalid input.
    """
    console, started_at = Console(quiet=arguments.quiet), time.perf_counter()
    with reporting_interrupt(
        console, lambda: f"the simulation was interrupted after {time.perf_counter() - started_at:.1f} s"
    ):
        return _run(arguments, console)


def _run(arguments: argparse.Namespace, console: Console) -> int:
    environ = process_environment()
    workload_settings = resolve_group(bench_settings.WORKLOAD, arguments, environ)
    fleet_settings = resolve_group(bench_settings.SIMULATED_FLEET, arguments, environ)
    engine = resolve_group(settings.SIMULATE_SETTINGS, arguments, environ)
    check_outputs(
        {"--json": arguments.json, "--save-step-times": arguments.save_step_times},
        {"--workload": workload_settings.get("workload"), "--fit": arguments.fit, "--step-times": arguments.step_times},
    )
    if "fleet" in fleet_settings:
        return _run_fleet(arguments, console, workload_settings, engine, fleet_settings)
    machine = SimMachine(
        step_model=_step_model(arguments, console), seed=workload_settings.get("seed", 0),
        **{name: engine.pop(name) for name in MACHINE_SETTINGS if name in engine},
    )  # fmt: skip
    config = SchedulerConfig(**with_auto_length(engine))
    spec = WorkloadSpec(name=workload_settings.pop("workload", bench_settings.DEFAULT_WORKLOAD), **workload_settings)
    workload = spec.check() if spec.is_trace else spec.make(VOCAB_SIZE)  # a trace may have token ids of any model
    source = environment.source()
    result = simulate(workload, config, machine)
    content = report.with_environment(
        KIND, _build_report(result, workload, spec, config, machine), source, arguments.argv, of_host=False
    )
    report_output.tell(_table(content), arguments.json, content, print_folded)
    console.print_line(f"simulated {result.seconds:.1f} s in {result.host_seconds:.2f} s")
    return 1 if content["requests"]["failed"] else 0


def _run_fleet(
    arguments: argparse.Namespace, console: Console, workload: dict[str, Any], engine: dict[str, Any],
    fleet: dict[str, Any],
) -> int:  # fmt: skip
    """Simulate a fleet; returns exit code 0."""
    machine = SimReplicaSettings(
        step_model=_step_model(arguments, console), seed=workload.get("seed", 0),
        **{name: engine.pop(name) for name in MACHINE_SETTINGS if name in engine},
        config=SchedulerConfig(**with_auto_length(engine)),
    )  # fmt: skip
    source, started_at = environment.source(), time.perf_counter()
    policies = tuple(fleet.get("policy", "prefix").split(","))
    if workload.get("workload") in CONVERSATION_LOADS:
        content = compare_policies(workload["workload"], policies, fleet["fleet"], machine)
        lines = policy_table(content)
    else:
        cold_start = fleet.get("cold_start", (DEFAULT_COLD_START_SECONDS,))
        if len(policies) > 1:
            raise ConfigError(f"several policies need a workload of conversations: {', '.join(CONVERSATION_LOADS)}")
        spec = FleetSpec(
            max_replicas=fleet["fleet"], machine=machine, policy=policies[0],
            cold_start_seconds=(cold_start[0], cold_start[-1]),
            **{name: fleet[key] for key, name in FLEET_FIELDS.items() if key in fleet},
            **{name: workload[name] for name in ("workload", "requests", "rate", "seed") if name in workload},
        )  # fmt: skip
        load, capacity = spec.make()
        names = fleet.get("scaling_rules", ",".join(DEFAULT_RULE_NAMES)).split(",")
        arms = compare_rules(load, names, capacity, fleet.get("processes", len(usable_cpus())))
        content = build_fleet_report(load, arms, capacity, fleet.get("price", 1.0))
        lines = fleet_table(content, terminal_columns(sys.stdout))
    content = report.with_environment(FLEET_KIND, content, source, arguments.argv, of_host=False)
    report_output.tell(lines, arguments.json, content, print_folded)
    console.print_line(f"simulated in {time.perf_counter() - started_at:.1f} s")
    return 0


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
    if arguments.confirmed_drafts is not None:
        model = replace(model, confirmed_drafts=arguments.confirmed_drafts)
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
