"""DeviceExecutor: gives a device the work of a step, and does not wait for it unless a row needs the host.

    forward: plan ─► inputs made on the device ─► layers, lm_head, sampler (one CUDA graph for a decode step)
    sample:  what is left to sample ─► copy of the tokens to pinned memory ─► DeviceResult
    read:    waits for the copy ─► StepResult

A slot is sampled on the device, or on the host if its parameters need more than that (DeviceSampler.can_sample). The
next step reads the tokens where the device wrote them, so it may be launched before they are read.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import isfinite

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.engine_output import TokenLogprob
from chairlift.core.errors import ChairliftError
from chairlift.engine.step_plan import Int32, StepPlan, TokenMasks
from chairlift.engine.step_result import StepResult
from chairlift.model.attention.base import AttentionBackend, PagedKV
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.batch.input_batch import StepInputs
from chairlift.model.batch.state_cache import StateCache
from chairlift.model.batch.state_step import entry_loads
from chairlift.model.device.device_stream import DeviceStream
from chairlift.model.device.page_prefault import PagePrefaulter
from chairlift.model.device.pinned_copy import copy_from_pinned
from chairlift.model.layers.causal_lm_protocol import ForwardContext
from chairlift.model.runner.decode_graphs import ComputeStep, DecodeGraphs
from chairlift.model.runner.device_input_batch import DeviceInputBatch
from chairlift.model.runner.prompt_pooling import PooledRows, PromptPooling
from chairlift.model.sampling.device.device_sampling import DeviceSampler
from chairlift.model.sampling.device.fixed_point_sampling import AllowedTokens
from chairlift.model.sampling.device.result_ring import ResultRing
from chairlift.model.sampling.prompt_logprobs import PromptLogprobRows, PromptLogprobs
from chairlift.model.sampling.sampler import Sampler, SamplerOutput, no_token_error, non_finite_error

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(slots=True)
class DeviceStep:
    """A step that the device was given, whose rows are sampled in part or not at all.

    Attributes:
        plan: the plan of the step.
        on_host: bool [R], sample rows whose slots are sampled on the host.
        needs_no_token: whether the tokens of all rows would be dropped.
        is_sampled: whether the graph has sampled the rows that are not on the host.
        rows: int64 [R], the rows of states and logits that belong to the sample rows.
        states: hidden states [N, H] of these rows and others; None until the work is given.
        logits: logits [N, V]; None where no row is sampled on the device.
        prompt_logprobs: prompt logprobs by row.
        row_errors: errors of prompt logprobs by row.
        pooled: hidden states by row.
    """

    plan: StepPlan
    on_host: Bools
    rows: Int64
    needs_no_token: bool = False
    is_sampled: bool = False
    states: Tensor | None = None
    logits: Tensor | None = None
    prompt_logprobs: PromptLogprobRows = ()
    row_errors: dict[int, ChairliftError] = field(default_factory=dict)
    pooled: PooledRows = ()

    @property
    def on_device(self) -> Bools:
        """Sample rows whose slots are sampled on the device, bool [R]."""
        return np.zeros_like(self.on_host) if self.needs_no_token else ~self.on_host


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """The result of a step that the device may still compute.

    Attributes:
        step: the step.
        ring: where the tokens are copied to.
        index: the buffer of the ring; None if no row was sampled on the device.
        on_host: the tokens of the rows that were sampled on the host; None for none.
    """

    step: DeviceStep
    ring: ResultRing
    index: int | None
    on_host: SamplerOutput | None

    def read(self) -> StepResult:
        """Wait for the device, and return the result."""
        step, plan = self.step, self.step.plan
        count = len(plan.sample_rows)
        tokens, errors = np.zeros(count, np.int32), dict[int, ChairliftError]()
        logprobs: tuple[TokenLogprob | None, ...] = ()
        if self.index is not None:
            on_device = np.flatnonzero(step.on_device)
            tokens[on_device], max_logits = self.ring.read(self.index, step.rows[on_device])
            errors |= _device_errors(on_device, max_logits)
        if self.on_host is not None:
            on_host = np.flatnonzero(step.on_host)
            tokens[on_host] = self.on_host.tokens
            errors |= {int(on_host[row]): error for row, error in self.on_host.row_errors.items()}
            logprobs = _spread(self.on_host.logprobs, on_host, count)
        row_errors = dict(step.row_errors)
        for index, error in sorted(errors.items()):
            # An error of the prompt logprobs came first and stays.
            row_errors.setdefault(int(plan.sample_rows[index]), error)
        return StepResult(
            step_id=plan.step_id, tokens=tokens, cu_tokens=np.arange(count + 1, dtype=np.int32), logprobs=logprobs,
            row_errors=tuple(row_errors.items()), prompt_logprobs=step.prompt_logprobs, pooled=step.pooled,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _DecodeStep:
    """What a graph captures: computes hidden states and logits of a decode step's inputs, and samples."""

    loaded: LoadedModel
    backend: AttentionBackend
    kv: list[PagedKV]
    sampler: DeviceSampler

    def __call__(self, inputs: StepInputs, slots: Tensor) -> tuple[Tensor, Tensor]:
        context = ForwardContext(inputs.batch, self.kv, self.backend, self.backend.plan(inputs.batch))
        states = self.loaded.model.forward(inputs.input_ids, context)
        logits = self.loaded.model.logits(states)
        self.sampler.sample(logits, slots)
        return states, logits


