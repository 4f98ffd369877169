"""tiny_model: builds a tiny random Llama of two layers over bytes, for tests and for measuring everything but a model.

ids 0..255    bytes, as in ByteTokenizer
256 257 258   begin of text, end of text, padding
"""

from collections.abc import Callable

import torch

from chairlift.model.backends.model_backend import ModelBackend
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.rope_config import RopeConfig
from chairlift.model.layers.causal_lm_protocol import CausalLM
from chairlift.model.loading.model_building import random_model
from chairlift.model.weights.shard import Shard

BOS, EOS, PAD = 256, 257, 258
PRINTABLE = range(32, 127)
HEAD_SCALE = 4.0  # makes the zero rows, whose logits are zero, almost never sampled


def tiny_config() -> DecoderConfig:
    """Return the config: 259 ids, hidden 64, four query heads on two key heads, 1024 positions."""
    rope = RopeConfig()
    return DecoderConfig(
        architecture="LlamaForCausalLM",
        vocab_size=259,
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        norm_eps=1e-6,
        activation="silu",
        max_position_embeddings=1024,
        layer_windows=(None, None),
        rope=rope,
        sliding_rope=rope,
        attention_scale=0.25,
        eos_token_ids=(EOS,),
        bos_token_id=BOS,
        dtype="float32",
    )


def tiny_model(
    *,
    seed: int,
    dtype: str,
    device: torch.device,
    max_model_len: int | None = None,
    choose_backend: Callable[[DecoderConfig], ModelBackend] | None = None,
    shard: Shard | None = None,
) -> tuple[CausalLM, DecoderConfig]:
    """Build the model, the same for the same seed; dtype "auto" is float32.

    Its weights are large enough that greedy output varies instead of repeating one token. The lm_head's rows are zero
    except for printable ASCII, so the output contains no terminal control characters. `shard`: as for load_model.
    """
    return random_model(
        tiny_config(),
        seed=seed,
        dtype=dtype,
        device=device,
        max_model_len=max_model_len,
        scale=0.2,
        change=_keep_printable_rows,
        choose_backend=choose_backend,
        shard=shard,
    )


def _keep_printable_rows(name: str, weights: torch.Tensor) -> torch.Tensor:
    if name == "lm_head.weight":
        weights[: PRINTABLE.start] = weights[PRINTABLE.stop :] = 0.0
        weights *= HEAD_SCALE
    return weights
