"""parse_speculative_config: the option speculative_config, a JSON object with vLLM's keys, as a SpeculationConfig."""

import difflib
from collections.abc import Mapping
from typing import Any

from chairlift.core.errors import ConfigError
from chairlift.engine.config import AUTO_METHOD, DRAFT_MODEL_METHOD, SpeculationConfig
from chairlift.engine.drafters.registry import METHODS

OPTION = "speculative_config"
NUMBERS = ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", "suffix_max_bytes")
KEYS = ("method", *NUMBERS, "model")

_BY_LOAD = "the number of drafts follows the load and what was confirmed before"
_EXACT = "a draft is confirmed only where it equals the token that the model samples"
_DRAFT_MODEL = "the draft model has the data type, the device and the limits of the model"
_SUFFIX = "suffix_max_bytes bounds what is kept of earlier outputs"
_UNUSED_KEYS: Mapping[str, str] = {
    "num_speculative_tokens_per_batch_size": _BY_LOAD, "disable_by_batch_size": _BY_LOAD,
    "speculative_disable_by_batch_size": _BY_LOAD, "draft_sample_method": _EXACT, "rejection_sample_method": _EXACT,
    "acceptance_method": _EXACT, "posterior_threshold": _EXACT, "posterior_alpha": _EXACT,
    "typical_acceptance_sampler_posterior_threshold": _EXACT, "draft_tensor_parallel_size": _DRAFT_MODEL,
    "quantization": _DRAFT_MODEL, "max_model_len": _DRAFT_MODEL, "revision": _DRAFT_MODEL,
    "code_revision": _DRAFT_MODEL, "enforce_eager": _DRAFT_MODEL, "suffix_decoding_max_tree_depth": _SUFFIX,
    "suffix_decoding_max_cached_requests": _SUFFIX, "suffix_decoding_max_spec_factor": _SUFFIX,
    "suffix_decoding_min_token_prob": _SUFFIX,
}  # fmt: skip
"""Keys of vLLM that nothing reads here, and why."""

_DRAFT_HEADS = ("eagle", "eagle3", "mtp", "medusa", "mlp_speculator", "dflash", "extract_hidden_states")
"""Methods of vLLM that need layers trained for the model, or parts of them by the beginning of their names."""


def parse_speculative_config(value: Mapping[str, Any] | None) -> SpeculationConfig:
    """Return the settings that the option's value describes; None or an empty one is the default.

    A prompt_lookup_min above the default of prompt_lookup_max raises that one, too.
    Raises ConfigError for an unknown key or method, with what exists, and for a value that does not fit its key.
    """
    given = dict(value or {})
    for key in given:
        if key not in KEYS:
            raise _error(_unknown_key(key))
    method = _method(given)
    numbers = {key: _number(key, given[key]) for key in NUMBERS if given.get(key) is not None}
    low = numbers.get("prompt_lookup_min")
    if low is not None and "prompt_lookup_max" not in numbers:
        numbers["prompt_lookup_max"] = max(low, SpeculationConfig().prompt_lookup_max)
    return SpeculationConfig(method=method, model=given.get("model") or "", **numbers)


def _method(given: Mapping[str, Any]) -> str:
    """Return the method, which follows from a draft model where none is given. Raises ConfigError."""
    model, method = given.get("model"), given.get("method")
    if model is not None and not isinstance(model, str):
        raise _error(f"has the model {model!r}; it must be the folder or the hub id of a model")
    if method is None:
        return DRAFT_MODEL_METHOD if model else AUTO_METHOD
    if not isinstance(method, str) or method not in METHODS:
        raise _error(_unknown_method(method))
    if method == DRAFT_MODEL_METHOD and not model:
        raise _error("has method 'draft_model' without a model; add the key 'model', with a folder or a hub id")
    if model and method != DRAFT_MODEL_METHOD:
        raise _error(f"has a model, which method {method!r} does not use; set method 'draft_model' or leave it out")
    return method


def _number(key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _error(f"has {key} {value!r}; it must be an integer of at least 1")
    return value


def _unknown_key(key: Any) -> str:
    if key in _UNUSED_KEYS:
        return f"has the key {key!r}, which is not supported: {_UNUSED_KEYS[key]}; leave it out"
    near = difflib.get_close_matches(str(key), KEYS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"available are {', '.join(KEYS)}"
    return f"has the unknown key {str(key)[:60]!r}; {hint}"


def _unknown_method(method: Any) -> str:
    exist = f"available are {', '.join(METHODS)}"
    if str(method).startswith(_DRAFT_HEADS) or str(method).endswith("_mtp"):
        return f"has method {method!r}, and draft heads are not supported; {exist}: 'auto' needs no second model"
    return f"has the unknown method {str(method)[:60]!r}; {exist}"


def _error(what: str) -> ConfigError:
    return ConfigError(f"{OPTION} {what}", option=OPTION)
