"""Gemma 3: its parameters, and the multimodal wrapper, whose text part is the same model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.loading.model_building import load_model, parameter_shapes
from support_batches import teacher_forced_logits
from support_models import VARIANTS, tiny_config, tiny_hf_model

GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7,
}  # fmt: skip


def of(**fields: Any) -> DecoderConfig:
    return parse_decoder_config({**GEMMA, **fields})


def test_gemma_slides_in_all_but_every_sixth_layer() -> None:
    assert of().layer_windows == (4096,) * 5 + (None, 4096)
    assert of(sliding_window_pattern=3).layer_windows == (4096, 4096, None) * 2 + (4096,)
    assert of(_sliding_window_pattern=2).layer_windows == (4096, None) * 3 + (4096,)
    kinds = ["full_attention"] * 6 + ["sliding_attention"]
    assert of(layer_types=kinds, sliding_window=5).layer_windows == (None,) * 6 + (5,)


def test_gemma_has_a_rotation_for_each_kind_of_layer() -> None:
    plain = of()
    assert (plain.rope.theta, plain.sliding_rope.theta) == (1e6, 1e4)
    old = of(rope_scaling={"rope_type": "linear", "factor": 8.0}, rope_local_base_freq=5e3)
    assert (old.rope.type, old.rope.factor, old.sliding_rope.type, old.sliding_rope.theta) == (
        "linear", 8.0, "default", 5e3,
    )  # fmt: skip
    assert plain.attention_scale == 256**-0.5


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
