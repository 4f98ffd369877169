"""ModelConfig: the length of a context and its limit."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.loading.model_config import ModelConfig

CONFIG = ModelConfig(
    architecture="FooForCausalLM", vocab_size=300, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=16, max_position_embeddings=128, layer_windows=(None, 20),
)  # fmt: skip


@pytest.mark.parametrize(("requested", "length"), [(None, 128), (5, 5), (128, 128)])
def test_the_length_of_a_context(requested: int | None, length: int) -> None:
    assert CONFIG.context_length(requested) == length
    assert CONFIG.max_context == 128


def test_more_than_the_positions_support_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len is 129, the model's limit is 128$") as caught:
        CONFIG.context_length(129)
    assert caught.value.details["option"] == "max_model_len"
