"""sample_kernel: samples one token for each row of logits, one program for each row, without a word from the host.

The rules are those of sampling/truncated_sampling.py. Weights are fixed-point numbers: e**((logit - largest) / T) in
float64, times 2**SCALE_BITS, rounded to int64. Sums of integers do not depend on their order, so a token depends
neither on the batch nor on the size of the blocks, and thresholds are compared exactly.

    argmax   one pass: the largest logit, and the largest that the grammar allows
    search   the cutoff of top_k or top_p is the largest logit t for which the tokens from t upwards reach a mass: their
             number (top_k) or their weights (top_p). Bisection of the range between two logits of the row, each pass
             narrows the range to logits that are there. For top_p a search with weights in float32 guesses the cutoff;
             a search with exact weights starts there and so needs two or three passes.
    ties     tokens equal to the cutoff of top_p have equal weights, so a division says how many of them are kept
    sample   one pass sums the kept weights by block, then the block that has the sample is computed again
"""

import triton
import triton.language as tl

from chairlift.model.kernels.cuda.compile_check import KernelVariant
from chairlift.model.sampling import fixed_point_sampling
from chairlift.model.sampling.fixed_point_sampling import scale_bits

COUNT, FAST, EXACT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""What a search sums: tokens, weights in float32, weights in float64."""

TEMPERATURE, TOP_P, MIN_P = map(tl.constexpr, range(3))
TOP_K, SEED, CHOICE, NUM_OUTPUTS = map(tl.constexpr, range(3, 7))
NUM_COLUMNS = tl.constexpr(fixed_point_sampling.NUM_COLUMNS)

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
def _load(logits, ids, num_ids, bitmask, num_masked):
    """Return the logits of some tokens as float32 and whether the grammar allows the tokens.

    `num_masked` is the number of tokens that have bits: all, or none in a row without a grammar.
    """
    values = tl.load(logits + ids, mask=ids < num_ids, other=float("-inf")).to(tl.float32)
    words = tl.load(bitmask + ids // 32, mask=ids < num_masked, other=-1)
    return values, ((words >> (ids % 32)) & 1) != 0


@triton.jit
def _allowed(logits, ids, num_ids, bitmask, num_masked):
    values, is_allowed = _load(logits, ids, num_ids, bitmask, num_masked)
    return tl.where(is_allowed, values, float("-inf"))


@triton.jit
def _key(values):
    """Return int32 keys in the order of the values; all NaN have the largest, and -0.0 that of 0.0."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(values != values, 0x7FFFFFFF, key)  # noqa: PLR0124 (NaN differs from itself)


