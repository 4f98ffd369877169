"""Functions of the sampling kernel that search one row of logits: its peak, cutoffs, likeliest tokens and a sample.

Those that read the row read it block by block. Weights are fixed-point numbers, see sampling_kernels.
"""

import triton
import triton.language as tl

COUNT, FAST, EXACT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""What a search sums: tokens, weights in float32, weights in float64."""


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
    # The bits of negative numbers grow with their size: all but the sign are inverted.
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(values != values, 0x7FFFFFFF, key)  # noqa: PLR0124 (NaN differs from itself)


@triton.jit
def _value(key):
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def argmax(logits, num_ids, bitmask, num_masked, BLOCK: tl.constexpr):
    """Return the largest logit, the largest allowed one, the lowest id of that, and the keys of `lane_maxima`.

    Lane i has the largest key of the allowed tokens i, i + BLOCK, i + 2 * BLOCK ...; int32 [BLOCK].
    """
    largest = tl.full((BLOCK,), -0x7FFFFFFF, tl.int32)
    best = tl.full((BLOCK,), -0x7FFFFFFF, tl.int32)
    best_ids = tl.full((BLOCK,), 0, tl.int32)
    for start in tl.range(0, num_ids, BLOCK, loop_unroll_factor=8):
        ids = start + tl.arange(0, BLOCK)
        values, is_allowed = _load(logits, ids, num_ids, bitmask, num_masked)
        largest = tl.maximum(largest, _key(values))
        # The lanes beyond the vocabulary are below -inf, so a row whose logits are all -inf still gets a valid id.
        keys = tl.where(ids < num_ids, _key(tl.where(is_allowed, values, float("-inf"))), -0x7FFFFFFF)
        # Only a greater key replaces an id, so each lane keeps its lowest one.
        best_ids = tl.where(keys > best, ids, best_ids)
        best = tl.maximum(best, keys)
    best_key = tl.max(best, 0)
    token = tl.min(tl.where(best == best_key, best_ids, num_ids), 0)
    return _value(tl.max(largest, 0)), _value(best_key), token, best


@triton.jit
def key_bound(lane_maxima, rank, least):
    """Return the key of the logit of this rank among the maxima of the lanes, at least the key of `least`.

    The maxima are different tokens, so at least `rank` tokens of the row reach it, and if the rank is small beside the
    number of lanes, few more do. It is above the key of banned tokens.
    """
    low, high = tl.full((), -0x7FFFFFFF, tl.int32), tl.max(lane_maxima, 0)
    for _ in range(33):  # a range of 2**32 keys
        # The mean without a sum of both, which may overflow.
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        middle = tl.where(middle == low, high, middle)
        is_reached = tl.sum((lane_maxima >= middle).to(tl.int32), 0) >= rank
        low = tl.where(is_reached, middle, low)
        high = tl.where(is_reached, high, tl.maximum(middle - 1, low))
    return tl.maximum(low, tl.maximum(_key(least), _key(tl.full((), float("-inf"), tl.float32)) + 1))


@triton.jit
def collect(logits, num_ids, bitmask, num_masked, bound, candidates, candidate_ids, BLOCK: tl.constexpr):
    """Write the allowed logits whose key reaches the bound and their ids, by ascending id; return their number.

    At most BLOCK are written; -inf fills up the rest of the BLOCK logits.
    """
    count = tl.full((), 0, tl.int32)
    for start in range(0, num_ids, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        values = _allowed(logits, ids, num_ids, bitmask, num_masked)
        is_candidate = (_key(values) >= bound).to(tl.int32)
        num_candidates = tl.sum(is_candidate, 0)
        if num_candidates > 0:
            places = count + tl.cumsum(is_candidate, 0) - 1
            is_written = (is_candidate != 0) & (places < BLOCK)
            tl.store(candidates + places, values, mask=is_written)
            tl.store(candidate_ids + places, ids, mask=is_written)
        count += num_candidates
    places = tl.arange(0, BLOCK)
    tl.store(candidates + places, tl.full((BLOCK,), float("-inf"), tl.float32), mask=places >= count)
    tl.debug_barrier()  # other threads read them
    return count


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
        # Errors here cost further passes, not bits: the exact search that follows starts from the guess.
        weights = tl.exp2((values - peak) * (inverse * 1.4426950408889634).to(tl.float32))
        return (weights * (1 << SCALE_BITS)).to(tl.int64)
    return _fixed(_weights(values, peak, inverse), SCALE_BITS)


@triton.jit
def _pivot(low, high, is_low_there, is_high_there, guess, width):
    """Return a value in [low, high), at which a search divides its range."""
    # At least two steps of float32, or the pivot would be `high` itself.
    width = tl.maximum(width, tl.abs(high) * 2.4e-7)
    pivot = tl.where(is_high_there, high - width, guess)
    pivot = tl.where(is_low_there, tl.where(is_high_there, low * 0.5 + high * 0.5, low + width), pivot)
    return tl.where((pivot >= low) & (pivot < high), pivot, low)


@triton.jit
def search(
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
            # Weights cost more than comparisons, and after the first passes most blocks have no logit in the range.
            if least <= high:
                masses += tl.where(is_above, _mass(values, peak, inverse, MEASURE, SCALE_BITS), 0)
            least_above = tl.minimum(least_above, least)
            below = tl.maximum(below, tl.where(values <= pivot, values, float("-inf")))
        mass = tl.sum(masses, 0)
        is_reached = base + mass >= target
        base = tl.where(is_reached, base, base + mass)
        # Both ends move to logits of the row, so each pass takes at least one of them out of the range.
        high = tl.where(is_reached, high, tl.maximum(tl.max(below, 0), low))
        low = tl.where(is_reached, least_above, low)
        is_low_there = is_low_there | is_reached
        is_high_there = is_high_there | (is_reached == 0)
        # A guess that is far off costs few passes: the step from it grows.
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
def block_sums(
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
def find_token(
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
def candidate_mass(candidates, peak, inverse, SCALE_BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the sum of the weights of BLOCK candidates."""
    values = tl.load(candidates + tl.arange(0, BLOCK)).to(tl.float32)
    return tl.sum(_fixed(_weights(values, peak, inverse), SCALE_BITS), 0)


