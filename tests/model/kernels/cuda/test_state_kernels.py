"""The chunked recurrence by Triton's interpreter: equal to torch's token by token, and the same bits for every cut."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from chairlift.model.batch.state_cache import StateCache
from chairlift.model.batch.state_step import StateStep
from chairlift.model.config.state_layers import STATE_CHUNK_TOKENS, StateShape
from chairlift.model.kernels.cuda import state_kernels
from chairlift.model.layers import linear_recurrence
from chairlift.model.layers.triton_ops import TritonOps
from support_shares import FULL, for_each

CPU, OPS, C = torch.device("cpu"), TritonOps(), STATE_CHUNK_TOKENS
F32, F64 = torch.float32, torch.float64
TOLERANCE = {F32: 2e-5, F64: 1e-12}
"""Largest difference from the recurrence token by token, relative to the largest output. Each rounds otherwise."""

NUM_SLOTS, NUM_CHECKPOINTS = 4, 3


class Shape(NamedTuple):
    """Heads, key heads, key_dim and value_dim."""

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int


SHAPES = (Shape(2, 1, 16, 8), Shape(2, 2, 12, 20), Shape(4, 2, 40, 40))
"""Sizes that are no power of 2, a key of two parts, and a value of two parts."""


class Tokens(NamedTuple):
    """The inputs of some tokens of one sequence."""

    query: Tensor
    key: Tensor
    value: Tensor
    decay: Tensor
    beta: Tensor | None

    def part(self, begin: int, end: int) -> "Tokens":
        return Tokens(*(None if each is None else each[begin:end] for each in self))


def random_tokens(count: int, shape: Shape, dtype: torch.dtype, has_beta: bool, seed: int = 0) -> Tokens:
    """Return tokens with keys of the length 1, as those of a delta net; some decays and shares are 0 and 1."""
    dice = torch.Generator().manual_seed(seed)

    def normal(heads: int, width: int) -> Tensor:
        return torch.randn(count, heads, width, generator=dice, dtype=F64)

    query, key = (torch.nn.functional.normalize(normal(shape.key_heads, shape.key_dim), dim=-1) for _ in range(2))
    factors = [torch.rand(count, shape.heads, generator=dice, dtype=F64).mul(1.2).sub(0.1).clamp(0, 1) for _ in "ab"]
    value, decay, beta = normal(shape.heads, shape.value_dim), factors[0].sqrt(), factors[1]
    return Tokens(*(each.to(dtype) for each in (query, key, value, decay)), beta.to(dtype) if has_beta else None)


def joined(parts: Sequence[Tokens], padding: int = 0) -> Tokens:
    """Return the tokens of a step's rows, and padding tokens of NaN behind them."""
    columns = []
    for each in zip(*parts, strict=True):
        if each[0] is None:
            columns.append(None)
            continue
        whole = torch.cat([*each])
        columns.append(torch.cat((whole, whole.new_full((padding, *whole.shape[1:]), torch.nan))))
    return Tokens(*columns)


def make_cache(shape: Shape, dtype: torch.dtype, chunk_tokens: int = C) -> StateCache:
    """Return a cache full of NaN: what is read before it was written shows."""
    whole = StateShape((1, 4), (shape.heads, shape.key_dim, shape.value_dim), shape.key_heads, chunk_tokens)
    cache = StateCache([whole], NUM_SLOTS, NUM_CHECKPOINTS, dtype, CPU)
    layer = cache.layers[0]
    assert layer.recurrent is not None
    partial = layer.partial_chunk
    for tensor in (layer.recurrent, *(() if partial is None else (partial.key, partial.update, partial.decay))):
        tensor.fill_(torch.nan)
    return cache


def make_step(rows: Sequence[tuple[int, int, int]], saves: Sequence[tuple[int, int, int]] = ()) -> StateStep:
    """Return a step of rows (slot, tokens, start) and saves (row, number, checkpoint)."""
    slots, counts, starts = (np.array(each, np.int32) for each in zip(*rows, strict=True))
    return StateStep.of(
        slots, counts, starts, np.empty((0, 2), np.int32), np.array(saves, np.int32).reshape(-1, 3),
        num_slots=NUM_SLOTS, device=CPU,
    )  # fmt: skip


