"""canonical_expert_names: the names of ggml's own table, stacked tensors in the order of their bytes."""

import gguf
import pytest

from chairlift.model.config.gguf_expert_names import canonical_expert_names
from support_shares import for_each

ARCH = gguf.MODEL_ARCH


@for_each(
    ("architecture", "theirs", "suffix", "ours"),
    [
        (ARCH.QWEN3MOE, "mlp.gate", "weight", "mlp.gate.weight"),
        (ARCH.QWEN3MOE, "mlp.experts.gate_proj", "weight", "mlp.experts.0.gate_proj.weight"),
        (ARCH.QWEN3MOE, "mlp.experts.up_proj", "weight", "mlp.experts.0.up_proj.weight"),
        (ARCH.QWEN3MOE, "mlp.experts.down_proj", "weight", "mlp.experts.0.down_proj.weight"),
        (ARCH.QWEN2MOE, "mlp.shared_expert.gate_proj", "weight", "mlp.shared_expert.gate_proj.weight"),
        (ARCH.QWEN2MOE, "mlp.shared_expert.down_proj", "weight", "mlp.shared_expert.down_proj.weight"),
        (ARCH.QWEN2MOE, "mlp.shared_expert_gate", "weight", "mlp.shared_expert_gate.weight"),
        (ARCH.DEEPSEEK2, "mlp.shared_experts.up_proj", "weight", "mlp.shared_expert.up_proj.weight"),
        (ARCH.DEEPSEEK2, "mlp.gate.e_score_correction", "bias", "mlp.gate.e_score_correction_bias"),
        (ARCH.GPT_OSS, "mlp.router", "bias", "mlp.gate.bias"),
    ],
)
def test_names_are_those_of_ggml(architecture: gguf.MODEL_ARCH, theirs: str, suffix: str, ours: str) -> None:
    stored = gguf.get_tensor_name_map(architecture, 8).get_name(f"model.layers.7.{theirs}")
    assert stored is not None
    assert canonical_expert_names(f"{stored}.{suffix}", 1) == (f"model.layers.7.{ours}",)


def test_stacked_tensors_have_their_experts_in_order() -> None:
    prefix = "model.layers.12.mlp.experts"
    assert canonical_expert_names("blk.12.ffn_down_exps.bias", 3) == tuple(
        f"{prefix}.{index}.down_proj.bias" for index in range(3)
    )
    assert canonical_expert_names("blk.12.ffn_gate_up_exps.weight", 2) == (
        f"{prefix}.0.gate_proj.weight", f"{prefix}.0.up_proj.weight", f"{prefix}.1.gate_proj.weight",
        f"{prefix}.1.up_proj.weight",
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.ffn_gate.weight", "blk.0.exp_probs_b.weight", "blk.01.ffn_gate_exps.weight", "output.weight",
        "blk.0.ffn_gate_exps.scale", "blk.0.ffn_gate_shexp.bias", "token_embd.weight",
    ],
)  # fmt: skip
def test_other_tensors_have_no_experts(name: str) -> None:
    assert canonical_expert_names(name, 4) is None
