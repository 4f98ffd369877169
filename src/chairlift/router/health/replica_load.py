"""ReplicaLoad: what a replica reports about itself, read from /load or from the x-chairlift-load header.

A report comes from another process, maybe of another version or another project: each field is checked, one that is
missing is unknown, and a field that nothing here knows is ignored.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chairlift.core.load_report import ReplicaState

MAX_HEADER_CHARS = 4096
"""Longest x-chairlift-load header that is read."""

MAX_NAMES = 1000
"""Number of adapters or models that are read from one answer."""

MAX_NAME_CHARS = 256
MAX_COUNT = 1e12
"""A larger number in a report is nonsense."""

HEADER_FIELDS: Mapping[str, tuple[str, float]] = {
    "running": ("running_requests", 1),
    "waiting": ("waiting_requests", 1),
    "waiting_tokens": ("waiting_tokens", 1),
    "wait_ms": ("expected_wait_seconds", 0.001),
    "kv": ("kv_usage_ratio", 1),
}
"""Key of a number in the header -> field of a load report, and its scale."""

HEADER_TEXTS: Mapping[str, str] = {"state": "state", "instance": "instance_id", "fingerprint": "fingerprint"}
"""Key of a text in the header -> field of a load report."""

SOURCES: Mapping[str, tuple[str, ...]] = {
    "state": ("state",),
    "incarnation": ("instance_id",),
    "waiting_requests": ("waiting_requests", "admission_waiting_requests"),
    "waiting_tokens": ("waiting_tokens", "admission_waiting_tokens"),
    "running_requests": ("running_requests",),
    "expected_wait_seconds": ("expected_wait_seconds",),
    "prefill_tokens_per_second": ("prefill_tokens_per_second",),
    "output_tokens_per_second": ("output_tokens_per_second",),
    "max_running_requests": ("max_running_requests",),
    "kv_usage_ratio": ("total_blocks", "kv_usage_ratio"),
    "cpu_ratio": ("cpu_ratio",),
    "memory_ratio": ("memory_ratio",),
    "gpu_ratio": ("gpu_ratio",),
    "gpu_memory_ratio": ("gpu_memory_ratio",),
    "prompt_tokens": ("prompt_tokens",),
    "cached_tokens": ("cached_tokens",),
    "output_tokens": ("output_tokens",),
    "adapters": ("adapters",),
    "aliases": ("aliases",),
    "fingerprints": ("fingerprint", "fingerprints"),
}
"""Field of ReplicaLoad -> keys of the report, of which one is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """The load of a replica; counts are of all its clients.

    Attributes:
        at_seconds: monotonic time at which the report arrived.
        state: the replica's lifecycle state; None if it reports none.
        incarnation: id of the replica's process; "" if unknown.
        waiting_requests: requests that wait for their first step.
        waiting_tokens: prompt tokens of requests that wait for their first token.
        running_requests: requests that run.
        expected_wait_seconds: expected wait of a new request.
        prefill_tokens_per_second: measured speed of prompt processing; 0 if unknown.
        output_tokens_per_second: output tokens of all requests together, recently; 0 if unknown.
        max_running_requests: requests that run at once at most; 0 if unknown.
        kv_usage_ratio: share of the KV cache that requests hold.
        cpu_ratio: share of its CPUs that the replica uses; None if it cannot measure it, like the next three.
        memory_ratio: share of its memory that the replica uses.
        gpu_ratio: share of the time in which its GPUs compute.
        gpu_memory_ratio: share of the memory of its fullest GPU that is in use.
        prompt_tokens: prompt tokens since the start of its engine.
        cached_tokens: of these, the tokens found in the prefix cache.
        output_tokens: output tokens since the start of its engine.
        adapters: LoRA adapters that are loaded.
        aliases: names beside the listed ones that requests may use for the replica's model.
        fingerprints: fingerprint of the weights for each model; the key "" is for every model.
        missing: names of the fields above that the report does not have.
    """

    at_seconds: float
    state: ReplicaState | None = None
    incarnation: str = ""
    waiting_requests: int = 0
    waiting_tokens: int = 0
    running_requests: int = 0
    expected_wait_seconds: float = 0.0
    prefill_tokens_per_second: float = 0.0
    output_tokens_per_second: float = 0.0
    max_running_requests: int = 0
    kv_usage_ratio: float = 0.0
    cpu_ratio: float | None = None
    memory_ratio: float | None = None
    gpu_ratio: float | None = None
    gpu_memory_ratio: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    adapters: frozenset[str] = frozenset()
    aliases: tuple[str, ...] = ()
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()

    def completed_by(self, older: "ReplicaLoad") -> "ReplicaLoad":
        """Return the report with its missing fields from an older report of the same process."""
        fields: dict[str, Any] = {name: getattr(older, name) for name in self.missing}
        return replace(self, **fields) if fields else self


