"""BatchSnapshot: what the engine computes at one moment, as plain values; no token and no text is in it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class SequenceState(StrEnum):
    """What the engine does with a sequence."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"  # waits again; its blocks were given to other sequences


class SequenceRow(NamedTuple):
    """One choice of an open request.

    Attributes:
        key: unique number of the choice in this engine. While its grammar is compiled it has another one, which is
            COMPILING or less.
        request_id: id of the request.
        choice: index of the choice in the request.
        tenant: tenant of the request.
        state: a SequenceState.
        wait_reason: why it waits, a WaitReason or "grammar"; "" while it runs.
        priority: priority of the request; smaller goes first where the policy uses it.
        prompt_tokens: tokens of the prompt.
        cached_tokens: prompt tokens found in the prefix cache.
        computed_tokens: tokens whose keys and values are computed, cached ones included.
        output_tokens: output tokens so far.
        max_output_tokens: output tokens at most.
        num_blocks: KV blocks that it holds.
        num_cached_blocks: of these, the blocks found in the prefix cache.
        num_preemptions: how often it was preempted.
        age_seconds: time since the request arrived.
        wait_seconds: time that it has waited for a step, in all.
        confirmed_drafts: guessed tokens that are part of its output.
        rejected_drafts: guessed tokens that were computed in vain.
    """

    key: int
    request_id: str
    choice: int
    tenant: str
    state: str
    wait_reason: str
    priority: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    max_output_tokens: int
    num_blocks: int
    num_cached_blocks: int
    num_preemptions: int
    age_seconds: float
    wait_seconds: float
    confirmed_drafts: int = 0
    rejected_drafts: int = 0


class StepRecord(NamedTuple):
    """One committed step.

    Attributes:
        step_id: id of its plan.
        duration_ms: from its start, or from the end of the step before if that is later, to its end.
        num_tokens: tokens that it computed.
        prefills: [key, tokens] of the rows that computed prompt tokens.
        decodes: keys of the rows that computed one token, and drafts behind it.
    """

    step_id: int
    duration_ms: float
    num_tokens: int
    prefills: list[tuple[int, int]]
    decodes: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSnapshot:
    """An engine at one moment.

    Attributes:
        rows: the open sequences: running ones, then waiting ones in the order of the queue.
        num_hidden_rows: further open sequences, which have no row.
        recent_steps: the last steps, oldest first.
        num_steps: steps since the start of the engine.
        scheduled_tokens: tokens of these steps.
        output_tokens: output tokens since the start of the engine.
        num_preemptions: preemptions since the start of the engine.
        num_running: running sequences.
        num_waiting: waiting sequences, those whose grammar is compiled included.
        waiting_tokens: their tokens.
        wait_reason: why the waiting queue does not advance.
        num_in_flight: steps that the runner computes now.
        max_running_requests: running sequences at most.
        max_batch_tokens: tokens of a step at most.
        block_size: tokens of a KV block.
        total_blocks: blocks of the pool.
        free_blocks: blocks without contents that may be handed out.
        cached_blocks: blocks that no sequence holds, with contents that a prompt may reuse.
        held_blocks: blocks that sequences hold.
        withheld_blocks: blocks above the limit of the pool, which are not handed out.
        block_map: the pool in runs: value, length, value, length. A value is the key of the row that holds the block,
            or one of FREE, CACHED, WITHHELD, SHARED, HELD.
        blocks_per_cell: blocks for each of which the map shows the first; 1 where it shows all.
    """

    rows: list[SequenceRow]
    num_hidden_rows: int
    recent_steps: list[StepRecord]
    num_steps: int
    scheduled_tokens: int
    output_tokens: int
    num_preemptions: int
    num_running: int
    num_waiting: int
    waiting_tokens: int
    wait_reason: str
    num_in_flight: int
    max_running_requests: int
    max_batch_tokens: int
    block_size: int
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    held_blocks: int
    withheld_blocks: int
    block_map: list[int]
    blocks_per_cell: int


FREE, CACHED, WITHHELD, SHARED, HELD = -1, -2, -3, -4, -5
"""Values of a block map for blocks without contents, with reusable contents, above the limit of the pool, held by
several sequences, and held by one sequence that the map does not name."""

COMPILING = -16
"""Largest key of a row whose grammar is compiled: it is not a value of a block map."""
