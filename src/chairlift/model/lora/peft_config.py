"""PeftConfig: the adapter_config.json of a LoRA adapter that PEFT has saved. Imports no torch.

Fields that change what an adapter computes, and that Chairlift does not compute, are refused by name. Source: PEFT 0.21
(tuners/lora/config.py, tuners/tuners_utils.py, utils/other.py get_pattern_key).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.model.config.model_folder import parse_json

CONFIG_FILE = "adapter_config.json"

ALL_LINEAR = "all-linear"
"""The value of target_modules for all linear layers but the lm_head."""

ANY_LAYER = r".*?\.[^.]*\.(?P<layer>\d+)\."
MAX_RANK = 4096
MAX_PATTERN_CHARS = 4096

START_VALUES = frozenset({None, True, False, "gaussian", "eva", "orthogonal", "lora_ga", "default"})
"""Values of init_lora_weights that only say what training started from."""

REFUSED: Mapping[str, str] = {
    "bias": "trains biases",
    "lora_bias": "has biases of its own",
    "alora_invocation_tokens": "is active behind certain tokens only",
    "layer_replication": "repeats layers of the model",
    "use_qalora": "groups the inputs of a layer",
    "use_bdlora": "has blocks instead of whole matrices",
    "trainable_token_indices": "changes rows of the embedding table",
    "target_parameters": "changes fused parameters, such as those of experts",
    "velora_config": "has another kind of product",
    "monteclora_config": "has another kind of product",
    "kasa_config": "has another kind of product",
    "arrow_config": "chooses among several adapters",
    "megatron_config": "is for Megatron",
    "ensure_weight_tying": "shares an adapter of the embedding table with the lm_head",
}
"""Fields with which an adapter has another meaning, unless their value is neutral -> what they do."""

KNOWN = frozenset({
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "r", "target_modules", "exclude_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out", "use_rslora",
    "modules_to_save", "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern",
    "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "use_dora", "qalora_group_size",
    "runtime_config", *REFUSED,
})  # fmt: skip
"""Fields that are read, or say nothing about what is computed."""

TASK_TYPES = (None, "CAUSAL_LM", "FEATURE_EXTRACTION")
"""Tasks whose adapters change the layers of a decoder alone: texts and embeddings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftConfig:
    """What adapter_config.json says of the products.

    Attributes:
        rank: r of a module without a pattern.
        alpha: lora_alpha of a module without a pattern.
        uses_root: whether the scale is alpha / sqrt(r) instead of alpha / r.
        rank_pattern, alpha_pattern: regex of the end of a module's name -> its own value; the first match counts.
        target_modules: names of modules or ends of them, a regex of whole names, or ALL_LINEAR.
        exclude_modules: names of modules, ends of them or a regex; none of them is a target.
        layers: numbers of the layers whose modules are targets; None for all.
        layers_pattern: names before the number of a layer; empty for any name.
        is_dora: whether modules have magnitudes.
        is_transposed: whether weights of the base model are stored transposed.
        saved_modules: ends of the names of modules that are replaced as a whole.
    """

    rank: int
    alpha: float
    uses_root: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    target_modules: str | tuple[str, ...]
    exclude_modules: str | tuple[str, ...]
    layers: frozenset[int] | None
    layers_pattern: tuple[str, ...]
    is_dora: bool
    is_transposed: bool
    saved_modules: tuple[str, ...]

    def rank_of(self, module: str) -> int:
        """Return r of a module."""
        found: int = _first_match(self.rank_pattern, module, self.rank)
        return found

    def scale_of(self, module: str) -> float:
        """Return the factor of a module's product."""
        rank = self.rank_of(module)
        alpha: float = _first_match(self.alpha_pattern, module, self.alpha)
        return alpha / math.sqrt(rank) if self.uses_root else alpha / rank

    def targets(self, module: str, *, is_linear: bool) -> bool:
        """Return whether a module of the base model has a product."""
        if self.exclude_modules and _names(self.exclude_modules, module):
            return False
        if self.target_modules == ALL_LINEAR:
            return is_linear and module != "lm_head"
        if not _names(self.target_modules, module):
            return False
        if isinstance(self.target_modules, str) or self.layers is None or module in self.target_modules:
            return True
        patterns = [_layer_pattern(pattern) for pattern in self.layers_pattern] or [ANY_LAYER]
        found = next((match for pattern in patterns if (match := re.match(pattern, module))), None)
        return found is not None and int(found["layer"]) in self.layers


