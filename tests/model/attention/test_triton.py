"""TritonAttention by Triton's interpreter, against the reference in float64: what the contract does not reach.

The interpreter computes in float32 only; compile_check covers 16-bit types.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.model.attention import triton as backend_module
from chairlift.model.attention.base import AttentionBackend, AttentionSpec, PagedKV
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.triton import TritonAttention
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.kernels.cuda.kernel_variant import LAUNCH_OPTIONS
from support_batches import Row, make_batch

CPU = torch.device("cpu")
BOUND = 2e-6
LONG = 512
"""Keys of a row that has several splits if it is decoded alone."""


def make_rows(shapes: Sequence[tuple[int, int]], block_size: int, *, start: int = 1) -> list[Row]:
    """Return rows of (new tokens, length) whose blocks lie apart in reverse order; block 0 belongs to none."""
    rows = []
    for new, length in shapes:
        count = -(-length // block_size)
        rows.append(Row(new, length, (tuple(range(start + count - 1, start - 1, -1)),)))
        start += count
    return rows


def fill_cache(
    backend: AttentionBackend, rows: Sequence[Row], block_size: int, heads: int, width: int, dtype: torch.dtype
) -> PagedKV:
    """Return a cache of NaN with each row's keys and values, which depend only on its length, but no others."""
    blocks = 1 + max(block for row in rows for block in row.tables[0])
    kv = backend.allocate_kv_cache(1, blocks, block_size, heads, width, dtype, CPU)[0]
    kv.key.fill_(torch.nan)
    kv.value.fill_(torch.nan)
    for row in rows:
        generator = torch.Generator().manual_seed(row.seq_len)
        key, value = torch.randn(2, row.seq_len, heads, width, generator=generator, dtype=torch.float64).to(dtype)
        at = torch.arange(row.seq_len)
        slots = torch.tensor(row.tables[0])[at // block_size] * block_size + at % block_size
        kv.key.view(-1, heads, width)[slots], kv.value.view(-1, heads, width)[slots] = key, value
    return kv


def attend(backend: AttentionBackend, batch: ForwardBatch, kv: PagedKV, spec: AttentionSpec, query: Tensor) -> Tensor:
    out = torch.full_like(query, torch.nan)
    backend.attend(query, kv, batch, spec, backend.plan(batch), out)
    return out


def check(
    shapes: Sequence[tuple[int, int]], spec: AttentionSpec, *, block_size: int = 16, heads: int = 1, group: int = 2,
    width: int = 16, backend: AttentionBackend | None = None,
) -> None:  # fmt: skip
    backend, rows = backend or TritonAttention(), make_rows(shapes, block_size)
    batch = make_batch(rows, block_size)
    query = torch.randn(batch.num_tokens, heads * group, width, generator=torch.Generator().manual_seed(1))
    kv = fill_cache(backend, rows, block_size, heads, width, torch.float32)
    found = attend(backend, batch, kv, spec, query)
    exact = PagedKV(kv.key.double(), kv.value.double())
    expected = attend(ReferenceAttention(), batch, exact, spec, query.double())
    assert (found - expected).abs().max() <= BOUND


@pytest.mark.share(2)
@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize("width", [80, 96, 128])
def test_heads_that_are_no_power_of_two(width: int, block_size: int) -> None:
    check([(1, 70), (1, 3), (9, 75)], AttentionSpec(0, width**-0.5), block_size=block_size, heads=2, width=width)


def test_heads_of_256_have_smaller_tiles() -> None:
    check([(1, 100), (40, 90)], AttentionSpec(0, 0.06, 30), width=256, group=1)


@pytest.mark.share(1)
@pytest.mark.parametrize("group", [3, 7, 16, 20])
def test_any_number_of_query_heads_shares_a_kv_head(group: int) -> None:
    check([(1, 40), (1, 1), (30, 50)], AttentionSpec(0, 0.25), heads=2, group=group)


@pytest.mark.full
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("window", [None, 700])
def test_long_rows_are_split(window: int | None, deterministic: bool) -> None:
    sinks = torch.tensor([2.0, -1.0])
    backend = TritonAttention(deterministic=deterministic)
    check([(1, 1500), (1, LONG), (1, 5)], AttentionSpec(0, 0.25, window, 3.0, sinks), backend=backend)


def test_blocks_before_a_window_are_never_read() -> None:
    block_size, window = 16, 50
    rows = make_rows([(1, 200), (20, 150)], block_size)
    kv = fill_cache(TritonAttention(), rows, block_size, 1, 16, torch.float32)
    batch, spec = make_batch(rows, block_size), AttentionSpec(0, 0.25, window)
    query = torch.randn(batch.num_tokens, 2, 16)
    expected = attend(TritonAttention(), batch, kv, spec, query)
    table = batch.groups[0].block_table
    for index, row in enumerate(rows):
        table[index, : (row.seq_len - row.num_new_tokens - window + 1) // block_size] = 0  # holds NaN
    found = attend(TritonAttention(), batch, kv, spec, query)
    assert torch.equal(found, expected) and found.isfinite().all()


def test_a_lone_key_shares_its_weight_with_the_sink() -> None:
    rows = make_rows([(1, 1), (2, 2)], 16)
    kv, batch = fill_cache(TritonAttention(), rows, 16, 1, 16, torch.float32), make_batch(rows, 16)
    query, sinks = torch.zeros(3, 2, 16), torch.tensor([0.0, 2.0])
    found = attend(TritonAttention(), batch, kv, AttentionSpec(0, 1.0, sinks=sinks), query)
    for token, row in ((0, 0), (1, 1)):  # scores of 0: the key weighs 1, the sink exp(sink)
        value = kv.value[rows[row].tables[0][0], 0, 0]
        for head, weight in ((0, 1 / 2), (1, 1 / (1 + torch.tensor(2.0).exp()))):
            torch.testing.assert_close(found[token, head], value * weight)


@pytest.mark.share(1)
@pytest.mark.parametrize("window", [None, 600])
def test_in_deterministic_mode_a_row_has_the_same_bits_alone_and_in_a_batch(window: int | None) -> None:
    shapes = [(1, 100), (1, LONG), (1, LONG + 700), (1, 3000), (5, 90), (70, 200)]
    backend, spec = TritonAttention(deterministic=True), AttentionSpec(0, 0.25, window)
    rows = make_rows(shapes, 16)
    batch, kv = make_batch(rows, 16), fill_cache(backend, rows, 16, 1, 16, torch.float32)
    query = torch.randn(batch.num_tokens, 2, 16, generator=torch.Generator().manual_seed(2))
    together = attend(backend, batch, kv, spec, query)
    for index, row in enumerate(rows):
        tokens = slice(batch.cu_q_list[index], batch.cu_q_list[index + 1])
        alone = attend(backend, make_batch([row], 16), kv, spec, query[tokens])
        assert torch.equal(alone, together[tokens]), shapes[index]


@pytest.mark.share(1)
@pytest.mark.parametrize("window", [None, 40])
def test_in_deterministic_mode_a_decoded_token_has_the_bits_of_the_same_token_in_a_chunk(window: int | None) -> None:
    backend, spec, rows = (
        TritonAttention(deterministic=True),
        AttentionSpec(0, 0.25, window),
        make_rows([(90, 700)], 16),
    )
    kv = fill_cache(backend, rows, 16, 1, 16, torch.float32)
    query = torch.randn(90, 2, 16, generator=torch.Generator().manual_seed(4))
    whole = attend(backend, make_batch(rows, 16), kv, spec, query)
    for at in (0, 31, 63, 64, 89):
        decoded = replace(rows[0], num_new_tokens=1, seq_len=610 + at + 1)
        assert torch.equal(attend(backend, make_batch([decoded], 16), kv, spec, query[at : at + 1])[0], whole[at])


def test_a_token_of_a_chunk_has_the_same_bits_wherever_the_chunk_begins() -> None:
    spec, rows = AttentionSpec(0, 0.25, 40), make_rows([(150, 150)], 16)
    kv = fill_cache(TritonAttention(), rows, 16, 1, 16, torch.float32)
    query = torch.randn(150, 2, 16, generator=torch.Generator().manual_seed(3))
    whole = attend(TritonAttention(), make_batch(rows, 16), kv, spec, query)
    for begin, end in ((0, 37), (37, 101), (101, 150)):
        part = replace(rows[0], num_new_tokens=end - begin, seq_len=end)
        assert torch.equal(
            attend(TritonAttention(), make_batch([part], 16), kv, spec, query[begin:end]), whole[begin:end]
        )


@pytest.mark.full
def test_a_step_needs_no_lists_of_the_host_and_padded_sizes_change_nothing() -> None:
    rows = make_rows([(1, 90), (1, 20), (1, 33), (30, 60), (8, 8)], 16)
    kv, batch = fill_cache(TritonAttention(), rows, 16, 1, 16, torch.float32), make_batch(rows, 16, padding=4)
    batch.seq_lens[2] = batch.seq_lens[4] = 0  # rows that only fill up a bucket
    query = torch.randn(batch.num_tokens, 2, 16)
    out = attend(TritonAttention(), replace(batch, cu_q_list=(), seq_lens_list=()), kv, AttentionSpec(0, 0.25), query)
    padded = replace(batch, max_seqlen_k=4000, cu_q_list=(), seq_lens_list=())
    longer = attend(TritonAttention(), padded, kv, AttentionSpec(0, 0.25), query)
    assert (out - longer).abs().max() <= BOUND
    for each in (out, longer):
        assert not each[2].any() and not each[33:].any() and each[:2].all() and each[3:33].all()


@pytest.mark.full
def test_strided_inputs_and_outputs() -> None:
    backend, rows = TritonAttention(), make_rows([(1, 20), (6, 30)], 16)
    batch, spec = make_batch(rows, 16), AttentionSpec(0, 0.25)
    packed = torch.randn(batch.num_tokens, 4 + 2 + 2, 16)
    query, key, value = packed.split((4, 2, 2), dim=1)
    plain = [fill_cache(backend, rows, 16, 2, 16, torch.float32) for _ in range(2)]
    slots = batch.groups[0].slot_mapping
    backend.write_kv(key, value, plain[0], slots)
    backend.write_kv(key.contiguous(), value.contiguous(), plain[1], slots)
    assert torch.equal(plain[0].key.nan_to_num(), plain[1].key.nan_to_num())
    assert torch.equal(plain[0].value.nan_to_num(), plain[1].value.nan_to_num())
    expected = attend(backend, batch, plain[0], spec, query.contiguous())
    assert torch.equal(attend(backend, batch, plain[0], spec, query), expected)
    turned = query.transpose(1, 2).contiguous().transpose(1, 2)  # heads are not dense
    out = torch.empty(4, batch.num_tokens, 16).transpose(0, 1)
    backend.attend(turned, plain[0], batch, spec, backend.plan(batch), out)
    assert torch.equal(out, expected)


def test_a_step_without_tokens_launches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(backend_module, "write_kv_kernel")
    kv = TritonAttention().allocate_kv_cache(1, 2, 16, 1, 16, torch.float32, CPU)[0]
    TritonAttention().write_kv(torch.empty(0, 1, 16), torch.empty(0, 1, 16), kv, torch.empty(0, dtype=torch.int64))


@pytest.mark.full
def test_the_layers_of_a_step_share_the_memory_of_partial_results() -> None:
    rows = make_rows([(1, 1000)], 16)
    backend, batch = TritonAttention(), make_batch(rows, 16)
    kv, plan = fill_cache(backend, rows, 16, 1, 16, torch.float32), backend.plan(batch)
    query = torch.randn(1, 2, 16)
    outs = [torch.empty_like(query) for _ in range(2)]
    for out in outs:
        backend.attend(query, kv, batch, AttentionSpec(0, 0.25), plan, out)
    assert len(plan.partials) == 1 and torch.equal(*outs)


def test_float64_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="the model has float64; set attention_backend to torch"):
        TritonAttention().allocate_kv_cache(1, 1, 16, 1, 16, torch.float64, CPU)


class LaunchRecorder:
    """A kernel that keeps the options of its launches."""

    def __init__(self) -> None:
        self.options: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> "LaunchRecorder":
        return self

    def __call__(self, *arguments: Any, **options: Any) -> None:
        self.options.append(options)


def test_every_launch_has_the_options_that_compile_check_compiles_with(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows([(1, 1000), (3, 30)], 16)
    batch, kernel = make_batch(rows, 16), LaunchRecorder()
    kv = fill_cache(TritonAttention(), rows, 16, 1, 16, torch.float32)
    for name in ("decode_kernel", "reduce_kernel", "extend_kernel", "write_kv_kernel"):
        monkeypatch.setattr(backend_module, name, kernel)
    attend(TritonAttention(), batch, kv, AttentionSpec(0, 0.25), torch.randn(4, 2, 16))
    TritonAttention().write_kv(torch.zeros(4, 1, 16), torch.zeros(4, 1, 16), kv, batch.groups[0].slot_mapping)
    assert len(kernel.options) == 4 and all(LAUNCH_OPTIONS.items() <= each.items() for each in kernel.options)


def test_a_device_is_asked_once_for_its_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[torch.device] = []

    def properties(device: torch.device) -> SimpleNamespace:
        devices.append(device)
        return SimpleNamespace(multi_processor_count=132)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    device = torch.device("cuda:7")
    assert [backend_module._num_processors(device) for _ in range(2)] == [132, 132] and devices == [device]
    backend_module._num_processors.cache_clear()
