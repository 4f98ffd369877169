"""StateCheckpointPlanner: decides which states of sequences a step loads and saves, and publishes them when it is done.

A sequence's state is saved at ends of full blocks, under the hashes of these blocks:

    kept       the end of the prompt's last block that an equal prompt can share (its last token is always computed),
               the last block end before each of the request's prefix boundaries, every `interval` tokens of the prompt,
               and the end of a prefix that another sequence shares but whose state was not saved
    rolling    behind the prompt: each block end; the newest replaces the one before. So a sequence that has finished
               or was preempted leaves a state near its end.

A save is skipped where the state is in the pool already, or while all checkpoints are held.

A state cannot be cut back. So a row with drafts saves its state after its known token and after each draft but the
last, and where not all drafts are confirmed, the sequence's next step loads the state after those that are.
"""

from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from chairlift.core.request import GenerateRequest
from chairlift.engine.config import CacheConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.kv.state_checkpoint_pool import NO_CHECKPOINT, CheckpointId
from chairlift.engine.scheduler.in_flight_step import InFlightStep, StateSave
from chairlift.engine.sequence import Sequence, SequenceStatus
from chairlift.engine.step_plan import NO_LOADS, NO_SAVES, Int32

MIN_INTERVAL_TOKENS = 2048
"""Tokens of a long prompt between two saved states. A state takes about the memory of the keys and values of 1,500."""

MAX_PROMPT_SHARE = 0.5
"""Share of the pool that the states on the way of the longest prompt may take: the interval doubles until they fit."""


MAX_ROLLING_SHARE = 0.5
"""Share of a full pool that the rolling states of running sequences may take from other conversations."""


MAX_DRAFT_SHARE = 0.25
"""Share of the pool that the states behind drafts may take."""


NO_DRAFT_STATES: Mapping[tuple[int, int], CheckpointId] = MappingProxyType({})


class StepStates(NamedTuple):
    """The states that a step loads and saves.

    Attributes:
        loads: checkpoints that it loads, held by the step from now on.
        saves: states that it saves.
        load_rows, save_rows: both as StepPlan has them, drafts included.
        draft_states: see InFlightStep.
    """

    loads: tuple[CheckpointId, ...] = ()
    saves: tuple[StateSave, ...] = ()
    load_rows: Int32 = NO_LOADS
    save_rows: Int32 = NO_SAVES
    draft_states: Mapping[tuple[int, int], CheckpointId] = NO_DRAFT_STATES


NO_STATES = StepStates()

Running = Mapping[int, Sequence]
"""Running sequences by arrival index."""


