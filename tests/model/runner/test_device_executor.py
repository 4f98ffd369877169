"""DeviceExecutor on a simulated device: the tokens of the host's path, launches ahead of results, errors by row."""

import gc
import weakref
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift import LLM, SamplingParams
from chairlift.core.errors import EngineDead, NoAllowedToken, NonFiniteLogits, TokenOutOfRange
from chairlift.core.sampling_params import SamplingParams as Params
from chairlift.engine.step_plan import StepPlan, TokenMasks
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner.device_executor import DeviceExecutor
from chairlift.model.runner.model_loading import load
from chairlift.model.runner.torch_runner import TorchRunner
from support_device_runner import use_device, use_host
from support_device_stream import ImmediateStream, SimulatedStream
from support_models import save_tiny
from support_plans import DrivenSequence, Driver, int32
from support_runner import GREEDY, PROMPT, SEEDED, started
from support_sampling import masks_of, params

RANDOM = params(seed=7, temperature=1.5, top_p=0.9, top_k=40)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(RunnerConfig(dtype="float64", device="cpu"))


@pytest.fixture(params=["graphs", "eager"])
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimulatedStream:
    made = SimulatedStream()
    use_device(monkeypatch, made)
    monkeypatch.setitem(OPTIONS, "use_cuda_graph", {"graphs": "on", "eager": "off"}[request.param])
    return made


OPTIONS: dict[str, Any] = {"max_model_len": 128}


def expected(model: LoadedModel, prompt: list[int], sampling: Params, count: int) -> list[int]:
    """Return what the host's path generates."""
    with pytest.MonkeyPatch.context() as patch:
        use_host(patch)
        _, driver = started(model)
        return driver.generate(driver.add(prompt, sampling), count)


