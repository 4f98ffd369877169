"""Tiny transformers models with seeded weights: references, in memory or as folders.

Weights are sampled in float32, so `tiny_hf_model(kind, seed, dtype)` and a folder of `save_tiny(kind, folder, seed)`
loaded with that dtype have the same weights. They are three times as large as those of a new model, because the
greedy output of a new model soon repeats itself and would hide errors of position.
"""

import os
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

KINDS = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
VOCAB_SIZE = 304
MAX_POSITIONS = 1024
EOS_TOKEN_IDS = (2, 7)

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.06,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
}  # fmt: skip
DELTA_NET: dict[str, Any] = {
    "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}  # fmt: skip
GEMMA4: dict[str, Any] = {"head_dim": 16, "global_head_dim": 32, "sliding_window": 20}
MAMBA: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_n_groups": 1,
    "shared_intermediate_size": 80,
    "embedding_multiplier": 3.0,
    "logits_scaling": 0.7,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.2,
}
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"tie_word_embeddings": False}),
    "llama-linear": ("LlamaConfig", "LlamaForCausalLM", {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    }),
    "llama-llama3": ("LlamaConfig", "LlamaForCausalLM", {"rope_parameters": LLAMA3_ROPE}),
    "llama-yarn": ("LlamaConfig", "LlamaForCausalLM", {"rope_parameters": YARN_ROPE}),
    "llama-bias": ("LlamaConfig", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": 20}),
    "mistral-full": ("MistralConfig", "MistralForCausalLM", {"sliding_window": None, "num_key_value_heads": 1}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2-sliding": ("Qwen2Config", "Qwen2ForCausalLM", {
        "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1,
    }),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {
        "num_hidden_layers": 4, "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 20,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    }),
    "gemma3-softcap": ("Gemma3TextConfig", "Gemma3ForCausalLM", {
        "hidden_size": 72, "head_dim": 16, "sliding_window": 9, "final_logit_softcapping": 5.0, "attention_bias": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {
        "num_hidden_layers": 4, "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 20,
        "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0,
    }),
    "gemma4": ("Gemma4TextConfig", "Gemma4ForCausalLM", {
        **GEMMA4, "num_hidden_layers": 6, "num_key_value_heads": 1, "num_kv_shared_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2, "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB_SIZE, "final_logit_softcapping": 8.0,
    }),
    "gemma4_dense": ("Gemma4TextConfig", "Gemma4ForCausalLM", {
        **GEMMA4, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
    }),
    "gemma4_moe": ("Gemma4TextConfig", "Gemma4ForCausalLM", {
        **GEMMA4, "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2,
        "moe_intermediate_size": 32, "use_bidirectional_attention": "vision",
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    }),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {"sliding_window": 20}),
    "phi3-partial": ("Phi3Config", "Phi3ForCausalLM", {
        "hidden_size": 96, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "factor": 4.0,
            "short_factor": [1.0, 1.5, 1.0, 2.0, 1.2, 1.1, 1.3, 1.7, 1.9],
            "long_factor": [4.0, 2.0, 3.0, 5.0, 6.0, 4.0, 4.0, 4.0, 3.0],
        },
        "original_max_position_embeddings": MAX_POSITIONS, "tie_word_embeddings": True,
    }),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", {"num_hidden_layers": 4, "no_rope_layer_interval": 2}),
    "smollm3-sliding": ("SmolLM3Config", "SmolLM3ForCausalLM", {
        "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 20, "tie_word_embeddings": False,
    }),
    "granite": ("GraniteConfig", "GraniteForCausalLM", {
        "embedding_multiplier": 3.0, "logits_scaling": 0.7, "residual_multiplier": 0.6, "attention_multiplier": 0.2,
    }),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", {"rms_norm_eps": 1e-5}),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM", {
        "num_hidden_layers": 4, "sliding_window": 20, "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "attention_factor": 1.2,
        },
    }),
    "ministral3": ("Ministral3Config", "Ministral3ForCausalLM", {
        "head_dim": 24, "rope_parameters": {
            **YARN_ROPE, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.3,
        },
    }),
    "glm4": ("Glm4Config", "Glm4ForCausalLM", {"head_dim": 24, "partial_rotary_factor": 0.5}),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", {
        "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True,
        "mlp_only_layers": [1],
    }),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {
        "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 20,
    }),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", {"num_experts": 8, "num_experts_per_tok": 3}),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM", {
        "head_dim": 16, "num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 20,
    }),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {
        **DELTA_NET, "num_hidden_layers": 4, "layer_types": ["linear_attention"] * 2 + ["full_attention"] * 2,
    }),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", {
        **DELTA_NET, "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    }),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", {
        **DELTA_NET, "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
        "mlp_only_layers": [0],
    }),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", {
        "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"],
        "block_auto_adjust_ff_dim": False,
    }),
    "granite_hybrid": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", {
        **MAMBA, "num_local_experts": 0, "position_embedding_type": "nope",
    }),
    "granite_hybrid_moe": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", {
        **MAMBA, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32,
        "position_embedding_type": "rope", "mamba_n_groups": 2,
    }),
}  # fmt: skip
HYBRIDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "lfm2", "granite_hybrid", "granite_hybrid_moe")
"""Kinds with layers that keep a state."""


def tiny_config(kind: str, **changes: Any) -> Any:
    """Make the transformers config of a kind (a key of VARIANTS), with some fields changed."""
    config, _, fields = VARIANTS[kind]
    return getattr(transformers, config)(**{**COMMON, **fields, **changes})


NEAR_ONE = re.compile(r"norm(_\d)?\.weight$|\.(scale|per_expert_scale|layer_scalar)$")
"""Names of factors, which are near one, or near zero where one is added."""


def _scaled(name: str, values: torch.Tensor, gemma: bool, plain: bool) -> torch.Tensor:
    """Scale random values to the weights of a parameter; `plain`: nothing is added to weights of norms.

    Gemma's tied embeddings are small and its last norm is large. Otherwise the greedy token repeats for ever.
    """
    if plain and gemma and name.endswith("q_norm.weight"):
        return values * 0.05 + 0.25  # in the place of a scale of attention, which Gemma 4 has not
    if NEAR_ONE.search(name):
        mean = 7.0 if gemma and name == "model.norm.weight" else 0.0
        return values * 0.2 + mean + (1.0 if not gemma or plain else 0.0)
    return values * 0.06 * (0.375 if gemma and "embed_tokens.weight" in name else 3)


def tiny_hf_model(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """Make the transformers model of a kind with random weights from a seed.

    The model is in eval mode, with the attention "sdpa", or "eager" for a cap on attention or sinks.
    """
    config = tiny_config(kind, **changes)
    config._experts_implementation = "eager"  # torch's grouped products have no float64
    attention = "sdpa" if getattr(config, "attn_logit_softcapping", None) is None and kind != "gpt_oss" else "eager"
    model = getattr(transformers, VARIANTS[kind][1])._from_config(config, dtype=dtype, attn_implementation=attention)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        scalars = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("layer_scalar")]
        for name, parameter in sorted([*model.named_parameters(), *scalars], key=lambda each: each[0]):
            values = torch.randn(parameter.shape, generator=generator)
            scaled = _scaled(name, values, kind.startswith("gemma"), not kind.startswith(("gemma2", "gemma3")))
            parameter.copy_(scaled)
    model.generation_config.eos_token_id = list(EOS_TOKEN_IDS)
    return model.eval()


def save_tiny(kind: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write the config files and float32 weights of a kind to a folder; returns the folder."""
    tiny_hf_model(kind, seed, torch.float32, **changes).save_pretrained(folder)
    return Path(folder)
