"""canonical_tensor_name, gguf_tensor_name, head_order: names of tensors in GGUF files, and the order of their rows.

    canonical name                             name in the file
    model.embed_tokens.weight                  token_embd.weight
    model.layers.0.self_attn.q_proj.weight     blk.0.attn_q.weight
    model.norm.weight                          output_norm.weight
    lm_head.weight                             output.weight

Imports no torch.
"""

import re
from collections.abc import Iterable

from chairlift.model.config.architectures.architecture import GGUFArchitecture
from chairlift.model.config.model_folder import ORIGINAL, unsupported_model

EMBEDDING, OUTPUT, ROPE_DIVISORS = "token_embd.weight", "output.weight", "rope_freqs.weight"

MODEL_TENSORS = {
    "model.embed_tokens.weight": EMBEDDING, "model.norm.weight": "output_norm.weight", "lm_head.weight": OUTPUT,
}  # fmt: skip
"""Canonical name of a tensor outside of the layers -> its name in the file."""

UNUSED_TENSORS = re.compile(
    r"rope_freqs\.weight|rope_factors_(long|short)\.weight|blk\.\d+\.(attn_rot_embd|rope_freqs)\.weight"
)
"""Tensors that are no parameters: config_fields reads the divisors of RoPE, the others repeat the metadata."""

CANONICAL_LAYER = re.compile(r"model\.layers\.(0|[1-9]\d*)\.(.+)\.(weight|bias)")
GGUF_LAYER = re.compile(r"blk\.(0|[1-9]\d*)\.(.+)\.(weight|bias)")

MAX_SHOWN = 80
"""Characters of a tensor's name in an error; llama.cpp allows 64 in a name."""

QUERY, KEY = "self_attn.q_proj", "self_attn.k_proj"


def gguf_tensor_name(name: str, architecture: GGUFArchitecture) -> str | None:
    """Return the name in the file of a parameter's canonical name; None if the architecture has no such parameter."""
    if (found := CANONICAL_LAYER.fullmatch(name)) is None:
        return MODEL_TENSORS.get(name)
    layer, module, kind = found.groups()
    stored = architecture.layer_names.get(module)
    return None if stored is None or not _may_have(module, kind) else f"blk.{layer}.{stored}.{kind}"


def canonical_tensor_name(name: str, architecture: GGUFArchitecture) -> str | None:
    """Return the canonical name of a tensor in the file; None if the architecture has no such parameter."""
    if (found := GGUF_LAYER.fullmatch(name)) is None:
        return next((canonical for canonical, stored in MODEL_TENSORS.items() if stored == name), None)
    layer, stored, kind = found.groups()
    module = next((module for module, each in architecture.layer_names.items() if each == stored), None)
    return None if module is None or not _may_have(module, kind) else f"model.layers.{layer}.{module}.{kind}"


def canonical_tensor_names(names: Iterable[str], architecture: GGUFArchitecture, file_name: str) -> dict[str, str]:
    """Map canonical names to names in the file, without unused tensors.

    Raises UnsupportedModel for a tensor that the architecture does not have: the model's tokens would be others.
    """
    canonical = {name: canonical_tensor_name(name, architecture) for name in names}
    unknown = [name for name, found in canonical.items() if found is None and not UNUSED_TENSORS.fullmatch(name)]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise unsupported_model(
            f"{file_name} has tensor {unknown[0][:MAX_SHOWN]!r}{more}, not one of architecture {architecture.name}",
            ORIGINAL,
        )
    return {found: name for name, found in canonical.items() if found is not None}


def norm_offset(name: str, architecture: GGUFArchitecture) -> float:
    """Return what is to be subtracted from a parameter in the file; `name` is canonical."""
    return architecture.norm_offset if name.endswith("norm.weight") else 0.0


def row_order(
    name: str, architecture: GGUFArchitecture, num_rows: int, num_heads: int, num_kv_heads: int
) -> list[int] | None:
    """Return the rows of a parameter in the file in the order of the model; None if they are in that order.

    Args:
        name: canonical name.
        architecture: of the file.
        num_rows: rows of the weight, or elements of the bias.
        num_heads: query heads.
        num_kv_heads: key heads.

    None also for rows that the heads do not divide, a shape that the architecture does not have.
    """
    found = CANONICAL_LAYER.fullmatch(name)
    if not architecture.has_paired_rows or found is None or found[2] not in (QUERY, KEY):
        return None
    heads = num_heads if found[2] == QUERY else num_kv_heads
    return None if num_rows % (2 * heads) else head_order(num_rows, heads)


def head_order(num_rows: int, num_heads: int) -> list[int]:
    """Return the index in the file of each row of a query or key projection in the order of transformers.

    In the file rows 2i and 2i + 1 of a head rotate together, in transformers rows i and i + head_dim / 2. So
    `weight[head_order(...)]` is the weight for transformers. Only whole rows move, so that codes of quantized weights
    can be ordered.
    """
    assert num_rows % (2 * num_heads) == 0, f"{num_rows} rows of {num_heads} heads"
    head_dim = num_rows // num_heads
    return [
        head * head_dim + 2 * pair + member
        for head in range(num_heads)
        for member in range(2)
        for pair in range(head_dim // 2)
    ]


def _may_have(module: str, kind: str) -> bool:
    """Return whether a module can have a weight or a bias: of biases only those of linear layers are stored."""
    return kind == "weight" or module.endswith("_proj")
