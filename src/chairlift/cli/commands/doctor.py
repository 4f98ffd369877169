"""`chairlift doctor`: reports the machine, a model's memory use, or a live server, and problems with remedies."""

import argparse
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TypeVar, cast

from chairlift import __version__
from chairlift.cli import system_info
from chairlift.cli.console import Console
from chairlift.cli.escape_control_chars import escape_line
from chairlift.cli.settings import settings
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.cli.terminal_fold import print_folded
from chairlift.core.errors import ChairliftError, ConfigError, ModelError
from chairlift.llm.builtin_models import DEMO, no_model_given

ERROR, WARNING = "error", "warning"
LOW_MEMORY = 2**30
"""Bytes of available memory below which the report has a warning."""

T = TypeVar("T")

MODEL_FACTS = (
    "name", "folder", "architecture", "model_impl", "layers", "dtype", "checkpoint_dtype", "stored_types", "device",
    "parameters", "weight_bytes", "step_bytes", "state_bytes", "state_checkpoints", "kv_bytes_per_token", "block_size",
    "num_blocks", "kv_bytes", "tokens", "requests_by_length", "max_model_len", "model_limit", "has_tokenizer",
    "chat_template",
)  # fmt: skip
"""Keys of the report's "model"; a value is None where it could not be determined."""

IMPLEMENTATIONS = {
    "native": "native: Chairlift's own",
    "transformers": "transformers: its modules on the paged KV cache; its layers are checked when it is loaded",
}
"""By the value of the fact "model_impl": who computes the layers."""

REMEDIES = {
    "num_blocks": "lower num_blocks, or leave it out",
    "max_memory": "lower max_running_requests, max_batch_tokens or max_model_len, use a smaller model or dtype, "
    "or free memory",
    "max_model_len": "lower max_model_len",
    "revision": "leave revision out, or name a hub id",
    "device": "leave device out, or name one of the devices above",
    "dtype": "leave dtype out, or name one of float32, bfloat16, float16, float64",
}
"""Remedy by the option that an error names."""


