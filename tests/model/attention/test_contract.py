"""The contract of every attention backend: random batches against dense attention in float64.

A new backend is tested as soon as model/config/attention_backend_names.py names it. Those of packages call stand-ins.
"""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionSpec
from chairlift.model.attention.registry import make_backend
from chairlift.model.config.attention_backend_names import BACKENDS, LIBRARY_BACKENDS
from chairlift.model.device.kv_dtype import FLOAT8
from support_attention_contract import (
    BATCHES,
    BOUNDS,
    CPU,
    Case,
    attended,
    check,
    dense,
    head_dim,
    make,
    make_case,
    widest,
)  # fmt: skip
from support_batches import Row, make_batch
from support_native import need_native
from support_shares import each_value, for_each

EVERY = (*BACKENDS, *LIBRARY_BACKENDS, "native")
"""The last one is the native kernels' backend, in float32 and bfloat16; only they read its KV cache."""

FEW = {"triton", *LIBRARY_BACKENDS}
"""Backends with a share of the cases in `make test`: Triton's interpreter is slow, the stand-ins are simple."""

EXACT_ALONE = {"reference", "native"}
"""Backends that compute each row alone: its bits do not depend on its neighbours."""

ALONE_BOUNDS = {torch.float64: 1e-14, torch.float32: 2e-6, torch.bfloat16: 1e-2}
"""Largest difference of a row alone and in a batch, for other backends."""


def combinations(*factors: Iterable[Any], count: int) -> list[tuple[Any, ...]]:
    """Return each backend with all combinations; in `make test` those of FEW have `count` of them."""
    every, few = list(itertools.product(*factors)), each_value(*factors, count=count)
    return [(backend, *values) for backend in EVERY for values in (few if backend in FEW else every)]


@pytest.mark.share(10)
@pytest.mark.parametrize(
    ("backend", "name", "block_size", "window"),
    combinations(BATCHES, [1, 16, 32, 37, 64], [None, 1, 20, 64], count=8),
)
def test_every_batch_equals_dense_attention(backend: str, name: str, block_size: int, window: int | None) -> None:
    if backend == "native" and block_size % 16:
        with pytest.raises(ConfigError, match="multiples of 16"):
            make(backend).allocate_kv_cache(1, 1, block_size, 2, 16, torch.bfloat16, CPU)
        return
    case = make_case(name, block_size, 2, 2, window, 0, seed=block_size, width=head_dim(backend, 16))
    check(backend, case, AttentionSpec(0, 0.25, window), block_size, widest(backend))


@pytest.mark.share(2)
@pytest.mark.parametrize(("backend", "name", "shared"), combinations(BATCHES, [1, 8], count=4))
def test_grouped_heads_share_their_keys(backend: str, name: str, shared: int) -> None:
    for kv_heads in (1, 3):
        case = make_case(name, 16, kv_heads, shared, 20, 0, seed=shared, width=head_dim(backend, 16))
        check(backend, case, AttentionSpec(0, 0.3, 20), 16, widest(backend))


@pytest.mark.full
@pytest.mark.parametrize("backend", [each for each in EVERY if each not in LIBRARY_BACKENDS])
def test_heads_of_a_group_that_is_too_large_for_a_tile(backend: str) -> None:
    sinks = torch.linspace(-3, 3, 142, dtype=torch.float64)
    case = make_case("mixed", 16, 2, 71, 20, 0, seed=71)
    check(backend, case, AttentionSpec(0, 0.25, 20, None, sinks), 16, widest(backend))


@pytest.mark.share(5)
@pytest.mark.parametrize(
    ("backend", "name", "window", "sinks", "softcap"),
    combinations(BATCHES, [None, 20], [False, True], [None, 0.7], count=5),
)
def test_soft_cap_and_sinks(backend: str, name: str, window: int | None, sinks: bool, softcap: float | None) -> None:
    case = make_case(name, 16, 2, 2, window, 0, seed=1, width=head_dim(backend, 16))
    logits = torch.tensor([1.5, -2.0, 0.0, 4.0], dtype=torch.float64) if sinks else None
    check(backend, case, AttentionSpec(0, 0.25, window, softcap, logits), 16, widest(backend))


