"""read_experts: what config.json says of experts, with transformers' defaults; layers that have none."""

import importlib
from typing import Any

import pytest

from chairlift.core.errors import ConfigError, ModelError, UnsupportedArchitecture
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.experts_config import (
    CLAMPED_SWIGLU,
    SIGMOID,
    SOFTMAX,
    TOP_SOFTMAX,
    ExpertsConfig,
    read_experts,
)
from support_experts import EXPERTS
from support_shares import for_each

CONFIGS = {
    "MixtralForCausalLM": ("mixtral", "MixtralConfig"), "Qwen2MoeForCausalLM": ("qwen2_moe", "Qwen2MoeConfig"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "Qwen3MoeConfig"), "OlmoeForCausalLM": ("olmoe", "OlmoeConfig"),
    "Qwen3NextForCausalLM": ("qwen3_next", "Qwen3NextConfig"),
    "Qwen3_5MoeForCausalLM": ("qwen3_5_moe", "Qwen3_5MoeTextConfig"), "GptOssForCausalLM": ("gpt_oss", "GptOssConfig"),
    "GraniteMoeForCausalLM": ("granitemoe", "GraniteMoeConfig"),
    "GraniteMoeHybridForCausalLM": ("granitemoehybrid", "GraniteMoeHybridConfig"),
    "DeepseekV3ForCausalLM": ("deepseek_v3", "DeepseekV3Config"), "Glm4MoeForCausalLM": ("glm4_moe", "Glm4MoeConfig"),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite", "Glm4MoeLiteConfig"),
    "Lfm2MoeForCausalLM": ("lfm2_moe", "Lfm2MoeConfig"), "Gemma4ForCausalLM": ("gemma4", "Gemma4TextConfig"),
}  # fmt: skip


def read(architecture: str, **fields: Any) -> ExpertsConfig:
    config = read_experts(EXPERTS[architecture], ConfigReader(fields, EXPERTS[architecture].defaults))
    assert config is not None
    return config


@for_each("architecture", CONFIGS)
def test_defaults_are_those_of_transformers(architecture: str) -> None:
    model, name = CONFIGS[architecture]
    theirs = getattr(importlib.import_module(f"transformers.models.{model}.configuration_{model}"), name)()
    for field, value in EXPERTS[architecture].defaults.items():
        if hasattr(theirs, field):
            assert getattr(theirs, field) == value, field
    missing = [field for field in EXPERTS[architecture].defaults if not hasattr(theirs, field)]
    assert missing in ([], ["first_k_dense_replace"]), "Glm4MoeLite has a list of kinds in its place"


def test_each_router_is_of_its_kind() -> None:
    routers = {name: read(name).router for name in EXPERTS if not name.startswith("Gemma4")}
    assert {name: each.scoring for name, each in routers.items() if each.scoring != SOFTMAX} == {
        "GptOssForCausalLM": TOP_SOFTMAX, "GraniteMoeForCausalLM": TOP_SOFTMAX,
        "GraniteMoeHybridForCausalLM": TOP_SOFTMAX, "DeepseekV3ForCausalLM": SIGMOID, "Glm4MoeForCausalLM": SIGMOID,
        "Glm4MoeLiteForCausalLM": SIGMOID, "Lfm2MoeForCausalLM": SIGMOID,
    }  # fmt: skip
    assert {name for name, each in routers.items() if not each.renormalizes} == {
        "GptOssForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeHybridForCausalLM", "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM", "OlmoeForCausalLM",
    }  # fmt: skip
    assert {name for name, each in routers.items() if each.has_bias} == {"GptOssForCausalLM"}


def test_each_shared_expert_has_its_size_and_gate() -> None:
    found = {name: read(name) for name in EXPERTS if not name.startswith("Gemma4")}
    assert {name: each.shared_size for name, each in found.items() if each.shared_size} == {
        "Qwen2MoeForCausalLM": 5632, "Qwen3NextForCausalLM": 512, "Qwen3_5MoeForCausalLM": 512,
        "Qwen3_5MoeForConditionalGeneration": 512, "GraniteMoeHybridForCausalLM": 1024, "DeepseekV3ForCausalLM": 2048,
        "Glm4MoeForCausalLM": 1408, "Glm4MoeLiteForCausalLM": 1536,
    }  # fmt: skip
    assert {name.partition("For")[0] for name, each in found.items() if each.has_shared_gate} == {
        "Qwen2Moe", "Qwen3Next", "Qwen3_5Moe"
    }  # fmt: skip


def test_a_dense_granite_has_none() -> None:
    reader = ConfigReader({"num_local_experts": 0}, EXPERTS["GraniteMoeHybridForCausalLM"].defaults)
    assert read_experts(EXPERTS["GraniteMoeHybridForCausalLM"], reader) is None


def test_the_number_of_experts_has_several_names() -> None:
    for architecture, name in (("Qwen3MoeForCausalLM", "num_local_experts"), ("MixtralForCausalLM", "num_experts")):
        assert read(architecture, **{name: 17}).router.num_experts == 17


def test_the_activation_of_gpt_oss_has_fixed_numbers() -> None:
    assert read("GptOssForCausalLM").activation == CLAMPED_SWIGLU and read("GptOssForCausalLM").has_bias
    with pytest.raises(UnsupportedArchitecture, match=r"swiglu_limit 8\.0 and swiglu_alpha 1\.702 are not supported"):
        read("GptOssForCausalLM", swiglu_limit=8.0)


@for_each(
    ("architecture", "fields", "message"),
    [
        ("MixtralForCausalLM", {"num_experts_per_tok": 9}, "9 experts for each token, but there are 8"),
        ("Qwen3MoeForCausalLM", {"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ("Qwen3MoeForCausalLM", {"hidden_act": "relu"}, "hidden_act"),
    ],
)
def test_what_does_not_fit_is_refused(architecture: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(architecture, **fields)


def test_some_layers_have_a_dense_mlp() -> None:
    def layers(architecture: str, **fields: Any) -> str:
        found = EXPERTS[architecture].sparse_layers(ConfigReader(fields, EXPERTS[architecture].defaults), 5)
        return "".join("E" if has else "-" for has in found)

    assert layers("MixtralForCausalLM") == layers("Qwen3_5MoeForCausalLM") == "EEEEE"
    assert layers("Qwen3MoeForCausalLM", decoder_sparse_step=2) == "-E-E-"
    assert layers("Qwen2MoeForCausalLM", mlp_only_layers=[0, 4]) == "-EEE-"
    with pytest.raises(ModelError, match="mlp_only_layers"):
        layers("Qwen2MoeForCausalLM", mlp_only_layers=3)


def test_ranks_have_equal_parts_of_each_expert() -> None:
    config = read("Qwen3NextForCausalLM").of_ranks(4)
    assert (config.intermediate_size, config.shared_size, config.router.num_experts) == (128, 128, 512)
    with pytest.raises(ConfigError, match="is 3, but intermediate_size 512 of the experts cannot be shared evenly"):
        read("Qwen3NextForCausalLM").of_ranks(3)
