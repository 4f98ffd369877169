"""Whole runs whose attention calls the stand-ins of packages: on the host, on a simulated device, and in graphs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift import LLM, SamplingParams
from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionBackend
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner import torch_runner
from chairlift.model.runner.model_loading import load
from support_attention_contract import make
from support_batches import teacher_forced_logits
from support_device_runner import use_device
from support_device_stream import ImmediateStream, SimulatedStream
from support_models import save_tiny

PROMPTS = [[5, 6, 7], list(range(8, 60)), [9] * 33] * 2
SAMPLING = [SamplingParams(temperature=0, max_tokens=8)] * 4 + [SamplingParams(seed=3, max_tokens=9)] * 2


def tokens(folder: str, **options: Any) -> list[list[int]]:
    with LLM(
        folder, dtype="bfloat16", kernels="torch", num_blocks=48, block_size=8, max_chunk_tokens=20, max_model_len=128,
        **options,
    ) as llm:  # fmt: skip
        return [list(result.outputs[0].token_ids) for result in llm.generate(PROMPTS, SAMPLING, use_tqdm=False)]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A model of windows and full attention, with heads that both packages have."""
    return str(save_tiny("gemma3", tmp_path, 0, head_dim=64))


@pytest.fixture(params=["flashinfer", "fa3"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def use_host(monkeypatch: pytest.MonkeyPatch, made: Callable[[], AttentionBackend]) -> None:
    monkeypatch.setattr(torch_runner, "make_backend", lambda *_, **options: made())


@pytest.mark.share(1)
def test_logits_are_those_of_the_reference(backend: str, folder: str) -> None:
    """In chunks and batches, where blocks behind a window hold NaN."""
    model = load(RunnerConfig(model=folder, dtype="bfloat16", device="cpu", kernels="torch")).model
    sequences = [[5, 6, 7], list(range(8, 108)), [9] * 33]
    found = teacher_forced_logits(model, sequences, torch.bfloat16, backend=make(backend))
    wanted = teacher_forced_logits(model, sequences, torch.bfloat16)
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() <= 0.05 * other.abs().max()


@pytest.mark.full
def test_a_device_and_graphs_change_no_token(backend: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_host(monkeypatch, lambda: make(backend))
    wanted = tokens(folder)
    for graphs, stream in (("auto", SimulatedStream()), ("off", ImmediateStream())):
        use_device(monkeypatch, stream, make(backend))
        assert tokens(folder, use_cuda_graph=graphs) == wanted
        assert (stream.num_graphs > 0) == (backend == "fa3" and graphs == "auto")


def test_graphs_are_refused_where_a_package_plans_on_the_host(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(monkeypatch, SimulatedStream(), make("flashinfer"))
    with pytest.raises(ConfigError, match="FlashInferAttention reads lengths on the host; set it to auto or off"):
        tokens(folder, use_cuda_graph="on")
