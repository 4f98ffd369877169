"""ShortConvolution against transformers' module of LFM2."""

import pytest
import torch
from transformers import Lfm2Config
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

from chairlift.model.config.state_layers import ShortConvConfig
from support_state_layers import HIDDEN, compare_with_module, load_layer, parameter_loader


@pytest.mark.parametrize(("width", "bias"), [(3, False), (3, True), (4, False)])
def test_all_tokens_equal_transformers_in_float64(width: int, bias: bool) -> None:
    config = Lfm2Config(
        hidden_size=HIDDEN, num_hidden_layers=1, layer_types=["conv"], conv_L_cache=width, conv_bias=bias,
        num_attention_heads=2, num_key_value_heads=1, vocab_size=32,
    )  # fmt: skip
    torch.manual_seed(width)
    module = Lfm2ShortConv(config, 0).double().eval()
    parameters = {f"layer.{name}": value.detach() for name, value in module.named_parameters()}
    layer = load_layer(ShortConvConfig(hidden_size=HIDDEN, conv_width=width, bias=bias), parameter_loader(parameters))
    assert compare_with_module(layer, module, config, cache_name="past_key_values") < 1e-12
