"""`chairlift bench offline`: runs a workload on the engine and compares options and engines."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.bench.offline.comparison import Arm, ArmRuns, arms_of, check_comparison, run_interleaved
from chairlift.bench.offline.offline_benchmark import measure
from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.bench.peers.registry import peers_of
from chairlift.bench.report import environment, plot, report, report_output
from chairlift.bench.report.redaction import redacted_model
from chairlift.cli.console import Console
from chairlift.cli.interrupt_report import reporting_interrupt
from chairlift.cli.output_file_checks import check_outputs
from chairlift.cli.settings import bench_settings, settings
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.cli.terminal_fold import print_folded, terminal_columns
from chairlift.core.errors import ConfigError
from chairlift.llm.build import prepare
from chairlift.llm.builtin_models import no_model_given
from chairlift.llm.progress_bar import ProgressBar

ENGINE_SETTINGS = {name: each for each in settings.ENGINE for name in (each.name, each.flag_name) if name}


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark; returns the exit code: 0, or 1 when a request failed.

    Raises ConfigError, ModelError and InvalidRequest for invalid input.
    """
    console = Console(quiet=arguments.quiet)
    environ = process_environment()
    workload = resolve_group(bench_settings.WORKLOAD, arguments, environ)
    engine = resolve_group(settings.ENGINE, arguments, environ)
    spec = WorkloadSpec(name=workload.pop("workload", bench_settings.DEFAULT_WORKLOAD), **workload)
    run_spec = RunSpec(model=arguments.model, options=engine, workload=spec)
    arms, count = _check_arguments(arguments, run_spec)
    source = environment.source()
    arm_runs = _run_arms(arguments, run_spec, arms, count, console)
    content = report.build_report(run_spec, arm_runs, source, arguments.argv)
    report_output.tell(report.table(content, terminal_columns(sys.stdout)), arguments.json, content, print_folded)
    if arguments.plot is not None:
        plot.draw(content, arguments.plot)
    return _report_errors(arm_runs, console)


def _check_arguments(arguments: argparse.Namespace, run_spec: RunSpec) -> tuple[list[Arm], int]:
    """Validate the arguments before a model is loaded.

    Returns the arms and the number of requests of each.
    """
    for name in ("repeat", "threads"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise ConfigError(f"--{name} must be at least 1, got {value}")
    compared: dict[str, list[Any]] = {}
    for text in arguments.compare:
        name, values = _parse_comparison(text)
        if name in compared:
            raise ConfigError(f"--compare names {name} twice; give all its values at once, as {name}=A,B")
        compared[name] = values
    peers = peers_of([name for text in arguments.against for name in text.split(",")], arguments.peer)
    arms = arms_of(compared, peers)
    if "profile" in run_spec.options and len(arms) * arguments.repeat > 1:
        raise ConfigError("--profile needs a single run; leave out --repeat, --compare and --against, or --profile")
    workload = run_spec.workload.check()
    check_comparison(arms, run_spec.model, workload)
    check_outputs(
        {"--json": arguments.json, "--plot": arguments.plot, "--profile": run_spec.options.get("profile")},
        {"--workload": run_spec.workload.name},
    )
    if arguments.plot is not None:
        plot.check_plot()
    for arm in arms:
        if not arm.is_peer:
            prepare(run_spec.model, {**run_spec.options, **arm.options}, starts=False)  # type: ignore[typeddict-item]
    return arms, len(workload.items)


def _parse_comparison(text: str) -> tuple[str, list[Any]]:
    """Parse OPTION=A,B. Raises ConfigError."""
    name, equals, values = text.partition("=")
    setting = ENGINE_SETTINGS.get(name.replace("-", "_"))
    if not equals:
        raise ConfigError(f"--compare must be OPTION=A,B, got {text!r}")
    if setting is None:
        raise ConfigError(
            f"--compare names the unknown engine setting {name!r}; `chairlift bench offline --help` lists them"
        )
    try:
        parsed = [setting.parse(value) for value in values.split(",")]
        if any(isinstance(value, dict) for value in parsed):
            raise ConfigError(f"--compare does not support {name}, whose values have commas")
        return setting.name, parsed
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"--compare {name} {error}") from None


def _run_arms(
    arguments: argparse.Namespace, run_spec: RunSpec, arms: Sequence[Arm], count: int, console: Console
) -> list[ArmRuns]:
    """Run the arms: a single run in this process, several runs alternately in a process each.

    Runs in separate processes share neither caches nor memory.
    """
    if arguments.model is None:
        console.print_line(no_model_given())
    console.print_line(f"workload {run_spec.workload.shown_name()} on {redacted_model(arguments.model)}")
    if len(arms) == arguments.repeat == 1 and arguments.threads is None:
        options = {**run_spec.options, **arms[0].options}
        single = RunSpec(model=run_spec.model, options=options, workload=run_spec.workload)
        progress = ProgressBar(count, shown=console.shows_progress_bars([]))

        def describe_progress() -> str:
            return f"{progress.num_requests} of {count} requests and {progress.num_tokens} output tokens were done"

        with reporting_interrupt(console, describe_progress), progress:

            def record_progress(num_tokens: int, is_finished: bool) -> None:
                progress.tokens(num_tokens)
                if is_finished:
                    progress.request_done()

            return [ArmRuns(arms[0], [measure(single, record_progress)])]

    num_runs = 0

    def print_speed(arm: Arm, number: int, result: Mapping[str, Any]) -> None:
        nonlocal num_runs
        num_runs += 1
        speed = result["output_tokens_per_second"]
        console.print_line(f"run {number + 1} of {arguments.repeat}: {arm.name} {speed:.1f} output tokens/s")

    with reporting_interrupt(console, lambda: f"{num_runs} of {len(arms) * arguments.repeat} runs were done"):
        return run_interleaved(
            arms, run_spec, repeat=arguments.repeat, threads=arguments.threads, shown=arguments.verbose,
            note=print_speed,
        )  # fmt: skip


def _report_errors(arm_runs: Sequence[ArmRuns], console: Console) -> int:
    """Print the errors of all runs; returns the exit code."""
    code = 0
    for each in arm_runs:
        for result in each.runs:
            requests, integrity_errors = result["requests"], result.get("integrity_errors", [])
            if requests["failed"]:
                reasons = ", ".join(f"{count} {name}" for name, count in requests["errors"].items())
                console.print_error(
                    f"{each.arm.name}: {requests['failed']} of {requests['total']} requests failed: {reasons}"
                )
            for error in integrity_errors:
                console.print_error(f"{each.arm.name}: integrity error of the engine: {error}")
            code = 1 if requests["failed"] or integrity_errors else code
    return code
