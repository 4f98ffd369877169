"""TorchRunner over real tiny models: chunks, batches, NaN in the cache, void steps, reports and rejected options."""

import gc
import itertools
import math
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

from chairlift.core.cpu_affinity_and_priority import thread_ids
from chairlift.core.errors import ConfigError, ModelError, NonFiniteLogits, TokenOutOfRange
from chairlift.core.host.process_activity import ThreadTimes
from chairlift.engine.runner.base import RenewsThreads, RunnerSpec
from chairlift.model.attention.base import PagedKV
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.device import step_thread_count
from chairlift.model.device.kv_dtype import FLOAT8
from chairlift.model.device.step_thread_count import StepThreadCount
from chairlift.model.kernels.cpu.threads import renew_pool_threads
from chairlift.model.runner import model_loading, torch_runner
from chairlift.model.runner.model_loading import load
from chairlift.model.runner.torch_runner import TorchRunner, build
from support_batches import teacher_forced_logits
from support_models import save_tiny, tiny_hf_model
from support_native import need_native
from support_plans import Driver, int32
from support_process import wait_until
from support_runner import GREEDY, PROMPT, SEEDED, alone, started
from support_sampling import masks_of, params
from support_shares import FULL, each_value, for_each


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(RunnerConfig(dtype="float64", device="cpu"))


def poison(runner: TorchRunner, free: list[int] | None = None) -> None:
    assert runner._engine is not None
    for kv in runner._engine.kv:
        for cache in (kv.key, kv.value):
            if free is None:
                cache.fill_(torch.nan)
            else:
                cache[free] = torch.nan


def test_drafts_are_given_where_rounding_does_not_depend_on_the_batch(model: LoadedModel) -> None:
    assert started(model)[1]._info.no_drafts_reason == ""
    single = load(RunnerConfig(dtype="float32", kernels="torch", device="cpu"))
    assert "rounding depends on the batch" in started(single)[1]._info.no_drafts_reason


@pytest.mark.share(2)
@pytest.mark.parametrize(("block_size", "chunk"), each_value([1, 5, 16, 37], [1, 7, 16, 10**9]))
def test_chunks_and_blocks_change_no_token_and_no_logprob(model: LoadedModel, chunk: int, block_size: int) -> None:
    whole = alone(model, PROMPT, SEEDED)
    _, driver = started(model, block_size=block_size)
    sequence = driver.add(PROMPT, SEEDED)
    assert driver.generate(sequence, 12, chunk) == whole.outputs
    for one, other in zip(sequence.logprobs, whole.logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, rel=1e-9)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3"])
def test_greedy_tokens_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    oracle = tiny_hf_model(kind)
    runner = TorchRunner(RunnerConfig(model=str(save_tiny(kind, tmp_path)), dtype="float64", device="cpu",
                                      num_blocks=200, block_size=4))  # fmt: skip
    driver = Driver(runner, runner.start())
    sequences = [driver.add([11 + seed, 5, 6, *range(30, 30 + 9 * seed)], GREEDY) for seed in range(4)]
    driver.generate_all(sequences, 20, max_chunk=6)
    for sequence in sequences:
        prompt = torch.tensor([sequence.tokens[: sequence.prompt_length]])
        right = oracle.generate(prompt, max_new_tokens=20, do_sample=False, eos_token_id=-1, pad_token_id=0)
        assert sequence.outputs == right[0, sequence.prompt_length :].tolist()


