"""Numbers as a KV cache of 8-bit floats stores them."""

import pytest
import torch

from chairlift.core.errors import ModelError
from chairlift.model.device.kv_dtype import FLOAT8, as_elements, as_stored, kv_cache_dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_number_is_rounded_to_the_nearest_of_8_bits(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(FLOAT8).double()
    grid = codes[codes.isfinite()].unique()
    numbers = (torch.randn(4000, generator=torch.Generator().manual_seed(1)) * torch.logspace(-4, 2, 4000)).to(dtype)
    found, exact = as_stored(numbers, FLOAT8).double(), numbers.double()
    nearest = (exact[:, None] - grid).abs().min(1).values
    # torch rounds float64 to float32 first, which may cross the middle between two numbers of 8 bits.
    assert ((found - exact).abs() <= nearest + exact.abs() * 2.0**-23).all()
    error = (found - exact).abs()
    assert (error <= torch.maximum(exact.abs() * 2.0**-4, torch.tensor(2.0**-10))).all()


def test_what_is_too_large_saturates_and_nan_stays() -> None:
    numbers = torch.tensor([448.0, 464.1, 1e30, torch.inf, -torch.inf, torch.nan])
    found = as_stored(numbers, FLOAT8).float()
    assert found[:5].tolist() == [448.0, 448.0, 448.0, 448.0, -448.0] and found[5].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_caches_store_what_they_get(dtype: torch.dtype) -> None:
    numbers = torch.tensor([1000.0, -torch.inf, 0.1])
    assert torch.equal(as_stored(numbers, dtype), numbers.to(dtype))
    cache = torch.zeros(3, dtype=dtype)
    assert as_elements(cache) is cache


def test_elements_of_8_bits_are_bytes_in_the_same_memory() -> None:
    cache = torch.zeros(2, 3, dtype=FLOAT8)
    as_elements(cache[:, 1:])[0, 0] = 0x38  # 2 ** 0, with a bias of 7 in the upper 4 bits of the exponent
    assert cache.float().tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]


def test_the_dtype_of_the_cache() -> None:
    assert kv_cache_dtype("fp8", "bfloat16") == torch.float8_e4m3fn
    assert kv_cache_dtype("auto", "bfloat16") == torch.bfloat16
    with pytest.raises(ModelError, match="dtype None is unknown"):
        kv_cache_dtype("auto", None)
