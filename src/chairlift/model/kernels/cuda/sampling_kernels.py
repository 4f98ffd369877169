"""sample_kernel: samples one token for each row of logits, one program for each row, without a word from the host.

The rules are those of sampling/truncated_sampling.py. Weights are fixed-point numbers: e**((logit - largest) / T) in
float64, times 2**SCALE_BITS, rounded to int64. Sums of integers do not depend on their order, so a token depends
neither on the batch nor on the size of the blocks, and thresholds are compared exactly.

    argmax   one pass: the largest logit, and the largest that the grammar allows; each lane's largest logit, too
    collect  one pass, in rows with top_k or top_p: the likeliest tokens, at most a block of them, are written side by
             side. The largest logits of the lanes give a bound that enough tokens reach and few more do. If all tokens
             that can be kept are among them, what follows reads these alone; if not (a large top_k, or top_p with a
             flat distribution), the row.
    search   the cutoff of top_k or top_p is the largest logit t for which the tokens from t upwards reach a mass: their
             number (top_k) or their weights (top_p). Bisection of the range between two logits of the row, each pass
             narrows the range to logits that are there. For top_p a search with weights in float32 guesses the cutoff;
             a search with exact weights starts there and so needs two or three passes.
    ties     tokens equal to the cutoff of top_p have equal weights, so a division says how many of them are kept
    sample   one pass sums the kept weights by block, then the block that has the sample is computed again
"""

import triton
import triton.language as tl

from chairlift.model.kernels import sampling_parameter_columns
from chairlift.model.kernels.cuda.kernel_variant import KernelVariant
from chairlift.model.kernels.cuda.sampling_search import (
    COUNT,
    argmax,
    block_sums,
    candidate_mass,
    collect,
    find_token,
    key_bound,
    search,
    top_p_cutoff,
)
from chairlift.model.kernels.sampling_parameter_columns import scale_bits

TEMPERATURE, TOP_P, MIN_P = map(tl.constexpr, range(3))
TOP_K, SEED, CHOICE, NUM_OUTPUTS = map(tl.constexpr, range(3, 7))
NUM_COLUMNS = tl.constexpr(sampling_parameter_columns.NUM_COLUMNS)

MAX_BLOCK = 2048
"""Logits of a row that a program reads at once. A pass over a row waits for its blocks one after another, so few large
blocks are faster; larger ones need more registers than there are."""
NUM_WARPS = 16


@triton.jit
def philox_bits(seed, choice, position):
    """Return the 53 random bits, int64, from which philox.uniforms makes its number; all arguments int64."""
    low: tl.constexpr = 0xFFFFFFFF
    first = position.to(tl.uint64, bitcast=True) & low
    second = position.to(tl.uint64, bitcast=True) >> 32
    third = choice.to(tl.uint64, bitcast=True) & low
    fourth = third * 0
    low_key = seed.to(tl.uint64, bitcast=True) & low
    high_key = seed.to(tl.uint64, bitcast=True) >> 32
    for _ in tl.static_range(10):
        left = first * 0xD2511F53
        right = third * 0xCD9E8D57
        first = (right >> 32) ^ second ^ low_key
        second = right & low
        third = (left >> 32) ^ fourth ^ high_key
        fourth = left & low
        low_key = (low_key + 0x9E3779B9) & low
        high_key = (high_key + 0xBB67AE85) & low
    return ((first << 21) | (second >> 11)).to(tl.int64, bitcast=True)


@triton.jit
def _random_bits(integers, IS_KEYED: tl.constexpr):
    """Return the 53 bits of a row's random number, given its int64 parameters."""
    bits = tl.load(integers + SEED)
    if IS_KEYED:
        bits = philox_bits(bits, tl.load(integers + CHOICE), tl.load(integers + NUM_OUTPUTS))
    return bits