def on_device(model: LoadedModel) -> tuple[TorchRunner, Driver]:
    return started(model, **OPTIONS)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_an_engine_generates_the_same_tokens_with_graphs_overlap_and_a_device_as_late_as_can_be(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, prompts = str(save_tiny(kind, tmp_path, 0)), [[5, 6, 7], list(range(8, 60)), [9] * 33] * 2
    sampling = [SamplingParams(temperature=0, max_tokens=8)] * 3 + [
        SamplingParams(seed=3, max_tokens=9, temperature=2.0),
        SamplingParams(seed=4, max_tokens=7, logprobs=2),
        SamplingParams(seed=5, max_tokens=8, top_p=0.8, repetition_penalty=1.2),
    ]

    def tokens(**options: Any) -> list[list[int]]:
        with LLM(
            folder, dtype="float64", num_blocks=32, block_size=8, max_chunk_tokens=20, max_model_len=128, **options
        ) as llm:
            return [list(result.outputs[0].token_ids) for result in llm.generate(prompts, sampling, use_tqdm=False)]

    wanted = tokens()
    for graphs, overlap, stream in (
        ("on", True, SimulatedStream()), ("on", False, SimulatedStream()), ("off", True, SimulatedStream()),
        ("off", False, ImmediateStream()), ("auto", None, ImmediateStream()),
    ):  # fmt: skip
        use_device(monkeypatch, stream)
        assert tokens(use_cuda_graph=graphs, overlap=overlap) == wanted, (graphs, overlap)
        assert (stream.num_graphs > 0) == (graphs != "off") and stream.given > 0


@pytest.mark.share(1)
def test_a_step_is_given_to_the_device_before_the_last_is_read(model: LoadedModel, stream: SimulatedStream) -> None:
    wanted = expected(model, PROMPT, RANDOM, 12)
    runner, driver = on_device(model)
    sequence = driver.add(PROMPT, RANDOM)
    runner.launch(driver.plan([(sequence, len(PROMPT))]))
    results = []
    for _ in range(11):
        sequence.tokens.append(-7)
        runner.launch(driver.plan([(sequence, 1)], ahead=True))
        done = stream.done
        results.append(runner.collect())
        assert done < stream.done < stream.given, "the result of the first needs its own work, not that of the second"
    results.append(runner.collect())
    assert [int(result.tokens[0]) for result in results] == wanted
    assert stream.synchronized == 0


@pytest.mark.full
def test_results_and_staged_numbers_are_kept_until_their_events(model: LoadedModel, stream: SimulatedStream) -> None:
    _, driver = on_device(model)
    sequences = [driver.add([number, *PROMPT], GREEDY) for number in range(3)]
    driver.generate_all(sequences, 6, max_chunk=20)
    for number, sequence in enumerate(sequences):
        assert sequence.outputs == expected(model, [number, *PROMPT], GREEDY, 6)
    for number in {entry.split()[1] for entry in stream.log if entry.startswith("record")}:
        own = [entry.split()[0] for entry in stream.log if entry.endswith(f" {number}") and "replay" not in entry]
        assert all(pair != ("record", "record") for pair in pairwise(own)), "written again without a wait"


@pytest.mark.share(1)
def test_rows_of_the_host_and_of_the_device_are_sampled_in_one_step(
    model: LoadedModel, stream: SimulatedStream
) -> None:
    _, driver = on_device(model)
    kinds = [GREEDY, SEEDED, RANDOM, params(seed=3, temperature=1.0, logprobs=1)]
    sequences = [driver.add(PROMPT[number:], sampling) for number, sampling in enumerate(kinds)]
    driver.generate_all(sequences, 10, max_chunk=30)
    for number, (sampling, sequence) in enumerate(zip(kinds, sequences, strict=True)):
        assert sequence.outputs == expected(model, PROMPT[number:], sampling, 10)
        assert all((entry is not None) == (sampling.logprobs is not None) for entry in sequence.logprobs)


def masked_plan(driver: Driver, parts: list[tuple[DrivenSequence, int]], *rows: int) -> StepPlan:
    """Return a plan in which some sample rows wait for masks."""
    return replace(driver.plan(parts), masked_samples=int32(*rows))


def masked_steps(
    runner: TorchRunner, driver: Driver, sequences: list[DrivenSequence], is_early: bool
) -> list[list[int]]:
    """Run three decode steps, in which the first and the last row are masked; return their tokens."""
    tokens = []
    for step in range(3):
        parts = [(sequence, 1) for sequence in sequences]
        plan = masked_plan(driver, parts, 0, 2)
        masks = masks_of(259, {0: {40 + step, 50}, 2: {60 + step}})
        if is_early:
            runner.supply_masks(plan.step_id, masks)
        runner.launch(plan)
        if not is_early:
            runner.supply_masks(plan.step_id, masks)
        result = runner.collect()
        driver.apply_result(parts, plan, result)
        tokens.append(result.tokens.tolist())
    return tokens


@pytest.mark.full
@pytest.mark.parametrize("last", [GREEDY, SEEDED], ids=["device", "host"])
def test_masks_hold_for_rows_of_the_device_and_of_the_host_early_or_late(
    model: LoadedModel, stream: SimulatedStream, last: Params
) -> None:
    free = expected(model, [1, *PROMPT], GREEDY, 4)
    for is_early in (True, False):
        runner, driver = on_device(model)
        sequences = [driver.add([number, *PROMPT], GREEDY if number < 2 else last) for number in range(3)]
        for sequence in sequences:
            driver.generate(sequence, 1)
        for step, (first, second, third) in enumerate(masked_steps(runner, driver, sequences, is_early)):
            assert first in {40 + step, 50} and second == free[1 + step] and third == 60 + step
        assert not any(sequence.errors for sequence in sequences)


def test_no_step_is_launched_while_one_waits_for_masks(model: LoadedModel, stream: SimulatedStream) -> None:
    runner, driver = on_device(model)
    sequence = driver.add(PROMPT, GREEDY)
    driver.generate(sequence, 1)
    plan = masked_plan(driver, [(sequence, 1)], 0)
    runner.launch(plan)
    with pytest.raises(AssertionError, match="waits for masks"):
        runner.launch(driver.plan([]))


@pytest.mark.share(1)
def test_errors_of_one_row_are_its_own(model: LoadedModel, stream: SimulatedStream) -> None:
    runner, driver = on_device(model)
    good, bad, masked = (driver.add(prompt, GREEDY) for prompt in (PROMPT, PROMPT[::-1], PROMPT[3:]))
    driver.generate_all([good, bad, masked], 2, max_chunk=99)
    for kv in runner.kv_cache:
        for cache in (kv.key, kv.value):
            cache[bad.tables[0]] = torch.nan
    plan = masked_plan(driver, parts := [(good, 1), (bad, 1), (masked, 1)], 2)
    runner.launch(plan)
    runner.supply_masks(plan.step_id, masks_of(259, {2: set()}))
    driver.apply_result(parts, plan, runner.collect())
    assert good.outputs == expected(model, PROMPT, GREEDY, 3) and not good.errors
    assert [type(error) for error in (*bad.errors, *masked.errors)] == [NonFiniteLogits, NoAllowedToken]


def test_prompt_logprobs_and_pooled_states_are_those_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(save_tiny("llama", tmp_path, 0))
    sampling = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=1)

    def outputs() -> tuple[Any, Any]:
        with LLM(folder, dtype="float64", num_blocks=40, max_model_len=128, max_chunk_tokens=9) as llm:
            result = llm.generate([[5, 6, 7] * 5], sampling, use_tqdm=False)[0]
            pooled = llm.embed([[5, 6, 7] * 5, [8, 9]], use_tqdm=False)
            return result.prompt_logprobs, [each.outputs.embedding for each in pooled]

    logprobs, states = outputs()
    use_device(monkeypatch, SimulatedStream())
    found_logprobs, found_states = outputs()
    assert str(found_logprobs) == str(logprobs)
    assert torch.allclose(torch.tensor(found_states), torch.tensor(states), atol=1e-12)