def read_peft_config(content: bytes, path: Path) -> PeftConfig:
    """Read the content of adapter_config.json, of a file that is named in messages.

    Raises ModelError, which names the field, for what Chairlift does not compute.
    """
    fields = parse_json(content, path)
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise _invalid("peft_type", f"is {kind!r}; only LORA is supported")
    if fields.get("task_type") not in TASK_TYPES:
        raise _invalid("task_type", f"is {fields['task_type']!r}; CAUSAL_LM and FEATURE_EXTRACTION are supported")
    for name, effect in REFUSED.items():
        if not _is_neutral(fields.get(name)):
            raise _invalid(name, f"{effect}, which is not supported")
    if unknown := [name for name in fields if name not in KNOWN and not _is_neutral(fields[name])]:
        raise _invalid(unknown[0], "is not known, so that the adapter may mean something else")
    start = fields.get("init_lora_weights", True)
    if not isinstance(start, bool | str | None) or start not in START_VALUES:
        raise _invalid(
            "init_lora_weights",
            f"is {start!r}, with which PEFT changes the model's own weights; convert the adapter in PEFT with "
            "save_pretrained(path_initial_model_for_weight_conversion=...)",
        )
    return PeftConfig(
        rank=_rank("r", fields.get("r")), alpha=_alpha("lora_alpha", fields.get("lora_alpha", 8)),
        uses_root=_flag(fields, "use_rslora"), rank_pattern=_pattern(fields, "rank_pattern", _rank),
        alpha_pattern=_pattern(fields, "alpha_pattern", _alpha),
        target_modules=_module_names(fields, "target_modules"),
        exclude_modules=_module_names(fields, "exclude_modules"),
        layers=_layers(fields.get("layers_to_transform")), layers_pattern=_layer_patterns(fields),
        is_dora=_flag(fields, "use_dora"), is_transposed=_flag(fields, "fan_in_fan_out"),
        saved_modules=_list(fields, "modules_to_save"),
    )  # fmt: skip


def _is_neutral(value: Any) -> bool:
    """Return whether a value is none, false, or empty; the number 0 is not."""
    return value is None or value is False or (isinstance(value, str | list | dict) and value in ("none", "", [], {}))


def _invalid(name: str, reason: str) -> ModelError:
    return ModelError(f"{CONFIG_FILE}: {name} {reason}", field=name)


def _rank(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_RANK:
        raise _invalid(name, f"must be an integer from 1 to {MAX_RANK}, got {value!r}")
    return value


def _alpha(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise _invalid(name, f"must be a finite number, got {value!r}")
    return number


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool | None):
        raise _invalid(name, f"must be true or false, got {value!r}")
    return bool(value)


def _pattern(fields: Mapping[str, Any], name: str, read: Any) -> dict[str, Any]:
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid(name, f"must be an object, got {type(value).__name__}")
    for key in value:
        _check_regex(name, key, _end_pattern(key))
    return {key: read(name, each) for key, each in value.items()}


def _list(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = fields.get(name)
    if value is None:
        return ()
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(isinstance(each, str) for each in entries):
        raise _invalid(name, "must be a list of names")
    return tuple(entries)


def _module_names(fields: Mapping[str, Any], name: str) -> str | tuple[str, ...]:
    value = fields.get(name)
    if isinstance(value, str):
        _check_regex(name, value, value)
        return value
    return _list(fields, name)


def _layer_patterns(fields: Mapping[str, Any]) -> tuple[str, ...]:
    patterns = _list(fields, "layers_pattern")
    for pattern in patterns:
        _check_regex("layers_pattern", pattern, _layer_pattern(pattern))
    return patterns


def _end_pattern(key: str) -> str:
    return rf"(.*\.)?({key})$"


def _layer_pattern(pattern: str) -> str:
    return rf".*\.{pattern}\.(?P<layer>\d+)\."


def _check_regex(name: str, value: str, used: str) -> None:
    """Raise ModelError for a value that is no regex in the regex that it is used in."""
    try:
        if len(value) > MAX_PATTERN_CHARS:
            raise _invalid(name, f"has {len(value)} characters, the limit is {MAX_PATTERN_CHARS}")
        re.compile(used)
    except (re.error, RecursionError, OverflowError) as error:
        raise _invalid(name, f"{value[:80]!r} is no regex: {error}") from error


def _layers(value: Any) -> frozenset[int] | None:
    if value is None:
        return None
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in numbers):
        raise _invalid("layers_to_transform", "must be a list of integers")
    return frozenset(numbers) if numbers else None


def _first_match(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    return next((value for key, value in patterns.items() if re.match(_end_pattern(key), module)), default)


def _names(names: str | Sequence[str], module: str) -> bool:
    """Return whether a regex of whole names, or a list of names and ends of names, has a module."""
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)
