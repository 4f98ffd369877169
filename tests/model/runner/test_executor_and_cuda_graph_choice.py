"""make_executor: the host's path without a device, and what a model or backend that no graph can hold means."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.triton import TritonAttention
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.state_layers import StateShape
from chairlift.model.device.device_stream import CudaStream
from chairlift.model.runner import executor_and_cuda_graph_choice
from chairlift.model.runner.device_executor import DeviceExecutor
from chairlift.model.runner.executor_and_cuda_graph_choice import (
    device_stream,
    graph_obstacle,
    graph_report,
    has_graphs,
)
from chairlift.model.runner.model_executor import ModelExecutor
from chairlift.model.runner.model_loading import load
from chairlift.model.runner.torch_runner import TorchRunner
from support_device_runner import use_device
from support_device_stream import SimulatedStream


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(RunnerConfig(dtype="float32", device="cpu", kernels="torch"))


def loaded_on(device: str, dtype: str = "bfloat16", states: tuple[StateShape, ...] = ()) -> Any:
    return SimpleNamespace(
        device=torch.device(device), config=SimpleNamespace(dtype=dtype), model=SimpleNamespace(state_shapes=states)
    )  # fmt: skip


def test_the_host_computes_where_there_is_no_device(model: LoadedModel) -> None:
    runner = TorchRunner(RunnerConfig(device="cpu", num_blocks=70), model)
    assert not runner.start().is_asynchronous and isinstance(runner._engine, ModelExecutor)
    with pytest.raises(ConfigError, match="use_cuda_graph is on, but the device is cpu; set it to auto or off"):
        TorchRunner(RunnerConfig(device="cpu", num_blocks=70, use_cuda_graph="on"), model).start()


def test_a_device_computes_ahead_of_the_host(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(monkeypatch, SimulatedStream())
    runner = TorchRunner(RunnerConfig(device="cpu", num_blocks=70), model)
    assert runner.start().is_asynchronous and isinstance(runner._engine, DeviceExecutor)


def test_a_cuda_device_has_a_stream_for_the_dtypes_of_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(device_stream(loaded_on("cuda")), CudaStream)
    assert device_stream(loaded_on("cuda", "float64")) is None
    assert device_stream(loaded_on("cpu")) is None and device_stream(loaded_on("mps")) is None
    monkeypatch.setattr(executor_and_cuda_graph_choice, "can_use_triton", lambda device: False)
    assert device_stream(loaded_on("cuda")) is None


def test_what_no_graph_can_hold_is_named(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimulatedStream()
    assert graph_obstacle(model, TritonAttention(), stream) == ""
    assert "reads lengths on the host" in graph_obstacle(model, ReferenceAttention(), stream)
    assert "float64" in graph_obstacle(loaded_on("cuda", "float64"), TritonAttention(), None)
    hybrid = loaded_on("cuda", states=(StateShape((3, 8)),))
    assert (
        graph_obstacle(hybrid, TritonAttention(), stream) == "the host prepares the steps of layers that keep a state"
    )
    (report,) = graph_report(hybrid, RunnerConfig(), TritonAttention())
    assert report == ("CUDA graphs", "off: the host prepares the steps of layers that keep a state")
    use_device(monkeypatch, stream, ReferenceAttention())
    with pytest.raises(ConfigError, match="the attention backend ReferenceAttention reads lengths on the host"):
        TorchRunner(RunnerConfig(device="cpu", num_blocks=70, use_cuda_graph="on"), model).start()
    TorchRunner(RunnerConfig(device="cpu", num_blocks=70), model).start()
    assert stream.num_graphs == 0


@pytest.mark.parametrize(
    ("mode", "attention", "ranks", "expected"),
    [
        ("auto", TritonAttention, 1, "on, for decode steps"), ("on", TritonAttention, 2, "on, for decode steps"),
        ("off", TritonAttention, 1, "off: use_cuda_graph is off"),
        ("auto", TritonAttention, 2, "off: several ranks have them only if use_cuda_graph is on"),
        ("auto", ReferenceAttention, 1, "off: the attention backend ReferenceAttention reads lengths on the host"),
    ],
)  # fmt: skip
def test_the_startup_report_says_why_there_are_no_graphs(
    mode: str, attention: type[Any], ranks: int, expected: str, model: LoadedModel
) -> None:
    config, loaded = RunnerConfig(use_cuda_graph=mode), loaded_on("cuda")
    loaded.communicator = None if ranks == 1 else object()
    assert graph_report(loaded, config, attention()) == (("CUDA graphs", expected),)
    assert has_graphs(loaded, config, attention()) == expected.startswith("on")
    assert graph_report(model, config, attention()) == () and not has_graphs(model, config, attention())


def test_ranks_have_graphs_only_where_asked(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    one_rank = SimpleNamespace(
        shard=SimpleNamespace(num_ranks=1), all_reduce_min=lambda numbers: numbers, num_calls=0, failure=None
    )
    monkeypatch.setattr(
        "chairlift.model.runner.torch_runner.agree_on_sizes", lambda _, shape, free, on_host: (shape, free)
    )
    shared = replace(model, communicator=one_rank)  # type: ignore[arg-type]
    for mode, expected in (("auto", 0), ("on", 1)):
        stream = SimulatedStream()
        use_device(monkeypatch, stream)
        TorchRunner(RunnerConfig(device="cpu", num_blocks=70, use_cuda_graph=mode), shared).start()
        assert stream.num_graphs == expected
