"""System information: CPU, memory, compiler and library versions, read without imports."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from chairlift.cli.redacted_settings import without_secrets
from chairlift.cli.settings import settings
from chairlift.cli.settings.setting_declaration import PREFIX
from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.core.host.cpu_capacity import cpu_quota
from chairlift.core.host.gpu_reader import GpuReader
from chairlift.core.host.nvml import Nvml, NvmlFailed
from chairlift.core.host.system_files import CGROUP, PROC, read_lines, read_sizes

PURPOSES = {
    "torch": "tensors and models",
    "numpy": "arrays of a step",
    "tokenizers": "text to token ids and back",
    "safetensors": "reading weights",
    "msgspec": "messages between processes",
    "pyzmq": "sockets to an engine in its own process",
    "jinja2": "chat templates",
    "huggingface-hub": "download of models",
    "llguidance": "structured output",
    "tqdm": "progress bars",
    "transformers": "layers of models without an architecture of Chairlift's own",
    "starlette": "routes of the server",
    "uvicorn": "HTTP",
    "orjson": "JSON of requests and responses",
    "pyjwt": "JSON Web Tokens of clients",
    "aiohttp": "requests of the router to replicas and registries",
    "dnspython": "discovery of replicas by DNS",
    "redis": "state that several routers share",
    "ray": "replicas on many machines",
    "flashinfer-python": "attention on GPUs, for the backend flashinfer",
    "prometheus-client": "metrics",
    "opentelemetry-sdk": "traces",
    "opentelemetry-exporter-otlp-proto-grpc": "traces to a collector, by gRPC",
    "opentelemetry-exporter-otlp-proto-http": "traces to a collector, by HTTP",
    "pyyaml": "settings files",
    "matplotlib": "plots of benchmarks",
}
"""Purpose of each library."""

ENVIRONMENT = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "CUDA_VISIBLE_DEVICES",
    "HF_HOME", "HF_HUB_OFFLINE",
)  # fmt: skip
"""Variables of other software that change whether or how fast a model runs."""

COMPILERS = ("c++", "g++", "clang++")
DEVELOPMENT_EXTRAS = ("browser", "contract", "test")
REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)(?P<bound>[^;]*)(;.*extra == [\"'](?P<extra>[^\"']+)[\"'])?")


def cpu(proc: Path = PROC, cgroup: Path = CGROUP) -> dict[str, Any]:
    """Return the CPU's name, its number of cores, and how many of them this process may use."""
    fields = [tuple(part.strip() for part in line.partition(":")[::2]) for line in read_lines(proc / "cpuinfo")]
    names = [value for name, value in fields if name == "model name"]
    sockets = [value for name, value in fields if name == "physical id"]
    cores = [value for name, value in fields if name == "core id"]
    return {
        "model": names[0] if names else "unknown",
        "cores": len(set(zip(sockets, cores, strict=False))) or None,
        "logical": os.cpu_count(),
        "usable": len(usable_cpus()),
        "quota": cpu_quota(proc=proc, cgroup=cgroup),
    }


def memory(proc: Path = PROC, sys: Path = Path("/sys")) -> dict[str, Any]:
    """Return total and available memory in bytes, and the settings of huge pages."""
    entries = read_sizes(proc / "meminfo")
    modes = " ".join(read_lines(sys / "kernel/mm/transparent_hugepage/enabled"))
    active = re.search(r"\[(\w+)\]", modes)
    return {
        "total": entries.get("MemTotal"),
        "available": entries.get("MemAvailable"),
        "transparent_huge_pages": active[1] if active else None,
        "huge_pages": entries.get("HugePages_Total", 0),
    }


def gpus() -> list[dict[str, Any]]:
    """Return name, memory and use of every NVIDIA GPU of the machine; empty without a GPU or its driver."""
    reader = GpuReader(None, {})
    try:
        return [asdict(gpu) for gpu in reader.read()]
    finally:
        reader.close()


def gpu_driver(open_library: Callable[[], Nvml] = Nvml.open) -> str | None:
    """Return the version of NVIDIA's driver; None without a driver."""
    try:
        nvml = open_library()
    except NvmlFailed:
        return None
    try:
        return nvml.driver_version()
    except NvmlFailed:
        return None
    finally:
        with suppress(NvmlFailed):
            nvml.close()


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the relevant variables that are set; API keys, and passwords in URLs, are left out."""
    names = [*ENVIRONMENT, *sorted(name for name in environ if name.startswith(PREFIX))]
    hidden = dict.fromkeys(settings.SECRETS, "set, and not shown")
    return {
        name: hidden.get(name) or without_secrets(environ[name], name.removeprefix(PREFIX).lower())
        for name in names if name in environ
    }  # fmt: skip


def compiler(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return path and version of the C++ compiler in use, or None without a compiler."""
    configured = environ.get("CXX", "").split()
    for name in (*configured[:1], *COMPILERS):
        if (path := shutil.which(name)) is not None:
            try:
                done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=True)
            except (OSError, subprocess.SubprocessError):
                continue
            return {"path": path, "version": next(iter(done.stdout.splitlines()), "")}
    return None


@dataclass(frozen=True, slots=True)
class Library:
    """A library that Chairlift uses, with its required and its installed version.

    Attributes:
        name: name of the library on PyPI.
        extra: extra that requires the library; "" for a base requirement.
        least: oldest supported version, a key of the doctor report; "" for any.
        version: installed version; None when the library is missing.
    """

    name: str
    extra: str
    least: str
    version: str | None

    @property
    def is_supported(self) -> bool:
        """Whether the library is installed in a supported version."""
        return self.version is not None and _version_numbers(self.version) >= _version_numbers(self.least)


def libraries(requirements: list[str] | None = None) -> Iterator[Library]:
    """Yield the libraries of Chairlift's requirements, base requirements first.

    Raises PackageNotFoundError when Chairlift itself is not installed.
    """
    lines = metadata.requires("chairlift") or [] if requirements is None else requirements
    matches = [match for match in map(REQUIREMENT.match, lines) if match is not None]
    for match in sorted(matches, key=lambda match: match["extra"] or ""):
        if match["extra"] in DEVELOPMENT_EXTRAS or match["name"] == "chairlift":
            continue
        bound = re.search(r">=\s*([\w.]+)", match["bound"])
        name = match["name"].lower().replace("_", "-")
        yield Library(name, match["extra"] or "", bound[1] if bound else "", _installed_version(name))


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: 2.13.0+cpu is (2, 13, 0)."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()