def run_cut(
    tokens: Tokens, cache: StateCache, counts: Sequence[int], *, slot: int = 1, start: int = 0,
    saves: Sequence[tuple[int, int]] = (),
) -> Tensor:  # fmt: skip
    """Run a sequence in steps of these numbers of tokens, with saves (position, checkpoint); returns its outputs."""
    outputs = []
    for count in counts:
        own = [(0, position - start, entry) for position, entry in saves if start < position <= start + count]
        step = make_step([(slot, count, start)], own)
        outputs.append(OPS.run_recurrence(*tokens.part(start, start + count), cache.layers[0], step))
        start += count
    return torch.cat(outputs)


def recurrent(cache: StateCache) -> Tensor:
    states = cache.layers[0].recurrent
    assert states is not None
    return states


CASES = [(shape, has_beta, dtype) for shape in SHAPES for has_beta in (True, False) for dtype in (F32, F64)]


@for_each(("shape", "has_beta", "dtype"), CASES if FULL else (CASES[4], CASES[-1]))
def test_random_steps_of_several_sequences_equal_the_recurrence_token_by_token(
    shape: Shape, has_beta: bool, dtype: torch.dtype
) -> None:
    rng = random.Random(f"{shape} {has_beta}")
    longest, counts_of_steps = (60, (1, 5, 16, 40)) if FULL else (36, (5, 16, 40))
    sequences = [random_tokens(rng.randrange(20, longest), shape, dtype, has_beta, seed) for seed in range(3)]
    cache, exact = make_cache(shape, dtype), make_cache(shape, dtype, 0)
    starts, slots, limit = [0, 0, 0], [2, 0, 3], TOLERANCE[dtype]
    while any(start < len(tokens.key) for start, tokens in zip(starts, sequences, strict=True)):
        active = [at for at in range(3) if starts[at] < len(sequences[at].key) and rng.random() < 0.8]
        if not active:
            continue
        counts = {at: min(rng.choice(counts_of_steps), len(sequences[at].key) - starts[at]) for at in active}
        parts = joined([sequences[at].part(starts[at], starts[at] + counts[at]) for at in active], rng.choice((0, 2)))
        step = make_step([(slots[at], counts[at], starts[at]) for at in active])
        found = OPS.run_recurrence(*parts, cache.layers[0], step)
        expected = linear_recurrence.run_recurrence(*parts, recurrent(exact), step)
        assert float((found - expected).abs().max()) <= limit * float(expected.abs().max())
        assert (found[sum(counts.values()) :] == 0).all(), "padding tokens"
        for at in active:
            starts[at] += counts[at]
            if starts[at] % C == 0:
                of_slot = recurrent(exact)[slots[at]]
                largest = float(of_slot.abs().max())
                torch.testing.assert_close(recurrent(cache)[slots[at]], of_slot, rtol=0, atol=limit * largest)
    assert recurrent(cache)[1].isnan().all(), "no row has this slot"


@for_each("has_beta", [True, False])
def test_a_row_cut_anywhere_has_the_same_bits(has_beta: bool) -> None:
    shape, length = SHAPES[0], 2 * C + 3
    tokens = random_tokens(length, shape, F32, has_beta)
    whole, saves = make_cache(shape, F32), [(C, 0), (2 * C, 1)]
    outputs = run_cut(tokens, whole, [length], saves=saves)
    assert torch.equal(recurrent(whole)[NUM_SLOTS + 1], recurrent(whole)[1])
    cuts = [[C, C, 3], [5, 2 * C - 5, 3], [C - 1, 1, C + 1, 2]]
    if FULL:
        cuts += [[1] * length, [length - 1, 1], [C + 1, C - 1, 3]]
    for counts in cuts:
        cache = make_cache(shape, F32)
        assert torch.equal(run_cut(tokens, cache, counts, saves=saves), outputs), counts
        for entry in (1, NUM_SLOTS, NUM_SLOTS + 1):
            assert torch.equal(recurrent(cache)[entry], recurrent(whole)[entry]), (counts, entry)


