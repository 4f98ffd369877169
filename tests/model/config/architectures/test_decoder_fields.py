"""decoder_config, windows_of_kinds: values that an architecture gives, and layer types that do not fit."""

from typing import Any

import pytest

from chairlift.core.errors import ModelError, UnsupportedArchitecture
from chairlift.model.config.architectures.decoder_fields import (
    LLAMA_DEFAULTS,
    decoder_config,
    full_attention,
    read_activation,
    windows_of_kinds,
)
from chairlift.model.config.config_reader import ConfigReader

SIZES = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def reader(**fields: Any) -> ConfigReader:
    return ConfigReader({**SIZES, **fields}, LLAMA_DEFAULTS)


def test_a_value_of_the_architecture_is_taken_before_that_of_llama() -> None:
    fields = reader()
    plain = decoder_config("Some", fields, full_attention(fields))
    assert (plain.attention_scale, plain.qkv_bias, plain.architecture) == (0.25, False, "Some")
    own = decoder_config("Some", fields, (8, None), attention_scale=2.0, qkv_bias=True)
    assert (own.attention_scale, own.qkv_bias, own.layer_windows) == (2.0, True, (8, None))


def test_kinds_of_layers_become_windows() -> None:
    kinds = ["full_attention", "sliding_attention"]
    assert windows_of_kinds(kinds, 9, 2) == (None, 9)
    with pytest.raises(ModelError, match="sliding_window is missing"):
        windows_of_kinds(kinds, None, 2)
    with pytest.raises(ModelError, match="layer_types has 2 entries, num_hidden_layers is 3"):
        windows_of_kinds(kinds, 9, 3)
    with pytest.raises(ModelError, match="chunked_attention"):
        windows_of_kinds(["chunked_attention"], 9, 1)


def test_the_activation_has_two_names_of_fields() -> None:
    assert read_activation(reader(hidden_act="gelu")) == "gelu"
    assert read_activation(reader(hidden_activation="gelu_pytorch_tanh")) == "gelu_pytorch_tanh"
    with pytest.raises(UnsupportedArchitecture, match="hidden_act 'relu2' is not supported"):
        read_activation(reader(hidden_act="relu2"))
    with pytest.raises(ModelError, match="hidden_act 'sigmund' is not supported"):
        read_activation(reader(hidden_act="sigmund"))
