"""Float8Packer: which weights become 8-bit floats, what is kept of them, and what the startup report says."""

import pytest
import torch
from torch import Tensor

from chairlift.model.kernels.float8_linear import Float8Weight, quantize_rows
from chairlift.model.weights import float8_packer
from chairlift.model.weights.float8_packer import Float8Packer, quantize_parts, takes_float8
from chairlift.model.weights.parameter_loader import ParameterLoader, Part
from support_shares import for_each

QKV: list[Part] = [(f"model.layers.0.self_attn.{name}_proj.weight", (rows, 48)) for name, rows in
                   (("q", 32), ("k", 8), ("v", 8))]  # fmt: skip


def stored(name: str, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(name) + shape[0])).bfloat16()


@for_each(("parts", "takes"), [
    (QKV, True), (QKV[:2], False),  # 40 rows
    ([("model.layers.3.mlp.down_proj.weight", (64, 128))], True),
    ([("model.layers.3.mlp.down_proj.weight", (64, 130))], False),
    ([("model.layers.3.mlp.down_proj.weight", (63, 128))], False),
    ([("model.layers.3.input_layernorm.weight", (64,))], False),
    ([("lm_head.weight", (64, 128))], False), ([("model.embed_tokens.weight", (64, 128))], False),
    ([("model.norm.weight", (64,))], False),
])  # fmt: skip
def test_weights_of_layers_whose_sizes_fit_become_8_bit_floats(parts: list[Part], takes: bool) -> None:
    assert takes_float8(parts) is takes
    packer = Float8Packer(lambda weight: weight)
    if len(parts[0][1]) == 2:
        assert isinstance(packer(parts, ParameterLoader(stored), gated=False), Float8Weight) is takes


@pytest.mark.parametrize("elements", [2**24, 48, 5 * 48])
def test_stacked_parts_are_quantized_row_by_row_in_any_chunks(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float8_packer, "CHUNK_ELEMENTS", elements)
    weight = quantize_parts(QKV, stored)
    values, scales = quantize_rows(torch.cat([stored(*part) for part in QKV]))
    assert torch.equal(weight.values.view(torch.uint8), values.view(torch.uint8)) and torch.equal(weight.scales, scales)


def test_what_is_not_quantized_is_packed_as_without_it() -> None:
    loader = ParameterLoader(stored, pack=Float8Packer(lambda weight: weight * 2))
    head = loader.linear_weight([("lm_head.weight", (64, 128))])
    assert isinstance(head, Tensor) and torch.equal(head, 2 * stored("lm_head.weight", (64, 128)))
    odd = [("model.layers.0.mlp.up_proj.weight", (10, 20)), ("model.layers.0.mlp.gate_proj.weight", (10, 20))]
    kept = loader.linear_weight(odd, gated=True)
    assert isinstance(kept, Tensor) and torch.equal(kept, 2 * torch.cat([stored(*part) for part in odd]))


def test_the_report_counts_weights_bytes_and_what_does_not_fit() -> None:
    packer = Float8Packer(lambda weight: weight)
    big = [("model.layers.0.mlp.down_proj.weight", (1024, 2048))]
    packer(big, ParameterLoader(stored), gated=False)
    packer(QKV, ParameterLoader(stored), gated=False)
    packer([("lm_head.weight", (64, 128))], ParameterLoader(stored), gated=False)
    assert packer.report() == "fp8 (e4m3), 4 weights of layers in 2.0 MiB"
    packer([("model.layers.0.self_attn.o_proj.weight", (64, 50))], ParameterLoader(stored), gated=False)
    assert packer.report().endswith(
        "in 2.0 MiB; not quantized, as a size is no multiple of 16: 1 weights, model.layers.0.self_attn.o_proj"
    )
    packer([("model.layers.1.self_attn.o_proj.weight", (64, 50))], ParameterLoader(stored), gated=False)
    assert packer.report().endswith("multiple of 16: 2 weights, model.layers.0.self_attn.o_proj, ..")
