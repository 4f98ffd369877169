"""as_stored, as_elements: conversions between keys and values as layers compute them and as the KV cache stores them.

    option kv_cache_dtype   elements of the cache
    auto                    the dtype of the model
    fp8                     float8_e4m3fn: 4 bits of exponent, 3 of mantissa, no infinity; scale 1

A number is rounded to the nearest of 8 bits, with a relative error of at most 2^-4 from 2^-6 to 448 and an absolute one
of at most 2^-10 below. Numbers beyond 448 become 448. Attention computes in the dtype of the queries, which has each
number of 8 bits exactly.
"""

import torch
from torch import Tensor

from chairlift.model.device.dtypes import AUTO_DTYPE, torch_dtype

FLOAT8 = torch.float8_e4m3fn

FLOAT8_LIMIT = torch.finfo(FLOAT8).max


def kv_cache_dtype(option: str, dtype: str | None) -> torch.dtype:
    """Return the dtype of the cache's elements: that of the option kv_cache_dtype, for "auto" that of the model."""
    return torch_dtype(dtype) if option == AUTO_DTYPE else FLOAT8


def as_stored(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers in the dtype of a cache; 8 bits saturate at their largest number, and NaN stays NaN."""
    if dtype == FLOAT8:  # torch's own conversion makes NaN of what is too large, or saturates, by its version
        numbers = numbers.clamp(-FLOAT8_LIMIT, FLOAT8_LIMIT)
    return numbers.to(dtype)


def as_elements(cache: Tensor) -> Tensor:
    """Return the cache, or a view as bytes where torch has no operations that move its elements."""
    return cache.view(torch.uint8) if cache.dtype == FLOAT8 else cache
