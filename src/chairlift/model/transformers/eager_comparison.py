"""check_against_eager: compares a model on the paged cache with transformers' own attention, on a few tokens.

Two short sequences run in chunks, beside each other, as in a step of the engine; transformers computes each of them in
one pass, before any module is replaced. A model that keeps a state of its own, mixes neighbouring tokens, has a bias
that the attention interface does not carry or a replaced module that computes something else differs, and is refused
instead of computing other tokens than transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from chairlift.model.attention.base import AttentionBackend, PagedKV
from chairlift.model.attention.kv_pages import allocate_kv
from chairlift.model.batch.forward_batch import ForwardBatch, GroupBatch
from chairlift.model.layers.causal_lm_protocol import ForwardContext
from chairlift.model.transformers.attention import select_attention
from chairlift.model.transformers.base_model_runner import base_states
from chairlift.model.transformers.causal_lm import TransformersCausalLM, base_of
from chairlift.model.transformers.unsupported_layers import unsupported

CHUNKS = ((4, 3), (3, 4), (1, 1), (1, 1), (1, 1))
"""New tokens of the two sequences in each step."""

LENGTHS = tuple(sum(step[sequence] for step in CHUNKS) for sequence in (0, 1))

TOLERANCES = {torch.float64: 1e-3, torch.float32: 2e-3}
"""By dtype: the largest relative difference of a token's hidden state.

transformers computes parts in float32 in every dtype. GPT-Neo does not scale its scores: with large weights, another
order of additions, as on another processor, made a difference of 1e-4.
"""
COARSE_TOLERANCE = 0.1
"""The same for dtypes of 16 bits, whose rounding may choose another expert for a few tokens."""
COARSE_SHARE = 0.25
"""Share of tokens of a 16-bit dtype that may differ by more."""


@dataclass(frozen=True, slots=True)
class EagerStates:
    """What transformers computes for the sequences of the comparison.

    Attributes:
        ids: token ids of each sequence, [T] int64.
        states: hidden states of each sequence, [T, H].
    """

    ids: list[Tensor]
    states: list[Tensor]


@torch.inference_mode()
def eager_states(model: Any, ids: list[Tensor] | None = None) -> EagerStates:
    """Compute sequences with transformers' own attention, which is the model's when this returns.

    Without ids they are random, of a model whose embedding and head are not replaced yet.
    """
    if ids is None:
        generator = torch.Generator().manual_seed(0)
        tables = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
        vocab_size = min(len(table) for table in tables)
        ids = [torch.randint(0, vocab_size, (length,), generator=generator).to(model.device) for length in LENGTHS]
    select_attention(model, "eager")
    base = base_of(model)
    states = [base_states(base, each, torch.arange(len(each), device=each.device), use_cache=False) for each in ids]
    return EagerStates(ids, states)


@torch.inference_mode()
def check_against_eager(
    causal_lm: TransformersCausalLM, eager: EagerStates, backend: AttentionBackend, block_size: int,
    *, rounds_rows: bool = False,
) -> None:  # fmt: skip
    """Raise UnsupportedArchitecture if the paged model and transformers' eager attention disagree.

    Args:
        causal_lm: the model on the paged cache.
        eager: what the model computed before its modules were replaced.
        backend: backend of the paged attention.
        block_size: tokens of a block.
        rounds_rows: whether linear layers round their inputs to int8, which makes large differences of small ones.
    """
    paged = _run_in_chunks(causal_lm, eager.ids, backend, block_size)
    differences = torch.cat([_relative(ours, theirs) for ours, theirs in zip(paged, eager.states, strict=True)])
    tolerance = None if rounds_rows else TOLERANCES.get(causal_lm.dtype)
    if tolerance is not None:
        agrees = bool((differences <= tolerance).all())
    else:
        agrees = float((differences > COARSE_TOLERANCE).double().mean()) <= COARSE_SHARE
    if not agrees:
        raise unsupported(
            f"its hidden states are not those of transformers (relative difference {differences.max().item():.2g}); "
            "its layers keep a state, attend to later tokens, or need more of a step than its new tokens"
        )


def _relative(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the relative difference of each token's state [T]; infinite where ours is not a number."""
    ours, theirs = ours.double(), theirs.double()
    difference = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-30)
    return torch.where(theirs.isfinite().all(-1), difference.nan_to_num(nan=torch.inf), torch.zeros_like(difference))


def _run_in_chunks(
    causal_lm: TransformersCausalLM, sequences: Sequence[Tensor], backend: AttentionBackend, block_size: int
) -> list[Tensor]:
    """Return the states of both sequences, [T, H] each, computed step by step."""
    groups, device = causal_lm.groups, sequences[0].device
    blocks_each = -(-max(LENGTHS) // block_size)
    num_groups = len(groups.windows)
    kv = allocate_kv(
        backend, groups, num_groups * len(sequences) * blocks_each, block_size, causal_lm.dtype, device
    )  # fmt: skip
    tables = torch.arange(num_groups * len(sequences) * blocks_each).view(num_groups, len(sequences), blocks_each)
    done, states = [0] * len(sequences), [[] for _ in sequences]  # type: list[int], list[list[Tensor]]
    for counts in CHUNKS:
        batch = _batch(done, counts, tables, block_size, causal_lm, device)
        ids = torch.cat([ids[at : at + count] for ids, at, count in zip(sequences, done, counts, strict=True)])
        ids = nn.functional.pad(ids, (0, batch.num_tokens - len(ids)))
        hidden = causal_lm.forward(ids, _context(batch, kv, backend))
        for index, (start, end) in enumerate(pairwise(batch.cu_q_list)):
            states[index].append(hidden[start:end].clone())
        done = [at + count for at, count in zip(done, counts, strict=True)]
    return [torch.cat(parts) for parts in states]


def _context(batch: ForwardBatch, kv: list[PagedKV], backend: AttentionBackend) -> ForwardContext:
    return ForwardContext(batch, kv, backend, backend.plan(batch))


def _batch(
    done: Sequence[int], counts: Sequence[int], tables: Tensor, block_size: int, causal_lm: TransformersCausalLM,
    device: torch.device,
) -> ForwardBatch:  # fmt: skip
    """Return the step that adds `counts` tokens to sequences of which `done` tokens are computed."""
    cu_q = (0, *accumulate(counts))
    rows = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    positions = torch.cat([torch.arange(at, at + count) for at, count in zip(done, counts, strict=True)])
    lengths = tuple(at + count for at, count in zip(done, counts, strict=True))
    more = causal_lm.padded_size(len(positions)) - len(positions)
    slots = tables[:, rows, positions // block_size] * block_size + positions % block_size
    return ForwardBatch(
        num_seqs=len(counts),
        num_tokens=len(positions) + more,
        num_decodes=len(counts) if max(counts) == 1 else 0,
        max_seqlen_q=max(counts),
        max_seqlen_k=max(lengths),
        positions=nn.functional.pad(positions, (0, more)).to(device),
        cu_seqlens_q=torch.tensor(cu_q, dtype=torch.int32, device=device),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        logits_indices=torch.tensor(cu_q[1:], dtype=torch.int32, device=device) - 1,
        groups=tuple(
            GroupBatch(table.int().to(device), nn.functional.pad(slot, (0, more), value=-1).to(device))
            for table, slot in zip(tables, slots, strict=True)
        ),
        cu_q_list=cu_q,
        seq_lens_list=lengths,
    )
