"""base_weights: the weights of projections by canonical name, as the model's files have them."""

from pathlib import Path

import pytest
import torch

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.config_parsing import read_decoder_config
from chairlift.model.lora.base_weights import base_weights
from support_adapters import adaptable_of
from support_models import save_tiny, tiny_hf_model


@pytest.mark.parametrize("kind", ["qwen3", "phi3", "llama"])
def test_the_weights_are_those_of_the_files_in_the_dtype_that_is_asked(kind: str, tmp_path: Path) -> None:
    folder = save_tiny(kind, tmp_path, seed=5)
    config = read_decoder_config(folder)
    read, theirs = base_weights(folder, config, adaptable_of(folder), torch.float64), tiny_hf_model(kind, 5)
    parameters = {name: value.detach().float().double() for name, value in theirs.named_parameters()}
    layer = "model.layers.1.self_attn"
    if kind == "phi3":
        joined = parameters[f"{layer}.qkv_proj.weight"]
        assert torch.equal(read(f"{layer}.q_proj"), joined[: read(f"{layer}.q_proj").shape[0]])
    else:
        assert torch.equal(read(f"{layer}.q_proj"), parameters[f"{layer}.q_proj.weight"])
    assert torch.equal(read("model.embed_tokens"), parameters["model.embed_tokens.weight"])
    table = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    assert torch.equal(read("lm_head"), parameters[table]) and read("lm_head").dtype == torch.float64


def test_a_model_without_files_says_so(tmp_path: Path) -> None:
    config = read_decoder_config(save_tiny("qwen3", tmp_path, seed=5))
    with pytest.raises(ModelError, match="which has no files"):
        base_weights(None, config, (), torch.float32)("lm_head")
