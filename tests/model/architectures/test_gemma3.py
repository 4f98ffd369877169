"""Gemma 3: its parameters, and the multimodal wrapper, whose text part is the same model."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from chairlift.model.architectures.model_building import load_model, parameter_shapes
from chairlift.model.config.decoder_config import parse_decoder_config
from support_batches import teacher_forced_logits
from support_models import VARIANTS, tiny_config, tiny_hf_model


@pytest.mark.parametrize("kind", [kind for kind in VARIANTS if kind.startswith("gemma3")])
def test_parameters_are_those_of_transformers(kind: str) -> None:
    config = tiny_config(kind, architectures=["Gemma3ForCausalLM"])
    with torch.device("meta"):
        model = transformers.Gemma3ForCausalLM(config)
    theirs = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert parameter_shapes(parse_decoder_config(json.loads(config.to_json_string()))) == theirs


def wrapper(folder: Path) -> transformers.PreTrainedModel:
    """Save a Gemma3ForConditionalGeneration around the text weights of the tiny Gemma; returns it in float64."""
    vision = transformers.SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    text = tiny_config("gemma3")
    config = transformers.Gemma3Config(
        text_config=text.to_dict(), vision_config=vision.to_dict(), mm_tokens_per_image=4, image_token_index=303
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    inner = tiny_hf_model("gemma3", 5, torch.float32)
    model.model.language_model.load_state_dict(inner.model.state_dict())
    model.tie_weights()
    model.save_pretrained(folder)
    return model.double().eval()


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_wrapper_computes_what_transformers_computes_on_text(tmp_path: Path, prefix: str) -> None:
    theirs = wrapper(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert any(name.startswith("language_model.model.") for name in saved)
    assert any(name.startswith("vision_tower.") for name in saved)
    renamed = {name.replace("language_model.model.", prefix): tensor for name, tensor in saved.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    model, config = load_model(tmp_path, dtype="float64", device=torch.device("cpu"), max_model_len=None)
    assert config.architecture == "Gemma3ForConditionalGeneration"
    tokens = [(31 * place) % 300 for place in range(90)]
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0]
    found = teacher_forced_logits(model, [tokens], torch.float64, max_chunk=30)[0]
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()