@pytest.mark.share(3)
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("backend", EVERY)
def test_padding_is_neither_written_nor_attended(backend: str, name: str) -> None:
    case = make_case(name, 16, 2, 4, None, 5, seed=2, width=head_dim(backend, 16))
    check(backend, case, AttentionSpec(0, 0.25), 16, widest(backend))


@pytest.mark.share(8)
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", EVERY)
def test_narrow_types_stay_within_their_rounding(backend: str, dtype: torch.dtype, softcap: float | None) -> None:
    if backend == "native" and dtype == torch.float16:
        with pytest.raises(ConfigError, match="bfloat16 or float32"):
            make(backend).allocate_kv_cache(1, 1, 16, 2, 16, dtype, CPU)
        return
    if backend in LIBRARY_BACKENDS and dtype == torch.float32:
        with pytest.raises(ConfigError, match="has a KV cache of bfloat16 or float16, not float32; set it to triton"):
            make(backend).allocate_kv_cache(1, 1, 16, 2, 64, dtype, CPU)
        return
    if backend == "triton" and dtype != torch.float32:
        pytest.skip("Triton's interpreter multiplies tiles of 16-bit numbers wrongly; a GPU is needed")
    case = make_case("mixed", 16, 2, 2, 40, 2, seed=3, width=head_dim(backend, 32))
    check(backend, case, AttentionSpec(0, 0.2, 40, softcap), 16, dtype)