@triton.jit
def _sample(
    logits, num_ids, bitmask, num_masked, peak, lane_maxima, floats, integers, candidates, candidate_ids,
    IS_KEYED: tl.constexpr, SCALE_BITS: tl.constexpr, BLOCK: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Return a sample of the truncated distribution of one row, given its parameters.

    Parameters are loaded where they are used: the searches need the registers.
    """
    temperature = tl.load(floats + TEMPERATURE)
    inverse = 1.0 / temperature
    cutoff = tl.full((), float("-inf"), tl.float32)
    none, last_id = cutoff, num_ids
    # Below this logit, weights are rounded to 0.
    low = peak - ((SCALE_BITS + 2) * 0.6932 * temperature).to(tl.float32)
    top_k = tl.load(integers + TOP_K)
    is_top_k = (top_k > 0) & (top_k < num_ids)
    is_top_p = tl.load(floats + TOP_P) < 1.0
    count = tl.full((), 0, tl.int32)
    if NUM_BLOCKS > 1:
        rank = tl.where(is_top_k, top_k, BLOCK // 2)
        if (is_top_k | is_top_p) & (rank <= BLOCK // 2):
            bound = key_bound(lane_maxima, rank, low)
            count = collect(logits, num_ids, bitmask, num_masked, bound, candidates, candidate_ids, BLOCK)
    # `row` is the row of logits, or its candidates if all tokens that can be kept are among them.
    are_all_there = (count > 0) & (count <= BLOCK)
    is_collected = are_all_there & is_top_k
    row, num, masked = _row(is_collected, logits, num_ids, num_masked, candidates, BLOCK)
    if is_top_k:
        cutoff, _ = search(
            row, num, bitmask, masked, low, peak, none, top_k, inverse, COUNT, SCALE_BITS, BLOCK
        )  # fmt: skip
    if is_top_p:
        low = tl.maximum(low, cutoff)
        sums = block_sums(
            row, num, bitmask, masked, peak, inverse, low, num, 0.0, False, SCALE_BITS, BLOCK, NUM_BLOCKS
        )  # fmt: skip
        total = tl.sum(sums, 0).to(tl.float64)
        target = tl.maximum(tl.ceil(tl.load(floats + TOP_P) * total).to(tl.int64), 1)
        # For top_p the candidates suffice only if their weights alone reach its mass.
        if are_all_there & (is_top_k == 0):
            is_collected = candidate_mass(candidates, peak, inverse, SCALE_BITS, BLOCK) >= target
        row, num, masked = _row(is_collected, logits, num_ids, num_masked, candidates, BLOCK)
        cutoff, last_id = top_p_cutoff(
            row, num, bitmask, masked, peak, inverse, low, target, SCALE_BITS, BLOCK, NUM_BLOCKS
        )  # fmt: skip
    min_p = tl.load(floats + MIN_P)
    row, num, masked = _row(is_collected, logits, num_ids, num_masked, candidates, BLOCK)
    sums = block_sums(
        row, num, bitmask, masked, peak, inverse, cutoff, last_id, min_p, False, SCALE_BITS, BLOCK, NUM_BLOCKS
    )  # fmt: skip
    # The number times the total: the upper half of a product of 128 bits.
    bits = _random_bits(integers, IS_KEYED) << 11
    target = tl.umulhi(bits.to(tl.uint64, bitcast=True), tl.sum(sums, 0).to(tl.uint64, bitcast=True))
    token = find_token(
        sums, target.to(tl.int64, bitcast=True), row, num, bitmask, masked, peak, inverse, cutoff, last_id, min_p,
        False, SCALE_BITS, BLOCK, NUM_BLOCKS,
    )  # fmt: skip
    if is_collected:
        token = tl.load(candidate_ids + token)
    return token


@triton.jit
def _row(is_collected, logits, num_ids, num_masked, candidates, BLOCK: tl.constexpr):
    """Return what the searches read, the number of its logits, and the number of those that have bits of a mask."""
    row = tl.where(is_collected, candidates, logits)
    return row, tl.where(is_collected, BLOCK, num_ids), tl.where(is_collected, 0, num_masked)


@triton.jit(do_not_specialize_on_alignment=["slots", "bitmask", "mask_rows"])  # may begin within another tensor
def sample_kernel(
    logits, row_stride, num_ids, slots, floats, integers, bitmask, mask_stride, mask_rows, tokens, max_logits,
    last_sampled, candidates, candidate_ids,
    HAS_MASK: tl.constexpr, IS_KEYED: tl.constexpr, SCALE_BITS: tl.constexpr, BLOCK: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Sample the token of one row, see sample_rows. Without IS_KEYED the column of seeds has the random bits.

    `candidates` (of the dtype of the logits) and `candidate_ids` (int32) have BLOCK elements for each row.
    """
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 0:
        tl.store(tokens + row, 0)
    else:
        logits += row.to(tl.int64) * row_stride
        num_masked = 0
        if HAS_MASK:
            mask_row = tl.load(mask_rows + row).to(tl.int64)
            # A row without a grammar reads no bits; its pointer stays within the bitmask.
            num_masked = tl.where(mask_row >= 0, num_ids, 0)
            bitmask += tl.maximum(mask_row, 0) * mask_stride
        largest, peak, token, lane_maxima = argmax(logits, num_ids, bitmask, num_masked, BLOCK)
        tl.store(max_logits + row * 2, largest)
        tl.store(max_logits + row * 2 + 1, peak)
        floats += slot * NUM_COLUMNS
        integers += slot * NUM_COLUMNS
        # A row with NaN or infinity keeps its argmax: the host reports it by `max_logits`.
        is_finite = (tl.abs(largest) < float("inf")) & (tl.abs(peak) < float("inf"))
        if is_finite & (tl.load(floats + TEMPERATURE) > 0):
            token = _sample(
                logits, num_ids, bitmask, num_masked, peak, lane_maxima, floats, integers,
                candidates + row.to(tl.int64) * BLOCK, candidate_ids + row.to(tl.int64) * BLOCK,
                IS_KEYED, SCALE_BITS, BLOCK, NUM_BLOCKS,
            )  # fmt: skip
        tl.store(tokens + row, token)
        tl.store(last_sampled + slot, token)
        # The next step of this slot may be launched before the host knows this token.
        tl.store(integers + NUM_OUTPUTS, tl.load(integers + NUM_OUTPUTS) + 1)


@triton.jit
def logsumexp_kernel(logits, row_stride, num_ids, max_logits, sums, BLOCK: tl.constexpr):
    """Write log(sum of e**(logit - largest)) of one row, float64, summed in float64 by a fixed order."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * row_stride
    peak = tl.load(max_logits + row).to(tl.float64)
    partial = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, num_ids, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        values = tl.load(logits + ids, mask=ids < num_ids, other=float("-inf"))
        partial += tl.exp(values.to(tl.float64) - peak)
    tl.store(sums + row, tl.log(tl.sum(partial, 0)))


_SIGNATURE = {
    "logits": "*bf16", "row_stride": "i32", "num_ids": "i32", "slots": "*i32", "floats": "*fp64", "integers": "*i64",
    "bitmask": "*i32", "mask_stride": "i32", "mask_rows": "*i32", "tokens": "*i32", "max_logits": "*fp32",
    "last_sampled": "*i32", "candidates": "*bf16", "candidate_ids": "*i32",
    "HAS_MASK": "constexpr", "IS_KEYED": "constexpr",
}  # fmt: skip
_LOGSUMEXP_SIGNATURE = {
    "logits": "*fp32", "row_stride": "i32", "num_ids": "i32", "max_logits": "*fp32", "sums": "*fp64",
    "BLOCK": "constexpr",
}  # fmt: skip


def launch_constants(vocab_size: int) -> dict[str, int]:
    """Return the constants of a launch; NUM_BLOCKS is rounded up to a power of two."""
    block = min(MAX_BLOCK, triton.next_power_of_2(max(vocab_size, 128)))
    return {
        "SCALE_BITS": scale_bits(vocab_size), "BLOCK": block,
        "NUM_BLOCKS": triton.next_power_of_2(triton.cdiv(vocab_size, block)),
    }  # fmt: skip


def variants() -> list[KernelVariant]:
    """Return the launches in use with a vocabulary of 151,936, a multiple of 16, or of 151,937, for compile_check."""
    constants = launch_constants(151_936)
    found = []
    for dtype, has_mask, is_keyed in (
        ("bf16", False, True), ("bf16", True, True), ("fp32", True, True), ("fp32", False, False)
    ):  # fmt: skip
        types = dict.fromkeys(("logits", "candidates"), f"*{dtype}") | dict.fromkeys(constants, "constexpr")
        name = f"sample {dtype}{' masked' if has_mask else ''}{' keyed' if is_keyed else ''}"
        chosen = {"HAS_MASK": has_mask, "IS_KEYED": is_keyed, **constants}
        found += [
            KernelVariant(
                name=f"{name}{suffix}", kernel=sample_kernel, signature=_SIGNATURE | types, constants=chosen,
                multiples_of_16=multiples, num_warps=NUM_WARPS,
            )
            for suffix, multiples in (("", frozenset({"row_stride", "num_ids"})), (", odd vocabulary", frozenset()))
        ]  # fmt: skip
    found.append(
        KernelVariant(
            name="logsumexp fp32", kernel=logsumexp_kernel, signature=_LOGSUMEXP_SIGNATURE,
            constants={"BLOCK": constants["BLOCK"]}, multiples_of_16=frozenset({"row_stride", "num_ids"}),
            num_warps=NUM_WARPS,
        )
    )  # fmt: skip
    return found
