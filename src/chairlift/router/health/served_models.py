"""ServedModels: names, adapters, fingerprints and lengths of models in a replica's answer to /v1/models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chairlift.protocol.model_details import read_details
from chairlift.router.health.replica_load import MAX_COUNT, MAX_NAME_CHARS, MAX_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModels:
    """What a replica serves.

    Attributes:
        names: names of the models, adapters included, each once, in the replica's order.
        adapters: those that are LoRA adapters: entries with a `parent`, as vLLM and Chairlift list them.
        fingerprints: fingerprint of the weights by name, where the replica lists it.
        details: what a replica of Chairlift lists of the model by name; see model_details.
        max_model_lens: most tokens of a request, prompt and output together, by name, where the replica lists them.
    """

    names: tuple[str, ...]
    adapters: frozenset[str]
    fingerprints: Mapping[str, str]
    max_model_lens: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def parse_models(body: object) -> ServedModels:
    """Return the models of a decoded answer to /v1/models. Raises ValueError if it lists none that can be read."""
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, list):
        raise ValueError("the answer to /v1/models has no list `data`")
    names: dict[str, None] = {}
    adapters: set[str] = set()
    fingerprints: dict[str, str] = {}
    max_model_lens: dict[str, int] = {}
    all_details: dict[str, dict[str, Any]] = {}
    for entry in data[:MAX_NAMES]:
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
            continue
        names[name] = None
        if isinstance(entry.get("parent"), str):
            adapters.add(name)
        fingerprint = entry.get("fingerprint")
        if isinstance(fingerprint, str) and len(fingerprint) <= MAX_NAME_CHARS:
            fingerprints[name] = fingerprint
        max_model_len = entry.get("max_model_len")
        if type(max_model_len) is int and 0 < max_model_len <= MAX_COUNT:
            max_model_lens[name] = max_model_len
        if (details := read_details(entry.get("details"))) is not None:
            all_details[name] = details
    if data and not names:
        raise ValueError("the answer to /v1/models lists no model with a name")
    return ServedModels(
        names=tuple(names), adapters=frozenset(adapters), fingerprints=fingerprints, max_model_lens=max_model_lens,
        details=all_details,
    )  # fmt: skip
