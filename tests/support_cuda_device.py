"""simulate_gpu: what torch says about GPUs that are not there."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

Capability = tuple[int, int]


def simulate_gpu(monkeypatch: pytest.MonkeyPatch, capabilities: Mapping[str, Capability] | Capability) -> None:
    """Let torch find CUDA devices of these compute capabilities; a single one is that of every device."""

    def capability(device: Any = None) -> Capability:
        return capabilities if isinstance(capabilities, tuple) else capabilities[str(device)]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