class DoctorReport:
    """Collects the report; a value that cannot be determined becomes a problem."""

    def __init__(self) -> None:
        self.report: dict[str, Any] = {
            "chairlift": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
        self.problems: list[dict[str, str]] = []

    def add_problem(self, level: str, what: str, do: str) -> None:
        """Add a problem and its remedy."""
        self.problems.append({"level": level, "what": " ".join(what.split()), "do": do})

    def attempt(
        self, what: str, determine: Callable[[], T], *, level: str = WARNING, do: str = "run again with -v"
    ) -> T | None:
        """Return a value, or None and a problem when it cannot be determined."""
        try:
            return determine()
        except Exception as error:
            self.add_problem(level, f"{what}: {type(error).__name__}: {error}", do)
            return None

    def result(self) -> dict[str, Any]:
        """Return the report, which has every key whatever failed."""
        ok = not any(problem["level"] == ERROR for problem in self.problems)
        return {**self.report, "problems": self.problems, "ok": ok}


def run(arguments: argparse.Namespace) -> int:
    """Examine the machine and the model, or the server of --url, and print the report.

    Returns the exit code: 1 if the model cannot run, or if requests to the server fail or will fail soon.
    """
    if arguments.url is not None:
        return run_live(arguments)
    environ = process_environment()
    options = resolve_group(settings.ENGINE, arguments, environ)
    if arguments.model is None:
        with suppress(ModelError):  # the report has the problem of a damaged demo model
            Console(quiet=arguments.quiet).print_line(no_model_given())
    report = examine(DEMO if arguments.model is None else arguments.model, options)
    if arguments.json:
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        print_folded("\n".join(map(escape_line, format_report(report))))
    return 0 if report["ok"] else 1


def run_live(arguments: argparse.Namespace) -> int:
    """Examine the server of --url and print the report; returns the exit code. Raises ConfigError."""
    from chairlift.cli.diagnosis.diagnosis import diagnose
    from chairlift.cli.diagnosis.live_options import live_server

    if arguments.model is not None:
        raise ConfigError("MODEL and --url exclude each other: the server knows its model", option="url")
    report = diagnose(*live_server(arguments)).as_json()
    if arguments.json:
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        version = f", Chairlift {report['version']}" if report["version"] else ""
        lines = [f"{report['service']} {report['url']}{version}", *(f"  replica {url}" for url in report["replicas"])]
        lines += problem_lines(report["problems"])
        print_folded("\n".join(map(escape_line, lines)))
    return 0 if report["ok"] else 1


def examine(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the report as plain values with stable keys."""
    doctor = DoctorReport()
    report = doctor.report
    report["cpu"] = doctor.attempt("the CPU could not be examined", system_info.cpu)
    report["memory"] = doctor.attempt("the memory could not be examined", system_info.memory)
    report["gpus"] = doctor.attempt("the GPUs could not be examined", system_info.gpus)
    report["gpu_driver"] = doctor.attempt("the driver of the GPUs could not be examined", system_info.gpu_driver)
    report["environment"] = system_info.environment(os.environ)
    report["compiler"] = doctor.attempt("the compiler could not be examined", lambda: system_info.compiler(os.environ))
    report["libraries"] = _check_libraries(doctor)
    report |= dict.fromkeys(("devices", "cuda", "threads", "memory_limits", "attention_backends", "kernels"))
    report |= doctor.attempt(
        "torch cannot be used", _inspect_machine, level=ERROR,
        do="install Chairlift again: python -m pip install chairlift"
    ) or {}  # fmt: skip
    _warn_about_machine(doctor)
    report["model"] = _check_model(doctor, model, options)
    return doctor.result()


def _inspect_machine() -> dict[str, Any]:
    from chairlift.llm.model_inspection import inspect_machine

    return inspect_machine()


def _check_libraries(doctor: DoctorReport) -> list[dict[str, Any]]:
    what = "the requirements of Chairlift could not be read"
    libraries = doctor.attempt(what, lambda: list(system_info.libraries())) or []
    for library in libraries:
        if not library.extra and not library.is_supported:
            state = "is missing" if library.version is None else f"is {library.version}"
            requirement = f"{library.name}>={library.least}" if library.least else library.name
            doctor.add_problem(
                ERROR, f"{library.name} {state}, Chairlift needs {requirement}",
                f"python -m pip install '{requirement}'",
            )  # fmt: skip
    return [
        asdict(library) | {"ok": library.is_supported, "purpose": system_info.PURPOSES.get(library.name, "")}
        for library in libraries
    ]


def _warn_about_machine(doctor: DoctorReport) -> None:
    """Add warnings about the machine that make a model slow."""
    report = doctor.report
    cpu, memory, threads = report["cpu"] or {}, report["memory"] or {}, report["threads"]
    usable = min(cpu.get("usable") or 1, max(1, int(cpu.get("quota") or 10**6)))
    if threads is not None and threads > usable:
        doctor.add_problem(
            WARNING, f"torch uses {threads} threads, but this process may use {usable} CPUs",
            f"set OMP_NUM_THREADS={usable}",
        )  # fmt: skip
    if missing := (report["kernels"] or {}).get("missing"):
        doctor.add_problem(
            WARNING, f"models run at half of their speed on the CPU, or less: {missing}",
            "install g++ (Debian: apt install g++), then run python -m chairlift.model.kernels.cpu.compile",
        )  # fmt: skip
    if (available := memory.get("available")) is not None and available < LOW_MEMORY:
        doctor.add_problem(WARNING, f"only {_format_bytes(available)} of memory are available", "close other programs")
    if memory.get("transparent_huge_pages") == "never":
        do = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        doctor.add_problem(WARNING, "transparent huge pages are off, so access to the KV cache is slower", do)


def _check_model(doctor: DoctorReport, model: str, options: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = dict.fromkeys(MODEL_FACTS) | {"name": model}
    read = doctor.attempt("the model could not be examined", lambda: _inspect_model(model, options), level=ERROR)
    if read is not None:
        model_facts, problems = read
        facts |= model_facts
        for error in problems:
            remedy = _remedy(error)
            doctor.add_problem(ERROR, error.message.removesuffix(f"; {remedy}"), remedy)
        if model_facts.get("has_tokenizer") is False:
            doctor.add_problem(
                WARNING, "the folder has no tokenizer.json: prompts must be token ids, and outputs have no text",
                "copy tokenizer.json into the model folder",
            )  # fmt: skip
    return facts


def _inspect_model(model: str, options: dict[str, Any]) -> tuple[dict[str, Any], list[ChairliftError]]:
    from chairlift.llm.model_inspection import inspect_model
    from chairlift.llm.options import Options

    return inspect_model(model, cast("Options", options))


def _remedy(error: ChairliftError) -> str:
    if isinstance(remedy := error.details.get("remedy"), str):
        return remedy
    if isinstance(error, ModelError):
        return "check the name, or download the model's files again"
    return REMEDIES.get(str(error.details.get("option")), "change that setting")


# -- for people ----------------------------------------------------------------------------------------------------


def format_report(report: dict[str, Any]) -> list[str]:
    """Return the lines of a report for people."""
    lines = [f"Chairlift {report['chairlift']} on Python {report['python']}, {report['platform']}"]
    lines += _section("machine", _machine_rows(report))
    lines += _section("libraries", [_library_row(library) for library in report["libraries"]])
    lines += _section("model", _model_rows(report["model"]))
    if (template := report["model"]["chat_template"]) is not None:
        lines += _section("chat template: how messages are written", [*template["forms"].items()])
    return lines + problem_lines(report["problems"])


def problem_lines(problems: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the lines of problems with their remedies, and the page about each if it has one."""
    lines = ["", "problems" if problems else "no problems"]
    for problem in problems:
        server = f"{problem['server']}: " if "server" in problem else ""
        lines += [f"  {problem['level']}: {server}{problem['what']}", f"      -> {problem['do']}"]
        lines += [f"         {problem['see']}"] if "see" in problem else []
    return lines


def _section(title: str, rows: list[tuple[str, str]]) -> list[str]:
    width = max(22, *(len(name) for name, _ in rows))
    return ["", title, *(f"  {name:<{width}} {value}".rstrip() for name, value in rows)]


def _machine_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    cpu, memory = report["cpu"] or {}, report["memory"] or {}
    quota = "" if cpu.get("quota") is None else f", a quota of {cpu['quota']:g}"
    cores = "" if cpu.get("cores") is None else f"{cpu['cores']} cores, "
    rows = [
        ("CPU", f"{cpu.get('model', 'unknown')}"),
        ("CPU cores", f"{cores}{cpu.get('logical')} logical, {cpu.get('usable')} usable{quota}"),
        ("torch threads", str(report["threads"])),
        ("memory", f"{_format_bytes(memory.get('total'))}, {_format_bytes(memory.get('available'))} available"),
    ]
    rows += [
        ("  limit", f"{_format_bytes(one['bytes'])} ({one['limit']})")
        for one in report["memory_limits"] or []
        if one["limit"] != "MemAvailable"
    ]
    pages = f"; {memory['huge_pages']} reserved" if memory.get("huge_pages") else ""
    rows.append(("huge pages", f"{memory.get('transparent_huge_pages') or 'unknown'}{pages}"))
    for device in report["devices"] or []:
        memory_text = "" if device["memory_total"] is None else f", {_format_bytes(device['memory_free'])} free"
        native = "native" if device["native_bfloat16"] else "emulated"
        capability = device.get("compute_capability")
        capability_text = "" if capability is None else f", compute capability {capability}"
        rows.append((
            f"device {device['name']}", f"{device['description']}{capability_text}{memory_text}; {native} bfloat16"
        ))  # fmt: skip
    rows.append(("CUDA", _format_cuda(report["cuda"] or {}, report["gpu_driver"])))
    rows += [(f"GPU {gpu['gpu']}", _format_gpu(gpu)) for gpu in report["gpus"] or []]
    rows.append(("attention backends", ", ".join(report["attention_backends"] or ["unknown"])))
    kernels = report["kernels"] or {}
    rows.append(("native kernels", _format_kernels(kernels)))
    rows += [
        ("trial products" if not index else "", f"{each['kind']}: {each['summary']}")
        for index, each in enumerate(kernels.get("products") or [])
    ]
    rows.append(("compiler", report["compiler"]["version"] if report["compiler"] else "none found"))
    rows += [(name, value) for name, value in report["environment"].items()]
    return rows


def _format_cuda(cuda: dict[str, Any], driver: str | None) -> str:
    version = "" if cuda.get("version") is None else f"{cuda['version']}, "
    device = "" if cuda.get("missing") is None else f"no device ({cuda['missing']}), "
    return f"{version}{device}{'no NVIDIA driver' if driver is None else f'driver {driver}'}"


def _format_gpu(gpu: dict[str, Any]) -> str:
    parts = [gpu["name"] or "unknown"]
    if gpu["memory_total_bytes"] is not None:
        parts.append(f"{_format_bytes(gpu['memory_used_bytes'])} of {_format_bytes(gpu['memory_total_bytes'])} used")
    if gpu["utilization_ratio"] is not None:
        parts.append(f"busy {gpu['utilization_ratio']:.0%} of the time")
    return ", ".join([*parts, *([gpu["error"]] if gpu["error"] else [])])


def _format_kernels(kernels: dict[str, Any]) -> str:
    if not kernels.get("chosen"):
        return "none"
    others = [name for name in kernels["sets"] if name != kernels["chosen"]]
    return f"{kernels['chosen']} on {kernels['threads']} threads; also {', '.join(others) or 'none'}"


def _library_row(library: dict[str, Any]) -> tuple[str, str]:
    extra = f" (extra {library['extra']})" if library["extra"] else ""
    return library["name"], f"{library['version'] or 'not installed':<14} {library['purpose']}{extra}"


def _model_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("name", facts["name"])]
    if facts["architecture"] is not None:
        own = facts["checkpoint_dtype"]
        checkpoint = f" (the checkpoint is {own})" if own not in (None, facts["dtype"]) else ""
        rows += [
            ("architecture", facts["architecture"]),
            ("implementation", IMPLEMENTATIONS[facts["model_impl"]]),
            *([("layers", facts["layers"])] if facts["layers"] else []),
            ("dtype", f"{facts['dtype']}{checkpoint}"),
            ("parameters", f"{facts['parameters'] / 1e6:,.1f} million"),
        ]
        if facts["stored_types"]:
            rows.append(("stored as", facts["stored_types"]))
    for name, key in (("weights", "weight_bytes"), ("largest step", "step_bytes")):
        if facts[key] is not None:
            rows.append((name, _format_bytes(facts[key])))
    if facts["state_bytes"] is not None:
        saved = f"{facts['state_checkpoints']} states of prefixes are kept"
        rows.append(("state of a request", f"{_format_bytes(facts['state_bytes'])}; {saved}"))
    if facts["kv_bytes_per_token"] is not None:
        rows.append(("KV cache per token", _format_bytes(facts["kv_bytes_per_token"])))
    if facts["num_blocks"] is not None:
        size = f"{facts['num_blocks']} blocks, {facts['tokens']} tokens, {_format_bytes(facts['kv_bytes'])}"
        rows.append(("KV cache", size))
        rows += [
            (f"  of {length} tokens", f"{count} requests at once")
            for length, count in facts["requests_by_length"].items()
        ]
    return rows


def _format_bytes(number: int | None) -> str:
    if number is None:
        return "unknown"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
