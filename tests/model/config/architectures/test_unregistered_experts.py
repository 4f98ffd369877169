"""Experts of DeepSeek V3, GLM-4.5, GLM-4.7-Flash and LFM2: groups, biases, and which layers have them."""

from typing import Any

import pytest

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.unregistered_experts import (
    DEEPSEEK_V3_EXPERTS,
    GLM4_MOE_EXPERTS,
    GLM4_MOE_LITE_EXPERTS,
    LFM2_MOE_EXPERTS,
)
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.experts_config import ExpertFields, ExpertsConfig, read_experts
from support_shares import for_each


def read(experts: ExpertFields, **fields: Any) -> ExpertsConfig:
    config = read_experts(experts, ConfigReader(fields, experts.defaults))
    assert config is not None
    return config


def test_the_sigmoid_has_groups_a_bias_and_a_factor() -> None:
    deepseek = read(DEEPSEEK_V3_EXPERTS).router
    assert (deepseek.num_groups, deepseek.groups_per_token, deepseek.scaling_factor) == (8, 4, 2.5)
    assert deepseek.has_correction_bias and deepseek.sum_offset == 1e-20
    lfm2 = read(LFM2_MOE_EXPERTS, use_expert_bias=False).router
    assert lfm2.sum_offset == 1e-6 and not lfm2.has_correction_bias


@for_each(
    ("fields", "message"),
    [
        ({"n_group": 7}, "4 of 7 groups of 256"),
        ({"topk_group": 9}, "9 of 8 groups"),
        ({"n_group": 64, "topk_group": 1}, "1 groups have fewer than 8"),
        ({"n_group": 256, "topk_group": 9}, "have one expert each"),
    ],
)
def test_groups_that_do_not_fit_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(DEEPSEEK_V3_EXPERTS, **fields)


def test_some_layers_have_a_dense_mlp() -> None:
    def layers(experts: ExpertFields, **fields: Any) -> str:
        found = experts.sparse_layers(ConfigReader(fields, experts.defaults), 5)
        return "".join("E" if has else "-" for has in found)

    assert layers(DEEPSEEK_V3_EXPERTS) == "---EE" and layers(LFM2_MOE_EXPERTS) == "--EEE"
    assert layers(GLM4_MOE_EXPERTS) == "-EEEE" == layers(GLM4_MOE_LITE_EXPERTS)
    kinds = ["dense", "sparse", "dense", "sparse", "sparse"]
    assert layers(GLM4_MOE_LITE_EXPERTS, mlp_layer_types=kinds) == "-E-EE"
    with pytest.raises(ModelError, match="mlp_layer_types"):
        layers(GLM4_MOE_LITE_EXPERTS, mlp_layer_types=["dense"])
