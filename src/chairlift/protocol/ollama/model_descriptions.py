"""tags, running_models and shown_model: the models of /v1/models as Ollama's API lists and describes them."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from chairlift.protocol.translation.base import Json

NEVER = "9999-12-31T23:59:59Z"
"""Time at which a model is unloaded: never."""

OLLAMA_VERSION = "0.12.11"
"""Version of Ollama's API that is served; clients of Ollama reject a server of an older one than they need."""

_UNITS = ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 1))


def tags(cards: Sequence[Json]) -> Json:
    """Return the body of /api/tags; `cards` are the models of /v1/models."""
    return {"models": [_listed(card) | {"modified_at": _time(card.get("created"))} for card in cards]}


def running_models(cards: Sequence[Json]) -> Json:
    """Return the body of /api/ps."""
    return {"models": [_running(card) for card in cards]}


def shown_model(card: Json) -> Json:
    """Return the body of /api/show."""
    facts = _facts(card)
    name = _short_architecture(facts)
    info: Json = {"general.architecture": name} if name else {}
    if "num_parameters" in facts:
        info["general.parameter_count"] = facts["num_parameters"]
    if "max_model_len" in card:
        info[f"{name or 'general'}.context_length"] = card["max_model_len"]
    return {
        "modified_at": _time(card.get("created")), "details": _details(facts), "model_info": info,
        "capabilities": facts.get("capabilities", ["completion"]),
    }  # fmt: skip


def _facts(card: Json) -> Json:
    details = card.get("details")
    return details if isinstance(details, dict) else {}


def _listed(card: Json) -> Json:
    facts = _facts(card)
    stable = {name: value for name, value in card.items() if name != "created"}
    digest = hashlib.sha256(orjson.dumps(stable, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return {
        "name": card["id"], "model": card["id"], "digest": digest, "details": _details(facts),
    } | ({"size": facts["weight_bytes"]} if "weight_bytes" in facts else {})  # fmt: skip


def _running(card: Json) -> Json:
    facts = _facts(card)
    running = _listed(card) | {"expires_at": NEVER}
    if "max_model_len" in card:
        running["context_length"] = card["max_model_len"]
    if "size" in running and "device" in facts:
        running["size_vram"] = 0 if facts["device"].startswith("cpu") else running["size"]
    return running


def _details(facts: Json) -> Json:
    name = _short_architecture(facts)
    result: Json = {"parent_model": "", "format": "safetensors" if name else "", "family": name,
                    "families": [name] if name else [], "parameter_size": "", "quantization_level": ""}  # fmt: skip
    if "num_parameters" in facts:
        result["parameter_size"] = _short_number(facts["num_parameters"])
    level = facts.get("quantization") or facts.get("dtype") or ""
    return result | {"quantization_level": level}


def _short_architecture(facts: Json) -> str:
    """Return a name like qwen3 for an architecture like Qwen3ForCausalLM, "" for an unknown one."""
    return str(facts.get("architecture", "")).partition("For")[0].lower()


def _short_number(count: int) -> str:
    for unit, suffix, digits in _UNITS:
        if count >= unit:
            return f"{count / unit:.{digits}f}{suffix}"
    return str(count)


def _time(seconds: Any) -> str:
    created = seconds if isinstance(seconds, int) else 0
    return datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")
