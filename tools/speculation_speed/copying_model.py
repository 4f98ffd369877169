"""write_copying_model(): a model of a published shape whose two first layers copy, with weights made by hand.

    layer 0    attends to the token before, by its position, and writes down what that token is
    layer 1    attends to the token behind the last equal one, and outputs its target (an induction head)
    others     add nothing, and take the time of any weights

The input of a token has a unit vector for what it is when it is output (id), one for what it is when it is attended to
(key), and the unit vector of its target: the token that is output in its place when it is copied. A copied text is
therefore its own tokens, but for those whose target is another token: an alias, whose key is that of the token itself,
so that the copy goes on behind it, or the first token of another passage, where the copy goes on.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

ROPE_THETA = 1e12
"""So large that half of the pairs of a head hardly turn within a context: they compare keys at any distance."""

NUM_TURNING = 12
"""Pairs of a head of 64 that turn fast enough to tell neighbouring positions apart; twice as many of one of 128."""

POSITION_SCALE, KEY_SCALE = 12.0, 24.0
"""Lengths of the queries and keys of layer 0, by pair, and of layer 1."""

OUTPUT_GAIN = 40.0
"""How much stronger the copied token is in the last hidden state than the token there."""


@dataclass(frozen=True, slots=True)
class CopyingShape:
    """The dimensions of a model.

    Attributes:
        model_type: "llama" or "qwen3".
        vocab_size, hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim: as in config.json.
        id_width: dimensions of the vectors of ids and of targets, each.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    id_width: int

    @property
    def num_turning(self) -> int:
        """Pairs of a head that tell positions apart."""
        return NUM_TURNING * self.head_dim // 64

    @property
    def key_width(self) -> int:
        """Dimensions of the vectors of keys: both numbers of each pair of a head that hardly turns."""
        return self.head_dim - 2 * self.num_turning

    @property
    def parts(self) -> dict[str, slice]:
        """The dimensions of the hidden state: ids, targets, keys, keys of the token before, and a constant."""
        widths = {"id": self.id_width, "target": self.id_width, "key": self.key_width, "before": self.key_width}
        parts, start = {}, 0
        for name, width in {**widths, "constant": 1}.items():
            parts[name] = slice(start, start + width)
            start += width
        assert start <= self.hidden_size, "the hidden state is too narrow"
        return parts


SHAPES = {
    "smol135": CopyingShape("llama", 49_152, 576, 1536, 30, 9, 3, 64, 192),
    "qwen06": CopyingShape("qwen3", 151_936, 1024, 3072, 28, 16, 8, 128, 384),
    "tiny": CopyingShape("llama", 512, 256, 128, 2, 4, 2, 64, 80),
    "tiny-qwen3": CopyingShape("qwen3", 512, 448, 128, 2, 4, 2, 128, 128),
}
"""SmolLM2-135M, Qwen3-0.6B, and two models for tests."""


def write_copying_model(name: str, folder: Path, targets: Mapping[int, int], aliases: Mapping[int, int]) -> None:
    """Write a model of a named shape into a folder, without a tokenizer.

    Args:
        name: of SHAPES.
        folder: made if it does not exist.
        targets: for each token with another target, the token that is output in its place.
        aliases: for each token that stands for another one in the copy, that one: both have the same key.
    """
    shape = SHAPES[name]
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(shape)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    tensors = {"model.norm.weight": torch.ones(shape.hidden_size)}
    tensors["model.embed_tokens.weight"] = _embedding(shape, targets, aliases, generator)
    for index in range(shape.num_layers):
        parts = _empty_layer(shape, generator)
        if index < 2:
            parts |= _layer_before(shape) if index == 0 else _layer_copy(shape)
        tensors |= {f"model.layers.{index}.{key}.weight": tensor for key, tensor in parts.items()}
    half = {key: tensor.to(torch.bfloat16).contiguous() for key, tensor in tensors.items()}
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})


def _config(shape: CopyingShape) -> dict[str, Any]:
    kinds = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    return {
        "architectures": [kinds[shape.model_type]], "model_type": shape.model_type, "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size, "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers, "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads, "head_dim": shape.head_dim, "hidden_act": "silu",
        "max_position_embeddings": 16_384, "rms_norm_eps": 1e-6, "rope_theta": ROPE_THETA, "attention_bias": False,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": None, "eos_token_id": 0,
    }  # fmt: skip


def _unit_rows(count: int, width: int, generator: torch.Generator) -> Tensor:
    rows = torch.randn(count, width, generator=generator)
    return torch.nn.functional.normalize(rows)


def _embedding(
    shape: CopyingShape, targets: Mapping[int, int], aliases: Mapping[int, int], generator: torch.Generator
) -> Tensor:
    """Return the embedding table [V, H], whose rows all have the same length."""
    ids = _unit_rows(shape.vocab_size, shape.id_width, generator)
    keys = _unit_rows(shape.vocab_size, shape.key_width, generator)
    target_of = torch.arange(shape.vocab_size)
    for token, target in targets.items():
        target_of[token] = target
    for token, original in aliases.items():
        keys[token] = keys[original]
    parts, table = shape.parts, torch.zeros(shape.vocab_size, shape.hidden_size)
    table[:, parts["id"]], table[:, parts["target"]] = ids, ids[target_of]
    table[:, parts["key"]], table[:, parts["constant"]] = keys, 1.0
    return table


