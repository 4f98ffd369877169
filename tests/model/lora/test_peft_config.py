"""PeftConfig: rank, scale and targets of a module as PEFT has them, and the fields that are refused."""

import json
import math
from pathlib import Path
from typing import Any

import peft
import pytest
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key

from chairlift.core.errors import ModelError
from chairlift.model.lora.peft_config import PeftConfig, read_peft_config

MODULES = [
    *(f"model.layers.{layer}.self_attn.{name}" for layer in range(12) for name in ("q_proj", "v_proj")),
    *(f"model.layers.{layer}.mlp.{name}" for layer in range(12) for name in ("up_proj", "down_proj")),
    "lm_head", "model.embed_tokens",
]  # fmt: skip


def write(folder: Path, **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    content = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], **fields}
    (folder / "adapter_config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def read(folder: Path, **fields: Any) -> PeftConfig:
    path = write(folder, **fields) / "adapter_config.json"
    return read_peft_config(path.read_bytes(), path)


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": ["q_proj", "up_proj"]},
        {"target_modules": ["model.layers.1.mlp.up_proj", "lm_head"]},
        {"target_modules": r".*layers\.(1|3)\..*_proj"},
        {"target_modules": "q_proj"},
        {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["layers.2.self_attn.q_proj"]},
        {"target_modules": ["q_proj"], "exclude_modules": r".*\.1\..*"},
        {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1, 11]},
        {"target_modules": ["q_proj"], "layers_to_transform": 3, "layers_pattern": "layers"},
        {"target_modules": ["q_proj"], "layers_to_transform": [3], "layers_pattern": ["blocks", "layers"]},
        {"target_modules": ["q_proj"], "layers_to_transform": [3], "layers_pattern": ["blocks"]},
        {"target_modules": ["q_proj"], "layers_to_transform": [3], "layers_pattern": ["(?:layers|h)"]},
    ],
)
def test_the_targets_are_those_of_peft(fields: dict[str, Any], tmp_path: Path) -> None:
    theirs = peft.LoraConfig(**fields)
    ours = read(tmp_path, **fields)
    for module in MODULES:
        expected = bool(check_target_module_exists(theirs, module))
        assert ours.targets(module, is_linear=module != "model.embed_tokens") == expected, module


def test_all_linear_is_all_but_the_lm_head(tmp_path: Path) -> None:
    config = read(tmp_path, target_modules="all-linear")
    targets = [module for module in MODULES if config.targets(module, is_linear=module != "model.embed_tokens")]
    assert targets == MODULES[:-2]


@pytest.mark.parametrize("uses_root", [False, True])
def test_patterns_give_the_rank_and_the_scale_of_peft(tmp_path: Path, *, uses_root: bool) -> None:
    ranks = {r"layers.1.self_attn.q_proj": 4, "q_proj": 16, r"layers\.[23].*": 2}
    alphas = {r".*mlp.*": 3, "v_proj": 0.5}
    config = read(tmp_path, rank_pattern=ranks, alpha_pattern=alphas, use_rslora=uses_root)
    for module in MODULES:
        rank = ranks.get(get_pattern_key(ranks.keys(), module), 8)
        alpha = alphas.get(get_pattern_key(alphas.keys(), module), 16)
        assert config.rank_of(module) == rank
        assert config.scale_of(module) == pytest.approx(alpha / (math.sqrt(rank) if uses_root else rank))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("peft_type", "IA3"), ("peft_type", None), ("task_type", "SEQ_CLS"), ("bias", "all"), ("bias", "lora_only"),
        ("lora_bias", True), ("init_lora_weights", "pissa"), ("init_lora_weights", "pissa_niter_16"),
        ("init_lora_weights", "olora"), ("init_lora_weights", "corda"), ("init_lora_weights", "loftq"),
        ("init_lora_weights", 3), ("alora_invocation_tokens", [1, 2]), ("layer_replication", [[0, 1]]),
        ("use_qalora", True), ("use_bdlora", {"a": 1}), ("trainable_token_indices", [1]),
        ("target_parameters", ["mlp.experts.gate_up_proj"]), ("ensure_weight_tying", True), ("arrow_config", {"a": 1}),
        ("a_field_of_later", {"x": 1}), ("r", 0), ("r", -1), ("r", True), ("r", "8"), ("r", None), ("r", 1e9),
        ("r", 10**9), ("lora_alpha", "x"), ("lora_alpha", None), ("lora_alpha", True), ("lora_alpha", [1]),
        ("lora_alpha", 10**400), ("use_dora", "yes"), ("use_rslora", 1), ("rank_pattern", [1]),
        ("rank_pattern", {"(": 4}), ("rank_pattern", {"q": 0}), ("alpha_pattern", {"q": "x"}),
        ("target_modules", {"q": 1}), ("target_modules", [1]), ("target_modules", "("), ("target_modules", "x" * 9999),
        ("exclude_modules", 3), ("layers_to_transform", "1"), ("layers_to_transform", [True]),
        ("layers_to_transform", [1.5]), ("layers_pattern", 4), ("modules_to_save", 4), ("layers_pattern", "("),
        ("rank_pattern", {"(?i)q_proj": 4}), ("alpha_pattern", {"(?i)q_proj": 4}), ("a_field_of_later", 0),
        ("task_type", "SEQ_2_SEQ_LM"),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_had_is_named(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"^adapter_config.json: {name} ") as caught:
        read(tmp_path, **{name: value})
    assert caught.value.details["field"] == name and "\n" not in caught.value.message


def test_alpha_zero_and_fields_without_effect_are_read(tmp_path: Path) -> None:
    config = read(
        tmp_path, lora_alpha=0, lora_dropout=0.1, inference_mode=True, base_model_name_or_path="x", revision=None,
        runtime_config={"ephemeral_gpu_offload": False}, a_field_of_later=None, init_lora_weights=None,
    )  # fmt: skip
    assert config.scale_of("q_proj") == 0


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, "\ud800".encode("utf-8", "surrogatepass")])
def test_a_config_that_is_no_object_is_one_sentence(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "adapter_config.json"
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        read_peft_config(content if isinstance(content, bytes) else content.encode(), path)
