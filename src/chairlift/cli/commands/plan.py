"""`chairlift plan`: computes the memory, the parallel sizes and the replicas that a model needs for a load."""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from chairlift.bench.planning.capacity import Targets
from chairlift.bench.planning.hardware_spec import Hardware
from chairlift.bench.planning.model_memory import FLOAT8, ModelMemory, check_dtype
from chairlift.bench.planning.model_shape import shape_of_content, shape_of_loaded
from chairlift.bench.planning.plan import PlanInput, make_plan
from chairlift.bench.planning.plan_report import plan_table, plan_values
from chairlift.bench.planning.simulated_replica import RequestLoad
from chairlift.bench.simulation.step_model_file import read_step_model
from chairlift.cli import system_info
from chairlift.cli.console import Console
from chairlift.cli.escape_control_chars import escape_line
from chairlift.cli.progress_line import ProgressLine
from chairlift.cli.settings import plan_settings, settings
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.cli.terminal_fold import terminal_columns
from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig
from chairlift.llm.builtin_models import DEMO, no_model_given
from chairlift.llm.model_inspection import ModelSizes, read_model_sizes, resolve_dtype_option

DEFAULTS = {setting.name: setting.default for setting in plan_settings.PLAN if setting.default != ""}
ENGINE = tuple(setting for setting in settings.ENGINE if setting.name in plan_settings.PLAN_ENGINE)
MEMORY_OPTIONS = ("block_size", "max_batch_tokens", "max_running_requests", "quantization")
SCHEDULER_OPTIONS = ("max_batch_tokens", "max_running_requests", "max_prefill_tokens", "target_itl_ms")


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; returns the exit code: 1 when the GPUs at hand are too few for the rate.

    Raises ConfigError for invalid input, for a memory that is too small and for targets that cannot be reached.
    """
    environ = process_environment()
    options = DEFAULTS | resolve_group(plan_settings.PLAN, arguments, environ)
    engine = resolve_group(ENGINE, arguments, environ)
    console = Console(quiet=arguments.quiet)
    if arguments.model is None:
        console.print_line(no_model_given())
    name = DEMO if arguments.model is None else arguments.model
    sizes = read_model_sizes(name, engine.get("revision"))
    given = plan_input(sizes, options, engine)
    problems = list(sizes.problems)
    if given.memory.quantization == FLOAT8 and sizes.config is None:
        problems.append(
            f"--quantization {FLOAT8} needs one of Chairlift's own architectures, not {given.memory.shape.architecture}"
        )
    with ProgressLine(is_shown=not (arguments.json or arguments.quiet)) as progress:
        plan = make_plan(given, lambda text: progress.show(f"simulating {text}"))
    values = plan_values(plan, name, problems)
    if arguments.json:
        print(json.dumps(values, ensure_ascii=False, indent=2))
    else:
        print("\n".join(map(escape_line, plan_table(values, terminal_columns(sys.stdout)))))
    return 0 if values["ok"] else 1


def plan_input(sizes: ModelSizes, options: Mapping[str, Any], engine: Mapping[str, Any]) -> PlanInput:
    """Return what the plan is made from, out of the settings of PLAN and of the engine. Raises ConfigError."""
    load = RequestLoad(input=options["input"], output=options["output"])
    targets = Targets(
        ttft=options["ttft_ms"] / 1e3, itl=options["itl_ms"] / 1e3, share=options["attainment"]
    )  # fmt: skip
    shape = shape_of_content(sizes.content) if sizes.config is None else shape_of_loaded(sizes.config, sizes.content)
    memory = ModelMemory(
        shape=shape, dtype=check_dtype(resolve_dtype_option(engine.get("dtype", "auto"), shape.dtype)),
        kv_cache_dtype=resolve_dtype_option(engine.get("kv_cache_dtype", "auto"), "auto"), on_cpu=not options["gpus"],
        **{name: engine[name] for name in MEMORY_OPTIONS if name in engine},
    )  # fmt: skip
    scheduler = SchedulerConfig(**{name: engine[name] for name in SCHEDULER_OPTIONS if name in engine})
    file = options.get("step_model")
    return PlanInput(
        memory=memory, hardware=_hardware(options), load=load, rate=options["rate"], targets=targets,
        scheduler=scheduler, step_model=None if file is None else read_step_model(file),
    )  # fmt: skip


def _hardware(options: Mapping[str, Any]) -> Hardware:
    bandwidth, tflops = options.get("memory_bandwidth"), options.get("tflops")
    gpus = options["gpus"]
    return Hardware(
        gpus=gpus, memory=_bytes(options["gpu_memory"], "gpu_memory") if gpus else _host_memory(options),
        cores=0 if gpus else options.get("cores") or system_info.cpu()["usable"],
        bandwidth=None if bandwidth is None else bandwidth * 1e9, speed=None if tflops is None else tflops * 1e12,
        price=options.get("price"),
    )  # fmt: skip


def _host_memory(options: Mapping[str, Any]) -> int:
    if (given := options.get("memory")) is not None:
        return _bytes(given, "memory")
    total = system_info.memory()["total"]
    if total is None:
        raise ConfigError("the memory of this machine cannot be measured; set memory", option="memory")
    return int(total)


def _bytes(gigabytes: float, option: str) -> int:
    if not 0 < gigabytes < float("inf"):
        raise ConfigError(f"{option} must be a positive number of GB, got {gigabytes:g}", option=option)
    return int(gigabytes * 1e9)