@triton.jit
def _value(key):
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _argmax(logits, num_ids, bitmask, num_masked, BLOCK: tl.constexpr):
    """Return the largest logit, the largest allowed one, and the lowest id of that."""
    largest = tl.full((BLOCK,), -0x7FFFFFFF, tl.int32)
    best = tl.full((BLOCK,), -0x7FFFFFFF, tl.int32)
    best_ids = tl.full((BLOCK,), 0, tl.int32)
    for start in range(0, num_ids, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        values, is_allowed = _load(logits, ids, num_ids, bitmask, num_masked)
        largest = tl.maximum(largest, _key(values))
        keys = tl.where(ids < num_ids, _key(tl.where(is_allowed, values, float("-inf"))), -0x7FFFFFFF)
        best_ids = tl.where(keys > best, ids, best_ids)
        best = tl.maximum(best, keys)
    best_key = tl.max(best, 0)
    token = tl.min(tl.where(best == best_key, best_ids, num_ids), 0)
    return _value(tl.max(largest, 0)), _value(best_key), token


@triton.jit
def _weights(values, peak, inverse):
    return tl.exp((values.to(tl.float64) - peak.to(tl.float64)) * inverse)


@triton.jit
def _fixed(weights, SCALE_BITS: tl.constexpr):
    return (weights * (1 << SCALE_BITS) + 0.5).to(tl.int64)


@triton.jit
def _mass(values, peak, inverse, MEASURE: tl.constexpr, SCALE_BITS: tl.constexpr):
    """Return what a search sums for each of the values, int64."""
    if MEASURE == COUNT:
        return tl.full(values.shape, 1, tl.int64)
    if MEASURE == FAST:
        weights = tl.exp2((values - peak) * (inverse * 1.4426950408889634).to(tl.float32))
        return (weights * (1 << SCALE_BITS)).to(tl.int64)
    return _fixed(_weights(values, peak, inverse), SCALE_BITS)


@triton.jit
def _pivot(low, high, is_low_there, is_high_there, guess, width):
    """Return a value in [low, high), at which a search divides its range."""
    width = tl.maximum(width, tl.abs(high) * 2.4e-7)
    pivot = tl.where(is_high_there, high - width, guess)
    pivot = tl.where(is_low_there, tl.where(is_high_there, low * 0.5 + high * 0.5, low + width), pivot)
    return tl.where((pivot >= low) & (pivot < high), pivot, low)


@triton.jit
def _search(
    logits, num_ids, bitmask, num_masked, low, peak, guess, target, inverse,
    MEASURE: tl.constexpr, SCALE_BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the largest logit from which upwards the mass reaches the target, and the mass above it.

    If the mass of all logits from `low` upwards is less, the logit returned is at most the smallest of these.
    """
    high, base = peak, tl.full((), 0, tl.int64)
    is_low_there, is_high_there = guess == float("-inf"), (guess == float("-inf")) | (guess >= peak)
    width = (1e-6 / inverse).to(tl.float32)
    while low < high:
        pivot = _pivot(low, high, is_low_there, is_high_there, guess, width)
        masses = tl.zeros((BLOCK,), tl.int64)
        least_above = tl.full((), float("inf"), tl.float32)
        below = tl.full((BLOCK,), float("-inf"), tl.float32)
        for start in range(0, num_ids, BLOCK):
            values = _allowed(logits, start + tl.arange(0, BLOCK), num_ids, bitmask, num_masked)
            is_above = (values > pivot) & (values <= high)
            least = tl.min(tl.where(is_above, values, float("inf")), 0)
            if least <= high:
                masses += tl.where(is_above, _mass(values, peak, inverse, MEASURE, SCALE_BITS), 0)
            least_above = tl.minimum(least_above, least)
            below = tl.maximum(below, tl.where(values <= pivot, values, float("-inf")))
        mass = tl.sum(masses, 0)
        is_reached = base + mass >= target
        base = tl.where(is_reached, base, base + mass)
        high = tl.where(is_reached, high, tl.maximum(tl.max(below, 0), low))
        low = tl.where(is_reached, least_above, low)
        is_low_there = is_low_there | is_reached
        is_high_there = is_high_there | (is_reached == 0)
        width *= 16.0
    return high, base


@triton.jit
def _kept(
    values, ids, peak, inverse, cutoff, last_id, min_p, IS_TIES: tl.constexpr, SCALE_BITS: tl.constexpr
):  # fmt: skip
    """Return the weights of the kept tokens, 0 for others; or 1 for each token equal to the cutoff."""
    if IS_TIES:
        return (values == cutoff).to(tl.int64)
    weights = _weights(values, peak, inverse)
    is_kept = (values > cutoff) | ((values == cutoff) & (ids <= last_id))
    return tl.where(is_kept & (weights >= min_p), _fixed(weights, SCALE_BITS), 0)


@triton.jit
def _block_sums(
    logits, num_ids, bitmask, num_masked, peak, inverse, cutoff, last_id, min_p,
    IS_TIES: tl.constexpr, SCALE_BITS: tl.constexpr, BLOCK: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Return the sum of _kept of each block, int64 [NUM_BLOCKS]."""
    sums = tl.zeros((NUM_BLOCKS,), tl.int64)
    for start in range(0, num_ids, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        values = _allowed(logits, ids, num_ids, bitmask, num_masked)
        if tl.max(values, 0) >= cutoff:
            kept = _kept(values, ids, peak, inverse, cutoff, last_id, min_p, IS_TIES, SCALE_BITS)
            sums = tl.where(tl.arange(0, NUM_BLOCKS) == start // BLOCK, tl.sum(kept, 0), sums)
    return sums


@triton.jit
def _find(
    sums, target, logits, num_ids, bitmask, num_masked, peak, inverse, cutoff, last_id, min_p,
    IS_TIES: tl.constexpr, SCALE_BITS: tl.constexpr, BLOCK: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Return the first id up to which the sum of _kept, given the block sums, exceeds the target."""
    blocks, running = tl.arange(0, NUM_BLOCKS), tl.cumsum(sums, 0)
    block = tl.sum((running <= target).to(tl.int32), 0)
    before = tl.sum(tl.where(blocks == block, running - sums, 0), 0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    values = _allowed(logits, ids, num_ids, bitmask, num_masked)
    kept = _kept(values, ids, peak, inverse, cutoff, last_id, min_p, IS_TIES, SCALE_BITS)
    return block * BLOCK + tl.sum((before + tl.cumsum(kept, 0) <= target).to(tl.int32), 0)


@triton.jit
def _top_p(
    logits, num_ids, bitmask, num_masked, peak, inverse, low, top_p,
    SCALE_BITS: tl.constexpr, BLOCK: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Return the smallest logit that top_p keeps of those from `low` upwards, and the last id kept of its equals."""
    last_id = num_ids
    sums = _block_sums(
        logits, num_ids, bitmask, num_masked, peak, inverse, low, last_id, 0.0, False, SCALE_BITS, BLOCK, NUM_BLOCKS
    )
    target = tl.maximum(tl.ceil(top_p * tl.sum(sums, 0).to(tl.float64)).to(tl.int64), 1)
    none = tl.full((), float("-inf"), tl.float32)
    guess, _ = _search(
        logits, num_ids, bitmask, num_masked, low, peak, none, target, inverse, FAST, SCALE_BITS, BLOCK
    )  # fmt: skip
    cutoff, base = _search(
        logits, num_ids, bitmask, num_masked, low, peak, guess, target, inverse, EXACT, SCALE_BITS, BLOCK
    )  # fmt: skip
    weight = tl.maximum(_fixed(_weights(cutoff, peak, inverse), SCALE_BITS), 1)
    num_kept = (target - base + weight - 1) // weight
    ties = _block_sums(
        logits, num_ids, bitmask, num_masked, peak, inverse, cutoff, last_id, 0.0, True, SCALE_BITS, BLOCK, NUM_BLOCKS
    )
    if tl.sum(ties, 0) > num_kept:
        last_id = _find(
            ties, num_kept - 1, logits, num_ids, bitmask, num_masked, peak, inverse, cutoff, last_id, 0.0,
            True, SCALE_BITS, BLOCK, NUM_BLOCKS,
        )  # fmt: skip
    return cutoff, last_id


@triton.jit
def _random_bits(integers, IS_KEYED: tl.constexpr):
    """Return the 53 bits of a row's random number, given its int64 parameters."""
    bits = tl.load(integers + SEED)
    if IS_KEYED:
        bits = philox_bits(bits, tl.load(integers + CHOICE), tl.load(integers + NUM_OUTPUTS))
    return bits


@triton.jit
def _sample(
    logits, num_ids, bitmask, num_masked, peak, floats, integers,
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
    if (top_k > 0) & (top_k < num_ids):
        cutoff, _ = _search(
            logits, num_ids, bitmask, num_masked, low, peak, none, top_k, inverse, COUNT, SCALE_BITS, BLOCK
        )  # fmt: skip
    top_p = tl.load(floats + TOP_P)
    if top_p < 1.0:
        cutoff, last_id = _top_p(
            logits, num_ids, bitmask, num_masked, peak, inverse, tl.maximum(low, cutoff), top_p,
            SCALE_BITS, BLOCK, NUM_BLOCKS,
        )  # fmt: skip
    min_p = tl.load(floats + MIN_P)
    sums = _block_sums(
        logits, num_ids, bitmask, num_masked, peak, inverse, cutoff, last_id, min_p,
        False, SCALE_BITS, BLOCK, NUM_BLOCKS,
    )  # fmt: skip
    # The number times the total: the upper half of a product of 128 bits.
    bits = _random_bits(integers, IS_KEYED) << 11
    target = tl.umulhi(bits.to(tl.uint64, bitcast=True), tl.sum(sums, 0).to(tl.uint64, bitcast=True))
    return _find(
        sums, target.to(tl.int64, bitcast=True), logits, num_ids, bitmask, num_masked, peak, inverse, cutoff, last_id,
        min_p, False, SCALE_BITS, BLOCK, NUM_BLOCKS,
    )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["slots", "bitmask", "mask_rows"])  # may begin within another tensor
def sample_kernel(
    logits, row_stride, num_ids, slots, floats, integers, bitmask, mask_stride, mask_rows, tokens, max_logits,
    last_sampled,
    HAS_MASK: tl.constexpr, IS_KEYED: tl.constexpr, SCALE_BITS: tl.constexpr, BLOCK: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Sample the token of one row, see sample_rows. Without IS_KEYED the column of seeds has the random bits."""
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 0:
        tl.store(tokens + row, 0)
    else:
        logits += row.to(tl.int64) * row_stride
        num_masked = 0
        if HAS_MASK:
            mask_row = tl.load(mask_rows + row).to(tl.int64)
            num_masked = tl.where(mask_row >= 0, num_ids, 0)
            bitmask += tl.maximum(mask_row, 0) * mask_stride
        largest, peak, token = _argmax(logits, num_ids, bitmask, num_masked, BLOCK)
        tl.store(max_logits + row * 2, largest)
        tl.store(max_logits + row * 2 + 1, peak)
        floats += slot * NUM_COLUMNS
        integers += slot * NUM_COLUMNS
        is_finite = (tl.abs(largest) < float("inf")) & (tl.abs(peak) < float("inf"))
        if is_finite & (tl.load(floats + TEMPERATURE) > 0):
            token = _sample(
                logits, num_ids, bitmask, num_masked, peak, floats, integers, IS_KEYED, SCALE_BITS, BLOCK, NUM_BLOCKS
            )
        tl.store(tokens + row, token)
        tl.store(last_sampled + slot, token)
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
    "last_sampled": "*i32", "HAS_MASK": "constexpr", "IS_KEYED": "constexpr",
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
    """Return the launches in use with a vocabulary of 151,936, for compile_check."""
    constants = launch_constants(151_936)
    found = []
    for dtype, has_mask, is_keyed in (
        ("bf16", False, True), ("bf16", True, True), ("fp32", True, True), ("fp32", False, False)
    ):  # fmt: skip
        signature = _SIGNATURE | {"logits": f"*{dtype}"} | dict.fromkeys(constants, "constexpr")
        name = f"sample {dtype}{' masked' if has_mask else ''}{' keyed' if is_keyed else ''}"
        chosen = {"HAS_MASK": has_mask, "IS_KEYED": is_keyed, **constants}
        found.append(
            KernelVariant(name=name, kernel=sample_kernel, signature=signature, constants=chosen, num_warps=NUM_WARPS)
        )
    block = {"BLOCK": constants["BLOCK"]}
    found.append(
        KernelVariant(
            name="logsumexp fp32", kernel=logsumexp_kernel, signature=_LOGSUMEXP_SIGNATURE, constants=block,
            num_warps=NUM_WARPS,
        )
    )  # fmt: skip
    return found