class DeviceExecutor:
    """Computes and samples steps on a device; see StepExecutor (executor_and_cuda_graph_choice.py).

    Attributes:
        is_asynchronous: True: the masks of a step must be supplied before the next step is launched.
        loaded, backend, kv, populator: the parts that it computes with.
        states: of a model with layers that keep some.
    """

    is_asynchronous = True

    def __init__(
        self, loaded: LoadedModel, backend: AttentionBackend, kv: list[PagedKV], populator: PagePrefaulter, *,
        tables: DeviceInputBatch, stream: DeviceStream, host_sampler: Sampler, prompt_logprobs: PromptLogprobs,
        max_slots: int, states: StateCache | None = None,
    ) -> None:  # fmt: skip
        self.loaded, self.backend, self.kv, self.populator = loaded, backend, kv, populator
        self.states = states
        self._tables, self._stream = tables, stream
        self._host_sampler, self._host_slots = host_sampler, set[int]()
        self._prompt_logprobs, self._prompt_pooling = prompt_logprobs, PromptPooling()
        self._device_sampler = DeviceSampler(
            max_slots, max_slots, loaded.device, last_sampled=tables.last_sampled
        )  # fmt: skip
        self._ring = ResultRing(len(self._device_sampler.buffers.results), loaded.device, stream)
        self._graphs: DecodeGraphs | None = None

    def use_graphs(self, make: Callable[[ComputeStep], DecodeGraphs]) -> DecodeGraphs:
        """Compute decode steps by graphs from now on; `make` gets what they capture."""
        self._graphs = make(_DecodeStep(self.loaded, self.backend, self.kv, self._device_sampler))
        return self._graphs

    def prepare(self) -> None:
        """Capture the graphs that steps will need first. No step may be in flight."""
        if self._graphs is not None:
            self._graphs.capture_first()

    def forward(self, plan: StepPlan, *, waits: bool) -> DeviceStep:
        """Apply a plan and give the device its model's work; `waits` if masks are missing."""
        self._apply(plan)
        slots = plan.slots[plan.sample_rows]
        step = DeviceStep(plan, self._are_on_host(slots), np.arange(len(slots)))
        if not plan.num_rows:
            step.needs_no_token = True
            return step
        bucket = None if self._graphs is None or self._needs_states else self._graphs.bucket_of(plan)
        if self._graphs is not None and bucket is not None and self._graphs.capture(bucket):
            step.rows = plan.sample_rows.astype(np.int64)
            # The graph's sampler takes no masks, so a step with some is sampled outside of it.
            step.is_sampled = not len(plan.masked_samples)
            by_row = np.full(plan.num_rows, -1, np.int32)
            if step.is_sampled:
                by_row[step.rows[~step.on_host]] = slots[~step.on_host]
            step.states, step.logits = self._graphs.launch(plan, bucket, by_row)
            return step
        self._run_layers(step)
        return step

    def sample(self, step: DeviceStep, masks: TokenMasks | None) -> DeviceResult:
        """Sample the rows of a step that are left; rows of the host make it wait for the device."""
        on_device, index, on_host = step.on_device, None, None
        if on_device.any():
            if not step.is_sampled:
                self._sample_on_device(step, masks)
            index = self._ring.copy(self._device_sampler.buffers.results)
        if not step.needs_no_token and step.on_host.any():
            on_host = self._sample_on_host(step, masks)
        return DeviceResult(step, self._ring, index, on_host)

    @property
    def _needs_states(self) -> bool:
        """Whether the host needs hidden states of a running sequence."""
        return self._prompt_logprobs.has_requests or self._prompt_pooling.has_requests

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.released_slots:
            self._release(slot)
        self._tables.apply(plan)
        on_device = []
        for new in plan.new_sequences:
            # The slot's last sequence may have been sampled on the host, which must forget it.
            self._release(new.slot)
            self._prompt_logprobs.admit(new)
            self._prompt_pooling.admit(new)
            if DeviceSampler.can_sample(new.params):
                on_device.append(new)
            else:
                self._host_slots.add(new.slot)
                self._host_sampler.add_sequence(new)
        if on_device:
            self._stream.run(lambda: self._device_sampler.add_sequences(on_device))
        # Given before the layers, which on the same stream read the copied blocks.
        if len(copies := plan.block_copies):
            self._stream.run(lambda: self.backend.copy_blocks(self.kv, copy_from_pinned(copies, self.loaded.device)))
        if (states := self.states) is not None and len(plan.state_loads):
            loads = entry_loads(plan.state_loads, states.num_slots)
            self._stream.run(lambda: states.load(loads))

    def _release(self, slot: int) -> None:
        self._host_slots.discard(slot)
        self._host_sampler.remove_slot(slot)
        self._prompt_logprobs.release(slot)
        self._prompt_pooling.release(slot)

    def _are_on_host(self, slots: Int32) -> Bools:
        if not self._host_slots:
            return np.zeros(len(slots), bool)
        return np.isin(slots, list(self._host_slots))

    def _run_layers(self, step: DeviceStep) -> None:
        """Give the device the layers of a step without a graph, and what the host needs of the hidden states."""
        plan, model = step.plan, self.loaded.model
        inputs = self._tables.inputs(plan, self.loaded.device)
        rows = None if self.states is None else self.states.step(plan)
        all_states: list[Tensor] = []
        step.needs_no_token = self._prompt_pooling.needs_no_token(plan)
        needs_logits = step.on_device.any()

        def work() -> None:
            context = ForwardContext(
                inputs.batch, self.kv, self.backend, self.backend.plan(inputs.batch), self.states, rows
            )  # fmt: skip
            all_states.append(model.forward(inputs.input_ids, context))
            step.states = all_states[0].index_select(0, inputs.batch.logits_indices)
            step.logits = model.logits(step.states) if needs_logits else None

        self._stream.run(work)
        if self._needs_states:
            self._stream.synchronize()
            computed = self._prompt_logprobs.compute(plan, all_states[0], lambda hidden, slot: model.logits(hidden))
            step.prompt_logprobs, step.row_errors = computed
            step.pooled = self._prompt_pooling.compute(plan, all_states[0])

    def _sample_on_device(self, step: DeviceStep, masks: TokenMasks | None) -> None:
        """Sample all rows of the device by one launch outside of a graph."""
        plan, on_device, device = step.plan, step.on_device, self.loaded.device
        # The logits of a graph have all rows of its bucket; none behind the last sample row is sampled.
        count = int(step.rows.max()) + 1
        slots = np.full(count, -1, np.int32)
        slots[step.rows[on_device]] = plan.slots[plan.sample_rows][on_device]
        masked = None if masks is None else _device_masks(masks, step, count)

        def work() -> None:
            assert step.logits is not None, "the layers come first"
            allowed = None if masked is None else AllowedTokens(*(copy_from_pinned(part, device) for part in masked))
            self._device_sampler.sample(step.logits[:count], copy_from_pinned(slots, device), allowed)

        self._stream.run(work)

    def _sample_on_host(self, step: DeviceStep, masks: TokenMasks | None) -> SamplerOutput:
        plan = step.plan
        self._stream.synchronize()
        assert step.states is not None, "the layers come first"
        states = step.states.index_select(0, copy_from_pinned(step.rows[step.on_host], self.loaded.device))
        slots = plan.slots[plan.sample_rows][step.on_host].astype(np.int64)
        if masks is not None:
            # The sampler gets the rows of the host only, so masks are renumbered to these.
            chosen = step.on_host[masks.sample_indices]
            index = (step.on_host.cumsum() - 1).astype(np.int32)[masks.sample_indices[chosen]]
            masks = TokenMasks(index, masks.bitmask[chosen]) if chosen.any() else None
        output = self._host_sampler.sample(partial(self.loaded.model.head, states), slots, masks)
        self._tables.store_sampled(slots, output.tokens)
        return output


