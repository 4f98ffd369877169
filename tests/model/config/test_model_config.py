"""ModelConfig: the longest sequence."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.config.model_config import ModelConfig

CONFIG = ModelConfig(
    architecture="XForCausalLM", vocab_size=300, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=16, max_position_embeddings=512, layer_windows=(None, 9),
)  # fmt: skip


def test_the_length_is_the_models_own_or_a_smaller_one() -> None:
    assert (CONFIG.max_context, CONFIG.context_length(), CONFIG.context_length(7), CONFIG.context_length(512)) == (
        512, 512, 7, 512,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"max_model_len is 513, the model's limit is 512$"):
        CONFIG.context_length(513)
