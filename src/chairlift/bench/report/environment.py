"""Environment of a measurement: commit, versions and hardware, without host name and paths."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chairlift
from chairlift.core.cpu_affinity_and_priority import usable_cpus

PACKAGES = ("chairlift", "torch", "numpy", "tokenizers", "transformers")


def source(package: Path | None = None) -> dict[str, Any]:
    """Return the commit of the checkout that contains the package, and whether src has changed.

    Both are None when the package is in no checkout of its own, or git is not installed.
    """
    folder = Path(chairlift.__file__).parent if package is None else package
    unknown = {"commit": None, "dirty": None}
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return unknown  # a copy in another project's checkout is not part of that project
    commit, status = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--", ":/src")
    if commit is None or status is None:
        return unknown
    return {"commit": commit.strip(), "dirty": bool(status.strip())}


def environment(before: Mapping[str, Any], *, of_host: bool = False) -> dict[str, Any]:
    """Return commit and versions of a finished measurement, and the hardware when `of_host` is true.

    `before` is the result of source() at its start. changed_meanwhile: whether src or the commit changed while it ran,
    so that its parts may come from different code.
    """
    fields = {**before, "changed_meanwhile": source() != before, "versions": versions()}
    return {**fields, "hardware": hardware()} if of_host else fields


def _git(folder: Path, *arguments: str) -> str | None:
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, env=environ, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def versions() -> dict[str, str]:
    """Return the versions of Python and of those PACKAGES that are installed."""
    package_versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            package_versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return package_versions


def hardware() -> dict[str, Any]:
    """Return the processor, the cores (all and usable ones), bytes of memory, GPU names, and forced instructions."""
    forced = os.environ.get("CHAIRLIFT_CPU_KERNELS")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "usable_cores": len(usable_cpus()),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpus": _gpus(),
        **({} if forced is None else {"forced_instruction_set": forced}),
    }


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, platform.processor())


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
