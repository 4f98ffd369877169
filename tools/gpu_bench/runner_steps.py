"""RunnerSteps: drives a TorchRunner with plans of decode and prefill steps, without scheduler, and times the steps."""

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from chairlift.bench.offline.offline_benchmark import HIDDEN_ROWS
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.step_plan import LAST_SAMPLED, Int32, NewSequence, StepPlan
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.backends.select_backend import select_backend
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.loading.model_building import random_model
from chairlift.model.runner.torch_runner import TorchRunner
from gpu_bench.bench_shapes import BenchShape, BenchSizes
from gpu_bench.device_timer import DeviceTimer

BLOCK_SIZE = 16
"""Tokens in a block of the KV cache, the default of the engine."""

WEIGHT_SCALE = 0.02
"""Standard deviation of the random weights: that of freshly initialised models."""

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True).with_defaults({}, max_tokens=1_000_000, seed=0)


def load_random(shape: BenchShape, device: torch.device, **options: Any) -> LoadedModel:
    """Load a model whose random bfloat16 weights are generated on the device.

    `options` are further fields of the RunnerConfig. Raises ConfigError for options that the device does not support.
    """
    runner_config = RunnerConfig(device=str(device), dtype="bfloat16", kernels="torch", **options)
    backend = select_backend(runner_config, shape.decoder_config, device)
    model, loaded_config = random_model(
        shape.decoder_config, seed=0, dtype="bfloat16", device=device, max_model_len=None, scale=WEIGHT_SCALE,
        choose_backend=lambda _: backend, draws_on_device=True,
    )  # fmt: skip
    return LoadedModel(
        model, loaded_config, device, f"random {shape.name}", backend.attention(), backend.chunk_tokens, backend.cpus,
        backend.report(), backend.sampling_ops(), backend.torch_threads,
    )  # fmt: skip


def runner_facts(info: RunnerInfo) -> dict[str, str]:
    """Return the runner's startup report without the rows that may name folders of the machine."""
    return {name: value for name, value in info.startup_report if name not in HIDDEN_ROWS}


@dataclass(frozen=True, slots=True)
class DecodeTimes:
    """Timed decode steps.

    Attributes:
        seconds: of each step, from one result to the next.
        total: of all of them, until the device is done.
        mean_context: mean length of a sequence, the new token included.
    """

    seconds: list[float]
    total: float
    mean_context: float

    @property
    def mean_seconds(self) -> float:
        """Mean seconds of a step."""
        return self.total / len(self.seconds)


