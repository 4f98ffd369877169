"""DraftModelDrafter: drafts by a second, smaller model with the same tokenizer and a KV cache of its own.

    token_ids   [ computed by the draft model | unknown to it ]     first step: the unknown tokens, the first draft
    drafts                                     d1  d2  d3           one more step for each further draft

All sequences of a step are drafted together. A sequence whose unknown tokens are many, after a long prompt, gets no
drafts until the draft model has computed them, in slices beside the steps of the others. Confirmed drafts stay
computed; the keys and values of the others are overwritten. A sequence whose drafts were all confirmed gets more next
time, another one fewer.

A sampled sequence is sampled by the draft model, too, with the same random number at each position: two models with
nearly the same distribution then mostly choose the same token.
"""

import logging
from collections.abc import Sequence as Items
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.drafters.draft_model_cache import DraftedSequence, DraftModelCache
from chairlift.engine.runner.base import Runner, RunnerInfo
from chairlift.engine.sequence import Sequence
from chairlift.engine.step_plan import NewSequence, StepPlan

log = logging.getLogger(__name__)

MAX_STEP_TOKENS = 256
"""Tokens in one step of the draft model: a slice of a long prompt makes a step of the engine longer by its time."""

GREEDY = SamplingParams(max_tokens=1, temperature=0.0).with_defaults({}, max_tokens=1, seed=0)


@dataclass(slots=True)
class _DraftRow:
    """Tokens of a sequence in a step of the draft model."""

    sequence: Sequence
    state: DraftedSequence
    start: int
    token_ids: list[int]
    is_sampled: bool = True


