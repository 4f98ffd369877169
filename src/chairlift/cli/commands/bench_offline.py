"""`chairlift bench offline`: a workload on the real engine, alone or against other options and other engines."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.bench.offline.comparison import Arm, ArmRuns, arms_of, check_comparison, run_interleaved
from chairlift.bench.offline.offline_benchmark import measure
from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.bench.peers.registry import peers_of
from chairlift.bench.report import environment, plot, report
from chairlift.cli.console import Console
from chairlift.cli.result_writer import check_outputs
from chairlift.cli.settings import settings
from chairlift.core.errors import ConfigError
from chairlift.llm.build import prepare
from chairlift.llm.model_names import no_model_given
from chairlift.llm.progress import Progress

ENGINE = {name: each for each in settings.ENGINE for name in (each.name, each.flag_name) if name}


def run(arguments: argparse.Namespace) -> int:
    """Measure what was asked for; returns the exit code: 0, or 1 when a request failed.

    Raises ConfigError, ModelError and InvalidRequest for bad input.
    """
    console = Console(quiet=arguments.quiet)
    environ = settings.environment()
    workload = settings.given(settings.WORKLOAD, arguments, environ)
    engine = settings.given(settings.ENGINE, arguments, environ)
    spec = WorkloadSpec(name=workload.pop("workload", settings.DEFAULT_WORKLOAD), **workload)
    order = RunSpec(model=arguments.model, options=engine, workload=spec)
    arms, count = _checked(arguments, order)
    source = environment.source()
    turns = _measured(arguments, order, arms, count, console)
    made = report.build_report(order, turns, source, arguments.words)
    report.tell(report.table(made), arguments.json, made, print)
    if arguments.plot is not None:
        plot.draw(made, arguments.plot)
    return _verdict(turns, console)


def _checked(arguments: argparse.Namespace, order: RunSpec) -> tuple[list[Arm], int]:
    """Refuse what can be refused before anything is loaded; returns the arms, and how many requests each gets."""
    for name in ("repeat", "threads"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    compared: dict[str, list[Any]] = {}
    for text in arguments.compare:
        name, values = _compared(text)
        if name in compared:
            raise ConfigError(f"--compare names {name} twice; all its values go into one")
        compared[name] = values
    peers = peers_of([name for text in arguments.against for name in text.split(",")], arguments.peer)
    arms = arms_of(compared, peers)
    if "profile" in order.options and len(arms) * arguments.repeat > 1:
        raise ConfigError("--profile takes one run, and this is several, which would overwrite each other's traces")
    workload = order.workload.check()
    check_comparison(arms, order.model, workload)
    check_outputs(
        {"--json": arguments.json, "--plot": arguments.plot, "--profile": order.options.get("profile")},
        {"--workload": order.workload.name},
    )
    if arguments.plot is not None:
        plot.check_plot()
    for arm in arms:
        if not arm.is_peer:
            prepare(order.model, {**order.options, **arm.options}, starts=False)  # type: ignore[typeddict-item]
    return arms, len(workload.items)


def _compared(text: str) -> tuple[str, list[Any]]:
    """Read OPTION=A,B."""
    given, equals, values = text.partition("=")
    setting = ENGINE.get(given.replace("-", "_"))
    if not equals:
        raise ConfigError(f"--compare takes OPTION=A,B, got {text!r}")
    if setting is None:
        raise ConfigError(f"--compare: there is no engine option {given!r}")
    try:
        found = [setting.kind(value) for value in values.split(",")]
        if any(isinstance(value, dict) for value in found):
            raise ConfigError(f"--compare cannot take {given}: its values have commas of their own")
        return setting.name, found
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"--compare {given} {error}") from None


def _measured(
    arguments: argparse.Namespace, order: RunSpec, arms: Sequence[Arm], count: int, console: Console
) -> list[ArmRuns]:
    """Run here what is one run; several runs take turns in processes of their own, so that none sees another's."""
    if arguments.model is None:
        console.say(no_model_given())
    console.say(f"workload {order.workload.shown_name()} on {environment.redacted_model(arguments.model)}")
    if len(arms) == arguments.repeat == 1 and arguments.threads is None:
        options = {**order.options, **arms[0].options}
        own = RunSpec(model=order.model, options=options, workload=order.workload)
        with Progress(count, shown=console.shows_bars([])) as progress:

            def note(tokens: int, ended: bool) -> None:
                progress.tokens(tokens)
                if ended:
                    progress.request_done()

            return [ArmRuns(arms[0], [measure(own, note)])]

    def told(arm: Arm, number: int, result: Mapping[str, Any]) -> None:
        speed = result["output_tokens_per_second"]
        console.say(f"turn {number + 1} of {arguments.repeat}: {arm.name} {speed:.1f} output tokens/s")

    return run_interleaved(
        arms, order, repeat=arguments.repeat, threads=arguments.threads, shown=arguments.verbose, note=told
    )


def _verdict(turns: Sequence[ArmRuns], console: Console) -> int:
    """Say what went wrong, if anything did."""
    code = 0
    for each in turns:
        for result in each.runs:
            requests, faults = result["requests"], result.get("integrity_errors", [])
            if requests["failed"]:
                reasons = ", ".join(f"{count} {name}" for name, count in requests["errors"].items())
                console.complain(
                    f"{each.arm.name}: {requests['failed']} of {requests['total']} requests failed: {reasons}"
                )
            for fault in faults:
                console.complain(f"{each.arm.name}: the engine's ledger is wrong: {fault}")
            code = 1 if requests["failed"] or faults else code
    return code
