"""changes_tokens: whether a tensor that an architecture does not use belongs to what it computes.

lm_head.bias                         changes tokens     of a module that is computed
model.layers.0.mlp.up_proj.scale     changes tokens     what a quantized weight is multiplied with
model.layers.0.attn.q_norm.weight    changes tokens     a module within one that is computed
model.layers.32.mlp.up_proj.weight   changes tokens     a layer more than config.json has
base.model.layers.0.mlp.lora_A       changes tokens     an adapter that is not merged, wherever it is
score.weight                         is left out        a head of another task, beside the decoder or within it
model.layers.0.self_attn.k_scale     is left out        for a KV cache of 8 bits, which has no scales here
mtp.layers.0.norm.weight             is left out        layers that predict further tokens
model.vision_tower.blocks.0.weight   is left out        what reads images, sound or videos
"""

import re
from collections.abc import Collection

from chairlift.core.errors import ModelError

COMPUTED = ("", "model", "lm_head")
"""Modules that every architecture computes: the root, the decoder, and the head, also where it has no tensor."""

SIDE_MODULE = re.compile(
    r"(vision|visual|vit|image|img|audio|speech|sound|video|multi_?modal|mm|mtp|nextn|eagle|medusa)(_|$|[0-9])"
    r"|(vision|visual)"
)
"""Names of modules that read other inputs than text, or predict further tokens: text alone does not pass them."""

HEADS = ("score", "classifier", "value_head", "v_head", "reward_head")
"""Heads of other tasks."""

ADAPTER = re.compile(r"(^|[._])(lora_[a-z]|lora|prompt_encoder|prompt_embeddings?|modules_to_save|ia3_l)([._]|$)", re.I)
"""A part of a name that belongs to an adapter: the checkpoint's output is that of both together."""

KV_CACHE_SCALE = re.compile(r"self_attn\.((k|v|kv|q|prob)_scale|k_proj\.k_scale|v_proj\.v_scale)$")
"""Ends of the names of scales for a quantized KV cache, and for attention in 8 bits."""

NUM_EXAMPLES = 3
"""Names of unused tensors in a message."""


def modules_of(names: Collection[str]) -> frozenset[str]:
    """Return the modules that hold parameters, and the modules around these."""
    modules = set(COMPUTED)
    for name in names:
        module = name.rpartition(".")[0]
        while module and module not in modules:
            modules.add(module)
            module = module.rpartition(".")[0]
    return frozenset(modules)


def changes_tokens(name: str, modules: Collection[str], *, is_base_model: bool = False) -> bool:
    """Return whether a model that leaves this tensor out computes other tokens than the checkpoint's.

    Args:
        name: canonical name of a tensor that is no parameter of the architecture.
        modules: what modules_of returns for its parameters.
        is_base_model: the checkpoint has the decoder alone, whose parts have no `model.` before their names.
    """
    if ADAPTER.search(name) is not None:
        return True
    if KV_CACHE_SCALE.search(name) is not None:
        return False
    parts = name.split(".")
    known = 0
    while known < len(parts) - 1 and ".".join(parts[: known + 1]) in modules:
        known += 1
    unknown = parts[known]
    is_beside = SIDE_MODULE.match(unknown) is not None or (len(parts) > known + 1 and unknown in HEADS)
    if known == 0:  # beside the decoder; layers there are those of a second one
        return not is_beside and (len(parts) == 1 or is_base_model or ".layers." in name)
    return known > 1 or parts[0] != "model" or not is_beside


def unused_tensor_error(file: str, names: list[str]) -> ModelError:
    """Return the error for tensors that change tokens."""
    layer = re.fullmatch(r"model\.layers\.(\d+)\..*", names[0])
    hint = f", or layer {layer[1]} is beyond num_hidden_layers of config.json" if layer else ""
    return ModelError(
        f"{file} has tensor {shown_names(names, 1)}, which the architecture does not use although it is a part of "
        f"what is computed, so the tokens would be wrong; the checkpoint is quantized or of another architecture{hint}",
        file=file, tensor=names[0], count=len(names),
    )  # fmt: skip


def shown_names(names: list[str], limit: int = NUM_EXAMPLES) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
