"""The seam of attention: ForwardBatch, what a layer says of itself, and the protocol of a backend.

tokens of a step, packed:   | seq 0 | seq 1 | ... decodes, one token each | seq d ........ | seq d+1 ... | chunks
                            0       1       2                             cu_q[d]          cu_q[d+1]
keys and values:            kv.key[block, offset] holds position index*block_size + offset of the sequence whose
                            block_table[index] is `block`
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """Where the tokens of one layer group lie.

    Attributes:
        block_table: int32 [S, max_blocks]; entries behind a sliding window may be stale and are never read.
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
        num_decodes: rows [0, num_decodes) bring one token each, the rest are chunks.
        max_q: most new tokens of a row.
        max_kv: longest sequence after this step.
        positions: int64 [T].
        cu_q: int32 [S + 1], row s owns tokens cu_q[s]:cu_q[s + 1].
        seq_lens: int32 [S], tokens of each sequence after this step.
        logit_rows: int32 [R], indices into the T tokens whose logits are wanted.
        groups: one entry a layer group.
        cu_q_list: cu_q as Python ints, for backends that loop on the host.
        seq_lens_list: seq_lens likewise.
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
    """What is a layer's own.

    Attributes:
        group: index of its layer group.
        scale: factor on q·k.
        window: a token sees itself and window - 1 before it; None for all.
        softcap: logits become softcap * tanh(logits / softcap); None for no cap.
        sinks: [query heads], logits of a virtual key without value; None for none.
    """

    group: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Paged keys and values of one layer index, shared by the layers at that index of all groups.

    Attributes:
        key: [num_blocks, block_size, kv_heads, head_dim].
        value: the same shape.
    """

    key: Tensor
    value: Tensor


def copy_blocks(kv: list[PagedKV], pairs: Tensor) -> None:
    """Copy whole blocks in plain torch, all as they were before: pairs int [C, 2] of (from, to)."""
    source, target = pairs.long().unbind(1)
    for one in kv:
        one.key.index_copy_(0, target, one.key.index_select(0, source))
        one.value.index_copy_(0, target, one.value.index_select(0, source))


class AttentionBackend(Protocol):
    """Reads and writes the paged cache. Numerics of every backend equal the reference within its dtype's bound."""

    def allocate_kv_cache(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> list[PagedKV]:  # fmt: skip
        """Make one KV for each layer index of a group (groups are padded to equal layer counts)."""
        ...

    def plan(self, batch: ForwardBatch) -> Any:
        """Prepare what all layers of this step share; once a step."""
        ...

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] at slot_mapping [T]; -1 is skipped."""
        ...

    def copy_blocks(self, kv: list[PagedKV], pairs: Tensor) -> None:
        """Copy whole blocks, pairs int [C, 2] of (from, to), in every KV."""
        ...

    def attend(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: Any, out: Tensor
    ) -> None:
        """Attend query [T, heads, head_dim] to the cache, causally, into out (same shape)."""
        ...