def test_a_row_has_the_same_bits_beside_others() -> None:
    shape = SHAPES[0]
    sequences = [random_tokens(count, shape, F32, True, count) for count in (C + 2, 3, C)]
    alone = [run_cut(tokens, make_cache(shape, F32), [len(tokens.key)]) for tokens in sequences]
    step = make_step([(3, C + 2, 0), (0, 3, 0), (1, C, 0)])
    together = OPS.run_recurrence(*joined(sequences, 1), make_cache(shape, F32).layers[0], step)
    assert torch.equal(together[:-1], torch.cat(alone))


@for_each("has_beta", [True, False])
def test_a_sequence_goes_on_from_a_checkpoint_with_the_same_bits(has_beta: bool) -> None:
    """In another slot, whose last sequence left a partial chunk there."""
    shape, length = SHAPES[0], C + 7
    tokens, cache = random_tokens(length, shape, F32, has_beta), make_cache(shape, F32)
    run_cut(random_tokens(5, shape, F32, has_beta, 9), cache, [5], slot=3)
    outputs = run_cut(tokens, cache, [length], saves=[(C, 2)])
    cache.load(np.array([[NUM_SLOTS + 2, 3]], np.int32))
    assert torch.equal(run_cut(tokens, cache, [3, 4], slot=3, start=C), outputs[C:])


@for_each("decay", [0.0, 1e-38, 1e-20, 1e-3, 1.0])
def test_extreme_decays_and_shares_neither_overflow_nor_lose_digits(decay: float) -> None:
    """Sums of the logarithms of such decays lie beyond what an exponential has, in both directions."""
    shape, length = SHAPES[0], 2 * C
    tokens = random_tokens(length, shape, F32, True)
    assert tokens.beta is not None
    decays = tokens.decay.clone()
    decays[3:], decays[C + 4 : C + 6] = decay, 1.0
    tokens = tokens._replace(decay=decays, beta=(tokens.beta > 0.5).float())
    found, exact = run_cut(tokens, make_cache(shape, F32), [length]), make_cache(shape, F64, 0)
    wide = Tokens(*(None if each is None else each.double() for each in tokens))
    expected = linear_recurrence.run_recurrence(*wide, recurrent(exact), make_step([(1, length, 0)]))
    assert float((found - expected).abs().max()) <= TOLERANCE[F32] * float(expected.abs().max())


def test_a_save_in_the_midst_of_a_chunk_is_refused() -> None:
    with pytest.raises(AssertionError, match="in the midst of a chunk"):
        run_cut(random_tokens(9, SHAPES[0], F32, True), make_cache(SHAPES[0], F32), [9], saves=[(8, 0)])


def test_states_without_partial_chunks_are_refused() -> None:
    with pytest.raises(AssertionError, match="without partial chunks"):
        run_cut(random_tokens(2, SHAPES[0], F32, True), make_cache(SHAPES[0], F32, 0), [2])


def test_a_state_that_is_not_of_this_step_stays() -> None:
    shape = SHAPES[0]
    cache = make_cache(shape, F32)
    recurrent(cache)[:] = 5.0
    run_cut(random_tokens(C, shape, F32, True), cache, [C])
    others = torch.arange(NUM_SLOTS + NUM_CHECKPOINTS) != 1
    assert (recurrent(cache)[others] == 5.0).all() and (recurrent(cache)[1] != 5.0).all()


def test_variants_type_every_parameter() -> None:
    for variant in state_kernels.variants():
        assert set(variant.signature) == set(variant.kernel.arg_names)
        assert {name for name, kind in variant.signature.items() if kind == "constexpr"} == set(variant.constants)
