"""Environment of a measurement: commit, versions, hardware and model, without host name and paths."""

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chairlift
from chairlift.core.cpu_affinity import usable_cpus
from chairlift.llm.builtin_models import embedded_folder

PACKAGES = ("chairlift", "torch", "numpy", "tokenizers", "transformers")
SHAPE = (
    "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window", "tie_word_embeddings",
)  # fmt: skip


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
    """Return the processor, the cores (all and usable ones), bytes of memory, and GPU names."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "usable_cores": len(usable_cpus()),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpus": _gpus(),
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


def model_shape(model: str | None) -> dict[str, Any] | None:
    """Return the size fields of a model's config.json, None without a local one."""
    folder = embedded_folder(model) or Path(str(model)).expanduser()
    path = folder / "config.json"
    if not path.is_file():
        path = _in_hub_cache(str(model)) or path
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    config = {**config, **config["text_config"]} if isinstance(config.get("text_config"), dict) else config
    return {name: config[name] for name in SHAPE if name in config}


def _in_hub_cache(model: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return None
    return Path(path) if isinstance(path, str) else None