def test_a_launch_that_fails_leaves_the_step_before_it_and_the_runner(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = ImmediateStream()
    use_device(monkeypatch, stream)
    runner, driver = on_device(model)
    first, second = driver.add(PROMPT, RANDOM), driver.add(PROMPT[5:], GREEDY)
    runner.launch(plan := driver.plan([(first, len(PROMPT))]))

    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(model.model, "forward", fails)
        with pytest.raises(MemoryError):
            runner.launch(driver.plan([(second, len(second.tokens))]))
    driver.apply_result([(first, len(PROMPT))], plan, runner.collect())
    with pytest.raises(TokenOutOfRange):
        runner.launch(driver.plan([(driver.add([1, 900], GREEDY), 2)]))
    driver.restart(second)
    driver.generate_all([first, second], 8, max_chunk=30)
    assert first.outputs == expected(model, PROMPT, RANDOM, 8)
    assert second.outputs == expected(model, PROMPT[5:], GREEDY, 8)


@pytest.mark.full
def test_requests_keep_their_tokens_though_launches_run_out_of_memory_while_a_step_is_in_flight(
    tmp_path: Path, stream: SimulatedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence that starts again must have the place in its random numbers, and the history, of its unread token."""
    folder = str(save_tiny("llama", tmp_path, 0))
    sampling = [
        SamplingParams(seed=3, max_tokens=12, temperature=2.0),
        SamplingParams(seed=4, max_tokens=14, logprobs=2, repetition_penalty=1.5),
    ]
    forward, steps = DeviceExecutor.forward, count()

    def tokens() -> list[list[int]]:
        with LLM(folder, dtype="float64", num_blocks=32, block_size=8, overlap=True, **OPTIONS) as llm:
            results = llm.generate([[5, 6, 7], list(range(8, 60))], sampling, use_tqdm=False)
            return [list(result.outputs[0].token_ids) for result in results]

    def fails_sometimes(executor: DeviceExecutor, plan: StepPlan, *, waits: bool) -> Any:
        if next(steps) % 4 == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(executor, plan, waits=waits)

    wanted = tokens()
    monkeypatch.setattr(DeviceExecutor, "forward", fails_sometimes)
    assert tokens() == wanted and next(steps) > 12


def test_a_runner_that_stops_leaves_no_cycle_that_keeps_the_cache(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(monkeypatch, ImmediateStream())
    runner, driver = started(model, use_cuda_graph="on", **OPTIONS)
    driver.generate(driver.add(PROMPT, GREEDY), 3)
    cache = weakref.ref(runner.kv_cache[0].key)
    gc.disable()
    try:
        runner.stop()
        assert cache() is None, "the next runner needs the memory now"
    finally:
        gc.enable()


def test_a_result_that_cannot_be_read_ends_the_engine_and_makes_later_steps_void(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(monkeypatch, SimulatedStream())
    runner, driver = on_device(model)
    sequence = driver.add(PROMPT, GREEDY)
    runner.launch(driver.plan([(sequence, len(PROMPT))]))
    sequence.tokens.append(-7)
    runner.launch(driver.plan([(sequence, 1)], ahead=True))

    def fails(*_: object) -> None:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    with monkeypatch.context() as patch:
        patch.setattr("chairlift.model.sampling.device.result_ring.ResultRing.read", fails)
        with pytest.raises(EngineDead, match="illegal memory access"):
            runner.collect()
    assert not runner._results


def test_masks_that_cannot_be_used_make_their_step_void(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(monkeypatch, ImmediateStream())
    runner, driver = on_device(model)
    sequence = driver.add(PROMPT, GREEDY)
    driver.generate(sequence, 1)
    plan = masked_plan(driver, [(sequence, 1)], 0)
    runner.launch(plan)
    masks = masks_of(259, {0: {41}})
    with pytest.raises((RuntimeError, IndexError)):
        runner.supply_masks(plan.step_id, TokenMasks(masks.sample_indices, masks.bitmask[:, :1]))
    driver.restart(sequence)
    assert driver.generate(sequence, 4) == expected(model, PROMPT, GREEDY, 4)


@pytest.mark.full
def test_a_warm_up_captures_graphs_and_changes_no_token(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimulatedStream()
    use_device(monkeypatch, stream)
    runner, driver = started(model, use_cuda_graph="on", max_model_len=128, max_running_requests=12)
    sequence = driver.add(PROMPT, RANDOM)
    driver.generate(sequence, 3)
    runner.warmup()
    assert stream.num_graphs == 5  # 1, 2, 4, 8 and 12 rows
    assert driver.generate(sequence, 9) == expected(model, PROMPT, RANDOM, 9)
    assert stream.num_graphs == 5


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", ["qwen3_5", "granite_hybrid", "lfm2"])
def test_states_are_loaded_and_saved_in_the_order_of_the_device_s_work(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second round begins with checkpoints of the first; a device that is late still has the tokens of the host."""
    folder, prompts = str(save_tiny(kind, tmp_path, 0)), [[5, 6, 7], list(range(8, 60)), [9] * 33]
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

    def tokens(**options: Any) -> list[list[int]]:
        with LLM(
            folder, dtype="float64", num_blocks=64, block_size=8, max_chunk_tokens=20, max_model_len=128, **options
        ) as llm:
            rounds = [llm.generate(prompts, sampling, use_tqdm=False) for _ in range(2)]
        assert max(result.num_cached_tokens or 0 for result in rounds[1]) >= 32
        return [list(result.outputs[0].token_ids) for each in rounds for result in each]

    wanted = tokens()
    for overlap, stream in ((True, SimulatedStream()), (False, ImmediateStream())):
        use_device(monkeypatch, stream)
        assert tokens(overlap=overlap) == wanted
        assert stream.given > 0 and stream.num_graphs == 0
