"""StepStats: plain values of one engine step; this module publishes none of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """Numbers of one step; milliseconds by phase.

    Attributes:
        step_id: id of the plan.
        num_sequences: rows of the step.
        num_tokens: tokens of the step, prompt and decoded ones.
        num_prefill_tokens: tokens of rows with more than one, those with drafts left out.
        num_outputs: new output tokens of all sequences.
        context_tokens: context lengths, summed over the rows.
        prefill_pairs: pairs (token, token it attends to) of rows with more than one.
        running: running sequences after the step.
        waiting: waiting sequences after the step.
        free_blocks: blocks that no sequence holds after the step.
        allocated_kv_tokens: KV token slots of held blocks after the step, shared ones counted once.
        unused_kv_tokens: KV token slots of running sequences without a confirmed token.
        preemptions: total since the start.
        out_of_memory_steps: total since the start.
        device_tensor_bytes: memory of the runner's device that tensors use, at most MEMORY_SECONDS old; 0 without one.
        device_reserved_bytes: the same with what the allocator keeps for later tensors.
        in_flight: steps in flight when this step's result came, itself included; 1 for the last one.
        started_ms: from the engine's start to the start of this step's scheduling.
        collect_started_ms: from the engine's start to the start of the wait for its result. With two steps in flight
            another step's phases lie between this step's launch and that.
        schedule_ms: scheduling the step.
        launch_ms: passing the plan to the runner (and computing, if the runner computes at once).
        collect_ms: waiting for the runner.
        commit_ms: applying the result.
        max_running_requests: limit of running sequences, which tune_limits changes.
        max_batch_tokens: limit of a step's tokens, which tune_limits changes.
        usable_blocks: blocks that may be handed out, which tune_limits changes.
        state_checkpoint_hits: saved states of layers that sequences have started with, total since the start.
        state_checkpoint_saves: states that were saved and published, total since the start.
        state_checkpoint_evictions: saved states that were evicted for others, total since the start.
        drafts, draft_tokens, confirmed_by_position: see Counters, totals since the start.
    """

    step_id: int
    num_sequences: int
    num_tokens: int
    num_prefill_tokens: int
    num_outputs: int
    context_tokens: int
    prefill_pairs: int
    running: int
    waiting: int
    free_blocks: int
    allocated_kv_tokens: int
    unused_kv_tokens: int
    preemptions: int
    in_flight: int
    schedule_ms: float
    launch_ms: float
    collect_ms: float
    commit_ms: float
    started_ms: float = 0.0
    collect_started_ms: float = 0.0
    max_running_requests: int = 0
    max_batch_tokens: int = 0
    usable_blocks: int = 0
    out_of_memory_steps: int = 0
    device_tensor_bytes: int = 0
    device_reserved_bytes: int = 0
    state_checkpoint_hits: int = 0
    state_checkpoint_saves: int = 0
    state_checkpoint_evictions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    confirmed_by_position: tuple[int, ...] = ()

    @property
    def ended_ms(self) -> float:
        """Milliseconds from the engine's start to the end of the commit."""
        return self.collect_started_ms + self.collect_ms + self.commit_ms
