"""Machine: what can be read of processor, memory, compiler and libraries without importing any of them."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from chairlift.cli.settings import settings
from chairlift.core.cpu_affinity import usable_cpus

PURPOSES = {
    "torch": "tensors, and the models on them",
    "numpy": "the arrays of a step",
    "tokenizers": "text to token ids and back",
    "safetensors": "reading weights",
    "msgspec": "messages between processes",
    "pyzmq": "the line to an engine in its own process",
    "jinja2": "chat templates",
    "huggingface-hub": "models from the hub",
    "llguidance": "output that follows a schema, a grammar or a pattern",
    "tqdm": "progress bars",
    "transformers": "comparisons with it",
    "starlette": "routes of the server",
    "uvicorn": "HTTP",
    "orjson": "JSON of requests and answers",
    "prometheus-client": "metrics",
    "pyyaml": "files of settings",
    "matplotlib": "pictures of measurements",
}
"""Library -> what it is for."""

ENVIRONMENT = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "CUDA_VISIBLE_DEVICES",
    "HF_HOME", "HF_HUB_OFFLINE",
)  # fmt: skip
"""Variables that change how fast or whether a model runs."""

COMPILERS = ("c++", "g++", "clang++")
UNSEEN_EXTRAS = ("contract", "test", "dev")
REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)(?P<bound>[^;]*)(;.*extra == [\"'](?P<extra>[^\"']+)[\"'])?")


def cpu(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> dict[str, Any]:
    """Return the processor's name, its cores, and how many of them this process may use."""
    fields = [tuple(part.strip() for part in line.partition(":")[::2]) for line in _lines(proc / "cpuinfo")]
    names = [value for name, value in fields if name == "model name"]
    sockets = [value for name, value in fields if name == "physical id"]
    cores = [value for name, value in fields if name == "core id"]
    return {
        "model": names[0] if names else "unknown",
        "cores": len(set(zip(sockets, cores, strict=False))) or None,
        "logical": os.cpu_count(),
        "usable": len(usable_cpus()),
        "quota": _quota(cgroup),
    }


def _quota(cgroup: Path) -> float | None:
    """CPUs that the cgroup grants, where it bounds them (versions 2 and 1)."""
    words = " ".join(_lines(cgroup / "cpu.max")).split()
    if len(words) != 2:
        words = [*_lines(cgroup / "cpu/cpu.cfs_quota_us"), *_lines(cgroup / "cpu/cpu.cfs_period_us")]
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    return None


def memory(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> dict[str, Any]:
    """Return bytes of memory, in all and available, and how huge pages are given."""
    found = {}
    for line in _lines(proc / "meminfo"):
        name, _, value = line.partition(":")
        if words := value.split():
            found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    modes = " ".join(_lines(sys / "kernel/mm/transparent_hugepage/enabled"))
    chosen = re.search(r"\[(\w+)\]", modes)
    return {
        "total": found.get("MemTotal"),
        "available": found.get("MemAvailable"),
        "transparent_huge_pages": chosen[1] if chosen else None,
        "huge_pages": found.get("HugePages_Total", 0),
    }


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those variables that matter and are set; of keys only that they are."""
    names = [*ENVIRONMENT, *sorted(name for name in environ if name.startswith(settings.PREFIX))]
    hidden = dict.fromkeys(settings.SECRETS, "set, and not shown")
    return {name: hidden.get(name, environ[name]) for name in names if name in environ}


def compiler(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return path and version of the C++ compiler that would be used, None when there is none."""
    asked = environ.get("CXX", "").split()
    for name in (*asked[:1], *COMPILERS):
        if (path := shutil.which(name)) is not None:
            try:
                done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=True)
            except (OSError, subprocess.SubprocessError):
                continue
            return {"path": path, "version": next(iter(done.stdout.splitlines()), "")}
    return None


@dataclass(frozen=True, slots=True)
class Library:
    """One library that Chairlift uses: what pyproject.toml asks for, and what is here.

    Attributes:
        extra: "" for a required one, else the extra that brings it.
        least: the oldest version that is supported, "" for any.
        version: None when it is not installed.
    """

    name: str
    extra: str
    least: str
    version: str | None

    @property
    def is_good(self) -> bool:
        """Whether it is here and new enough."""
        return self.version is not None and _numbers(self.version) >= _numbers(self.least)


def libraries(requirements: list[str] | None = None) -> Iterator[Library]:
    """Yield what Chairlift asks for, required libraries first. Raises PackageNotFoundError when it is not installed."""
    asked = metadata.requires("chairlift") or [] if requirements is None else requirements
    found = [match for match in map(REQUIREMENT.match, asked) if match is not None]
    for match in sorted(found, key=lambda match: match["extra"] or ""):
        if match["extra"] in UNSEEN_EXTRAS or match["name"] == "chairlift":
            continue
        least = re.search(r">=\s*([\w.]+)", match["bound"])
        name = match["name"].lower().replace("_", "-")
        yield Library(name, match["extra"] or "", least[1] if least else "", _installed(name))


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.13.0+cpu -> (2, 13, 0)."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