def _device_masks(masks: TokenMasks, step: DeviceStep, count: int) -> tuple[Int32, Int32] | None:
    """Return the bitmask of masked rows of the device, and for `count` rows of logits its row or -1; None for none."""
    chosen = step.on_device[masks.sample_indices]
    if not chosen.any():
        return None
    mask_rows = np.full(count, -1, np.int32)
    mask_rows[step.rows[masks.sample_indices[chosen]]] = np.arange(int(chosen.sum()), dtype=np.int32)
    return np.ascontiguousarray(masks.bitmask[chosen]), mask_rows


def _device_errors(rows: Int64, max_logits: NDArray[np.float32]) -> dict[int, ChairliftError]:
    """Return the errors of sample rows whose largest logit [R, 2], or largest allowed one, is not finite."""
    errors: dict[int, ChairliftError] = {}
    for row, (largest, allowed) in zip(rows.tolist(), max_logits.tolist(), strict=True):
        if not isfinite(largest):
            errors[row] = non_finite_error(largest)
        elif not isfinite(allowed):
            errors[row] = no_token_error(allowed, None, 0, True)
    return errors


def _spread(
    logprobs: tuple[TokenLogprob | None, ...], rows: Int64, count: int
) -> tuple[TokenLogprob | None, ...]:  # fmt: skip
    """Return the logprobs of some rows, by row of all `count` rows; empty where there are none."""
    by_row = dict(zip(rows.tolist(), logprobs, strict=bool(logprobs)))
    return tuple(map(by_row.get, range(count))) if logprobs else ()