class StateCheckpointPlanner:
    """Plans the checkpoints of one engine whose model has layers that keep a state.

    Attributes:
        interval: tokens between two states on the way of a long prompt, a multiple of the block size; 0 where the pool
            is too small for any.
    """

    def __init__(self, cache: KVCacheManager, running: Running, longest_prompt: int) -> None:
        self._cache, self._pool, self._block_size = cache, cache.checkpoints, cache.config.block_size
        self._running = running
        self._num_rolling_in_flight = 0
        self._draft_checkpoints: dict[Sequence, list[CheckpointId]] = {}  # of the step that is filled
        self._num_draft_states = 0  # of it and of the steps in flight
        self.interval = checkpoint_interval(longest_prompt, self._pool.total, self._block_size)

    def positions(self, request: GenerateRequest) -> tuple[int, ...]:
        """Return the ends of blocks of a prompt at which the state is kept, in order."""
        size = self._block_size
        last = self._last_shared(len(request.prompt_token_ids))
        positions = {last, *(boundary // size * size for boundary in request.last_prefix_boundaries)}
        if self.interval:
            positions.update(range(self.interval, last, self.interval))
        return tuple(sorted(positions - {0}))

    def _last_shared(self, num_prompt_tokens: int) -> int:
        """Return the end of the last block that an equal prompt can share."""
        return (num_prompt_tokens - 1) // self._block_size * self._block_size

    def plan(self, sequences: list[Sequence], starts: list[int], ends: list[int]) -> StepStates:
        """Return the states of a step with these rows; allocates checkpoints for those that it saves."""
        loads = []
        saves, drafts, save_rows = [], dict[tuple[int, int], CheckpointId](), list[tuple[int, int, CheckpointId]]()
        for row, (sequence, start, end) in enumerate(zip(sequences, starts, ends, strict=True)):
            assert sequence.table is not None
            if (checkpoint := self._cache.take_checkpoint(sequence.table)) != NO_CHECKPOINT:
                loads.append((checkpoint, sequence.slot))
            if sequence.drafts:
                for position, checkpoint in self._take_drafts(sequence, start, end):
                    drafts[row, position] = checkpoint
                    save_rows.append((row, position - start, checkpoint))
                continue
            for position, is_rolling in self._positions_to_save(sequence, start, end):
                if (checkpoint := self._allocate(sequence, position, is_rolling=is_rolling)) != NO_CHECKPOINT:
                    saves.append(StateSave(row, position, checkpoint, is_rolling))
                    save_rows.append((row, position - start, checkpoint))
                    self._num_rolling_in_flight += is_rolling
        if not loads and not save_rows:
            return NO_STATES
        return StepStates(
            tuple(checkpoint for checkpoint, _ in loads), tuple(saves),
            np.array(loads, np.int32) if loads else NO_LOADS,
            np.array(save_rows, np.int32) if save_rows else NO_SAVES, drafts,
        )  # fmt: skip

    def _take_drafts(self, sequence: Sequence, start: int, end: int) -> Iterator[tuple[int, CheckpointId]]:
        """Yield (position, checkpoint) of the states to save in a row with drafts."""
        yield from enumerate(self._draft_checkpoints.pop(sequence), start=start + 1)
        # The slot has this state; it is saved for other sequences alone.
        if end % self._block_size == 0 and (checkpoint := self._pool.allocate()) is not None:
            self._num_draft_states += 1
            yield end, checkpoint

    @property
    def max_drafts(self) -> int:
        """For how many more drafts of the step that is filled there are checkpoints."""
        return min(self._pool.num_available, int(MAX_DRAFT_SHARE * self._pool.total) - self._num_draft_states)

    def allocate_drafts(self, sequence: Sequence, count: int) -> None:
        """Allocate the checkpoints of a row with `count` drafts, at most max_drafts, in the step that is filled."""
        checkpoints = [checkpoint for _ in range(count) if (checkpoint := self._pool.allocate()) is not None]
        assert len(checkpoints) == count, "more drafts than checkpoints"
        self._num_draft_states += count
        self._draft_checkpoints[sequence] = checkpoints

    def _positions_to_save(self, sequence: Sequence, start: int, end: int) -> Iterator[tuple[int, bool]]:
        """Yield (position, is rolling) of the states to save in a row that computes tokens start to end - 1."""
        last_end = end // self._block_size * self._block_size
        if last_end <= start:  # as for most rows with one token
            return
        kept, position = sequence.checkpoint_positions, 0
        for position in kept[bisect_right(kept, start) : bisect_right(kept, end)]:
            yield position, False
        if position < last_end and last_end > self._last_shared(sequence.num_prompt_tokens):
            yield last_end, True

    def _allocate(self, sequence: Sequence, position: int, *, is_rolling: bool) -> CheckpointId:
        """Return a checkpoint for a state, with a reference; NO_CHECKPOINT if it is saved already, or cannot be."""
        index = position // self._block_size - 1
        # The hash of a block with a token that is still sampled is not known yet.
        block_hash = sequence.block_hashes[index] if index < len(sequence.block_hashes) else None
        if block_hash is not None and self._pool.lookup(block_hash) is not None:
            return NO_CHECKPOINT
        if is_rolling and not self._pool.num_free:
            if sequence.rolling_checkpoint is not None:
                # Rather than the state of another conversation it loses its own last one.
                self._pool.discard(sequence.rolling_checkpoint)
            elif self._num_rolling() >= MAX_ROLLING_SHARE * self._pool.total:
                return NO_CHECKPOINT
        checkpoint = self._pool.allocate()
        return NO_CHECKPOINT if checkpoint is None else checkpoint

    def _num_rolling(self) -> int:
        """Return how many rolling states running sequences have or are saving; one that is replaced counts twice."""
        have_one = sum(1 for sequence in self._running.values() if sequence.rolling_checkpoint is not None)
        return have_one + self._num_rolling_in_flight

    def commit(self, step: InFlightStep, failed_rows: Container[int]) -> None:
        """Publish the states that a step has saved, before its tokens are committed; release those that it loaded."""
        for row, position, checkpoint, is_rolling in step.state_saves:
            sequence = step.sequences[row]
            self._num_rolling_in_flight -= is_rolling
            # Of a sequence that ended or waits again, the blocks before the state are lost.
            if sequence.status is SequenceStatus.RUNNING and row not in failed_rows:
                self._publish(sequence, position, checkpoint, is_rolling=is_rolling)
            self._pool.free(checkpoint)
        for checkpoint in step.state_loads:
            self._pool.free(checkpoint)

    def _publish(self, sequence: Sequence, position: int, checkpoint: CheckpointId, *, is_rolling: bool) -> None:
        index = position // self._block_size - 1
        if index >= len(sequence.block_hashes):
            sequence.update_block_hashes(self._block_size)
        block_hash = sequence.block_hashes[index]
        is_own = self._pool.publish(checkpoint, block_hash)
        if not is_rolling:
            return
        if sequence.rolling_checkpoint is not None and sequence.rolling_checkpoint != block_hash:
            self._pool.discard(sequence.rolling_checkpoint)
        # Where an equal sequence has saved this state, that one replaces it.
        sequence.rolling_checkpoint = block_hash if is_own else None

    def publish_draft(self, step: InFlightStep, row: int, position: int) -> None:
        """Publish a confirmed state of a row with drafts, where it is at the end of a block."""
        if position % self._block_size or (row, position) not in step.draft_states:
            return
        sequence, checkpoint = step.sequences[row], step.draft_states[row, position]
        if self._pool.lookup(sequence.block_hashes[position // self._block_size - 1]) is None:
            is_rolling = position not in sequence.checkpoint_positions
            self._publish(sequence, position, checkpoint, is_rolling=is_rolling)

    def load_draft(self, step: InFlightStep, row: int, position: int) -> None:
        """Let a sequence's next step load the state at that position, behind which its drafts were not confirmed."""
        table = step.sequences[row].table
        assert table is not None
        table.checkpoint = step.draft_states.pop((row, position))
        self._num_draft_states -= 1

    def release_drafts(self, step: InFlightStep) -> None:
        """Release the states behind drafts of a committed step."""
        for checkpoint in step.draft_states.values():
            self._pool.free(checkpoint)
        self._num_draft_states -= len(step.draft_states)
        step.draft_states.clear()

    def roll_back(self, step: InFlightStep) -> None:
        """Give back the checkpoints of a step whose result does not count."""
        self._num_rolling_in_flight -= sum(save.is_rolling for save in step.state_saves)
        self._num_draft_states -= len(step.draft_states)
        for checkpoint in step.checkpoints:
            self._pool.free(checkpoint)


def can_save_drafts(config: CacheConfig) -> bool:
    """Return whether the pool of checkpoints has room for a state behind a draft."""
    return config.shares_states and int(MAX_DRAFT_SHARE * config.num_state_checkpoints) > 0


def checkpoint_interval(longest_prompt: int, num_checkpoints: int, block_size: int) -> int:
    """Return the tokens between two states on the way of a long prompt; 0 for none.

    MIN_INTERVAL_TOKENS, doubled until the longest prompt has at most MAX_PROMPT_SHARE of the checkpoints, rounded up to
    a multiple of the block size.
    """
    most = int(MAX_PROMPT_SHARE * num_checkpoints)
    if not most:
        return 0
    interval = MIN_INTERVAL_TOKENS
    while longest_prompt > interval * most:
        interval *= 2
    return -(-interval // block_size) * block_size