class DraftModelDrafter:
    """Drafts by a second runner, whose steps run one after another in the thread of the engine.

    An error of that runner ends no request: it is off from then on.

    Attributes:
        is_off: whether the runner has failed.
    """

    name = "draft_model"

    def __init__(self, runner: Runner, info: RunnerInfo, *, max_sequences: int, enable_prefix_caching: bool) -> None:
        """Take a runner that has started, with slots for max_sequences sequences."""
        self._runner = runner
        self._vocab_size, self._max_length = info.vocab_size, info.max_model_len
        self._cache = DraftModelCache(info, max_sequences, enable_prefix_caching=enable_prefix_caching)
        # Sequences that the draft model cannot read, or for which its memory does not suffice.
        self._excluded: set[Sequence] = set()
        self._num_steps = 0
        self.is_off = False

    def propose(self, sequence: Sequence, limit: int) -> Items[int]:
        """Return the drafts that prepare() made."""
        state = None if sequence.num_pending_samples else self._drafted(sequence)
        return () if state is None else state.drafts[:limit]

    def _drafted(self, sequence: Sequence) -> DraftedSequence | None:
        """Return the state of a sequence that has drafts behind the tokens it has now; None for another one."""
        state = self._cache.states.get(sequence)
        return state if state is not None and state.draft_position == len(sequence.token_ids) else None

    def will_propose(self, sequence: Sequence) -> bool:
        """Return whether a sequence gets drafts as soon as its samples in flight are known."""
        state = self._cache.states.get(sequence)
        if self.is_off or sequence in self._excluded or len(sequence.token_ids) + 1 >= self._max_length:
            return False
        return len(sequence.token_ids) - (0 if state is None else state.num_computed) < MAX_STEP_TOKENS

    def forget(self, sequence: Sequence) -> None:
        """Release the memory of a sequence that has ended."""
        self._excluded.discard(sequence)
        self._cache.release(sequence)

    def prepare(self, requests: Items[tuple[Sequence, int]]) -> None:
        """Make at most the given number of drafts for each sequence, all of whose tokens are known."""
        if self.is_off:
            return
        try:
            self._prepare(requests)
        except Exception as error:
            self._turn_off(error)

    def warmup(self) -> None:
        """Run the runner's warm-up."""
        if not self.is_off:
            try:
                self._runner.warmup()
            except Exception as error:
                self._turn_off(error)

    def check_integrity(self) -> list[str]:
        """Check the draft model's blocks and slots; return the errors."""
        return self._cache.check_integrity()

    def _turn_off(self, error: Exception) -> None:
        log.warning("the draft model failed, so requests go on without it: %r", error)
        self.is_off = True
        self._cache.clear()
        self._excluded.clear()
        with suppress(Exception):
            self._runner.stop()

    def _prepare(self, requests: Items[tuple[Sequence, int]]) -> None:
        limits = self._limits(requests)
        if not (rows := self._first_rows(limits)):
            return
        drafts = {sequence: [token] for sequence, token in self._run(rows).items()}
        for row in rows:
            if row.sequence not in self._excluded:
                row.state.num_computed = row.start + len(row.token_ids)
                self._cache.publish(row.sequence, row.state)
        while rows := [after for each in rows if (after := self._next_row(each, drafts, limits)) is not None]:
            for sequence, token in self._run(rows).items():
                drafts[sequence].append(token)
        for sequence, tokens in drafts.items():
            if (state := self._cache.states.get(sequence)) is not None:
                state.drafts, state.draft_position = tuple(tokens), len(sequence.token_ids)

    def _limits(self, requests: Items[tuple[Sequence, int]]) -> dict[Sequence, int]:
        """Return the most drafts of each sequence that the draft model can read and has not drafted already."""
        limits: dict[Sequence, int] = {}
        for sequence, most in requests:
            limit = min(most, self._max_length - len(sequence.token_ids))
            # After a step of the engine that failed it has drafts already.
            if limit > 0 and self._drafted(sequence) is None and sequence not in self._excluded:
                limits[sequence] = limit
        return limits

    def _first_rows(self, limits: dict[Sequence, int]) -> list[_DraftRow]:
        """Return a row of unknown tokens for each sequence, those with the fewest first, as far as a step has room."""
        states = {sequence: self._cache.start(sequence, limits) for sequence in limits}
        for sequence, state in states.items():
            limits[sequence] = min(limits[sequence], 0 if state is None else state.most_drafts)
        left, rows = MAX_STEP_TOKENS, list[_DraftRow]()
        for sequence, state in sorted(
            ((sequence, state) for sequence, state in states.items() if state is not None),
            key=lambda each: len(each[0].token_ids) - each[1].num_computed,
        ):
            start, length = state.num_computed, len(sequence.token_ids)
            end = min(length, start + left)
            if end == start:
                continue
            token_ids, is_last = sequence.token_ids[start:end], end == length
            num_tokens = end + (limits[sequence] - 1 if is_last else 0)
            if max(token_ids) >= self._vocab_size or not self._cache.reserve(state, num_tokens, limits):
                self._exclude(sequence)
                continue
            left -= len(token_ids)
            # Later positions count from the outputs that the sequence has now.
            state.is_in_runner &= sequence.request.params.greedy
            rows.append(_DraftRow(sequence, state, start, token_ids, is_last))
        return rows

    def _next_row(
        self, row: _DraftRow, drafts: dict[Sequence, list[int]], limits: dict[Sequence, int]
    ) -> _DraftRow | None:
        """Return the row of the draft that a sequence has just got; None where no further one is needed."""
        sequence, state = row.sequence, row.state
        if not row.is_sampled or sequence in self._excluded:
            return None
        made = drafts[sequence]
        # Behind a stop token nothing is sampled.
        if len(made) >= limits[sequence] or made[-1] in sequence.stop_token_ids:
            return None
        state.written.append(made[-1])
        return _DraftRow(sequence, state, row.start + len(row.token_ids), made[-1:])

    def _run(self, rows: list[_DraftRow]) -> dict[Sequence, int]:
        """Run a step of the draft model; returns the next token of each sampled sequence that did not fail."""
        rows.sort(key=lambda row: len(row.token_ids) != 1)
        sample_rows = [index for index, row in enumerate(rows) if row.is_sampled]
        new = tuple(_new_sequence(row) for row in rows if not row.state.is_in_runner)
        released, new_blocks = self._cache.take_changes([row.state for row in rows])
        plan = StepPlan(
            step_id=self._num_steps, released_slots=released, new_sequences=new,
            slots=np.array([row.state.slot for row in rows], np.int32),
            num_new_tokens=np.array([len(row.token_ids) for row in rows], np.int32),
            start_positions=np.array([row.start for row in rows], np.int32),
            new_blocks=np.array(new_blocks, np.int32).reshape(-1, 4),
            input_ids=np.array([token for row in rows for token in row.token_ids], np.int32),
            sample_rows=np.array(sample_rows, np.int32),
        )  # fmt: skip
        self._num_steps += 1
        self._runner.launch(plan)
        result = self._runner.collect()
        failed = {index for index, _ in result.row_errors}
        for index in failed:
            self._exclude(rows[index].sequence)
        firsts = result.tokens[result.cu_tokens[:-1]].tolist()
        return {
            rows[index].sequence: token
            for index, token in zip(sample_rows, firsts, strict=True)
            if index not in failed
        }  # fmt: skip

    def _exclude(self, sequence: Sequence) -> None:
        self._excluded.add(sequence)
        self._cache.release(sequence)


def _new_sequence(row: _DraftRow) -> NewSequence:
    """Return what the draft model's runner needs for sampling like the target model, apart from penalties."""
    sequence, params = row.sequence, row.sequence.request.params
    if not params.greedy:
        params = SamplingParams(
            max_tokens=1, temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p,
            seed=params.seed,
        ).with_defaults({}, max_tokens=1, seed=0)  # fmt: skip
    else:
        params = GREEDY
    return NewSequence(
        row.state.slot, tuple(sequence.token_ids), sequence.num_output_tokens, params,
        choice_index=sequence.choice_index,
    )  # fmt: skip
