"""ForwardBatch: the sequences of one step and where their keys and values are, shared by all layers.

tokens of a step, packed:   | seq 0 | seq 1 | ... decodes, one token each | seq d ........ | seq d+1 ... | chunks
                            0       1       2                             cu_seqlens_q[d]  cu_seqlens_q[d+1]
keys and values:            kv.key[block, offset] holds position index * block_size + offset of the sequence whose
                            block_table[index] is `block`
"""

from dataclasses import dataclass

from torch import Tensor


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
