"""profile_steps: what is measured, in which order, and what happens where the steps do not fit."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import PagedKV
from chairlift.model.attention.registry import make_backend
from chairlift.model.backends.communicator import Communicator
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.batch.state_cache import StateCache
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner import memory_profile, torch_runner
from chairlift.model.runner.free_memory import FreeMemory
from chairlift.model.runner.memory_profile import (
    FRAGMENTATION_SHARE,
    GRAPH_BYTES,
    NUM_BLOCKS,
    CudaMemoryStatistics,
    ProfiledStep,
    largest_of_ranks,
    profile_steps,
)
from chairlift.model.runner.model_executor import ModelExecutor
from chairlift.model.runner.model_loading import load
from chairlift.model.runner.torch_runner import TorchRunner
from support_models import save_tiny
from support_ranks import run_ranks

CONFIG = RunnerConfig(
    dtype="float64", device="cpu", max_batch_tokens=40, max_running_requests=6, max_model_len=64, block_size=4,
    attention_backend="torch",
)  # fmt: skip
WEIGHTS, LARGEST, DECODE = 10_000_000, 7_000_000, 2_000_000
STEP_BYTES = LARGEST + int(LARGEST * FRAGMENTATION_SHARE)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load(CONFIG)


class SimulatedMemory:
    """An allocator that counts: the weights, the caches that exist, and the largest step."""

    def __init__(self, events: list[str], caches: list[weakref.ref[torch.Tensor]]) -> None:
        self.events, self._caches = events, caches
        self._peaks = iter((DECODE, LARGEST))

    def _cache_bytes(self) -> int:
        tensors = (each() for each in self._caches)
        return sum(each.nbytes for each in tensors if each is not None)

    def release_cached(self) -> None:
        self.events.append(f"release cached, {self._cache_bytes()} bytes of caches exist")

    def allocated_bytes(self) -> int:
        return WEIGHTS + self._cache_bytes()

    def free_bytes(self) -> int:
        return 3 * 2**20

    def reset_peak(self) -> None:
        self.events.append("reset peak")

    def peak_bytes(self) -> int:
        self.events.append("read peak")
        return self.allocated_bytes() + next(self._peaks)


class RecordingBackend:
    """An attention backend that records the caches it allocates."""

    def __init__(self, events: list[str], caches: list[weakref.ref[torch.Tensor]]) -> None:
        self._inner = make_backend("torch", "cpu", "torch.float64")
        self._events, self._caches = events, caches

    def allocate_kv_cache(self, layers: int, num_blocks: int, *more: Any) -> list[PagedKV]:
        self._events.append(f"allocate {num_blocks} blocks")
        kv = self._inner.allocate_kv_cache(layers, num_blocks, *more)
        self._caches += [weakref.ref(tensor) for each in kv for tensor in (each.key, each.value)]
        return kv

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    events: list[str] = []
    forward = ModelExecutor.forward

    def recording(executor: ModelExecutor, plan: Any, *, waits: bool) -> Any:
        longest = int((plan.start_positions + plan.num_new_tokens).max())
        events.append(f"step of {plan.num_tokens} tokens, {plan.num_rows} rows, up to {longest}")
        assert not plan.new_blocks[:, 3].any()
        return forward(executor, plan, waits=waits)

    monkeypatch.setattr(ModelExecutor, "forward", recording)
    return events


DECODE_STEP = "step of 6 tokens, 6 rows, up to 64"
STEPS = [
    DECODE_STEP, "read peak", DECODE_STEP, "step of 40 tokens, 1 rows, up to 40", "step of 40 tokens, 1 rows, up to 64",
]  # fmt: skip


def test_the_largest_steps_run_between_reset_and_reading_and_the_temporary_cache_is_freed_at_the_end(
    loaded: LoadedModel, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    caches: list[weakref.ref[torch.Tensor]] = []
    backend: Any = RecordingBackend(events, caches)
    assert profile_steps(loaded, CONFIG, backend, 64, SimulatedMemory([], caches)).peak_bytes() == STEP_BYTES
    events.clear()
    monkeypatch.setattr(memory_profile, "has_graphs", lambda *_: True)  # on a CPU there are none
    step = profile_steps(loaded, CONFIG, backend, 64, SimulatedMemory(events, caches))
    released = "release cached, 0 bytes of caches exist"
    assert events == [released, "reset peak", f"allocate {NUM_BLOCKS} blocks", *STEPS, "read peak", released]
    assert step.peak_bytes() == STEP_BYTES + GRAPH_BYTES + 2 * DECODE
    assert step.source == "profiled: 6.7 MiB, and margins"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried 8 GiB"), MemoryError("none")])
def test_steps_that_do_not_fit_are_a_config_error_with_numbers(
    loaded: LoadedModel, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ModelExecutor, "forward", failing)
    caches: list[weakref.ref[torch.Tensor]] = []
    backend: Any = RecordingBackend([], caches)
    with pytest.raises(
        ConfigError,
        match=r"do not fit into the 3.0 MiB that are free on cpu.*lower max_batch_tokens \(40\), "
        r"max_running_requests \(6\) or max_model_len \(64\)",
    ) as caught:
        profile_steps(loaded, CONFIG, backend, 64, SimulatedMemory([], caches))
    assert caught.value.details["free"] == 3 * 2**20 and str(error) in str(caught.value)


def test_a_runner_on_a_device_sizes_its_cache_by_the_profile_before_it_allocates_it(
    loaded: LoadedModel, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is a CPU that is called CUDA where the cache is sized."""
    caches: list[weakref.ref[torch.Tensor]] = []
    backend: Any = RecordingBackend(events, caches)
    runner, measured = TorchRunner(CONFIG, loaded), []

    def profile(model: LoadedModel, *more: Any) -> ProfiledStep:
        measured.append(profile_steps(loaded, *more, SimulatedMemory(events, caches)))
        return measured[0]

    free = FreeMemory(GRAPH_BYTES + 2 * LARGEST, "free on cuda:0")
    monkeypatch.setattr(torch_runner, "profile_steps", profile)
    monkeypatch.setattr(torch_runner, "free_memory", lambda device: free)
    length, pool, states = runner._size(replace(loaded, device=torch.device("cuda:0")), backend)
    assert (length, states) == (64, None)
    report = dict(pool.report)
    assert report["memory of a step"] == f"{(measured[0].num_bytes) / 2**20:.1f} MiB (profiled: 6.7 MiB, and margins)"
    left = free.num_bytes - measured[0].num_bytes
    assert pool.num_blocks == min(6 * 16, int(0.9 * left) // pool.page_bytes - 1)
    assert events[-1] == "release cached, 0 bytes of caches exist"


def test_a_runner_on_the_host_estimates_the_step(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_runner, "profile_steps", lambda *_: pytest.fail("it was profiled"))
    runner = TorchRunner(replace(CONFIG, num_blocks=30), loaded)
    assert dict(runner.start().startup_report)["memory of a step"].endswith("(estimated from above)")
    runner.stop()


def test_every_rank_uses_the_largest_result() -> None:
    def run(communicator: Communicator) -> int:
        return largest_of_ranks(communicator, 100 + 7 * communicator.shard.rank)

    assert run_ranks(2, run) == [107, 107] and largest_of_ranks(None, 5) == 5


def test_the_numbers_of_a_cuda_device_come_from_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    device, calls = torch.device("cuda:1"), []

    def record(name: str, value: Any = None) -> None:
        def call(*arguments: object) -> Any:
            calls.append((name, *arguments))
            return value

        monkeypatch.setattr(torch.cuda, name, call)

    for name, value in (
        ("empty_cache", None), ("memory_allocated", 11), ("mem_get_info", (22, 99)), ("synchronize", None),
        ("reset_peak_memory_stats", None), ("max_memory_reserved", 33),
    ):  # fmt: skip
        record(name, value)
    memory = CudaMemoryStatistics(device)
    memory.release_cached()
    memory.reset_peak()
    assert (memory.allocated_bytes(), memory.free_bytes(), memory.peak_bytes()) == (11, 22, 33)
    assert calls == [
        ("empty_cache",), ("reset_peak_memory_stats", device), ("memory_allocated", device), ("mem_get_info", device),
        ("synchronize", device), ("max_memory_reserved", device),
    ]  # fmt: skip


@pytest.mark.parametrize(("free", "slots"), [(3 * 2**20, 6), (180_000, 3)])
def test_a_model_with_states_is_profiled_with_as_many_sequences_as_can_run(
    free: int, slots: int, tmp_path: Path, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(replace(CONFIG, model=str(save_tiny("qwen3_5", tmp_path))))
    caches: list[weakref.ref[torch.Tensor]] = []
    shapes = loaded.model.state_shapes
    assert 3 <= 0.45 * 180_000 / sum(shape.num_bytes(8) for shape in shapes) < 4

    def make_states(*arguments: Any) -> StateCache:
        states = StateCache(*arguments)
        assert (states.num_slots, states.num_checkpoints) == (slots, 0)
        caches.extend(weakref.ref(tensor) for layer in states.layers for tensor in layer.tensors())
        return states

    monkeypatch.setattr(memory_profile, "StateCache", make_states)
    monkeypatch.setattr(SimulatedMemory, "free_bytes", lambda memory: free)
    memory, backend = SimulatedMemory(events, caches), RecordingBackend(events, caches)
    assert profile_steps(loaded, CONFIG, backend, 64, memory).peak_bytes() == STEP_BYTES, "states are no part of a step"
    assert f"step of {slots} tokens, {slots} rows, up to 64" in events
    assert events[-1] == "release cached, 0 bytes of caches exist"
