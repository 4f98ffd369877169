"""Tiny transformers models of architectures that Chairlift has no own implementation of, with seeded weights.

BRIDGED     kind -> config class, its fields, the way in which its layers run
REFUSED     architecture name -> config.json that is refused

As in support_models, weights are sampled in float32 and so large that greedy output varies.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from support_models import COMMON, EOS_TOKEN_IDS, MAX_POSITIONS, VOCAB_SIZE

PAGED, SEQUENCES = "paged attention", "sequence cache"
"""How the layers of a kind run: on the paged attention, or one sequence after another through transformers' Cache."""

_SIZES = {"vocab_size": VOCAB_SIZE, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_LLAMA = {name: value for name, value in COMMON.items() if name != "initializer_range"}
_ALL_HEADS = {name: value for name, value in _LLAMA.items() if name != "num_key_value_heads"}
_GPT2 = {**_SIZES, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": MAX_POSITIONS}
_SLIDING = {"sliding_window": 20}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Bridged:
    """One kind.

    Attributes:
        config: class in transformers.
        fields: of the config.
        way: PAGED or SEQUENCES.
        scale: standard deviation of the weights.
    """

    config: str
    fields: dict[str, Any] = field(default_factory=dict)
    way: str = PAGED
    scale: float = 0.25

    @property
    def is_sliding(self) -> bool:
        return "sliding_window" in self.fields

    @property
    def slides_everywhere(self) -> bool:
        """Whether every layer has the window."""
        return self.is_sliding and self.config in {"Phi3Config", "Starcoder2Config", "MixtralConfig"}


BRIDGED: dict[str, Bridged] = {
    "gpt2": Bridged("GPT2Config", _GPT2, scale=0.4),
    "gemma2": Bridged("Gemma2Config", {**_LLAMA, **_SLIDING, "head_dim": 16, "query_pre_attn_scalar": 24}),
    "phi3": Bridged("Phi3Config", {**_LLAMA, **_SLIDING}),
    "phi": Bridged("PhiConfig", _LLAMA),
    "olmo2": Bridged("Olmo2Config", _LLAMA),
    "olmo3": Bridged("Olmo3Config", {**_LLAMA, **_SLIDING, "num_hidden_layers": 4}),
    "granite": Bridged("GraniteConfig", {
        **_LLAMA, "logits_scaling": 3.0, "residual_multiplier": 0.7, "embedding_multiplier": 2.0,
        "attention_multiplier": 0.2,
    }),
    "smollm3": Bridged("SmolLM3Config", {**_LLAMA, "num_hidden_layers": 4}),
    "cohere2": Bridged("Cohere2Config", {**_LLAMA, **_SLIDING, "num_hidden_layers": 4}),
    "glm4": Bridged("Glm4Config", {**_LLAMA, "head_dim": 16}),
    "starcoder2": Bridged("Starcoder2Config", {**_LLAMA, **_SLIDING}, scale=0.4),
    "qwen3_moe": Bridged("Qwen3MoeConfig", {
        **_LLAMA, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    }),
    "mixtral": Bridged("MixtralConfig", {**_LLAMA, **_SLIDING, **_EXPERTS}),
    "gpt_oss": Bridged("GptOssConfig", {**_LLAMA, **_SLIDING, **_EXPERTS, "head_dim": 16, "num_hidden_layers": 4}),
    "gpt_neox": Bridged("GPTNeoXConfig", _ALL_HEADS),
    "opt": Bridged("OPTConfig", {
        **_SIZES, "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "max_position_embeddings": MAX_POSITIONS, "word_embed_proj_dim": 64,
    }, scale=0.4),
    "deepseek_v3": Bridged("DeepseekV3Config", {
        **_LLAMA, **_ROUTED, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16, "v_head_dim": 16,
    }),
    "exaone4": Bridged("Exaone4Config", {**_LLAMA, **_SLIDING, "num_hidden_layers": 4}),
    "gpt_bigcode": Bridged("GPTBigCodeConfig", _GPT2, scale=0.4),
    "nemotron": Bridged("NemotronConfig", _LLAMA),
    "falcon": Bridged("FalconConfig", {
        **_SIZES, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    }, SEQUENCES, scale=0.4),
    "gptj": Bridged("GPTJConfig", {**_GPT2, "rotary_dim": 8}, SEQUENCES, scale=0.4),
    "bloom": Bridged("BloomConfig", {**_SIZES, "hidden_size": 64, "n_layer": 3, "n_head": 4}, SEQUENCES, scale=1.2),
    "gpt_neo": Bridged("GPTNeoConfig", {
        **_SIZES, "hidden_size": 64, "num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]],
        "window_size": 20, "max_position_embeddings": MAX_POSITIONS,
    }, SEQUENCES, scale=0.4),
}  # fmt: skip


def bridged_config(kind: str, **changes: Any) -> Any:
    """Make the transformers config of a kind (a key of BRIDGED), with some fields changed."""
    spec = BRIDGED[kind]
    return getattr(transformers, spec.config)(**{**spec.fields, **changes})


def _scaled(name: str, values: torch.Tensor, scale: float) -> torch.Tensor:
    """Scale random values to the weights of a parameter; small embeddings keep tied models from repeating a token."""
    is_norm = any(part in name for part in ("norm", "ln_", ".ln"))
    if is_norm and name.endswith("weight"):
        return 1 + 0.2 * values
    if is_norm or name.endswith("bias"):
        return 0.1 * values
    is_embedding = any(part in name for part in ("embed", "wte", "wpe"))
    return values * (0.06 if is_embedding else scale)


def set_seeded_weights(model: Any, seed: int, scale: float) -> Any:
    """Set all parameters of a model to random values from a seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            parameter.copy_(_scaled(name, torch.randn(parameter.shape, generator=generator), scale))
    return model


def tiny_bridged_model(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """Make the transformers model of a kind with random weights from a seed, in eval mode, with eager attention."""
    return tiny_model_of(bridged_config(kind, **changes), seed, dtype, BRIDGED[kind].scale)


def tiny_model_of(config: Any, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 0.25) -> Any:
    """Make the decoder of a transformers config with random weights from a seed, in eval mode, with eager attention."""
    config._experts_implementation = "eager"  # torch's grouped products have no float64
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    model.generation_config.eos_token_id = list(EOS_TOKEN_IDS)
    return set_seeded_weights(model, seed, scale).eval()


def save_bridged(kind: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write the config files and float32 weights of a kind to a folder; returns the folder."""
    tiny_bridged_model(kind, seed, torch.float32, **changes).save_pretrained(folder)
    return Path(folder)
