"""FlashAttention3 over the stand-in of its package: what is called, steps of graphs, and errors at the start."""

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

import support_flash_attn
from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionSpec
from chairlift.model.attention.flash_attention import (
    PARAMETERS,
    FlashAttention3,
    find_flash_attention,
    flash_attention_factory,
)
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.attention.triton import TritonAttention
from support_attention_contract import CPU, attended, check, dense, fill, make_case
from support_attention_library import installed_parameters, stand_in_parameters
from support_cuda_device import simulate_gpu
from support_flash_attn import flash_attn_with_kvcache

BFLOAT16 = torch.bfloat16


def test_the_stand_in_has_the_parameters_of_the_package() -> None:
    own = stand_in_parameters(flash_attn_with_kvcache)
    assert set(PARAMETERS) == support_flash_attn.USED <= set(own)
    assert own == installed_parameters("flash_attn_interface", "flash_attn_interface.py", "flash_attn_with_kvcache")


def test_one_call_computes_a_mixed_step() -> None:
    calls: list[dict[str, Any]] = []

    def recording(**options: Any) -> Any:
        calls.append(options)
        return flash_attn_with_kvcache(**options)

    case = make_case("mixed", 16, 2, 2, 20, 3, seed=1)
    attended(FlashAttention3(recording, TorchAttention()), case, AttentionSpec(0, 0.25, 20, 5.0), 16, BFLOAT16)
    (call,) = calls
    assert set(call) <= set(PARAMETERS)
    assert call["q"].shape[0] == case.batch.cu_q_list[-1] and call["max_seqlen_q"] == 65
    assert (call["window_size"], call["causal"], call["softcap"], call["softmax_scale"]) == ((19, 0), True, 5.0, 0.25)
    assert call["cu_seqlens_q"] is case.batch.cu_seqlens_q
    attended(FlashAttention3(recording, TorchAttention()), case, AttentionSpec(0, 0.25), 16, BFLOAT16)
    assert calls[1]["window_size"] == (-1, -1) and calls[1]["cache_seqlens"] is case.batch.seq_lens
    assert calls[1]["page_table"].data_ptr() == case.batch.groups[0].block_table.data_ptr()  # a view, no copy


def test_layers_of_a_kind_share_their_pages() -> None:
    backend, case = FlashAttention3(flash_attn_with_kvcache, TorchAttention()), make_case("mixed", 16, 2, 2, 20, 0, 1)
    kv, plan, query = fill(backend, case, 16, BFLOAT16), backend.plan(case.batch), case.query.to(BFLOAT16)
    for window in (20, 20, None):
        backend.attend(query, kv, case.batch, AttentionSpec(0, 0.25, window), plan, torch.empty_like(query))
    assert set(plan.pages) == {(0, 20), (0, None)}


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 2.0, 0.0])])
@pytest.mark.parametrize("window", [None, 20])
def test_a_step_of_a_graph_reads_no_list(window: int | None, sinks: torch.Tensor | None) -> None:
    """Its padding is rows without tokens, which the package leaves as they are."""
    case = make_case("pure decode", 16, 2, 2, window, 3, seed=2)
    batch, rows = case.batch, case.batch.num_seqs + 3
    group = batch.groups[0]
    table = torch.nn.functional.pad(group.block_table, (0, 2, 0, 3))
    tokens = torch.tensor([0, *range(1, 6), 5, 5, 5], dtype=torch.int32)
    padded = replace(
        batch, num_seqs=rows, num_decodes=rows, seq_lens=torch.nn.functional.pad(batch.seq_lens, (0, 3)),
        cu_seqlens_q=tokens, groups=(replace(group, block_table=table),), cu_q_list=(), seq_lens_list=(),
        max_seqlen_k=160,
    )  # fmt: skip
    backend, spec = (
        FlashAttention3(flash_attn_with_kvcache, TorchAttention()),
        AttentionSpec(0, 0.25, window, sinks=sinks),
    )
    expected = attended(backend, case, spec, 16, BFLOAT16)
    found = attended(backend, replace(case, batch=replace(padded, cu_q_list=())), spec, 16, BFLOAT16)
    assert torch.equal(found, expected) and not found[5:].any()
    assert (found[:5].double() - dense(case, spec, BFLOAT16)[:5]).abs().max() <= 2e-2


@pytest.mark.full
def test_the_kernels_of_triton_write_its_cache() -> None:
    case = make_case("chunk behind a prefix", 16, 2, 2, None, 0, seed=3)
    backend = FlashAttention3(flash_attn_with_kvcache, TritonAttention())
    found = attended(backend, case, AttentionSpec(0, 0.25), 16, BFLOAT16)
    assert (found.double() - dense(case, AttentionSpec(0, 0.25), BFLOAT16)).abs().max() <= 2e-2


def test_the_package_fails_at_the_start_or_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    case, has_failed = make_case("pure decode", 16, 2, 2, None, 0, seed=4), True

    def failing(**options: Any) -> Any:
        if has_failed:
            raise RuntimeError("This flash attention build does not support paged KV.")
        return flash_attn_with_kvcache(**options)

    backend = FlashAttention3(failing, TorchAttention())
    with pytest.raises(ConfigError, match=r"'fa3' fails, since flash-attn-3 .* does not support paged KV"):
        attended(backend, case, AttentionSpec(0, 0.25), 16, BFLOAT16)
    has_failed = False
    attended(backend, case, AttentionSpec(0, 0.25), 16, BFLOAT16)
    has_failed = True
    with pytest.raises(RuntimeError, match="does not support paged KV"):
        attended(backend, case, AttentionSpec(0, 0.25), 16, BFLOAT16)


def test_a_missing_or_older_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_gpu(monkeypatch, (9, 0))
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    with pytest.raises(ConfigError, match="install flash-attn-3 from PyTorch's wheels"):
        flash_attention_factory("cuda", "bfloat16")
    older = ModuleType("flash_attn_interface")
    older.flash_attn_with_kvcache = lambda q, k_cache, v_cache, cache_seqlens, softmax_scale, causal: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn_interface", older)
    with pytest.raises(
        ConfigError, match="has no parameter cu_seqlens_q, max_seqlen_q, page_table, return_softmax_lse"
    ):
        find_flash_attention()
    monkeypatch.setitem(sys.modules, "flash_attn_interface", support_flash_attn.stand_in())
    assert isinstance(flash_attention_factory("cuda", "bfloat16")(), FlashAttention3)


def test_heads_and_caches_are_checked_when_the_cache_is_allocated() -> None:
    backend = FlashAttention3(flash_attn_with_kvcache, TorchAttention())
    with pytest.raises(ConfigError, match="the model has 320; set it to triton"):
        backend.allocate_kv_cache(1, 4, 16, 2, 320, BFLOAT16, CPU)
    assert backend.supports_cuda_graph
    check("fa3", make_case("mixed", 16, 2, 2, None, 0, seed=5, width=96), AttentionSpec(0, 0.1), 16, torch.float16)