@triton.jit
def top_p_cutoff(
    logits, num_ids, bitmask, num_masked, peak, inverse, low, target,
    SCALE_BITS: tl.constexpr, BLOCK: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Return the smallest logit that a row keeps to reach a mass, and the last index kept of its equals."""
    last_id = num_ids
    none = tl.full((), float("-inf"), tl.float32)
    guess, _ = search(
        logits, num_ids, bitmask, num_masked, low, peak, none, target, inverse, FAST, SCALE_BITS, BLOCK
    )  # fmt: skip
    cutoff, base = search(
        logits, num_ids, bitmask, num_masked, low, peak, guess, target, inverse, EXACT, SCALE_BITS, BLOCK
    )  # fmt: skip
    # At least 1: the weight of a logit far below the peak is rounded to 0.
    weight = tl.maximum(_fixed(_weights(cutoff, peak, inverse), SCALE_BITS), 1)
    num_kept = (target - base + weight - 1) // weight
    ties = block_sums(
        logits, num_ids, bitmask, num_masked, peak, inverse, cutoff, last_id, 0.0, True, SCALE_BITS, BLOCK, NUM_BLOCKS
    )
    if tl.sum(ties, 0) > num_kept:
        last_id = find_token(
            ties, num_kept - 1, logits, num_ids, bitmask, num_masked, peak, inverse, cutoff, last_id, 0.0,
            True, SCALE_BITS, BLOCK, NUM_BLOCKS,
        )  # fmt: skip
    return cutoff, last_id
