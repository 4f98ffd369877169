"""canonical_tensor_name, gguf_tensor_name, head_order: names of tensors in GGUF files, and the order of their rows.

    canonical name                             name in the file
    model.embed_tokens.weight                  token_embd.weight
    model.layers.0.self_attn.q_proj.weight     blk.0.attn_q.weight
    model.norm.weight                          output_norm.weight
    lm_head.weight                             output.weight

Imports no torch.
"""

import math
import re
from collections.abc import Iterable, Mapping

from chairlift.model.config.architectures.architecture import GGUFArchitecture
from chairlift.model.config.model_folder import ORIGINAL, unsupported_model

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"

ROPE_DIVISORS, SHORT_FACTORS, LONG_FACTORS = ROPE_TENSORS = (
    "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight",
)  # fmt: skip
"""Tensors of factors of RoPE."""

MODEL_TENSORS = {
    "model.embed_tokens.weight": EMBEDDING, "model.norm.weight": "output_norm.weight", "lm_head.weight": OUTPUT,
}  # fmt: skip
"""Canonical name of a tensor outside of the layers -> its name in the file."""

UNUSED_TENSORS = re.compile(
    r"rope_freqs\.weight|rope_factors_(long|short)\.weight|blk\.\d+\.(attn_rot_embd|rope_freqs)\.weight"
)
"""Tensors that are no parameters: config_fields reads the divisors of RoPE, the others repeat the metadata."""

CANONICAL_LAYER = re.compile(r"model\.layers\.(0|[1-9]\d*)\.(.+)")
GGUF_LAYER = re.compile(r"blk\.(0|[1-9]\d*)\.(.+)")

MAX_SHOWN = 80
"""Characters of a tensor's name in an error; llama.cpp allows 64 in a name."""

QUERY, KEY = "self_attn.q_proj", "self_attn.k_proj"

CONVOLUTIONS = (".conv1d.weight", ".conv.conv.weight")
"""Ends of the names of convolutions: [channels, 1, width] in the model, [channels, width] in files."""

FLATTENED = (".A_log", ".mamba.D", ".mamba.norm.weight")
"""Ends of the names of vectors that may be matrices in files."""

STATE_NORM = ".linear_attn.norm.weight"
"""End of the name of a norm to which no number is added."""


def gguf_tensor_name(name: str, architecture: GGUFArchitecture) -> str | None:
    """Return the name in the file of a parameter's canonical name; None if the architecture has no such parameter."""
    if (found := CANONICAL_LAYER.fullmatch(name)) is None:
        return _model_tensors(architecture).get(name)
    layer, rest = found.groups()
    if (stored := architecture.layer_tensors.get(rest)) is None:
        stored = _renamed(rest, architecture.layer_names, of_model=True)
    return None if stored is None else f"blk.{layer}.{stored}"


def canonical_tensor_name(name: str, architecture: GGUFArchitecture) -> str | None:
    """Return the canonical name of a tensor in the file; None if the architecture has no such parameter."""
    if (found := GGUF_LAYER.fullmatch(name)) is None:
        tensors = _model_tensors(architecture)
        return next((canonical for canonical, stored in tensors.items() if stored == name), None)
    layer, rest = found.groups()
    canonical = next((tensor for tensor, stored in architecture.layer_tensors.items() if stored == rest), None)
    if canonical is None:
        modules = {stored: module for module, stored in architecture.layer_names.items()}
        canonical = _renamed(rest, modules, of_model=False)
    return None if canonical is None else f"model.layers.{layer}.{canonical}"


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


def names_in_layers(names: Iterable[str], num_layers: int) -> list[str]:
    """Return the names of tensors without those of blocks behind the last layer."""
    found = ((name, GGUF_LAYER.fullmatch(name)) for name in names)
    return [name for name, layer in found if layer is None or int(layer[1]) < num_layers]


def canonical_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a parameter: in files convolutions lack an axis, and vectors may have two.

    `name` is canonical.
    """
    if name.endswith(CONVOLUTIONS) and len(shape) == 2:
        return shape[0], 1, shape[1]
    return (math.prod(shape),) if name.endswith(FLATTENED) else shape


def norm_offset(name: str, architecture: GGUFArchitecture) -> float:
    """Return what is to be subtracted from a parameter in the file; `name` is canonical."""
    has_offset = name.endswith("norm.weight") and not name.endswith(STATE_NORM)
    return architecture.norm_offset if has_offset else 0.0


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
    module = "" if found is None else found[2].rpartition(".")[0]
    if not architecture.has_paired_rows or module not in (QUERY, KEY):
        return None
    heads = num_heads if module == QUERY else num_kv_heads
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


def _model_tensors(architecture: GGUFArchitecture) -> Mapping[str, str]:
    """Return the names of tensors outside of layers: canonical -> in the file."""
    return {**MODEL_TENSORS, **architecture.model_names}


def _renamed(rest: str, names: Mapping[str, str], *, of_model: bool) -> str | None:
    """Return what follows a layer's number, with the other name of its module; None for a tensor that no module has.

    Of biases only those of linear layers are stored.
    """
    module, _, kind = rest.rpartition(".")
    renamed = names.get(module)
    if renamed is None or kind not in ("weight", "bias"):
        return None
    is_linear = (module if of_model else renamed).endswith("_proj")
    return f"{renamed}.{kind}" if kind == "weight" or is_linear else None
