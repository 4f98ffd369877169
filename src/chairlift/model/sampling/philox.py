"""uniforms: derives a uniform random number from (seed, choice, output position) alone, without state.

Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3" (SC'11); its published test vectors are in the tests.

    key      seed, low and high 32 bits
    counter  output position low, output position high, choice, 0
"""

import numpy as np
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: tuple[UInt64, UInt64, UInt64, UInt64], key: tuple[UInt64, UInt64]) -> tuple[UInt64, ...]:
    """Return the four 32-bit words of each counter [N] under its key [N]; every word is a uint64."""
    first, second, third, fourth = counter
    low_key, high_key = key
    for _ in range(_ROUNDS):
        left, right = _MULTIPLIERS[0] * first, _MULTIPLIERS[1] * third
        first, second = (right >> _HALF) ^ second ^ low_key, right & _LOW
        third, fourth = (left >> _HALF) ^ fourth ^ high_key, left & _LOW
        low_key, high_key = (low_key + _WEYL[0]) & _LOW, (high_key + _WEYL[1]) & _LOW
    return first, second, third, fourth


def uniforms(seeds: NDArray[np.int64], choices: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Generate one number in [0, 1) for each row, with 53 random bits.

    Args:
        seeds: int64 [N], any value.
        choices: int64 [N], at least 0: choice index, for several samples at the same position.
        positions: int64 [N], at least 0: number of outputs of the request before this one.

    Returns:
        float64 [N]; row i depends on seeds[i], choices[i] and positions[i] only.
    """
    seed, choice, position = (np.asarray(part, np.int64).view(np.uint64) for part in (seeds, choices, positions))
    counter = (position & _LOW, position >> _HALF, choice & _LOW, np.zeros_like(position))
    high, low, _, _ = philox4x32(counter, (seed & _LOW, seed >> _HALF))
    bits = (high << np.uint64(21)) | (low >> np.uint64(11))
    numbers: NDArray[np.float64] = bits.astype(np.float64) * 2.0**-53
    return numbers
