"""SequenceCacheRunner: runs sequence after sequence, with the paged KV cache in the place of transformers' cache.

For layers that compute attention by themselves (Falcon, GPT-J, Bloom, MPT): they write their keys and values through
transformers' Cache and get all of the sequence back, so any bias or mask of theirs holds. Slower than PagedAttention:
each sequence of a step is a pass of its own, and its keys and values are gathered for every layer.
Source: transformers 5.23 cache_utils.py.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from chairlift.model.config.layer_groups import AttentionShape, LayerGroups
from chairlift.model.device.kv_dtype import as_elements
from chairlift.model.layers.causal_lm_protocol import ForwardContext
from chairlift.model.transformers.base_model_runner import base_states
from chairlift.model.transformers.unsupported_layers import unsupported


class PagedCacheLayer(CacheLayerMixin):
    """One layer's keys and values of one sequence, in the paged KV cache."""

    is_sliding = False

    def __init__(self, context: ForwardContext, sequence: int, layer: int, width: int) -> None:
        """Store the step, the row of the sequence, the layer and the width of a head in the cache."""
        super().__init__()  # type: ignore[no-untyped-call]
        batch = context.batch
        self._kv, self._backend, self._width = context.kv[layer], context.backend, width
        self._tokens = slice(batch.cu_q_list[sequence], batch.cu_q_list[sequence + 1])
        self._length = batch.seq_lens_list[sequence]
        self._group = batch.groups[0]
        self._sequence = sequence
        self._is_written = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is initialized: the pages exist."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write new keys and values [1, heads, T, D]; return those of the whole sequence, [1, heads, N, D]."""
        widths = key_states.shape[-1], value_states.shape[-1]
        key, value = (
            nn.functional.pad(states[0].transpose(0, 1), (0, self._width - states.shape[-1]))
            for states in (key_states, value_states)
        )
        self._backend.write_kv(key, value, self._kv, self._group.slot_mapping[self._tokens])
        self._is_written = True
        block_size = self._kv.key.shape[1]
        blocks = self._group.block_table[self._sequence, : -(-self._length // block_size)].long()
        whole = (
            as_elements(pages)[blocks].view(pages.dtype).flatten(0, 1)[: self._length, :, :width].transpose(0, 1)[None]
            for pages, width in zip((self._kv.key, self._kv.value), widths, strict=True)
        )
        whole = (each.to(key_states.dtype) for each in whole)
        return next(whole), next(whole)

    def get_seq_length(self) -> int:
        """Return the tokens that are in the cache, before and after this step's are written."""
        return self._length if self._is_written else self._length - (self._tokens.stop - self._tokens.start)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys and the position of the first."""
        return self._length, 0

    def get_max_length(self) -> int:
        """Return -1: the scheduler limits the length."""
        return -1


class SequenceCacheRunner:
    """A BaseModelRunner whose layers keep their keys and values through transformers' Cache."""

    report = "with its own attention, one sequence after another"

    def __init__(self, base: nn.Module, num_layers: int) -> None:
        """Measure the layers in a pass over two tokens.

        Raises UnsupportedArchitecture, with the reason, for layers that a paged KV cache cannot hold.
        """
        device = next(base.parameters()).device
        cache = DynamicCache()
        with torch.inference_mode():
            ids = torch.zeros(2, dtype=torch.int64, device=device)
            states = base_states(base, ids, torch.arange(2, device=device), past_key_values=cache, use_cache=True)
        self.state_width = states.shape[1]
        shapes = {_shape_of(layer) for layer in cache.layers}
        if len(cache.layers) != num_layers or None in shapes:
            raise unsupported(f"not all of its {num_layers} layers keep keys and values in transformers' cache")
        if len(shapes) > 1:
            raise unsupported("its layers have different numbers or widths of key/value heads")
        ((self.num_kv_heads, key_dim, value_dim),) = (shape for shape in shapes if shape is not None)
        self.head_dim = max(key_dim, value_dim)
        self.windows: tuple[int | None, ...] = (None,) * num_layers
        self.groups = LayerGroups.of(
            self.windows, (AttentionShape(self.num_kv_heads, self.head_dim),) * num_layers
        )  # fmt: skip

    def run(self, base: nn.Module, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """See BaseModelRunner."""
        batch, states = context.batch, []
        for sequence in range(batch.num_seqs):
            tokens = slice(batch.cu_q_list[sequence], batch.cu_q_list[sequence + 1])
            layers: list[Any] = [
                PagedCacheLayer(context, sequence, index, self.head_dim) for index in range(len(self.windows))
            ]
            cache = Cache(layers=layers)
            ids, positions = input_ids[tokens], batch.positions[tokens]
            states.append(base_states(base, ids, positions, past_key_values=cache, use_cache=True))
        return torch.cat(states)


def _shape_of(layer: Any) -> tuple[int, int, int] | None:
    """Return heads, width of a key and width of a value; None for a layer without keys and values of two tokens."""
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or values is None or keys.ndim != 4 or values.ndim != 4 or keys.shape[2] != 2:
        return None
    return keys.shape[1], keys.shape[3], values.shape[3]
