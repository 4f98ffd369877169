"""ModelExecutor: computes a step plan with a loaded model, and samples its rows.

forward: plan ─► step inputs (input_batch.py) ─► layers over the paged cache ─► PendingSample
sample:  PendingSample, TokenMasks ─► lm_head ─► Sampler ─► StepResult
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from chairlift.core.errors import ChairliftError
from chairlift.engine.step_plan import StepPlan, TokenMasks
from chairlift.engine.step_result import StepResult
from chairlift.model.attention.base import AttentionBackend, PagedKV
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.batch.state_cache import StateCache
from chairlift.model.batch.state_step import entry_loads
from chairlift.model.device.page_prefault import PagePrefaulter
from chairlift.model.layers.causal_lm_protocol import ForwardContext, TakesAdapters, TakesPlans
from chairlift.model.lora.row_adapters import Int32
from chairlift.model.runner.input_batch_choice import InputBatch, host_tables
from chairlift.model.runner.prompt_pooling import PooledRows, PromptPooling
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest
from chairlift.model.sampling.prompt_logprobs import PromptLogprobRows, PromptLogprobs
from chairlift.model.sampling.sampler import DraftTokens, Sampler, SamplerOutput


@dataclass(frozen=True, slots=True)
class PendingSample:
    """A step that is computed but not sampled.

    Attributes:
        plan: the plan of the step.
        head: computes the requested lm_head output of the samples, after the layers where these have not run;
            None where no token is needed.
        prompt_logprobs: prompt logprobs by row.
        row_errors: errors of prompt logprobs by row.
        pooled: hidden states by row.
    """

    plan: StepPlan
    head: Callable[[LogitsRequest], LMHeadOutput] | None
    prompt_logprobs: PromptLogprobRows
    row_errors: dict[int, ChairliftError]
    pooled: PooledRows = ()


@dataclass(slots=True)
class ModelExecutor:
    """Computes steps within its calls; see StepExecutor (executor_and_cuda_graph_choice.py)."""

    loaded: LoadedModel
    backend: AttentionBackend
    kv: list[PagedKV]
    tables: InputBatch
    sampler: Sampler
    prompt_logprobs: PromptLogprobs
    prompt_pooling: PromptPooling
    populator: PagePrefaulter
    plan_model: TakesPlans | None
    adapted_model: TakesAdapters | None = None
    states: StateCache | None = None
    is_asynchronous: bool = False

    def prepare(self) -> None:
        """Nothing makes the first steps slow that a warm-up does not do."""

    def forward(self, plan: StepPlan, *, waits: bool) -> PendingSample:
        """Apply a plan and run the model, up to the work that is deferred to sampling; `waits` if masks are missing."""
        self._apply(plan)
        if not plan.num_rows:
            return PendingSample(plan, None, (), {})
        plan_model = self.plan_model
        needs_states = self.prompt_logprobs.has_requests or self.prompt_pooling.has_requests
        if plan_model is not None and len(plan.sample_rows) and not waits and not needs_states:
            score = partial(plan_model.score_plan, plan, host_tables(self.tables), self.kv, states=self.states)
            return PendingSample(plan, score, (), {})
        hidden, sample_indices = self._run_layers(plan)
        prompt_logprobs, row_errors = self.prompt_logprobs.compute(plan, hidden, self._logits)
        pooled = self.prompt_pooling.compute(plan, hidden)
        if self.prompt_pooling.needs_no_token(plan):
            return PendingSample(plan, None, prompt_logprobs, row_errors, pooled)
        # Where every token is sampled after, the states need no gathering.
        is_all = np.array_equal(plan.sample_tokens, np.arange(len(hidden)))
        # Without masks to wait for, all states are used before the next step overwrites them.
        states = hidden if is_all and not waits else hidden.index_select(0, sample_indices)
        numbers = host_tables(self.tables).adapters[plan.sample_slots] if self.adapted_model is not None else None
        return PendingSample(plan, partial(self._head, states, numbers), prompt_logprobs, row_errors, pooled)

    def sample(self, pending: PendingSample, masks: TokenMasks | None) -> StepResult:
        """Sample tokens from the lm_head output of a computed step."""
        plan = pending.plan
        output = SamplerOutput.of_rows(np.zeros(len(plan.sample_rows), np.int32))
        if pending.head is not None:
            drafts = DraftTokens(plan.sample_bounds, plan.next_drafts) if len(plan.num_drafts) else None
            output = self.sampler.sample(pending.head, plan.sample_slots.astype(np.int64), masks, drafts)
            self.tables.store_sampled(plan.slots[plan.sample_rows].astype(np.int64), output.last_tokens)
        row_errors: dict[int, ChairliftError] = dict(pending.row_errors)
        for index, error in sorted(output.row_errors.items()):
            row_errors.setdefault(int(plan.sample_rows[index]), error)
        return StepResult(
            step_id=plan.step_id,
            tokens=output.tokens,
            cu_tokens=output.cu_tokens,
            logprobs=output.logprobs,
            row_errors=tuple(row_errors.items()),
            prompt_logprobs=pending.prompt_logprobs,
            pooled=pending.pooled,
        )

    def _apply(self, plan: StepPlan) -> None:
        # Released first: a new sequence may have the same slot.
        for slot in plan.released_slots:
            self.sampler.remove_slot(slot)
            self.prompt_logprobs.release(slot)
            self.prompt_pooling.release(slot)
        self.tables.apply(plan)
        for new in plan.new_sequences:
            self.sampler.add_sequence(new)
            self.prompt_logprobs.admit(new)
            self.prompt_pooling.admit(new)
        if len(plan.block_copies):
            self.backend.copy_blocks(self.kv, torch.from_numpy(plan.block_copies).to(self.loaded.device))
        if self.states is not None:
            self.states.load(entry_loads(plan.state_loads, self.states.num_slots))

    def _head(self, states: Tensor, numbers: Int32 | None, request: LogitsRequest) -> LMHeadOutput:
        """Compute the lm_head output of hidden states [R, H] of rows with these adapters, int32 [R]."""
        if self.adapted_model is not None:
            self.adapted_model.use_adapters(numbers)
        return self.loaded.model.head(states, request)

    def _logits(self, hidden: Tensor, slot: int) -> Tensor:
        """Compute logits [n, V] of hidden states [n, H] of the sequence of a slot."""
        if self.adapted_model is not None:
            self.adapted_model.use_adapters(np.full(len(hidden), host_tables(self.tables).adapters[slot], np.int32))
        return self.loaded.model.logits(hidden)

    def _run_layers(self, plan: StepPlan) -> tuple[Tensor, Tensor]:
        """Run the layers for a plan that was applied to the tables.

        Returns hidden states [T, H], or padded to more, and the indices of the sample rows: integers [R].
        """
        if self.plan_model is not None:
            hidden = self.plan_model.forward_plan(plan, host_tables(self.tables), self.kv, self.states)
            return hidden, torch.from_numpy(plan.sample_tokens)
        if self.adapted_model is not None:
            numbers = host_tables(self.tables).adapters[plan.slots]
            self.adapted_model.use_adapters(np.repeat(numbers, plan.num_new_tokens))
        inputs = self.tables.inputs(plan, self.loaded.device)
        step = None if self.states is None else self.states.step(plan)
        context = ForwardContext(
            inputs.batch, self.kv, self.backend, self.backend.plan(inputs.batch), self.states, step
        )  # fmt: skip
        return self.loaded.model.forward(inputs.input_ids, context), inputs.batch.logits_indices
