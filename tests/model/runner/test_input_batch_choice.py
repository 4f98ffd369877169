"""make_input_batch: kernels for CUDA devices with triton, numpy elsewhere; both give the same tokens in an engine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chairlift import LLM, SamplingParams
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.batch.input_batch import SlotBlockTables
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner import executor_and_cuda_graph_choice, input_batch_choice
from chairlift.model.runner.device_input_batch import DeviceInputBatch
from chairlift.model.runner.input_batch_choice import InputBatch, host_tables, make_input_batch
from support_device_stream import ImmediateStream
from support_models import save_tiny

PROMPTS = [[5, 6, 7], list(range(8, 60)), [9] * 33]


def loaded_on(device: torch.device) -> Any:
    model = SimpleNamespace(groups=SimpleNamespace(windows=(None,)), vocab_size=50, padded_size=int)
    return SimpleNamespace(model=model, device=device, config=SimpleNamespace(context_length=lambda length: length))


def test_the_host_makes_the_inputs_of_a_model_on_the_host() -> None:
    batch = make_input_batch(loaded_on(torch.device("cpu")), RunnerConfig(max_model_len=64))
    assert isinstance(batch, SlotBlockTables) and host_tables(batch) is batch


def test_without_triton_the_host_makes_them_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert isinstance(
        make_input_batch(loaded_on(torch.device("cuda")), RunnerConfig(max_model_len=64)), SlotBlockTables
    )


def test_the_host_makes_them_for_a_model_with_adapters_on_a_device_with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_batch_choice, "can_use_triton", lambda device: True)
    loaded = loaded_on(torch.device("cuda"))
    for name in ("add_adapter", "remove_adapter", "use_adapters"):
        setattr(loaded.model, name, lambda *each: None)
    loaded.model.adaptable = {}
    assert isinstance(make_input_batch(loaded, RunnerConfig(max_model_len=64)), SlotBlockTables)


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_an_engine_generates_the_same_tokens_with_both(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = str(save_tiny(kind, tmp_path, 0)), list[InputBatch]()
    options: dict[str, Any] = {"dtype": "float64", "num_blocks": 60, "max_chunk_tokens": 20, "max_model_len": 128}
    sampling = [SamplingParams(temperature=0, max_tokens=6), SamplingParams(seed=3, max_tokens=6, temperature=2.0)]

    def on_device(loaded: LoadedModel, config: RunnerConfig, stream: object, *, writes: bool = True) -> InputBatch:
        made.append(
            DeviceInputBatch(
                config.max_running_requests, len(loaded.model.groups.windows), config.block_size,
                loaded.model.vocab_size, max_model_len=128, device=loaded.device, writes=writes,
                stream=ImmediateStream(),
            )
        )  # fmt: skip
        return made[-1]

    def tokens() -> list[list[int]]:
        with LLM(folder, **options) as llm:
            results = llm.generate(PROMPTS * 2, [params for params in sampling for _ in PROMPTS], use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    expected = tokens()
    monkeypatch.setattr(executor_and_cuda_graph_choice, "make_input_batch", on_device)
    assert tokens() == expected and made
