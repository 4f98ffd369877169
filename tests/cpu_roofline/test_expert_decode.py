"""Decode steps of models with experts: the bytes that a step reads."""

import pytest

from cpu_roofline.expert_decode import expected_experts, weights_of

FIELDS = {
    "hidden_size": 6, "head_dim": 4, "num_attention_heads": 3, "num_key_value_heads": 1, "num_experts": 5,
    "num_hidden_layers": 2, "vocab_size": 11, "moe_intermediate_size": 7,
}  # fmt: skip


def test_the_weights_are_those_of_attention_router_lm_head_and_an_expert() -> None:
    queries, keys = 12, 4
    layer = 6 * (queries + 2 * keys) + queries * 6 + 6 * 5
    assert weights_of(FIELDS) == (2 * layer + 6 * 11, 3 * 6 * 7)


def test_tokens_share_experts() -> None:
    assert expected_experts(128, 8, 1) == pytest.approx(8)
    assert 8 * 8 * 0.75 < expected_experts(128, 8, 8) < 8 * 8
    assert expected_experts(4, 2, 100) == pytest.approx(4)
