"""model_details and read_details: the member `details` of a model in /v1/models, written and read."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from chairlift.core.model_facts import ModelFacts

COMPLETION, TOOLS, THINKING, EMBEDDING = "completion", "tools", "thinking", "embedding"
CAPABILITIES = (COMPLETION, TOOLS, THINKING, EMBEDDING)

MAX_CHARS = 128
MAX_COUNT = 2**53

_TEXTS = ("architecture", "dtype", "quantization", "device")
_COUNTS = ("num_parameters", "weight_bytes")


def model_details(facts: ModelFacts, device: str, capabilities: Sequence[str]) -> dict[str, Any]:
    """Return what is known of a model that computes on a device."""
    known = {name: value for name, value in {**asdict(facts), "device": device}.items() if value}
    return {**known, "capabilities": [*capabilities]}


def read_details(value: Any) -> dict[str, Any] | None:
    """Return the details that a replica lists, within bounds and without unknown members; None without any."""
    if not isinstance(value, dict):
        return None
    texts = {name: value[name] for name in _TEXTS if isinstance(value.get(name), str) and len(value[name]) <= MAX_CHARS}
    counts = {name: value[name] for name in _COUNTS if type(value.get(name)) is int and 0 < value[name] <= MAX_COUNT}
    listed = value.get("capabilities")
    capabilities = [each for each in CAPABILITIES if isinstance(listed, list) and each in listed]
    return {**texts, **counts, "capabilities": capabilities}