def in_float8(case: Case) -> Case:
    """Return the case with keys and values that 8-bit floats have exactly, of size 8."""
    keys, values = (tuple((8 * each).to(FLOAT8).double() for each in every) for every in (case.keys, case.values))
    return replace(case, keys=keys, values=values)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("backend", "name", "window", "sinks", "softcap"),
    [
        each
        for each in combinations(BATCHES, [None, 20], [False, True], [None, 0.7], count=5)
        if each[0] not in ("native", "fa3")
    ],
)  # fmt: skip
def test_a_cache_of_8_bit_floats(
    backend: str, name: str, window: int | None, sinks: bool, softcap: float | None
) -> None:
    """Values of size 8 have eight times the error of those of size 1, which BOUNDS are for."""
    case = in_float8(make_case(name, 16, 2, 2, window, 3, seed=6, width=64))
    logits = torch.tensor([1.5, -2.0, 0.0, 4.0], dtype=torch.float64) if sinks else None
    spec, dtype = AttentionSpec(0, 1 / 64, window, softcap, logits), widest(backend)
    found = attended(make(backend), case, spec, 16, dtype, FLOAT8).double()
    expected, real = dense(case, spec, dtype), case.batch.cu_q_list[-1]
    assert (found[:real] - expected[:real]).abs().max() <= 8 * BOUNDS[dtype]
    assert not found[real:].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_queries_of_16_bits_read_a_cache_of_8_bit_floats(backend: str, dtype: torch.dtype) -> None:
    case = make_case("mixed", 16, 2, 2, 40, 2, seed=3, width=32)
    case = replace(case, keys=tuple(each.to(FLOAT8).double() for each in case.keys))
    case = replace(case, values=tuple(each.to(FLOAT8).double() for each in case.values))
    check(backend, case, AttentionSpec(0, 0.2, 40), 16, dtype, FLOAT8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_beyond_8_bit_floats_become_their_limits(backend: str) -> None:
    one = make_backend(backend)
    kv = one.allocate_kv_cache(1, 3, 4, 1, 8, FLOAT8, CPU)[0]
    key = torch.tensor([[[448.0, 449.0, 464.0, 1e30, torch.inf, -500.0, -torch.inf, 0.0]]])
    one.write_kv(key, -key, kv, torch.tensor([6]))
    expected = torch.tensor([448.0, 448.0, 448.0, 448.0, 448.0, -448.0, -448.0, 0.0])
    assert torch.equal(kv.key[1, 2, 0].float(), expected) and torch.equal(kv.value[1, 2, 0].float(), -expected)
    others = torch.cat((kv.key.float().flatten(0, 1)[:6], kv.key.float().flatten(0, 1)[7:]))
    assert not others.any()


def test_some_caches_have_no_8_bit_floats() -> None:
    need_native()
    for backend, why in (("native", "bfloat16"), ("fa3", "no KV cache of 8-bit floats beside queries of 16 bits")):
        with pytest.raises(ConfigError, match=why):
            make(backend).allocate_kv_cache(1, 1, 16, 2, 16, FLOAT8, CPU)


@pytest.mark.share(2)
@pytest.mark.parametrize(("backend", "name", "window"), combinations(BATCHES, [None, 20], count=4))
def test_a_row_has_the_same_result_alone(backend: str, name: str, window: int | None) -> None:
    case = make_case(name, 16, 2, 2, window, 0, seed=4, width=head_dim(backend, 16))
    spec = AttentionSpec(0, 0.25, window)
    together = attended(make(backend), case, spec, 16, widest(backend))
    for index, row in enumerate(case.rows):
        rows = slice(case.batch.cu_q_list[index], case.batch.cu_q_list[index + 1])
        blocks = tuple(min(block, 1) * (place + 1) for place, block in enumerate(row.tables[0]))
        moved = Row(row.num_new_tokens, row.seq_len, (blocks,))
        alone = Case(
            make_batch([moved], 16), (moved,), case.keys[index : index + 1], case.values[index : index + 1],
            case.query[rows], window,
        )  # fmt: skip
        differs = (attended(make(backend), alone, spec, 16, widest(backend)) - together[rows]).abs().max()
        assert differs <= (0 if backend in EXACT_ALONE else ALONE_BOUNDS[widest(backend)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_named_slots_are_written(backend: str) -> None:
    one = make_backend(backend)
    kv = one.allocate_kv_cache(1, 3, 4, 2, 8, torch.float32, CPU)[0]
    key, value = torch.randn(4, 2, 8), torch.randn(4, 2, 8)
    one.write_kv(key, value, kv, torch.tensor([9, -1, 0, 7]))
    for cache, new in ((kv.key, key), (kv.value, value)):
        expected = torch.zeros(12, 2, 8)
        expected[[9, 0, 7]] = new[[0, 2, 3]]
        assert torch.equal(cache.view(12, 2, 8), expected)


@for_each("backend", EVERY)
def test_a_cache_is_plain_if_its_backend_says_so(backend: str) -> None:
    one = make(backend)
    width = head_dim(backend, 16)
    kv = one.allocate_kv_cache(1, 3, 16, 2, width, torch.bfloat16, CPU)[0]
    key, value = torch.randn(1, 2, width).bfloat16(), torch.randn(1, 2, width).bfloat16()
    one.write_kv(key, value, kv, torch.tensor([37]))
    holds_heads = torch.equal(kv.key[2, 5], key[0]) and torch.equal(kv.value[2, 5], value[0])
    has_strides = kv.key.stride() == kv.value.stride() and kv.key.stride(-1) == 1
    assert one.has_plain_kv == (holds_heads and has_strides)


@for_each(("backend", "dtype"), [*((each, torch.bfloat16) for each in EVERY), *((each, FLOAT8) for each in BACKENDS)])
def test_blocks_are_copied_in_every_kv_as_they_were_before(backend: str, dtype: torch.dtype) -> None:
    one = make(backend)
    kv = one.allocate_kv_cache(2, 5, 16, 1, head_dim(backend, 16), dtype, CPU)
    for each in kv:
        each.key.copy_(torch.randn(each.key.shape))
        each.value.copy_(torch.randn(each.value.shape))
    before = [(each.key.float(), each.value.float()) for each in kv]
    one.copy_blocks(kv, torch.tensor([[1, 2], [2, 3], [0, 4]], dtype=torch.int32))
    for each, (key, value) in zip(kv, before, strict=True):
        assert torch.equal(each.key.float(), key[[0, 1, 1, 2, 0]])
        assert torch.equal(each.value.float(), value[[0, 1, 1, 2, 0]])


@for_each("backend", EVERY)
def test_a_fresh_cache_holds_zeros_in_the_shape_that_was_asked_for(backend: str) -> None:
    width = head_dim(backend, 48)
    caches = make(backend).allocate_kv_cache(3, 5, 16, 2, width, torch.bfloat16, CPU)
    assert len(caches) == 3
    for cache in (each for kv in caches for each in (kv.key, kv.value)):
        assert cache.shape == (5, 16, 2, width)
        assert cache.dtype == torch.bfloat16
        assert not cache.any()
