"""Comparisons: only options that exist are compared, and attention is that of the prompt."""

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from gpu_bench import option_and_attention_comparisons
from gpu_bench.bench_shapes import SIZES
from gpu_bench.device_timer import DeviceTimer

TINY, TIMER = SIZES["tiny"], DeviceTimer(torch.device("cpu"))


def test_options_that_this_version_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Config:
        deterministic: bool = False

    monkeypatch.setattr(option_and_attention_comparisons, "RunnerConfig", Config)
    assert option_and_attention_comparisons.option_arms() == {"deterministic": {"deterministic": True}}


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return causal attention of one sequence; heads are the second axis."""
    heads = [each.transpose(0, 1)[None] for each in (query, key, value)]
    return scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


@pytest.mark.parametrize("spelling", ["is_causal", "window_size"])
def test_both_kinds_of_attention_compute_the_same(monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    calls: list[dict[str, Any]] = []

    def old(
        query: Any, key: Any, value: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, is_causal: bool = False
    ) -> Any:
        assert is_causal
        calls.append({"bounds": cu_q.tolist(), "max": (max_q, max_k)})
        return causal(query, key, value)

    def new(
        query: Any, key: Any, value: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, *,
        window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        assert window_size == (-1, 0) and enable_gqa
        return old(query, key, value, cu_q, cu_k, max_q, max_k, is_causal=True)

    attend = old if spelling == "is_causal" else new
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", SimpleNamespace(varlen_attn=attend))  # type: ignore[arg-type]
    result = option_and_attention_comparisons.compare_attention(TIMER, TINY.large, 40, peak=1e9)
    own, theirs = result["arms"]["TorchAttention"], result["arms"]["varlen_attn"]
    assert theirs["largest_difference"] < 0.05 and calls[0] == {"bounds": [0, 40], "max": (40, 40)}
    for arm in (own, theirs):  # of one layer: four heads, 16 wide, 40 * 41 / 2 pairs
        assert arm["share_of_gemm_peak"] == pytest.approx(4 * 4 * 16 * 820 / arm["seconds"] / 1e9)


def test_attention_that_torch_lacks_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    arms = option_and_attention_comparisons.compare_attention(TIMER, TINY.large, 40, peak=1e9)["arms"]
    assert "seconds" in arms["TorchAttention"] and arms["varlen_attn"]["skipped"].startswith("ModuleNotFoundError: ")
