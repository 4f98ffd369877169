"""Sequence: holds the state of one choice of a request inside the engine.

    tokens      [ prompt ............................ | outputs ......... ] + pending samples, ids not known yet
    counters      ^num_computed_tokens (committed)        ^num_scheduled_tokens (passed to the runner)

Prefill and decode are not separate: each step schedules tokens so that num_scheduled_tokens reaches the known tokens.
"""

from enum import Enum, auto

from chairlift.core.block_hash import BlockHash, extend_block_hashes
from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import ChairliftError
from chairlift.core.request import GenerateRequest, RequestPhase
from chairlift.engine.drafters.draft_record import NO_SOURCE, DraftRecord
from chairlift.engine.embedding_pooling import PooledStates
from chairlift.engine.kv.block_table import BlockTable
from chairlift.engine.step_plan import NewSequence
from chairlift.engine.structured.grammar_matcher import GrammarMatcher
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
        request: the request.
        choice_index: index of this choice in the request.
        request_id: id of the request.
        seq_id: unique id: request_id for choice 0, (request_id, choice_index) for the others.
        grammar: grammar of the output and its state; None for free output.
        has_first_token: whether a token of it was committed in this engine.
        pooled_states: hidden states of the prompt that are confirmed, of a request with pooling; else None.
        num_prompt_logprobs_done: leading prompt tokens whose logprobs were delivered or are not requested.
        arrival_index: its place in the waiting queue, constant for its life.
        token_ids: all known tokens, prompt and outputs.
        num_prompt_tokens: prompt tokens among them.
        max_length: most tokens it may have.
        fast_path_end: while num_computed_tokens stays below, a plain token only needs to be appended.
        num_scheduled_tokens: tokens whose keys and values were passed to the runner to compute.
        num_computed_tokens: tokens confirmed by commit; never more than num_scheduled_tokens.
        num_pending_samples: samples in flight, not in token_ids yet.
        drafts: guesses at its next tokens in the step in flight, whose samples are pending, too; until that step is
            committed no other token of it is scheduled.
        draft_source: of `drafts`.
        draft_interval: tokens between two proposals for it in a step of many sequences; doubles without drafts.
        draft_record: what became of earlier drafts; None without any.
        draft_grammars: the grammar after each of `drafts`, of a sequence with a grammar.
        may_have_drafts: whether later steps may try drafts; False after a step with some has failed.
        block_hashes: hashes of the full blocks that are computed or prompt; empty without prefix caching.
        table: its block table while it runs.
        slot: its slot in the runner while it runs, -1 otherwise.
        is_in_runner: whether the runner holds its state in that slot.
        epoch: counts its preemptions, so that stale results are recognised.
        cached_tokens: prompt tokens found in the cache at the first start.
        num_bypasses: how often a smaller request started while this one did not fit.
        num_prefix_waits: steps spent waiting for another request's prefix.
        awaited_block_hash: hash of the block it waits for.
        checkpoint_positions: ends of full blocks at which its state is saved and kept, in order; for models with layers
            that keep a state.
        rolling_checkpoint: key of the newest state that was saved behind these, which the next one replaces.
    """

    __slots__ = (
        "__weakref__",
        "arrival_index",
        "awaited_block_hash",
        "block_hashes",
        "cached_tokens",
        "checkpoint_positions",
        "choice_index",
        "deadline",
        "draft_grammars",
        "draft_interval",
        "draft_record",
        "draft_source",
        "drafts",
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
        "may_have_drafts",
        "num_bypasses",
        "num_computed_tokens",
        "num_pending_samples",
        "num_preemptions",
        "num_prefix_waits",
        "num_prompt_logprobs_done",
        "num_prompt_tokens",
        "num_scheduled_tokens",
        "pooled_states",
        "request",
        "request_id",
        "rolling_checkpoint",
        "seq_id",
        "slot",
        "status",
        "stop_token_ids",
        "table",
        "timeline_recorder",
        "token_ids",
    )  # fmt: skip

    def __init__(
        self, request: GenerateRequest, arrival: int, hash_root: BlockHash, now: float, index: int = 0,
        grammar: GrammarMatcher | None = None,
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
        # Prompt logprobs come once a request, before the first token of the choices that start with their prompt.
        is_first_to_start = not resumed and all(map(request.resumed_tokens, range(index)))
        returns_logprobs = params.prompt_logprobs is not None and is_first_to_start
        self.num_prompt_logprobs_done = 1 if returns_logprobs else self.num_prompt_tokens
        self.pooled_states = PooledStates(request.pooling) if request.pooling else None
        self.max_output_tokens = params.max_tokens
        self.max_length = self.num_prompt_tokens + self.max_output_tokens
        self.stop_token_ids = request.all_stop_token_ids
        self.deadline = None if request.timeout is None else now + request.timeout
        self.num_scheduled_tokens = self.num_computed_tokens = self.num_pending_samples = 0
        self.drafts: tuple[int, ...] = ()
        self.draft_grammars: tuple[GrammarMatcher, ...] = ()
        self.draft_source = NO_SOURCE
        self.draft_interval = 1
        self.draft_record: DraftRecord | None = None
        self.may_have_drafts = self.pooled_states is None
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
        self.checkpoint_positions: tuple[int, ...] = ()
        self.rolling_checkpoint: BlockHash | None = None
        self.timeline_recorder = TimelineRecorder(now)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens known so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_unscheduled_tokens(self) -> int:
        """Tokens that can be scheduled now.

        0 when the samples in flight already reach its length limit, or when its grammar or its drafts need them first.
        """
        num_tokens = len(self.token_ids) + self.num_pending_samples
        needs_samples = self.grammar is not None or self.drafts
        if num_tokens >= self.max_length or (self.num_pending_samples and needs_samples):
            return 0
        return num_tokens - self.num_scheduled_tokens

    @property
    def num_tokens_with_pending(self) -> int:
        """Tokens, pending samples included."""
        return len(self.token_ids) + self.num_pending_samples

    @property
    def state(self) -> RequestPhase:
        """The state that users see, derived from the counters."""
        if self.status is SequenceStatus.FINISHED:
            ends = {FinishReason.ERROR: RequestPhase.FAILED, FinishReason.ABORT: RequestPhase.CANCELLED}
            return ends.get(self.finish_reason or FinishReason.STOP, RequestPhase.FINISHED)
        if self.status in {SequenceStatus.WAITING, SequenceStatus.DEFERRED}:
            return RequestPhase.PENDING
        if self.num_computed_tokens >= len(self.token_ids) - 1 and self.num_output_tokens:
            return RequestPhase.DECODING
        if self.num_scheduled_tokens > self.num_computed_tokens:
            is_last_chunk = self.num_scheduled_tokens >= len(self.token_ids)
            return RequestPhase.PREFILLING if is_last_chunk else RequestPhase.PREFILLING_SPLIT
        return RequestPhase.SPLIT_PENDING_REMAINDER

    def update_block_hashes(self, block_size: int) -> None:
        """Hash the blocks that token_ids have filled since the last call."""
        extend_block_hashes(self.block_hashes, self.hash_root, self.token_ids, block_size)

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether prompt logprobs are still to come."""
        return self.num_prompt_logprobs_done < self.num_prompt_tokens

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every prompt token must be computed, even if it is cached."""
        return self.needs_prompt_logprobs or self.request.pooling == "mean"

    def append_token(self, token: int) -> FinishReason | None:
        """Append a sampled token; return the finish reason if it ends the choice. Raises StructuredOutputFailed."""
        grammar = self.grammar
        if grammar is not None:
            grammar.check()
        if token in self.stop_token_ids:
            self.token_ids.append(token)
            return FinishReason.STOP
        if grammar is not None:
            grammar.advance(token)
        self.token_ids.append(token)
        if grammar is not None and grammar.is_terminated:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.token_ids) >= self.max_length else None

    def end_samples(self) -> int:
        """Count the samples of a step, which is committed or rolled back, as no longer pending; return its drafts."""
        num_drafts = len(self.drafts)
        self.num_pending_samples -= 1 + num_drafts
        self.drafts, self.draft_grammars = (), ()
        return num_drafts

    def to_new_sequence(self) -> NewSequence:
        """Return the state that the runner needs."""
        request = self.request
        token_ids = tuple(self.token_ids) if self.num_output_tokens else request.prompt_token_ids
        return NewSequence(
            self.slot, token_ids, self.num_output_tokens, request.params, request.eos_token_ids,
            request.adapter.number,
            self.choice_index,
            self.num_prompt_logprobs_done, request.pooling,
        )  # fmt: skip