def _empty_layer(shape: CopyingShape, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the weights of a layer that adds nothing, because its two last projections are zero."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim

    def noise(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

    layer = {
        "input_layernorm": torch.ones(hidden), "post_attention_layernorm": torch.ones(hidden),
        "self_attn.q_proj": noise(queries, hidden), "self_attn.k_proj": noise(keys, hidden),
        "self_attn.v_proj": noise(keys, hidden), "self_attn.o_proj": torch.zeros(hidden, queries),
        "mlp.gate_proj": noise(inner, hidden), "mlp.up_proj": noise(inner, hidden),
        "mlp.down_proj": torch.zeros(hidden, inner),
    }  # fmt: skip
    if shape.model_type == "qwen3":
        layer |= {"self_attn.q_norm": torch.ones(shape.head_dim), "self_attn.k_norm": torch.ones(shape.head_dim)}
    return layer


def _scale_of(shape: CopyingShape, num_vectors: int) -> float:
    """Return the factor of the first norm for a hidden state of that many unit vectors."""
    return math.sqrt(shape.hidden_size / num_vectors)


def _frequencies(shape: CopyingShape) -> Tensor:
    half = shape.head_dim // 2
    exponents = -torch.arange(half, dtype=torch.float64) / half
    return torch.pow(torch.tensor(ROPE_THETA, dtype=torch.float64), exponents)


def _with_norms(shape: CopyingShape, layer: dict[str, Tensor], scale: float, length: float) -> dict[str, Tensor]:
    """Give queries and keys their length: by their norms, where the shape has them, else by the projections."""
    if shape.model_type == "qwen3":
        # The norm makes the length of each head sqrt(head_dim).
        norm = torch.full((shape.head_dim,), length / math.sqrt(shape.head_dim))
        return layer | {"self_attn.q_norm": norm, "self_attn.k_norm": norm}
    return layer | {name: layer[name] * (length / scale) for name in ("self_attn.q_proj", "self_attn.k_proj")}


def _layer_before(shape: CopyingShape) -> dict[str, Tensor]:
    """Return the weights with which each token attends to the one before it, and adds that one's key to "before"."""
    scale, half, parts = _scale_of(shape, 4), shape.head_dim // 2, shape.parts
    turns = _frequencies(shape)[: shape.num_turning]
    query, key = torch.zeros(shape.head_dim), torch.zeros(shape.head_dim)
    key[: shape.num_turning] = 1 / math.sqrt(shape.num_turning)
    # Turned by one position less, so that query and key agree at a distance of one.
    query[: shape.num_turning] = (torch.cos(turns) / math.sqrt(shape.num_turning)).float()
    query[half : half + shape.num_turning] = (-torch.sin(turns) / math.sqrt(shape.num_turning)).float()
    hidden = shape.hidden_size
    layer = {
        "self_attn.q_proj": torch.zeros(shape.num_heads, shape.head_dim, hidden),
        "self_attn.k_proj": torch.zeros(shape.num_kv_heads, shape.head_dim, hidden),
        "self_attn.v_proj": torch.zeros(shape.num_kv_heads * shape.head_dim, hidden),
        "self_attn.o_proj": torch.zeros(hidden, shape.num_heads * shape.head_dim),
    }
    layer["self_attn.q_proj"][:, :, parts["constant"]] = query[:, None]
    layer["self_attn.k_proj"][:, :, parts["constant"]] = key[:, None]
    identity = torch.eye(shape.key_width)
    layer["self_attn.v_proj"][: shape.key_width, parts["key"]] = identity / scale
    layer["self_attn.o_proj"][parts["before"], : shape.key_width] = identity
    flat = {name: tensor.reshape(-1, tensor.shape[-1]) for name, tensor in layer.items()}
    length = POSITION_SCALE * math.sqrt(shape.num_turning)
    return _with_norms(shape, flat, scale, length)


def _layer_copy(shape: CopyingShape) -> dict[str, Tensor]:
    """Return the weights with which a token attends behind the last equal one, and outputs the target there."""
    scale, half, parts = _scale_of(shape, 5), shape.head_dim // 2, shape.parts
    first, hidden, group = shape.num_turning, shape.hidden_size, shape.num_heads // shape.num_kv_heads
    # The pairs that hardly turn: number i of a head belongs to number i + half.
    rows = torch.cat([torch.arange(first, half), torch.arange(half + first, shape.head_dim)])
    query, key = torch.zeros(shape.head_dim, hidden), torch.zeros(shape.head_dim, hidden)
    identity = torch.eye(shape.key_width)
    query[rows, parts["key"]] = identity
    key[rows, parts["before"]] = identity
    value = torch.zeros(shape.num_kv_heads * shape.head_dim, hidden)
    output = torch.zeros(hidden, shape.num_heads * shape.head_dim)
    value[: shape.id_width, parts["target"]] = torch.eye(shape.id_width) / scale
    for number in range(shape.id_width):
        head, place = divmod(number, shape.head_dim)
        output[parts["id"].start + number, head * group * shape.head_dim + place] = OUTPUT_GAIN
    layer = {
        "self_attn.q_proj": query.repeat(shape.num_heads, 1), "self_attn.k_proj": key.repeat(shape.num_kv_heads, 1),
        "self_attn.v_proj": value, "self_attn.o_proj": output,
    }  # fmt: skip
    return _with_norms(shape, layer, scale, KEY_SCALE)
