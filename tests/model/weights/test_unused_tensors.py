"""changes_tokens: a table of tensors that real checkpoints have beside those that an architecture uses."""

from chairlift.model.weights.unused_tensors import changes_tokens, modules_of, shown_names, unused_tensor_error
from support_shares import for_each

MODULES = modules_of([
    "model.embed_tokens.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight",
    "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight",
])  # fmt: skip


def test_modules_are_those_around_each_parameter() -> None:
    assert {
        "", "model", "lm_head", "model.embed_tokens", "model.norm", "model.layers", "model.layers.0",
        "model.layers.0.input_layernorm", "model.layers.0.self_attn", "model.layers.0.self_attn.q_proj",
        "model.layers.0.mlp", "model.layers.0.mlp.down_proj",
    } == MODULES  # fmt: skip


@for_each("name", [
    "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_norm.weight",
    "model.layers.0.self_attn.sinks", "model.layers.0.self_attn.q_proj.lora_A.weight",
    "model.layers.0.mlp.down_proj.weight_scale", "model.layers.0.mlp.down_proj.qzeros",
    "model.layers.0.mlp.experts.0.down_proj.weight", "model.layers.0.mlp.gate.weight",
    "model.layers.0.post_feedforward_layernorm.weight", "model.layers.0.vision_gate.weight",
    "model.layers.1.self_attn.q_proj.weight", "model.embed_tokens.weight_scale", "model.embed_positions.weight",
    "model.embed_tokens_per_layer.weight", "model.norm.bias", "model.mixer.weight", "lm_head.bias",
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "lora_A.weight",
    "prompt_encoder.embedding.weight",
    "language_model.model.layers.0.mlp.down_proj.weight", "decoder.layers.0.fc1.weight", "score.lora_A.weight",
    "model.layers.0.self_attn.q_proj.q_scale", "model.layers.0.mlp.k_scale", "model.layers.0.score.weight",
    "lm_head.weight_scale", "lm_head.lora_B.weight", "logit_scale", "final_logits_bias",
])  # fmt: skip
def test_what_is_computed_with(name: str) -> None:
    assert changes_tokens(name, MODULES)


@for_each("name", [
    "model.score.weight", "model.value_head.weight", "model.classifier.bias", "model.layers.0.self_attn.k_scale",
    "model.layers.0.self_attn.v_scale", "model.layers.0.self_attn.k_proj.k_scale", "model.layers.0.self_attn.kv_scale",
    "model.layers.0.self_attn.prob_scale", "output.weight", "exploration_head.weight",
    "score.weight", "value_head.weight", "v_head.summary.weight", "classifier.bias", "mtp.layers.0.norm.weight",
    "mtp_layers.0.mlp.weight", "model.mtp_layers.0.mlp.weight", "model.mtp.norm.weight", "visual.blocks.0.weight",
    "model.visual.patch_embed.weight", "vision_tower.encoder.weight", "model.vision_tower.encoder.weight",
    "model.vision_model.encoder.weight", "vision_embed_tokens.img_projection.0.bias", "audio_tower.conv1.weight",
    "multi_modal_projector.linear_1.weight", "model.multimodal_projector.weight", "model.mm_projector.0.weight",
    "model.image_newline", "image_newline", "medusa_head.0.weight", "model.eagle.fc.weight", "nextn.0.weight",
])  # fmt: skip
def test_what_stands_beside_it(name: str) -> None:
    assert not changes_tokens(name, MODULES)


def test_what_stands_beside_the_parts_of_a_base_model_is_within_the_decoder() -> None:
    for name in ("embed_norm.weight", "project_in.weight"):
        assert changes_tokens(name, MODULES, is_base_model=True) and not changes_tokens(name, MODULES)
    for name in ("visual.blocks.0.weight", "score.weight"):
        assert not changes_tokens(name, MODULES, is_base_model=True)


def test_a_message_names_some_and_counts_all() -> None:
    assert shown_names(["a"]) == "a" and shown_names(["a", "b", "c"]) == "a, b, c"
    assert shown_names(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert shown_names(["a", "b"], 1) == "a and 1 more"
    error = unused_tensor_error("f", ["model.layers.7.x.weight", "y"])
    assert "layer 7 is beyond num_hidden_layers" in error.message and "and 1 more" in error.message
    assert error.details == {"file": "f", "tensor": "model.layers.7.x.weight", "count": 2}
    assert "num_hidden_layers" not in unused_tensor_error("f", ["lm_head.bias"]).message
