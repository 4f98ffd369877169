"""Tiny models of architectures that Chairlift runs by transformers' modules, with seeded weights.

Weights are sampled in float32 and large enough that greedy output varies. "paged" kinds use transformers' attention
interface; "sequence" kinds compute attention by themselves.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from support_models import COMMON, EOS_TOKEN_IDS

WINDOW = 20
SLIDING = {"sliding_window": WINDOW}
NO_KV_HEADS = {
    name: value for name, value in COMMON.items() if name not in ("num_key_value_heads", "initializer_range")
}
GPT: dict[str, Any] = {
    "vocab_size": 304, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 1024, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}


@dataclass(frozen=True, slots=True)
class BridgedKind:
    """One architecture: its config class, its fields, and factors of its random weights.

    Attributes:
        config: name of transformers' config class.
        fields: arguments of the config.
        scale: standard deviation of matrices.
        window: field that has the window; None without one.
        runs: "paged" or "sequence".
    """

    config: str
    fields: dict[str, Any] = field(default_factory=dict)
    scale: float = 0.25
    window: str | None = None
    runs: str = "paged"

    @property
    def slides_everywhere(self) -> bool:
        """Whether every layer has the window."""
        return self.config in {"Phi3Config", "Starcoder2Config", "MixtralConfig"}


BRIDGED: dict[str, BridgedKind] = {
    "gpt2": BridgedKind("GPT2Config", GPT, 0.5),
    "gemma2": BridgedKind(
        "Gemma2Config",
        {**COMMON, "head_dim": 16, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0, **SLIDING},
        window="sliding_window",
    ),
    "phi3": BridgedKind("Phi3Config", {**COMMON, **SLIDING}, window="sliding_window"),
    "phi": BridgedKind("PhiConfig", COMMON, 0.3),
    "olmo2": BridgedKind("Olmo2Config", COMMON),
    "olmo3": BridgedKind("Olmo3Config", {**COMMON, "num_hidden_layers": 4, **SLIDING}, window="sliding_window"),
    "granite": BridgedKind(
        "GraniteConfig", {**COMMON, "logits_scaling": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.2}
    ),
    "smollm3": BridgedKind("SmolLM3Config", {**COMMON, "num_hidden_layers": 4}),
    "cohere2": BridgedKind("Cohere2Config", {**COMMON, "num_hidden_layers": 4, **SLIDING}, window="sliding_window"),
    "glm4": BridgedKind("Glm4Config", {**COMMON, "head_dim": 16}),
    "starcoder2": BridgedKind("Starcoder2Config", {**COMMON, **SLIDING}, 0.3, window="sliding_window"),
    "qwen3_moe": BridgedKind("Qwen3MoeConfig", {**COMMON, "head_dim": 16, "num_experts": 8, **MOE}),
    "mixtral": BridgedKind(
        "MixtralConfig", {**COMMON, "num_local_experts": 4, "num_experts_per_tok": 2, **SLIDING},
        window="sliding_window",
    ),
    "gpt_oss": BridgedKind(
        "GptOssConfig",
        {**COMMON, "head_dim": 16, "num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 2, **SLIDING},
        window="sliding_window",
    ),
    "gpt_neox": BridgedKind("GPTNeoXConfig", NO_KV_HEADS, 0.3),
    "opt": BridgedKind(
        "OPTConfig",
        {"vocab_size": 304, "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
         "max_position_embeddings": 1024, "word_embed_proj_dim": 64, "bos_token_id": 1, "eos_token_id": 2,
         "pad_token_id": 0},
        0.4,
    ),
    "deepseek_v3": BridgedKind(
        "DeepseekV3Config",
        {**COMMON, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8,
         "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "n_shared_experts": 1,
         "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, **MOE},
    ),
    "exaone4": BridgedKind("Exaone4Config", {**COMMON, "num_hidden_layers": 4, **SLIDING}, window="sliding_window"),
    "falcon": BridgedKind(
        "FalconConfig",
        {"vocab_size": 304, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "bos_token_id": 1,
         "eos_token_id": 2, "max_position_embeddings": 1024},
        0.3, runs="sequence",
    ),
    "gptj": BridgedKind("GPTJConfig", {**GPT, "rotary_dim": 8}, 0.5, runs="sequence"),
    "bloom": BridgedKind(
        "BloomConfig",
        {"vocab_size": 304, "hidden_size": 64, "n_layer": 3, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
        0.7, runs="sequence",
    ),
    "diffllama": BridgedKind("DiffLlamaConfig", COMMON, runs="sequence"),
    "gpt_neo": BridgedKind(
        "GPTNeoConfig",
        {"vocab_size": 304, "hidden_size": 64, "num_layers": 4, "num_heads": 4, "window_size": WINDOW,
         "attention_types": [[["global", "local"], 2]], "max_position_embeddings": 1024, "bos_token_id": 1,
         "eos_token_id": 2},
        0.25, runs="sequence",
    ),
    "mpt": BridgedKind(
        "MptConfig",
        {"vocab_size": 304, "d_model": 64, "n_layers": 3, "n_heads": 4, "max_seq_len": 1024, "bos_token_id": 1,
         "eos_token_id": 2},
        0.4, runs="sequence",
    ),
    "llama4_text": BridgedKind(
        "Llama4TextConfig",
        {**COMMON, "head_dim": 16, "num_hidden_layers": 4, "intermediate_size_mlp": 96, "num_local_experts": 4,
         "layer_types": ["chunked_attention", "full_attention"] * 2, "attention_chunk_size": 16, "floor_scale": 16,
         "attn_scale": 2.0},
        runs="sequence",
    ),
    "moshi": BridgedKind("MoshiConfig", {**COMMON, "ffn_dim": 96, "sliding_window": 1024}),
    "bart": BridgedKind(
        "BartConfig",
        {"vocab_size": 304, "d_model": 64, "encoder_layers": 3, "encoder_attention_heads": 4, "decoder_layers": 3,
         "decoder_attention_heads": 4, "decoder_ffn_dim": 96, "max_position_embeddings": 1024, "bos_token_id": 1,
         "eos_token_id": 2, "pad_token_id": 0, "is_encoder_decoder": False, "is_decoder": True,
         "forced_eos_token_id": None},
        0.5, runs="sequence",
    ),
    "gpt_bigcode": BridgedKind("GPTBigCodeConfig", GPT, 0.5),
    "nemotron": BridgedKind("NemotronConfig", COMMON),
}  # fmt: skip
"""Name of the model type -> the tiny model."""


def bridged_model(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """Make the transformers model of a kind with random weights from a seed, in eval mode with eager attention."""
    entry = BRIDGED[kind]
    config = getattr(transformers, entry.config)(**{**entry.fields, **changes})
    return model_of(config, seed, dtype, entry.scale)


def model_of(config: Any, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 0.25) -> Any:
    """Make the decoder of a transformers config with random weights, in eval mode with eager attention.

    Embeddings are small, because a model that shares a large one with its head repeats a token.
    """
    config._experts_implementation = "eager"  # torch's grouped products have no float64
    model: Any = transformers.AutoModelForCausalLM
    model = model.from_config(config, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = torch.randn(parameter.shape, generator=generator)
            is_norm = any(part in name for part in ("norm", "ln_", ".ln"))
            if name.endswith("bias"):
                parameter.copy_(0.1 * values)
            elif is_norm and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * values)
            else:
                is_embedding = any(part in name for part in ("embed", "wte", "wpe"))
                parameter.copy_((0.06 if is_embedding else scale) * values)
    model.generation_config.eos_token_id = list(EOS_TOKEN_IDS)
    return model.to(dtype).eval()


def save_bridged(kind: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write config files and float32 weights of a kind to a folder; returns the folder."""
    bridged_model(kind, seed, torch.float32, **changes).save_pretrained(folder)
    return folder


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """Return the tokens that transformers generates greedily, without an end of sequence."""
    made = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens
