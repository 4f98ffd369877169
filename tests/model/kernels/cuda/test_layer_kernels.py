"""The launches and numerics of a layer's kernels, by Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from chairlift.model.kernels.cuda import layer_kernels as kernels
from chairlift.model.kernels.cuda.layer_kernels import heads_launch, norm_launch, variants
from support_shares import for_each


def normalised(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    rows, columns, num_warps = norm_launch(x.shape[-1])
    out, count = torch.empty_like(x), x.shape[0] * x.shape[1]
    kernels.rms_norm_kernel[(-(-count // rows),)](
        x, weight, out, count, eps, x.stride(0), x.stride(1), weight.shape[-1],
        HEADS=x.shape[1], SIZE=x.shape[2], ROWS=rows, COLUMNS=columns, num_warps=num_warps,
    )  # fmt: skip
    return out


@for_each("size", [1, 64, 80, 576, 1024, 2304, 4096, 8192, 16384])
def test_a_program_of_a_norm_has_whole_rows_and_threads_with_work(size: int) -> None:
    rows, columns, num_warps = norm_launch(size)
    assert size <= columns < 2 * size
    assert rows == 1 or rows * columns <= 1024
    assert num_warps in (1, 2, 4, 8, 16)
    assert rows * columns / (32 * num_warps) <= 32  # elements of a thread, all in registers


@for_each("head_dim", [2, 16, 64, 80, 128, 256])
@for_each("num_heads", [1, 3, 16, 48, 80])
def test_a_program_of_heads_has_whole_halves(num_heads: int, head_dim: int) -> None:
    heads, half, num_warps = heads_launch(num_heads, head_dim)
    assert head_dim // 2 <= half < head_dim
    assert heads & (heads - 1) == 0
    assert heads < 2 * num_heads
    assert 2 * heads * half / (32 * num_warps) <= 32


def test_a_row_has_the_same_bits_in_every_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(9, 3, 16, generator=generator), torch.randn(3, 16, generator=generator)
    assert norm_launch(16).rows > 9 * 3  # one program has all rows
    together = normalised(x, weight)
    for token in range(9):
        assert torch.equal(normalised(x[token : token + 1], weight)[0], together[token])


def test_a_nan_stays_in_its_row() -> None:
    x = torch.ones(4, 2, 16)
    x[1, 1, 3] = torch.nan
    found = normalised(x, torch.ones(2, 16))
    assert found[1, 1].isnan().all()
    found[1, 1] = 1
    assert torch.allclose(found, torch.ones(4, 2, 16))


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("scale", [1e-6, 1e-2, 0.3, 1.0, 10.0, 1e4])
def test_the_soft_cap_is_exact_to_the_last_bits_at_every_size(scale: float) -> None:
    logits = torch.linspace(-3, 3, 1001)[None] * scale
    out = torch.empty_like(logits)
    kernels.softcap_kernel[(1, 1)](logits, out, 1001, 1.0, SIZE=1001, COLUMNS=1024)
    exact = torch.tanh(logits.double())
    assert float(((out - exact) / exact).nan_to_num(0).abs().max()) < 4e-7


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_the_soft_cap_of_infinities_is_the_cap() -> None:
    logits = torch.tensor([[torch.inf, -torch.inf, torch.nan, 0.0]])
    out = torch.empty_like(logits)
    kernels.softcap_kernel[(1, 1)](logits, out, 4, 30.0, SIZE=4, COLUMNS=4)
    assert out[0, [0, 1, 3]].tolist() == [30.0, -30.0, 0.0]
    assert out[0, 2].isnan()


def test_variants_have_their_own_names_and_type_every_parameter() -> None:
    names = [variant.name for variant in variants()]
    assert len(set(names)) == len(names)
    for variant in variants():
        assert set(variant.signature) == set(variant.kernel.arg_names), variant.name
        assert {name for name, kind in variant.signature.items() if kind == "constexpr"} == set(variant.constants)
    for size in (1024, 4096, 8192):
        assert any(f"1 x {size}" in name for name in names)
    for head_dim in (64, 128, 256):
        assert sum(f"head_dim {head_dim}," in name for name in names) == 5
