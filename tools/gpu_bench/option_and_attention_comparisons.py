"""option_arms, compare_attention: comparisons of the engine with itself, and of its attention with torch's."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch

from chairlift.model.attention.base import AttentionSpec
from chairlift.model.attention.registry import make_backend
from chairlift.model.batch.forward_batch import ForwardBatch, GroupBatch
from chairlift.model.config.runner_config import RunnerConfig
from gpu_bench.bench_shapes import BenchShape
from gpu_bench.device_timer import DeviceTimer

BLOCK_SIZE = 16
OPTION_ARMS: dict[str, dict[str, Any]] = {
    "without CUDA graphs": {"use_cuda_graph": "off"},
    "deterministic": {"deterministic": True},
    "FP8 KV cache": {"kv_cache_dtype": "fp8"},
    "FP8 weights": {"quantization": "fp8"},
}
"""Options of the runner that are compared with its defaults."""


def option_arms() -> dict[str, dict[str, Any]]:
    """Return those of OPTION_ARMS whose options this version of RunnerConfig has."""
    known = {field.name for field in fields(RunnerConfig)}
    return {name: options for name, options in OPTION_ARMS.items() if known >= set(options)}


def compare_attention(timer: DeviceTimer, shape: BenchShape, num_tokens: int, peak: float) -> dict[str, Any]:
    """Time causal attention of one layer over one new prompt of `num_tokens` tokens.

    The engine's backend reads keys and values from its paged cache; torch's varlen_attn gets them as plain tensors, and
    is left out with the reason where it cannot run. `peak`: operations per second of matrix products.
    """
    sizes, device = shape.sizes, timer.device
    query = torch.randn(num_tokens, sizes.heads, sizes.head_dim, device=device).bfloat16()
    key, value = (torch.randn(num_tokens, sizes.kv_heads, sizes.head_dim, device=device).bfloat16() for _ in range(2))
    backend, out = make_backend("auto", str(device), "bfloat16"), torch.empty_like(query)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    (kv,) = backend.allocate_kv_cache(
        1, num_blocks, BLOCK_SIZE, sizes.kv_heads, sizes.head_dim, torch.bfloat16, device
    )  # fmt: skip
    batch, spec = prefill_batch(num_tokens, device), AttentionSpec(0, sizes.head_dim**-0.5)
    flops = sizes.attention_flops(num_tokens * (num_tokens + 1) // 2) / sizes.layers
    arms: dict[str, Any] = {}
    with torch.inference_mode():
        backend.write_kv(key, value, kv, batch.groups[0].slot_mapping)
        plan = backend.plan(batch)
        seconds = timer.seconds(lambda: backend.attend(query, kv, batch, spec, plan, out))
        arms[type(backend).__name__] = {"seconds": seconds, "share_of_gemm_peak": flops / seconds / peak}
        try:
            run = varlen_call(query, key, value, batch.cu_seqlens_q, num_tokens)
            error = (run().float() - out.float()).abs().max().item()
            seconds = timer.seconds(run)
            arms["varlen_attn"] = {
                "seconds": seconds, "share_of_gemm_peak": flops / seconds / peak, "largest_difference": error,
            }  # fmt: skip
        except (ImportError, NotImplementedError, RuntimeError, TypeError, ValueError) as failure:
            arms["varlen_attn"] = {"skipped": f"{type(failure).__name__}: {str(failure).splitlines()[0]}"}
    return {"model": shape.name, "tokens": num_tokens, "arms": arms}


def prefill_batch(num_tokens: int, device: torch.device) -> ForwardBatch:
    """Return the batch of one new prompt whose blocks follow each other in the cache."""
    positions = torch.arange(num_tokens, device=device)
    blocks = torch.arange(-(-num_tokens // BLOCK_SIZE), dtype=torch.int32, device=device)[None]
    bounds, last = (
        torch.tensor(values, dtype=torch.int32, device=device) for values in ([0, num_tokens], [num_tokens])
    )
    return ForwardBatch(
        num_seqs=1, num_tokens=num_tokens, num_decodes=0, max_seqlen_q=num_tokens, max_seqlen_k=num_tokens,
        positions=positions, cu_seqlens_q=bounds, seq_lens=last, logits_indices=last - 1,
        groups=(GroupBatch(blocks, positions),), cu_q_list=(0, num_tokens), seq_lens_list=(num_tokens,),
    )  # fmt: skip


def varlen_call(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: torch.Tensor, num_tokens: int
) -> Callable[[], torch.Tensor]:  # fmt: skip
    """Return a call of torch's varlen_attn, causal and with grouped heads, in the spelling of this torch.

    Raises ImportError where torch has none.
    """
    attend: Any = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    known = inspect.signature(attend).parameters
    options: dict[str, Any] = {"is_causal": True} if "is_causal" in known else {"window_size": (-1, 0)}
    if "enable_gqa" in known:
        options["enable_gqa"] = True
    return lambda: attend(query, key, value, bounds, bounds, num_tokens, num_tokens, **options)
