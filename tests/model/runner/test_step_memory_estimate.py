"""memory_shapes: a step stays below its estimated peak, for several batches, models, dtypes and backends."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chairlift.model.attention import torch_paged
from chairlift.model.attention.kv_pages import allocate_kv
from chairlift.model.attention.registry import make_backend
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.device.kv_dtype import kv_cache_dtype
from chairlift.model.layers.causal_lm_protocol import ForwardContext
from chairlift.model.runner import step_memory_estimate
from chairlift.model.runner.model_loading import load
from chairlift.model.runner.step_memory_estimate import memory_shapes
from support_batches import Row, make_batch
from support_live_bytes import LiveBytes
from support_models import save_tiny
from support_shares import each_value

CPU = torch.device("cpu")

STEPS = {
    "prompt": [(1024, 1024)],
    "behind a prefix": [(512, 1024), (512, 900)],
    "decodes": [(1, 1024 - 9 * row) for row in range(40)],
    "mixed": [*[(1, 300 + row) for row in range(24)], (500, 1000), (500, 500)],
}


@pytest.mark.share(1)
@pytest.mark.parametrize("cache", ["auto", "fp8"])
@pytest.mark.parametrize(
    ("dtype", "name", "kind", "backend"),
    # Not triton: its interpreter has neither dtype.
    each_value(["float64", "bfloat16"], STEPS, ["qwen3", "gemma3", "gemma4"], ["torch", "reference"], count=12),
)
def test_a_step_stays_below_its_peak(
    backend: str, kind: str, name: str, dtype: str, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (
        step_memory_estimate,
        torch_paged,
    ):  # as large as they are they would hide the rest of so small a model
        monkeypatch.setattr(module, "GATHER_BYTES", 1 << 16)
        monkeypatch.setattr(module, "MAX_CACHED_INDICES", 1 << 13)
    loaded = load(RunnerConfig(model=str(save_tiny(kind, tmp_path)), dtype=dtype, device="cpu", kernels="torch"))
    model, attention = loaded.model, make_backend(backend)
    groups, needed = len(model.groups.windows), [-(-length // 16) for _, length in STEPS[name]]
    starts = [sum(needed[:row]) for row in range(len(needed))]
    rows = [
        Row(new, length, (tuple(range(start, start + count)),) * groups)
        for (new, length), start, count in zip(STEPS[name], starts, needed, strict=True)
    ]
    kv = allocate_kv(attention, model.groups, sum(needed), 16, kv_cache_dtype(cache, dtype), CPU)
    batch = make_batch(rows, 16)
    ids = torch.zeros(batch.num_tokens, dtype=torch.int64)
    options = RunnerConfig(max_batch_tokens=1024, max_running_requests=1, max_model_len=1024)
    _, step = memory_shapes(options, replace(loaded.config, vocab_size=1), model.groups, 1024)
    with torch.inference_mode(), LiveBytes([tensor for one in kv for tensor in (one.key, one.value)]) as live:
        model.forward(ids, ForwardContext(batch, kv, attention, attention.plan(batch)))
    assert live.peak < step.peak_bytes()
