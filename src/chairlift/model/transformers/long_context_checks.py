"""check_far_tokens, check_cache_windows, check_block_sparse: differences that a few tokens do not show.

 * A layer takes positions from the length of transformers' cache instead of `position_ids`, as Llama 4 does for the
   temperature of its queries. All tokens of a step have one length, so such a layer runs one sequence after another.
 * transformers' cache drops tokens that the mask of a layer sees, as with Moshi. Its `generate()` and its forward pass
   then make different tokens, and no cache is right.
 * BigBird attends to blocks of tokens in long passes, and to all tokens in short ones.

Neither needs a long sequence: the layers run two tokens, and their attention is recorded instead of computed.
Source: transformers 5.23 cache_utils.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from chairlift.core.errors import UnsupportedArchitecture
from chairlift.model.transformers.attention import OTHER, LayerCall, PagedAttention
from chairlift.model.transformers.base_model_runner import base_states
from chairlift.model.transformers.unsupported_layers import unsupported

TOLERANCE = 1e-3
"""Largest relative difference between queries, keys or values of the same token at the same position."""


class LongLayer(CacheLayerMixin):
    """A layer of a cache that says to hold `length` tokens and keeps none.

    Attributes:
        num_reads: how often its length was read.
    """

    is_sliding = False

    def __init__(self, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._length = length
        self.num_reads = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is initialized."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Return the new keys and values as they are."""
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Return the length."""
        self.num_reads += 1
        return self._length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys and the position of the first."""
        return self._length + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1


def check_far_tokens(base: nn.Module, attention: PagedAttention, context_length: int) -> None:
    """Raise UnsupportedArchitecture if a layer's queries, keys or values depend on the length of transformers' cache.

    Args:
        base: module of the layers, whose attention is the measuring one.
        attention: the state of its layers.
        context_length: tokens of the longest sequence; the last two positions are compared.
    """
    device = next(base.parameters()).device
    first = max(context_length - 2, 0)
    ids, positions = torch.zeros(2, dtype=torch.int64, device=device), torch.arange(first, first + 2, device=device)
    cache = Cache(layers=[LongLayer(first) for _ in attention.calls])
    # Both passes have the same ids and positions; only the length of the cache differs between them.
    with torch.inference_mode(), attention.recording() as from_positions:
        base_states(base, ids, positions, use_cache=False)
    with torch.inference_mode(), attention.recording() as from_cache:
        base_states(base, ids, positions, past_key_values=cache, use_cache=True)
    if len(from_positions) != len(from_cache) or not all(map(_agree, from_positions, from_cache)):
        raise _reads_length()


def check_cache_reads(base: nn.Module, attention: PagedAttention) -> None:
    """Raise UnsupportedArchitecture if a layer reads the length of transformers' cache; for models without weights.

    The first layer does not count: models read its length before their layers run.
    """
    device = next(base.parameters()).device
    ids, positions = torch.zeros(2, dtype=torch.int64, device=device), torch.arange(2, 4, device=device)
    layers: list[Any] = [LongLayer(2) for _ in attention.calls]
    mask = torch.ones(1, 4, dtype=torch.int64, device=device)  # without one, transformers reads the positions
    with torch.inference_mode(), attention.recording():
        base_states(base, ids, positions, past_key_values=Cache(layers=layers), use_cache=True, attention_mask=mask)
    # Without weights there are no numbers to compare, so every read counts.
    if any(layer.num_reads for layer in layers[1:]):
        raise _reads_length()


def _reads_length() -> UnsupportedArchitecture:
    return unsupported("its layers take positions from the length of transformers' cache, not from position_ids")


def _agree(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    # A NaN in both passes is not a difference, but would make every norm NaN.
    one, other = one.double().nan_to_num(), other.double().nan_to_num()
    return bool((one - other).norm() <= TOLERANCE * one.norm())


def check_cache_windows(config: Any, calls: Mapping[int, Sequence[LayerCall]], context_length: int) -> None:
    """Raise UnsupportedArchitecture if transformers' cache of a layer keeps fewer tokens than the layer's mask sees.

    Args:
        config: transformers' config of the model.
        calls: by layer, the calls of its attention with their windows; a layer that makes none is not compared.
        context_length: tokens of the longest sequence; a window of so many tokens is none.
    """
    kinds = getattr(config, "layer_types", None) or ()
    for layer, kept in enumerate(kept_windows(config)):
        # No sequence is long enough to lose a token.
        if kept is None or kept >= context_length:
            continue
        for window in {call.spec.window for call in calls.get(layer, ())} - {kept}:
            # A chunk never sees more tokens than such a cache keeps.
            if window == OTHER and layer < len(kinds) and kinds[layer] == "chunked_attention":
                continue
            sees = "all tokens" if window is None else f"{window} tokens" if window > 0 else "others"
            raise unsupported(
                f"transformers' cache keeps the last {kept} tokens of layer {layer}, but its mask sees {sees}, so its "
                f"generate() and its forward pass make different tokens; set max_model_len to at most {kept}"
            )


def kept_windows(config: Any) -> list[int | None]:
    """Return how many tokens each layer of transformers' cache keeps; None for all of them."""
    layers: list[Any] = DynamicCache(config=config).layers
    return [layer.sliding_window if getattr(layer, "is_sliding", False) else None for layer in layers]


def check_block_sparse(base: nn.Module, config: Any, context_length: int) -> None:
    """Raise UnsupportedArchitecture if layers attend to blocks of tokens in passes of the longest sequence.

    BigBird switches all layers to full attention in its first pass over fewer tokens, so this comes before any pass.
    """
    if not any(getattr(module, "attention_type", None) == "block_sparse" for module in base.modules()):
        return
    # transformers' own bound: up to it BigBird turns to full attention.
    limit = (5 + 2 * config.num_random_blocks) * config.block_size
    if context_length > limit:
        raise unsupported(
            f"its layers attend to blocks of tokens in passes over more than {limit} tokens (attention_type in "
            f"config.json); set max_model_len to at most {limit}"
        )