class RunnerSteps:
    """A started runner with one layer group and no scheduler.

    The KV cache holds random numbers. Two steps are in flight, as in the engine with `overlap`.
    """

    def __init__(self, loaded: LoadedModel, sizes: BenchSizes, **options: Any) -> None:
        """Start and warm up the runner; `options` are further fields of its RunnerConfig.

        Raises ConfigError when the cache does not fit the device.
        """
        self._sizes = sizes
        tokens = max(sizes.batches) * (sizes.context + 2 * sizes.num_steps + BLOCK_SIZE)
        num_blocks = max(tokens, sizes.max_model_len + BLOCK_SIZE) // BLOCK_SIZE
        config = RunnerConfig(
            device=str(loaded.device), dtype="bfloat16", block_size=BLOCK_SIZE, num_blocks=num_blocks,
            max_batch_tokens=max(sizes.prefill, *sizes.batches), max_running_requests=max(sizes.batches),
            max_model_len=sizes.max_model_len, **options,
        )  # fmt: skip
        self.runner = TorchRunner(config, loaded)
        self.timer = DeviceTimer(loaded.device)
        self._next_step_id, self._running = 0, 0
        try:
            self.info = self.runner.start()
            self._fill_cache()
            self.runner.warmup()
        except BaseException:
            self.runner.stop()
            raise
        self._block_ids = np.random.default_rng(0).permutation(self.info.num_blocks).astype(np.int32)

    def close(self) -> None:
        """Free the cache."""
        self.runner.stop()

    def time_decode(self, batch: int, limit: float) -> DecodeTimes:
        """Time decode steps of `batch` sequences, one at least; no other one starts after `limit` seconds."""
        plans = self.start_decodes(batch)
        contexts: list[int] = []

        def timed_plans() -> Iterator[StepPlan]:
            for plan in itertools.islice(plans, self._sizes.num_steps):
                if time.perf_counter() - started_at > limit and contexts:
                    return
                contexts.append(int(plan.start_positions[0]) + 1)
                yield plan

        self.timer.synchronize()
        started_at = time.perf_counter()
        ends = [moment - started_at for moment in self.run(timed_plans())]
        self.timer.synchronize()
        total = time.perf_counter() - started_at
        seconds = [end - begin for begin, end in itertools.pairwise([0.0, *ends])]
        return DecodeTimes(seconds, total, sum(contexts) / len(contexts))

    def start_decodes(self, batch: int) -> Iterator[StepPlan]:
        """Run the first decode steps of `batch` new sequences; returns the plans of the next ones."""
        plans = self._decode_plans(batch)
        self.run(itertools.islice(plans, max(1, self._sizes.num_steps // 4)))
        return plans

    def run(self, plans: Iterable[StepPlan]) -> list[float]:
        """Run steps, two of them in flight; returns the time.perf_counter() at which each was collected."""
        ends, in_flight = [], 0
        for plan in plans:
            self.runner.launch(plan)
            in_flight += 1
            if in_flight == 2:
                self._collect()
                ends.append(time.perf_counter())
                in_flight -= 1
        for _ in range(in_flight):
            self._collect()
            ends.append(time.perf_counter())
        return ends

    def _fill_cache(self) -> None:
        """Write random numbers, which torch generates in bfloat16 for every dtype of the cache."""
        with torch.inference_mode():
            for kv in self.runner.kv_cache:
                for tensor in (kv.key, kv.value):
                    tensor.copy_(torch.randn(tensor.shape, dtype=torch.bfloat16, device=tensor.device))

    def _collect(self) -> None:
        """Read a result. Raises the error of its first row that failed."""
        for _, error in self.runner.collect().row_errors:
            raise error

    def prefill(self) -> None:
        """Run one step with the whole prompt of one sequence, and read the sampled token."""
        length = self._sizes.prefill
        self.runner.launch(self._plan(1, length, 0, np.arange(length, dtype=np.int32) % self.info.vocab_size))
        self._collect()

    def _decode_plans(self, batch: int) -> Iterator[StepPlan]:
        """Yield plans of consecutive decode steps of new sequences.

        The first starts them in the middle of a sequence, so that the timed steps have the mean context of the sizes.
        """
        timed, warm_ups = self._sizes.num_steps, self._sizes.num_steps // 4
        start = max(1, self._sizes.context - warm_ups - timed // 2)
        yield self._plan(batch, 1, start, np.arange(batch, dtype=np.int32) % self.info.vocab_size)
        last_sampled = np.full(batch, LAST_SAMPLED, np.int32)
        for position in range(start + 1, self._sizes.context + 2 * timed):
            yield self._plan(batch, 1, position, last_sampled)

    def _plan(self, batch: int, num_new: int, start: int, input_ids: Int32) -> StepPlan:
        """Build the next plan: `batch` rows with new tokens from position `start` on; known input ids start them."""
        is_first = bool(input_ids[0] != LAST_SAMPLED)
        released = tuple(range(self._running)) if is_first else ()
        new: tuple[NewSequence, ...] = ()
        blocks = np.empty((0, 4), np.int32)
        if is_first:
            self._running = batch
            prompt = (1,) * (start + num_new)
            new = tuple(NewSequence(slot, prompt, 0, GREEDY) for slot in range(batch))
            blocks = self._blocks_of(batch, max(start + num_new, self._sizes.context + 2 * self._sizes.num_steps))
        self._next_step_id += 1
        rows = np.arange(batch, dtype=np.int32)
        return StepPlan(
            step_id=self._next_step_id, released_slots=released, new_sequences=new, slots=rows,
            num_new_tokens=np.full(batch, num_new, np.int32), start_positions=np.full(batch, start, np.int32),
            new_blocks=blocks, input_ids=input_ids, sample_rows=rows,
        )  # fmt: skip

    def _blocks_of(self, batch: int, num_tokens: int) -> Int32:
        """Return `new_blocks` for sequences of so many tokens, scattered over the cache."""
        per_row = -(-num_tokens // BLOCK_SIZE)
        rows = np.repeat(np.arange(batch, dtype=np.int32), per_row)
        indices = np.tile(np.arange(per_row, dtype=np.int32), batch)
        ids = self._block_ids[: batch * per_row]
        return np.stack([rows, np.zeros_like(rows), indices, ids], axis=1)