def parse_load(fields: object, now: float) -> ReplicaLoad:
    """Return the report of a decoded JSON body. Raises ValueError with the field that is nonsense."""
    if not isinstance(fields, dict):
        raise ValueError(f"the load report is no JSON object but {type(fields).__name__}")
    state = fields.get("state")
    if state is not None and state not in tuple(ReplicaState):
        raise ValueError(f"the load report's state {_short(state)} is none of {', '.join(ReplicaState)}")
    total_blocks = _number(fields, "total_blocks")
    free_blocks = _number(fields, "free_blocks")
    return ReplicaLoad(
        at_seconds=now,
        state=None if state is None else ReplicaState(state),
        incarnation=_text(fields, "instance_id"),
        waiting_requests=int(max(_number(fields, "waiting_requests"), _number(fields, "admission_waiting_requests"))),
        waiting_tokens=int(max(_number(fields, "waiting_tokens"), _number(fields, "admission_waiting_tokens"))),
        running_requests=int(_number(fields, "running_requests")),
        expected_wait_seconds=_number(fields, "expected_wait_seconds"),
        prefill_tokens_per_second=_number(fields, "prefill_tokens_per_second"),
        output_tokens_per_second=_number(fields, "output_tokens_per_second"),
        max_running_requests=int(_number(fields, "max_running_requests")),
        kv_usage_ratio=max(0.0, 1 - free_blocks / total_blocks) if total_blocks else _number(fields, "kv_usage_ratio"),
        cpu_ratio=_ratio(fields, "cpu_ratio"),
        memory_ratio=_ratio(fields, "memory_ratio"),
        gpu_ratio=_ratio(fields, "gpu_ratio"),
        gpu_memory_ratio=_ratio(fields, "gpu_memory_ratio"),
        prompt_tokens=int(_number(fields, "prompt_tokens")),
        cached_tokens=int(_number(fields, "cached_tokens")),
        output_tokens=int(_number(fields, "output_tokens")),
        adapters=frozenset(_names(fields, "adapters")),
        aliases=tuple(_names(fields, "aliases")),
        fingerprints=_fingerprints(fields),
        # A header has only a few fields; the others are then those of the last full report.
        missing=frozenset(name for name, keys in SOURCES.items() if fields.keys().isdisjoint(keys)),
    )


def parse_load_header(text: str, now: float) -> ReplicaLoad | None:
    """Return the report of an x-chairlift-load header: `state=ready;running=3;waiting=0;instance=9f0c`.

    Unknown keys are ignored. Returns None for a header that is too long or makes no sense: an answer is not worth less
    for its header.
    """
    if len(text) > MAX_HEADER_CHARS:
        return None
    fields: dict[str, object] = {}
    try:
        for pair in text.split(";"):
            key, _, value = pair.strip().partition("=")
            if key in HEADER_FIELDS:
                name, scale = HEADER_FIELDS[key]
                fields[name] = float(value) * scale
            elif key in HEADER_TEXTS and value:
                fields[HEADER_TEXTS[key]] = value
        return parse_load(fields, now) if fields else None
    except ValueError:
        return None


def _number(fields: Mapping[str, object], key: str) -> float:
    value = fields.get(key)
    if value is None:
        return 0.0
    # A bool is an int of Python.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} of the load report must be a number, got {_short(value)}")
    if not 0 <= value <= MAX_COUNT or math.isnan(value):
        raise ValueError(f"{key} of the load report must be between 0 and {MAX_COUNT:g}, got {_short(value)}")
    return float(value)


def _ratio(fields: Mapping[str, object], key: str) -> float | None:
    if fields.get(key) is None:
        return None
    if (value := _number(fields, key)) > 1:
        raise ValueError(f"{key} of the load report must be between 0 and 1, got {_short(value)}")
    return value


def _text(fields: Mapping[str, object], key: str) -> str:
    value = fields.get(key)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS:
        raise ValueError(f"{key} of the load report must be a text of at most {MAX_NAME_CHARS} characters")
    return value


def _names(fields: Mapping[str, object], key: str) -> list[str]:
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{key} of the load report must be a list of names, got {_short(value)}")
    return [name for name in value[:MAX_NAMES] if len(name) <= MAX_NAME_CHARS]


def _fingerprints(fields: Mapping[str, object]) -> dict[str, str]:
    one = _text(fields, "fingerprint")
    each = fields.get("fingerprints")
    if each is None:
        each = {}
    if not isinstance(each, dict):
        raise ValueError(f"fingerprints of the load report must be an object, got {_short(each)}")
    found = {
        name: value for name, value in list(each.items())[:MAX_NAMES]
        if isinstance(value, str) and len(name) <= MAX_NAME_CHARS and len(value) <= MAX_NAME_CHARS
    }  # fmt: skip
    return {"": one} | found if one else found


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
