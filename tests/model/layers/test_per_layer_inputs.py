"""PerLayerInputs and LayerInput against transformers' modules; the table stays in the model's dtype."""

import pytest
import torch
from torch import Tensor

from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.layers.fused_ops import FusedOps
from chairlift.model.layers.ops import Ops, TorchOps
from chairlift.model.layers.per_layer_inputs import TABLE, LayerInput, PerLayerInputs
from chairlift.model.loading.tiny_model import tiny_config
from support_architectures import config_of
from support_experts import loader_of
from support_models import tiny_hf_model

IDS = torch.tensor([3, 3, 0, 303, 77, 140])
CASES: dict[torch.dtype, tuple[Ops, float]] = {
    torch.float64: (TorchOps(), 1e-7), torch.float32: (FusedOps(False), 1e-5), torch.bfloat16: (FusedOps(False), 2e-2),
}  # fmt: skip


def loaded(config: DecoderConfig, dtype: torch.dtype) -> tuple[PerLayerInputs, dict[str, Tensor]]:
    tensors = tiny_hf_model("gemma4", 4, dtype).state_dict()
    inputs = PerLayerInputs.load(loader_of(tensors, dtype), config)
    assert inputs is not None
    return inputs, tensors


@pytest.mark.parametrize("dtype", CASES)
def test_inputs_are_those_of_transformers(dtype: torch.dtype) -> None:
    ops, tolerance = CASES[dtype]
    inputs, _ = loaded(config_of("gemma4"), dtype)
    model = tiny_hf_model("gemma4", 4, dtype).model
    with torch.no_grad():
        embedded = model.embed_tokens(IDS[None])
        expected = model.project_per_layer_inputs(embedded, model.get_per_layer_inputs(IDS[None]))[0]
        found = inputs(IDS, embedded[0], ops)
    assert found.shape == (6, 6, 8) and found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert not torch.allclose(found[0].float(), found[4].float(), atol=0.1), "another token has other inputs"


@pytest.mark.parametrize("dtype", CASES)
def test_a_layer_adds_what_transformers_adds(dtype: torch.dtype) -> None:
    ops, tolerance = CASES[dtype]
    model = tiny_hf_model("gemma4", 4, dtype)
    own = LayerInput.load(loader_of(model.state_dict(), dtype), "model.layers.2", config_of("gemma4"))
    assert own is not None
    dice = torch.Generator().manual_seed(1)
    x, one = (torch.randn(5, width, generator=dice).to(dtype) for width in (64, 8))
    layer = model.model.layers[2]
    with torch.no_grad():
        gated = layer.act_fn(layer.per_layer_input_gate(x)) * one
        expected = layer.post_per_layer_input_norm(layer.per_layer_projection(gated))
        found = own(x, one, ops)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert float(expected.float().std()) > 0.1


def test_the_table_keeps_the_dtype_of_the_model() -> None:
    inputs, tensors = loaded(config_of("gemma4"), torch.bfloat16)
    assert isinstance(inputs.table, Tensor) and inputs.table.dtype == torch.bfloat16
    assert torch.equal(inputs.table, tensors[TABLE])


def test_a_model_without_such_inputs_has_none() -> None:
    loader = loader_of({})
    assert PerLayerInputs.load(loader, tiny_config()) is None
    assert LayerInput.load(loader, "model.layers.0", tiny_config()) is None
