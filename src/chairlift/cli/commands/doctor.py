"""`chairlift doctor`: what this machine has, what a model would take on it, what is wrong and what to do about it."""

import argparse
import json
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TypeVar, cast

from chairlift import __version__
from chairlift.cli import system_info
from chairlift.cli.console import Console, tamed_line
from chairlift.cli.settings import settings
from chairlift.core.errors import ChairliftError, ModelError, UnsupportedArchitecture
from chairlift.llm.model_names import DEMO, no_model_given

ERROR, WARNING = "error", "warning"
LOW_MEMORY = 2**30
T = TypeVar("T")

MODEL_FACTS = (
    "name", "folder", "architecture", "dtype", "checkpoint_dtype", "device", "parameters", "weight_bytes", "step_bytes",
    "kv_bytes_per_token", "block_size", "num_blocks", "kv_bytes", "tokens", "requests_by_length", "max_model_len",
    "model_limit", "has_tokenizer",
)  # fmt: skip
"""Keys of the report's "model"; None is what could not be found out."""

REMEDIES = {
    "num_blocks": "ask for fewer blocks, or leave num_blocks out",
    "max_memory": "lower max_running_requests, max_batch_tokens or max_model_len, take a smaller model or dtype, "
    "or free memory",
    "max_model_len": "lower max_model_len",
    "revision": "leave revision out, or name a model of the hub",
    "device": "leave device out, or name one of the devices above",
    "dtype": "leave dtype out, or name one of float32, bfloat16, float16, float64",
}
"""Option -> what to do when it cannot be."""


