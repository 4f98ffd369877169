"""Sequence: the life of one choice of a request inside the engine.

    tokens      [ prompt ............................ | outputs ......... ] + pending samples, not seen yet
    counters      ^num_computed (confirmed by commit)     ^num_scheduled (handed to the runner)

There is no prefill and no decode: each step hands out tokens so that num_scheduled catches up with what is known.
"""

from enum import Enum, auto

from chairlift.core.errors import ChairliftError
from chairlift.core.request import FinishReason, GenerateRequest, RequestState
from chairlift.engine.kv.block_hash import BlockHash, extend_block_hashes
from chairlift.engine.kv.block_table import BlockTable
from chairlift.engine.step_plan import NewSequence
from chairlift.engine.structured.grammar import Grammar
from chairlift.engine.timeline import TimelineRecorder

SequenceId = str | tuple[str, int]


class SequenceStatus(Enum):
    """Which list of the scheduler a sequence is in."""

    DEFERRED = auto()
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """State of one choice; changed only by the scheduler.

    Attributes:
        request: what was asked.
        index: which of its choices this is.
        name: its request id.
        key: what it is known by among all: its request id, and for a further choice the number with it.
        grammar: what its output has to be, and how far it is; None for anything.
        has_spoken: whether a token of it was committed, in this engine.
        num_scored: tokens of the prompt, from its begin, whose logprobs were delivered or are not wanted.
        arrival: its place in line, kept for life.
        token_ids: everything known, prompt and outputs.
        num_prompt: how many of them are prompt.
        longest: how many tokens it may have.
        milestone: as long as num_computed stays below, a plain token needs no more than to be appended.
        num_scheduled: tokens whose keys and values were handed to the runner.
        num_computed: tokens confirmed by commit; never more than num_scheduled.
        num_pending: samples in flight, not in token_ids yet.
        block_hashes: names of the full blocks, as far as they are computed or a prompt; empty without prefix caching.
        table: its blocks while it rides.
        slot: its state on the runner's side while it rides, -1 otherwise.
        known: whether the runner has that state.
        ride: counts its rides, so that results of an earlier ride are told apart.
        cached_tokens: prompt tokens found in the cache at the first ride.
        times_passed: how often a smaller request went ahead while this one did not fit.
        prefix_steps: steps spent waiting for another's prefix.
        waiting_for: the block it waits for.
    """

    __slots__ = (
        "arrival_index",
        "awaited_block_hash",
        "block_hashes",
        "cached_tokens",
        "choice_index",
        "deadline",
        "epoch",
        "error",
        "fast_path_end",
        "finish_reason",
        "grammar",
        "has_first_token",
        "hash_root",
        "is_in_runner",
        "max_length",
        "max_output_tokens",
        "num_bypasses",
        "num_computed_tokens",
        "num_pending_samples",
        "num_preemptions",
        "num_prefix_waits",
        "num_prompt_logprobs_done",
        "num_prompt_tokens",
        "num_scheduled_tokens",
        "request",
        "request_id",
        "seq_id",
        "slot",
        "status",
        "stop_ids",
        "table",
        "timeline_recorder",
        "token_ids",
    )  # fmt: skip

    def __init__(
        self, request: GenerateRequest, arrival: int, hash_root: BlockHash, now: float, index: int = 0,
        grammar: Grammar | None = None,
    ) -> None:  # fmt: skip
        params, resumed = request.params, request.resumed_tokens(index)
        assert params.max_tokens is not None, "the engine takes resolved parameters only"
        self.request = request
        self.choice_index = index
        self.request_id = request.request_id
        self.seq_id: SequenceId = (request.request_id, index) if index else request.request_id
        self.grammar = grammar
        self.has_first_token = False
        self.arrival_index = arrival
        self.hash_root = hash_root
        self.token_ids = [*request.prompt_token_ids, *resumed]
        self.num_prompt_tokens = len(request.prompt_token_ids)
        # Scores come once a request, before its first token.
        is_scored = params.prompt_logprobs is not None and not index and not resumed
        self.num_prompt_logprobs_done = 1 if is_scored else self.num_prompt_tokens
        self.max_output_tokens = params.max_tokens
        self.max_length = self.num_prompt_tokens + self.max_output_tokens
        self.stop_ids = request.all_stop_token_ids
        self.deadline = None if request.timeout is None else now + request.timeout
        self.num_scheduled_tokens = self.num_computed_tokens = self.num_pending_samples = 0
        self.fast_path_end = 0
        self.block_hashes: list[BlockHash] = []
        self.table: BlockTable | None = None
        self.slot = -1
        self.is_in_runner = False
        self.epoch = 0
        self.status = SequenceStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.error: ChairliftError | None = None
        self.cached_tokens = 0
        self.num_preemptions = self.num_bypasses = self.num_prefix_waits = 0
        self.awaited_block_hash: BlockHash | None = None
        self.timeline_recorder = TimelineRecorder(now)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens known so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_unscheduled_tokens(self) -> int:
        """Tokens that can be handed out now.

        0 when the samples in flight already reach its length limit, or decide what its grammar allows next.
        """
        known = len(self.token_ids) + self.num_pending_samples
        if known >= self.max_length or (self.num_pending_samples and self.grammar is not None):
            return 0
        return known - self.num_scheduled_tokens

    @property
    def num_tokens_with_pending(self) -> int:
        """Tokens, those still in flight included."""
        return len(self.token_ids) + self.num_pending_samples

    @property
    def state(self) -> RequestState:
        """What a user sees, derived from the counters."""
        if self.status is SequenceStatus.FINISHED:
            ends = {FinishReason.ERROR: RequestState.FAILED, FinishReason.ABORT: RequestState.CANCELLED}
            return ends.get(self.finish_reason or FinishReason.STOP, RequestState.FINISHED)
        if self.status in {SequenceStatus.WAITING, SequenceStatus.DEFERRED}:
            return RequestState.PENDING
        if self.num_computed_tokens >= len(self.token_ids) - 1 and self.num_output_tokens:
            return RequestState.DECODING
        if self.num_scheduled_tokens > self.num_computed_tokens:
            whole = self.num_scheduled_tokens >= len(self.token_ids)
            return RequestState.PREFILLING if whole else RequestState.PREFILLING_SPLIT
        return RequestState.SPLIT_PENDING_REMAINDER

    def update_block_hashes(self, block_size: int) -> None:
        """Hash the blocks that token_ids have filled since the last call."""
        extend_block_hashes(self.block_hashes, self.hash_root, self.token_ids, block_size)

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether logprobs of its prompt are still to come: then the prompt is computed, whatever is cached."""
        return self.num_prompt_logprobs_done < self.num_prompt_tokens

    def to_new_sequence(self) -> NewSequence:
        """Return what the runner must know of it."""
        request = self.request
        token_ids = tuple(self.token_ids) if self.num_output_tokens else request.prompt_token_ids
        return NewSequence(
            self.slot, token_ids, self.num_output_tokens, request.params, request.eos_token_ids, request.adapter,
            self.choice_index,
            self.num_prompt_logprobs_done,
        )  # fmt: skip
