"""AttentionBackend: the protocol of attention over the paged KV cache; ForwardBatch and AttentionSpec: its inputs.

tokens of a step, packed:   | seq 0 | seq 1 | ... decodes, one token each | seq d ........ | seq d+1 ... | chunks
                            0       1       2                             cu_seqlens_q[d]  cu_seqlens_q[d+1]
keys and values:            kv.key[block, offset] holds position index * block_size + offset of the sequence whose
                            block_table[index] is `block`
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from chairlift.model.attention.kv_dtype import as_elements


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """KV cache addresses of the step's tokens in one layer group.

    Attributes:
        block_table: int32 [S, max_blocks]; entries before a sliding window may be stale and are never read.
        slot_mapping: int64 [T], block * block_size + offset of each new token; -1 is padding.
    """

    block_table: Tensor
    slot_mapping: Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step's sequences, shared by all layers.

    Attributes:
        num_seqs: S.
        num_tokens: T.
        num_decodes: rows [0, num_decodes) have one new token each, the rest are chunks.
        max_seqlen_q: largest number of new tokens of a row.
        max_seqlen_k: longest sequence after this step.
        positions: int64 [T].
        cu_seqlens_q: int32 [S + 1], row s owns tokens cu_seqlens_q[s]:cu_seqlens_q[s + 1].
        seq_lens: int32 [S], tokens of each sequence after this step.
        logits_indices: int32 [R], indices of the tokens, of T, whose logits are needed.
        groups: one entry per layer group.
        cu_q_list: cu_seqlens_q as Python ints, for backends that loop on the host.
        seq_lens_list: seq_lens as Python ints.
    """

    num_seqs: int
    num_tokens: int
    num_decodes: int
    max_seqlen_q: int
    max_seqlen_k: int
    positions: Tensor
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    logits_indices: Tensor
    groups: tuple[GroupBatch, ...]
    cu_q_list: tuple[int, ...]
    seq_lens_list: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Parameters of one layer's attention.

    Attributes:
        group: index of its layer group.
        scale: factor on q·k.
        window: a token sees itself and the window - 1 tokens before it; None for all.
        softcap: logits become softcap * tanh(logits / softcap); None for no cap.
        sinks: [query heads], logits of a virtual key without a value; None for none.
    """

    group: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Paged keys and values of one layer index, shared by the layers with that index in all groups.

    Attributes:
        key: [num_blocks, block_size, kv_heads, head_dim].
        value: the same shape.
    """

    key: Tensor
    value: Tensor


def copy_blocks(kv: list[PagedKV], pairs: Tensor) -> None:
    """Copy whole blocks in torch, as they were before the call: pairs int [C, 2] of (from, to)."""
    source, target = pairs.long().unbind(1)
    for layer in kv:
        for cache in (as_elements(layer.key), as_elements(layer.value)):
            cache.index_copy_(0, target, cache.index_select(0, source))


class AttentionBackend(Protocol):
    """Writes and reads the paged KV cache. Results match the reference within the dtype's error bound.

    Attributes:
        has_plain_kv: whether kv.key[block, offset] and kv.value[block, offset] are the heads of a token as written,
            in tensors of equal strides whose last is 1. A layer may then write them itself instead of by write_kv.
        supports_cuda_graph: whether attend and write_kv read tensors of the batch on the device only, never its lists.
    """

    has_plain_kv: bool
    supports_cuda_graph: bool

    def allocate_kv_cache(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> list[PagedKV]:  # fmt: skip
        """Allocate one PagedKV for each layer index of a group; all groups have the same number of layers.

        `dtype` is that of queries, keys and values, or float8_e4m3fn (kv_dtype.py) for any of these.
        """
        ...

    def plan(self, batch: ForwardBatch) -> Any:
        """Prepare the data that all layers of a step share; called once per step."""
        ...

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] at slot_mapping [T]; -1 is skipped.

        Numbers that the cache cannot hold are stored as as_stored (kv_dtype.py) returns them.
        """
        ...

    def copy_blocks(self, kv: list[PagedKV], pairs: Tensor) -> None:
        """Copy whole blocks in every PagedKV: pairs int [C, 2] of (from, to)."""
        ...

    def attend(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: Any, out: Tensor
    ) -> None:
        """Attend query [T, heads, head_dim] to the cache, causally, into out (same shape)."""
        ...