@pytest.mark.share(1)
@pytest.mark.parametrize("seed", range(6 if FULL else 3))
def test_a_seeded_request_gives_the_same_tokens_alone_and_among_others(model: LoadedModel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, driver = started(model, seed, block_size=int(rng.integers(1, 20)), num_blocks=2000)
    sequences = []
    for index in range(int(rng.integers(2, 9))):
        prompt = rng.integers(0, 256, int(rng.integers(1, 50))).tolist()
        sequences.append(driver.add(prompt, params(seed=index, temperature=float(rng.uniform(0, 2)))))
    watched = driver.add(PROMPT, SEEDED)
    driver.generate_all([*sequences, watched], 12, max_chunk=int(rng.integers(1, 30)))
    assert watched.outputs == alone(model, PROMPT, SEEDED).outputs


def test_a_preempted_request_samples_the_same_tokens(model: LoadedModel) -> None:
    _, driver = started(model)
    sequence = driver.add(PROMPT, SEEDED)
    for count in (3, 4, 9, 12):
        driver.generate(sequence, count)
        driver.restart(sequence)
    assert sequence.outputs == alone(model, PROMPT, SEEDED).outputs


def test_nan_in_free_blocks_changes_no_request(model: LoadedModel) -> None:
    runner, driver = started(model)
    poison(runner)
    first, second = driver.add(PROMPT, SEEDED), driver.add(PROMPT[::-1], GREEDY)
    driver.generate_all([first, second], 6, max_chunk=9)
    driver.remove(second)
    poison(runner, [block for table in second.tables for block in table])
    third = driver.add(PROMPT[5:], GREEDY)
    driver.generate_all([first, third], 12, max_chunk=9)
    assert set(third.tables[0]) & set(second.tables[0]), "the freed blocks were to be used again"
    assert first.outputs == alone(model, PROMPT, SEEDED).outputs
    assert third.outputs == alone(model, PROMPT[5:], GREEDY).outputs


def test_a_poisoned_block_of_one_request_fails_that_request_alone(model: LoadedModel) -> None:
    runner, driver = started(model)
    first, second = driver.add(PROMPT, SEEDED), driver.add(PROMPT[::-1], GREEDY)
    driver.generate_all([first, second], 4, max_chunk=9)
    poison(runner, second.tables[0])
    for _ in range(8):
        driver.step([(first, 1), (second, 1)])
    assert first.outputs == alone(model, PROMPT, SEEDED).outputs
    assert not first.errors
    assert all(isinstance(error, NonFiniteLogits) for error in second.errors)
    assert len(second.errors) == 8


def test_a_step_that_is_launched_before_the_last_is_collected_knows_its_token(model: LoadedModel) -> None:
    runner, driver = started(model)
    sequence = driver.add(PROMPT, SEEDED)
    plans = [driver.plan([(sequence, len(PROMPT))])] + [None] * 11
    runner.launch(plans[0])
    for step in range(1, 12):
        sequence.tokens.append(-7)
        plans[step] = driver.plan([(sequence, 1)], ahead=True)
        runner.launch(plans[step])
    results = [runner.collect() for _ in range(12)]
    assert [result.step_id for result in results] == [plan.step_id for plan in plans]
    assert [int(result.tokens[0]) for result in results] == alone(model, PROMPT, SEEDED).outputs


@pytest.mark.share(1)
@pytest.mark.parametrize("error", [RuntimeError("kernel"), MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
@pytest.mark.parametrize("where", ["forward", "logits"])
def test_a_raise_in_the_model_leaves_the_runner_usable(
    model: LoadedModel, where: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, driver = started(model)
    first, second = driver.add(PROMPT, SEEDED), driver.add(PROMPT[::-1], SEEDED)
    driver.generate_all([first, second], 5, max_chunk=9)
    before = driver.plan([(first, 1)])
    runner.launch(before)

    def raising(*_: object) -> None:
        raise error

    late = driver.add(PROMPT[3:], GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr(model.model, where, raising)
        with pytest.raises(MemoryError if isinstance(error, torch.OutOfMemoryError) else type(error)):
            runner.launch(driver.plan([(second, 1), (late, len(late.tokens))]))
    driver.apply_result([(first, 1)], before, runner.collect())
    driver.restart(second)
    driver.restart(late)
    driver.generate_all([first, second, late], 12, max_chunk=20)
    for sequence in (first, second, late):
        assert sequence.outputs == alone(model, sequence.tokens[: sequence.prompt_length], sequence.params).outputs


def test_an_unknown_id_is_rejected_and_the_other_requests_go_on(model: LoadedModel) -> None:
    runner, driver = started(model)
    good, bad = driver.add(PROMPT, SEEDED), driver.add([1, 259], GREEDY)
    with pytest.raises(TokenOutOfRange, match="259 is outside the vocabulary, which has 259"):
        runner.launch(driver.plan([(good, len(PROMPT)), (bad, 2)]))
    driver.restart(good)
    assert driver.generate(good, 12) == alone(model, PROMPT, SEEDED).outputs


def test_the_runner_reports_its_sizes_and_derived_values() -> None:
    config = RunnerConfig(device="cpu", max_model_len=500, max_running_requests=3, block_size=7, seed=5)
    runner = RunnerSpec("chairlift.model.runner.torch_runner:build", config.encode()).build()
    info = runner.start()
    assert (info.vocab_size, info.max_model_len, info.block_size, info.windows) == (259, 500, 7, (None,))
    assert info.num_blocks == 3 * 72
    assert info.device == "cpu"
    report = dict(info.startup_report)
    assert report["max_model_len"] == "500 (the model's limit is 1024)"
    assert {"device", "dtype", "free memory", "memory of a step", "num_blocks", "seconds to load"} <= report.keys()
    assert "as many as max_running_requests" in report["num_blocks"]


def test_a_longer_limit_than_the_model_s_own_is_rejected_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len is 5000, the model's limit is 1024"):
        build(RunnerConfig(device="cpu", max_model_len=5000, num_blocks=9).encode()).start()


def test_blocks_that_cannot_hold_the_limit_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"num_blocks is 9, a request of max_model_len 500 tokens needs 32"):
        build(RunnerConfig(device="cpu", max_model_len=500, num_blocks=9).encode()).start()
    build(RunnerConfig(device="cpu", max_model_len=145, num_blocks=9).encode()).start()


def test_a_length_that_fits_the_cache_is_lowered_to_what_the_blocks_hold_and_the_model_runs_with_it() -> None:
    for num_blocks, length, reason in ((9, 145, "as many as the KV cache holds; "), (900, 1024, "")):
        config = RunnerConfig(device="cpu", fits_length_to_cache=True, num_blocks=num_blocks, max_running_requests=3)
        runner = build(config.encode())
        info = runner.start()
        assert info.max_model_len == length and info.num_blocks == num_blocks
        assert dict(info.startup_report)["max_model_len"] == f"{length} ({reason}the model's limit is 1024)"
        runner.warmup()
        runner.stop()


def test_hybrid_layers_come_as_groups_over_one_pool(tmp_path: Path) -> None:
    config = RunnerConfig(model=str(save_tiny("gemma3", tmp_path)), device="cpu", num_blocks=30)
    runner = TorchRunner(config)
    info = runner.start()
    assert sorted(info.windows, key=str) == [20, 20, 20, None]
    assert runner._engine is not None
    assert len(runner._engine.kv) == 1
    assert info.block_bytes == sum(one.key.nbytes + one.value.nbytes for one in runner._engine.kv) // 30


@for_each(
    "options",
    [
        {"dtype": "float8"}, {"device": "toaster"}, {"device": "cuda:99"}, {"attention_backend": "magic"},
        {"block_size": 0}, {"num_blocks": 0}, {"max_batch_tokens": 0}, {"max_running_requests": 0},
        {"max_model_len": 1}, {"max_memory": 0.0}, {"max_memory": 1.5}, {"max_memory": -3}, {"max_memory": 1},
        {"num_blocks": 10**12},
    ],
)  # fmt: skip
def test_an_invalid_option_is_rejected_by_name(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        TorchRunner(RunnerConfig(**{"device": "cpu"} | options)).start()
    assert caught.value.details["option"] == next(iter(options))


def test_a_folder_that_is_not_there_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        TorchRunner(RunnerConfig(model=str(tmp_path / "nowhere"), device="cpu")).start()


def test_a_cache_that_cannot_be_allocated_is_a_config_error(
    monkeypatch: pytest.MonkeyPatch, model: LoadedModel
) -> None:
    class Greedy:
        def allocate_kv_cache(self, *_: object) -> None:
            raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(torch_runner, "make_backend", lambda *_, **__: Greedy())
    with pytest.raises(ConfigError, match="cannot allocate 400 blocks"):
        started(model)


def test_a_runner_of_a_device_that_failed_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = TorchRunner(RunnerConfig())
    runner._engine = Mock(loaded=Mock(device=torch.device("cuda")))

    def fails() -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", fails)
    runner.stop()
    assert runner._engine is None


def test_stop_may_be_called_at_any_time_and_twice(model: LoadedModel) -> None:
    TorchRunner(RunnerConfig()).stop()
    runner, driver = started(model)
    runner.launch(driver.plan([(driver.add(PROMPT, GREEDY), 5)]))
    runner.stop()
    runner.stop()
    with pytest.raises(AssertionError, match="before start, or after stop"):
        runner.launch(driver.plan([]))


@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_masks_may_come_before_the_launch_or_behind_it(kernels: str) -> None:
    if kernels == "native":
        need_native()
    loaded = load(RunnerConfig(dtype="bfloat16", device="cpu", kernels=kernels))
    runner, driver = started(loaded)
    sequences = [driver.add([number, *PROMPT], GREEDY) for number in range(3)]
    sampled: dict[bool, list[list[int]]] = {False: [], True: []}
    for is_early in (False, True):
        for step in range(3):  # a prompt, and generated tokens
            parts = [(sequence, len(sequence.tokens) - sequence.computed) for sequence in sequences]
            plan = replace(driver.plan(parts), masked_samples=int32(0, 2))
            masks = masks_of(loaded.model.vocab_size, {0: {40 + step, 50}, 2: {60 + step}})
            if is_early:
                runner.supply_masks(plan.step_id, masks)
                runner.launch(plan)
            else:
                runner.launch(plan)
                runner.supply_masks(plan.step_id, masks)
            result = runner.collect()
            driver.apply_result(parts, plan, result)
            sampled[is_early].append(result.tokens.tolist())
        for sequence in sequences:
            driver.restart(sequence)
            del sequence.tokens[sequence.prompt_length :]
    assert sampled[True] == sampled[False]
    free = alone(loaded, [1, *PROMPT], GREEDY, 3).outputs
    for step, (first, second, third) in enumerate(sampled[True]):
        assert first in {40 + step, 50} and second == free[step] and third == 60 + step


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("float64", {"kernels": "torch"}), ("float32", {"kernels": "torch"}),
        ("bfloat16", {"kernels": "native", "cpu_threads": 3}),
        ("bfloat16", {"kernels": "native", "cpu_threads": 3, "quantization": "int8"}),
    ],
)  # fmt: skip
def test_the_number_of_threads_may_change_between_steps_and_changes_no_token(
    dtype: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_native := options["kernels"] == "native":
        need_native()
    monkeypatch.setattr(step_thread_count, "MAX_COST", math.inf)
    loaded = load(RunnerConfig(dtype=dtype, device="cpu", **options))
    whole, before = alone(loaded, PROMPT, SEEDED), torch.get_num_threads()
    runner, driver = started(loaded)
    busy, calm = [ThreadTimes(20.0, 800.0)] * 2, [ThreadTimes(99.0, 0.0)]
    delays, counts, seconds = itertools.cycle([busy, busy, calm, calm, calm, calm]), list[int](), itertools.count(0, 99)

    def apply(count: int) -> None:
        counts.append(count)
        renew_pool_threads(count) if is_native else torch.set_num_threads(count)

    runner._threads = StepThreadCount(2, read=lambda: next(delays), now=lambda: float(next(seconds)), apply=apply)
    try:
        sequence = driver.add(PROMPT, SEEDED)
        driver.generate(sequence, 12, 7)
    finally:
        torch.set_num_threads(before)
        renew_pool_threads(9)
    assert counts.count(1) >= 3 and counts.count(2) >= 3
    assert sequence.outputs == whole.outputs and (not is_native or sequence.logprobs == whole.logprobs)


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has no priority of its own on this system")
def test_the_threads_of_the_native_kernels_are_renewed() -> None:
    need_native()
    runner, driver = started(load(RunnerConfig(dtype="bfloat16", device="cpu", kernels="native", cpu_threads=3)))
    assert isinstance(runner, RenewsThreads)
    sequence, before = driver.add(PROMPT, GREEDY), thread_ids()
    driver.generate(sequence, 2)
    runner.renew_threads()
    wait_until(lambda: len(thread_ids()) <= len(before))
    assert len(thread_ids() - before) >= 2
    driver.generate(sequence, 4)
    runner.stop()


@pytest.mark.share(1)
@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_a_stopped_runner_holds_no_cache_though_the_model_lives_on(kernels: str) -> None:
    if kernels == "native":
        need_native()
    loaded = load(RunnerConfig(dtype="bfloat16", device="cpu", kernels=kernels))
    for _ in range(2):  # and the second one computes on a cache of its own
        runner, driver = started(loaded)
        sequence = driver.add(PROMPT, GREEDY)
        driver.generate(sequence, 4)
        assert runner._engine is not None
        key = weakref.ref(runner._engine.kv[0].key)
        runner.stop()
        gc.collect()
        assert key() is None


def test_released_blocks_change_no_sequence_that_is_outside_of_them(model: LoadedModel) -> None:
    runner, driver = started(model, num_blocks=100_000)
    sequence = driver.add(PROMPT, GREEDY)
    driver.generate(sequence, 4)
    kept = 1 + max(block for table in sequence.tables for block in table)
    before = [tensor[kept - 1].clone() for kv in runner.kv_cache for tensor in (kv.key, kv.value)]
    assert runner.release_blocks(kept + 1, [(kept - 1, kept)]) > 2**20
    moved = [tensor[kept] for kv in runner.kv_cache for tensor in (kv.key, kv.value)]
    assert all(torch.equal(*each) and each[0].any() for each in zip(before, moved, strict=True))
    assert runner.release_blocks(kept) > 2**20
    driver.generate(sequence, 12)
    assert sequence.outputs == alone(model, PROMPT, GREEDY).outputs
    runner.stop()
    assert runner.release_blocks(0) == 0


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_logits_of_a_cache_of_8_bit_floats_are_those_of_rounded_keys_and_values(
    kind: str, backend: str, tmp_path: Path
) -> None:
    class Rounding(ReferenceAttention):
        def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
            super().write_kv(*(each.to(FLOAT8).double() for each in (key, value)), kv, slot_mapping)

    class Float8(TorchAttention if backend == "torch" else ReferenceAttention):  # type: ignore[misc]
        def allocate_kv_cache(self, *sizes: Any) -> list[PagedKV]:
            return super().allocate_kv_cache(*sizes[:5], FLOAT8, sizes[6])

    model = load(RunnerConfig(model=str(save_tiny(kind, tmp_path)), dtype="float64", device="cpu")).model
    ids = [[(7 * at + row) % model.vocab_size for at in range(20 + row)] for row in range(3)]
    found, expected = (
        teacher_forced_logits(model, ids, torch.float64, max_chunk=9, backend=one) for one in (Float8(), Rounding())
    )
    plain = teacher_forced_logits(model, ids, torch.float64, max_chunk=9)
    for ours, rounded, exact in zip(found, expected, plain, strict=True):
        torch.testing.assert_close(ours, rounded, rtol=1e-9, atol=1e-9)
        assert (ours - exact).abs().max() > 1e-4, "the cache has rounded"


def test_a_runner_has_a_cache_of_8_bit_floats_with_blocks_of_half_the_bytes() -> None:
    infos, dtypes = [], set()
    for cache in ("auto", "fp8"):
        runner = TorchRunner(RunnerConfig(dtype="bfloat16", device="cpu", kernels="torch", num_blocks=16,
                                          kv_cache_dtype=cache))  # fmt: skip
        infos.append(runner.start())
        dtypes |= {each.key.dtype for each in runner.kv_cache}
        runner.warmup()
        runner.stop()
    assert dtypes == {torch.bfloat16, FLOAT8} and infos[0].block_bytes == 2 * infos[1].block_bytes
    assert dict(infos[1].startup_report)["kernels"] == "torch (kv_cache_dtype is fp8)"
    assert infos[0].model_id != infos[1].model_id


def test_a_gpu_without_8_bit_floats_is_rejected_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_loading, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ConfigError, match=r"capability 8\.9 .*, cuda has 8\.0; set kv_cache_dtype to auto"):
        TorchRunner(RunnerConfig(kv_cache_dtype="fp8")).start()


def test_the_memory_of_a_cuda_device_is_that_of_torchs_allocator(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, _ = started(model)
    assert runner.device_memory() == (0, 0)
    device = torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda of: 7 if of == device else 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda of: 9 if of == device else 0)
    executor = runner._engine
    assert executor is not None
    runner._engine = replace(executor, loaded=replace(model, device=device))
    assert runner.device_memory() == (7, 9)
    runner._engine = executor
    runner.stop()
    assert runner.device_memory() == (0, 0)
