"""DecodeGraphs: buckets, padding that touches nothing, captures on demand, and captures that fail."""

import logging

import numpy as np
import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner import decode_graphs
from chairlift.model.runner.decode_graphs import DecodeGraphs, batch_sizes, length_sizes
from chairlift.model.runner.device_input_batch import DeviceInputBatch
from chairlift.model.runner.model_loading import load
from support_device_runner import use_device
from support_device_stream import SimulatedStream
from support_runner import GREEDY, PROMPT, started
from support_step_plans import plan_of

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(RunnerConfig(dtype="float64", device="cpu"))


def test_buckets_reach_the_largest_batch_and_the_longest_sequence() -> None:
    assert batch_sizes(1) == [1] and batch_sizes(3) == [1, 2, 3] and batch_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert batch_sizes(256)[-3:] == [240, 248, 256] and batch_sizes(300)[-2:] == [288, 300]
    assert length_sizes(100) == [100] and length_sizes(2048) == [2048]
    assert length_sizes(40_960) == [2048, 8192, 32_768, 40_960]


def graphs_of(stream: SimulatedStream, **more: object) -> DecodeGraphs:
    tables = DeviceInputBatch(9, 1, 4, 50, max_model_len=9000, device=CPU, stream=stream)

    def compute(inputs: object, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(len(slots), 2), torch.zeros(len(slots), 50)

    options = {"max_rows": 9, "max_model_len": 9000, "block_size": 4, "device": CPU, "is_required": False} | more
    return DecodeGraphs(compute, tables, stream, **options)


def test_a_step_has_the_smallest_bucket_that_holds_it() -> None:
    graphs = graphs_of(SimulatedStream())
    rows = [(slot, 20, [1]) for slot in range(9)]
    assert [graphs.bucket_of(plan_of(rows[:count])) for count in (1, 3, 5, 9)] == [
        (1, 2048), (4, 2048), (8, 2048), (9, 2048)
    ]  # fmt: skip
    assert graphs.bucket_of(plan_of([(0, 2047, [1])])) == (1, 2048)
    assert graphs.bucket_of(plan_of([(0, 2048, [1])])) == (1, 8192)
    assert graphs.bucket_of(plan_of([(0, 8999, [1])])) == (1, 9000)
    assert graphs.bucket_of(plan_of([(0, 5, [1]), (1, 0, [1, 2])])) is None
    assert graphs.bucket_of(plan_of([])) is None


def test_a_capture_that_fails_turns_graphs_off_with_a_warning_or_raises(caplog: pytest.LogCaptureFixture) -> None:
    stream = SimulatedStream()
    stream.fails_to_capture = True
    graphs, plan = graphs_of(stream), plan_of([(0, 5, [1])])
    with caplog.at_level(logging.WARNING):
        assert not graphs.capture((1, 2048))
    assert "capture of 1 rows failed: operation not permitted" in caplog.text
    assert graphs.bucket_of(plan) is None
    required = graphs_of(stream, is_required=True)
    with pytest.raises(RuntimeError, match="not permitted"):
        required.capture_smallest()
    with pytest.raises(RuntimeError, match="not permitted"):
        required.capture_first()
    assert not required.capture((9, 9000))  # while requests run, none of them fails


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB"), torch.AcceleratorError("CUDA error: out of memory")],
    ids=["allocator", "driver"],
)
def test_a_bucket_without_memory_for_its_graph_has_none_and_the_others_stay(
    error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = SimulatedStream()
    graphs, tries = graphs_of(stream, is_required=True), []
    assert graphs.capture((1, 2048))

    def fails(work: object) -> None:
        tries.append(work)
        raise error

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(stream, "capture", fails)
        assert not graphs.capture((9, 9000)) and not graphs.capture((9, 9000)) and len(tries) == 1
    assert f"too little memory for the CUDA graph of 9 rows of 9000 tokens: {error}" in caplog.text
    assert graphs.capture((1, 2048)) and graphs.capture((9, 8192)) and stream.num_graphs == 2


def test_a_rank_without_memory_for_a_graph_raises_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimulatedStream()
    graphs = graphs_of(stream, is_sharded=True)
    assert graphs.capture((1, 2048))

    def fails(work: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(stream, "capture", fails)
        with pytest.raises(torch.OutOfMemoryError, match="Tried 2 GiB"):
            graphs.capture((9, 9000))
    assert graphs.capture((1, 2048)) and graphs.capture((9, 9000)) and stream.num_graphs == 2


def test_graphs_of_all_buckets_write_their_states_and_logits_to_the_same_memory() -> None:
    stream = SimulatedStream()
    graphs, plan = graphs_of(stream), plan_of([(0, 5, [1])])
    slots = np.zeros(1, np.int32)
    outputs = []
    for bucket in ((1, 2048), (4, 2048), (9, 9000)):
        graphs.capture(bucket)
        outputs.append(graphs.launch(plan, bucket, slots))
    assert [tuple(each.shape for each in pair) for pair in outputs] == [
        ((rows, 2), (rows, 50)) for rows in (1, 4, 9)
    ]  # fmt: skip
    assert all(len({each.data_ptr() for each in kind}) == 1 for kind in zip(*outputs, strict=True))
    stream.synchronize()
    assert not outputs[-1][1].any(), "a replay fills what the capture left undefined"


def test_every_bucket_is_captured_once_and_the_largest_first() -> None:
    stream = SimulatedStream()
    graphs = graphs_of(stream)
    captured: list[decode_graphs.Bucket] = []
    capture = graphs.capture
    graphs.capture = lambda bucket, **how: captured.append(bucket) or capture(bucket, **how)  # type: ignore[method-assign]
    graphs.capture_smallest()
    graphs.capture_first()
    assert captured == [(1, 2048), *((rows, 2048) for rows in (9, 8, 4, 2, 1))] and stream.num_graphs == 5


def test_padding_rows_and_captures_write_nothing(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimulatedStream()
    use_device(monkeypatch, stream)
    runner, driver = started(model, use_cuda_graph="on", max_model_len=128, max_running_requests=8, num_blocks=30)
    sequences = [driver.add([number, *PROMPT], GREEDY) for number in range(3)]
    for sequence in sequences:
        driver.generate(sequence, 1)
    used = {block for sequence in sequences for block in sequence.tables[0]} | set(driver._free[-3:])
    unused = sorted(set(range(30)) - used)
    for kv in runner.kv_cache:
        kv.key[unused] = kv.value[unused] = torch.nan
    replayed = len(stream.log)
    for _ in range(5):
        driver.step([(sequence, 1) for sequence in sequences])
    assert stream.log[replayed:].count("replay 1") == 5, "three rows run in the graph of four"
    assert all(kv.key[unused].isnan().all() for kv in runner.kv_cache)
    assert not any(sequence.errors for sequence in sequences)


def test_graphs_that_are_required_and_cannot_be_captured_stop_the_start(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = SimulatedStream()
    stream.fails_to_capture = True
    use_device(monkeypatch, stream)
    with pytest.raises(ConfigError, match="use_cuda_graph is on, but a step cannot be captured: operation") as caught:
        started(model, use_cuda_graph="on", max_model_len=128)
    assert caught.value.details["option"] == "use_cuda_graph"
    _, driver = started(model, use_cuda_graph="auto", max_model_len=128)
    assert len(driver.generate(driver.add(PROMPT, GREEDY), 4)) == 4 and stream.num_graphs == 0


@pytest.mark.full
def test_longer_sequences_get_a_graph_of_their_own(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_graphs, "FIRST_LENGTH", 64)
    stream = SimulatedStream()
    use_device(monkeypatch, stream)
    _, driver = started(model, use_cuda_graph="on", max_model_len=128)
    sequence = driver.add(PROMPT, GREEDY)
    tokens = driver.generate(sequence, 12)
    assert stream.num_graphs == 2 and {"replay 0", "replay 1"} <= set(stream.log)
    with monkeypatch.context() as patch:
        use_device(patch, SimulatedStream())
        _, other = started(model, use_cuda_graph="off", max_model_len=128)
        assert other.generate(other.add(PROMPT, GREEDY), 12) == tokens