class DoctorReport:
    """The report as it grows; whatever cannot be found out becomes a problem, and never a traceback."""

    def __init__(self) -> None:
        self.report: dict[str, Any] = {
            "chairlift": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
        self.problems: list[dict[str, str]] = []

    def problem(self, level: str, what: str, do: str) -> None:
        """Note what is wrong and what to do."""
        self.problems.append({"level": level, "what": " ".join(what.split()), "do": do})

    def attempt(
        self, what: str, find: Callable[[], T], *, level: str = WARNING, do: str = "run again with -v"
    ) -> T | None:
        """Find something out, or say that it could not be."""
        try:
            return find()
        except Exception as error:
            self.problem(level, f"{what}: {type(error).__name__}: {error}", do)
            return None

    def finished(self) -> dict[str, Any]:
        """Return the report; a program finds all keys, whatever went wrong."""
        ok = not any(problem["level"] == ERROR for problem in self.problems)
        return {**self.report, "problems": self.problems, "ok": ok}


def run(arguments: argparse.Namespace) -> int:
    """Examine and print; returns the exit code: 1 when the model cannot be run."""
    environ = settings.environment()
    options = settings.given(settings.ENGINE, arguments, environ)
    if arguments.model is None:
        with suppress(ModelError):  # what is wrong with it will be among the problems
            Console(quiet=arguments.quiet).say(no_model_given())
    report = examine(DEMO if arguments.model is None else arguments.model, options)
    if arguments.json:
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        print("\n".join(map(tamed_line, shown(report))))
    return 0 if report["ok"] else 1


def examine(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return everything that can be found out, as plain values with stable keys."""
    found = DoctorReport()
    report = found.report
    report["cpu"] = found.attempt("the processor could not be read", system_info.cpu)
    report["memory"] = found.attempt("the memory could not be read", system_info.memory)
    report["environment"] = system_info.environment(os.environ)
    report["compiler"] = found.attempt("no compiler could be asked", lambda: system_info.compiler(os.environ))
    report["libraries"] = _libraries(found)
    report |= dict.fromkeys(("devices", "threads", "memory_limits", "attention_backends", "kernels"))
    report |= found.attempt(
        "torch cannot be used", _machine, level=ERROR, do="install Chairlift again: python -m pip install chairlift"
    ) or {}  # fmt: skip
    _judge(found)
    report["model"] = _model(found, model, options)
    return found.finished()


def _machine() -> dict[str, Any]:
    from chairlift.llm.build import inspect_machine

    return inspect_machine()


def _libraries(found: DoctorReport) -> list[dict[str, Any]]:
    listed = found.attempt("what Chairlift needs could not be read", lambda: list(system_info.libraries())) or []
    for library in listed:
        if not library.extra and not library.is_good:
            here = "is missing" if library.version is None else f"is {library.version}"
            wanted = f"{library.name}>={library.least}" if library.least else library.name
            found.problem(
                ERROR, f"{library.name} {here}, Chairlift needs {wanted}", f"python -m pip install '{wanted}'"
            )
    return [
        asdict(library) | {"ok": library.is_good, "purpose": system_info.PURPOSES.get(library.name, "")}
        for library in listed
    ]


def _judge(found: DoctorReport) -> None:
    """Say what of the machine will make a model slow."""
    report = found.report
    cpu, memory, threads = report["cpu"] or {}, report["memory"] or {}, report["threads"]
    usable = min(cpu.get("usable") or 1, max(1, int(cpu.get("quota") or 10**6)))
    if threads is not None and threads > usable:
        found.problem(
            WARNING, f"torch uses {threads} threads, this process may use {usable} processors",
            f"set OMP_NUM_THREADS={usable}",
        )  # fmt: skip
    if missing := (report["kernels"] or {}).get("missing"):
        found.problem(
            WARNING, f"models in bfloat16 run at half of their speed on the CPU, or less: {missing}",
            "install g++ (Debian: apt install g++), then run python -m chairlift.model.kernels.cpu.compile",
        )  # fmt: skip
    if (available := memory.get("available")) is not None and available < LOW_MEMORY:
        found.problem(WARNING, f"{_bytes(available)} of memory are available", "close what else runs here")
    if memory.get("transparent_huge_pages") == "never":
        do = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        found.problem(WARNING, "transparent huge pages are off, so the KV cache is made of small pages", do)


def _model(found: DoctorReport, model: str, options: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = dict.fromkeys(MODEL_FACTS) | {"name": model}
    read = found.attempt("the model could not be examined", lambda: _examined(model, options), level=ERROR)
    if read is not None:
        more, problems = read
        facts |= more
        for error in problems:
            found.problem(ERROR, error.message, _remedy(error))
        if more.get("has_tokenizer") is False:
            found.problem(
                WARNING, "the folder has no tokenizer.json: prompts must be token ids, outputs have no text",
                "copy tokenizer.json beside config.json",
            )  # fmt: skip
    return facts


def _examined(model: str, options: dict[str, Any]) -> tuple[dict[str, Any], list[ChairliftError]]:
    from chairlift.llm.build import inspect_model
    from chairlift.llm.options import Options

    return inspect_model(model, cast("Options", options))


def _remedy(error: ChairliftError) -> str:
    if isinstance(error, UnsupportedArchitecture):
        return "take a model of a supported architecture; docs/add-a-model.md says how one is added"
    if isinstance(error, ModelError):
        return "check the name, or fetch the model's files again"
    return REMEDIES.get(str(error.details.get("option")), "change that option")


# -- for people ----------------------------------------------------------------------------------------------------


def shown(report: dict[str, Any]) -> list[str]:
    """Return the lines of a report."""
    lines = [f"Chairlift {report['chairlift']} on Python {report['python']}, {report['platform']}"]
    lines += _section("machine", _of_machine(report))
    lines += _section("libraries", [_of_library(library) for library in report["libraries"]])
    lines += _section("model", _of_model(report["model"]))
    if report["problems"]:
        lines += ["", "problems"]
        for problem in report["problems"]:
            lines += [f"  {problem['level']}: {problem['what']}", f"      -> {problem['do']}"]
    else:
        lines += ["", "no problems"]
    return lines


def _section(title: str, rows: list[tuple[str, str]]) -> list[str]:
    return ["", title, *(f"  {name:<22} {value}".rstrip() for name, value in rows)]


def _of_machine(report: dict[str, Any]) -> list[tuple[str, str]]:
    cpu, memory = report["cpu"] or {}, report["memory"] or {}
    quota = "" if cpu.get("quota") is None else f", a quota of {cpu['quota']:g}"
    cores = "" if cpu.get("cores") is None else f"{cpu['cores']} cores, "
    rows = [
        ("processor", f"{cpu.get('model', 'unknown')}"),
        ("processors", f"{cores}{cpu.get('logical')} logical, {cpu.get('usable')} usable here{quota}"),
        ("threads of torch", str(report["threads"])),
        ("memory", f"{_bytes(memory.get('total'))}, {_bytes(memory.get('available'))} available"),
    ]
    rows += [
        ("  limit", f"{_bytes(one['bytes'])} ({one['limit']})")
        for one in report["memory_limits"] or []
        if one["limit"] != "MemAvailable"
    ]
    pages = f"; {memory['huge_pages']} reserved ones" if memory.get("huge_pages") else ""
    rows.append(("huge pages", f"{memory.get('transparent_huge_pages') or 'unknown'}{pages}"))
    for device in report["devices"] or []:
        room = "" if device["memory_total"] is None else f", {_bytes(device['memory_free'])} free"
        native = "native" if device["native_bfloat16"] else "emulated"
        rows.append((f"device {device['name']}", f"{device['description']}{room}; {native} bfloat16"))
    rows.append(("attention backends", ", ".join(report["attention_backends"] or ["unknown"])))
    kernels = report["kernels"] or {}
    rows.append(("native kernels", _of_kernels(kernels)))
    rows.append(("compiler", report["compiler"]["version"] if report["compiler"] else "none found"))
    rows += [(name, value) for name, value in report["environment"].items()]
    return rows


def _of_kernels(kernels: dict[str, Any]) -> str:
    if not kernels.get("chosen"):
        return "none"
    others = [name for name in kernels["sets"] if name != kernels["chosen"]]
    return f"{kernels['chosen']} on {kernels['threads']} threads; also {', '.join(others) or 'none'}"


def _of_library(library: dict[str, Any]) -> tuple[str, str]:
    extra = f" (extra {library['extra']})" if library["extra"] else ""
    return library["name"], f"{library['version'] or 'not installed':<14} {library['purpose']}{extra}"


def _of_model(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("name", facts["name"])]
    if facts["architecture"] is not None:
        own = facts["checkpoint_dtype"]
        of_file = f" (the checkpoint is {own})" if own not in (None, facts["dtype"]) else ""
        rows += [
            ("architecture", facts["architecture"]),
            ("dtype", f"{facts['dtype']}{of_file}"),
            ("parameters", f"{facts['parameters'] / 1e6:,.1f} million"),
        ]
    for name, key in (("weights", "weight_bytes"), ("largest step", "step_bytes")):
        if facts[key] is not None:
            rows.append((name, _bytes(facts[key])))
    if facts["kv_bytes_per_token"] is not None:
        rows.append(("KV cache per token", _bytes(facts["kv_bytes_per_token"])))
    if facts["num_blocks"] is not None:
        size = f"{facts['num_blocks']} blocks, {facts['tokens']} tokens, {_bytes(facts['kv_bytes'])}"
        rows.append(("KV cache", size))
        rows += [
            (f"  of {length} tokens", f"{count} requests at once")
            for length, count in facts["requests_by_length"].items()
        ]
    return rows


def _bytes(number: int | None) -> str:
    if number is None:
        return "unknown"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
