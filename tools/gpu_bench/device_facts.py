"""device_facts: a device's name and memory, and the versions of what runs on it."""

import importlib.metadata
import subprocess
from typing import Any

import torch


def device_facts(device: torch.device) -> dict[str, Any]:
    """Return the device's name and memory, and the versions of driver, CUDA, torch and triton; None if unknown."""
    facts: dict[str, Any] = {
        "type": device.type, "name": device.type, "memory_bytes": None, "driver": None, "cuda": torch.version.cuda,
        "torch": torch.__version__, "triton": _version("triton"), "transformers": _version("transformers"),
    }  # fmt: skip
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "name": properties.name, "memory_bytes": properties.total_memory, "driver": _driver_version(),
            "multiprocessors": properties.multi_processor_count,
            "compute_capability": f"{properties.major}.{properties.minor}",
        }  # fmt: skip
    return facts


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return output.split("\n", 1)[0].strip() or None
