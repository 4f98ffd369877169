"""build_module_client: an engine over a loaded model, which shares its parameters."""

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.llm.build_from_module import build_module_client
from chairlift.llm.options import Options
from support_bridged_models import bridged_model


def test_the_engine_has_the_options_and_the_parameters_of_the_model() -> None:
    model = bridged_model("gpt2", dtype=torch.float32).eval()
    client = build_module_client(model, Options(num_blocks=40, block_size=8, enable_prefix_caching=False))
    try:
        assert (client.info.num_blocks, client.info.block_size) == (40, 8)
        assert client.info.vocab_size == model.config.vocab_size
        assert client.check_integrity() == []
    finally:
        client.close()


def test_an_invalid_option_is_named() -> None:
    with pytest.raises(ConfigError, match="lifo"):
        build_module_client(bridged_model("gpt2", dtype=torch.float32), Options(batching_policy="lifo"))
