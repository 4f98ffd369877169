"""canonical_expert_names: which parameters a tensor of experts in a GGUF file has. Imports no torch.

in the file, of layer 0                      canonical
blk.0.ffn_gate_inp.weight, .bias             model.layers.0.mlp.gate.weight, .bias
blk.0.exp_probs_b.bias                       model.layers.0.mlp.gate.e_score_correction_bias
blk.0.ffn_{gate,up,down}_exps.weight, .bias  model.layers.0.mlp.experts.N.{gate,up,down}_proj.weight, .bias
blk.0.ffn_gate_up_exps.weight                gate_proj and up_proj of each expert, one after the other
blk.0.ffn_{gate,up,down}_shexp.weight        model.layers.0.mlp.shared_expert.{gate,up,down}_proj.weight
blk.0.ffn_gate_inp_shexp.weight              model.layers.0.mlp.shared_expert_gate.weight
"""

import re

_TENSOR = re.compile(r"blk\.(0|[1-9]\d*)\.(\w+)\.(weight|bias)")

_SINGLE = {
    ("ffn_gate_inp", "weight"): "gate.weight", ("ffn_gate_inp", "bias"): "gate.bias",
    ("exp_probs_b", "bias"): "gate.e_score_correction_bias",
    ("ffn_gate_inp_shexp", "weight"): "shared_expert_gate.weight",
    **{(f"ffn_{each}_shexp", "weight"): f"shared_expert.{each}_proj.weight" for each in ("gate", "up", "down")},
}  # fmt: skip

_STACKED = {
    "ffn_gate_exps": ("gate",), "ffn_up_exps": ("up",), "ffn_down_exps": ("down",), "ffn_gate_up_exps": ("gate", "up"),
}  # fmt: skip


def canonical_expert_names(name: str, num_experts: int) -> tuple[str, ...] | None:
    """Return the canonical names of what a tensor has, in the order of its bytes; None for a tensor of something else.

    A stacked tensor has equal parts for all names.
    """
    if (found := _TENSOR.fullmatch(name)) is None:
        return None
    layer, module, kind = found.groups()
    prefix = f"model.layers.{layer}.mlp"
    if (single := _SINGLE.get((module, kind))) is not None:
        return (f"{prefix}.{single}",)
    if (projections := _STACKED.get(module)) is None:
        return None
    return tuple(f"{prefix}.experts.{index}.{each}_proj.{kind}" for index in range(num_experts) for each in projections)
