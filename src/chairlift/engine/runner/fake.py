"""FakeRunner: a Runner without a model that keeps a KV cache of token ids and checks every plan strictly.

The next token is a hash of the context *as read from the paged cache through the block tables*. A block that is shared
wrongly, freed too early, written twice or not computed therefore gives another token than `expected_tokens()`, which
does not use blocks. Tests configure where a step or a row fails.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from chairlift.core.clock import FakeClock
from chairlift.core.engine_output import TokenLogprob
from chairlift.core.errors import ChairliftError, NoAllowedToken, NonFiniteLogits
from chairlift.engine.runner.base import AdapterInfo, RunnerInfo
from chairlift.engine.runner.fake_adapters import FakeAdapters, cache_key
from chairlift.engine.runner.fake_model import (
    _STRIDE,
    HIDDEN_SIZE,
    FakeConfig,
    _salt,
    hidden_state,
    masked_token,
    next_token,
)
from chairlift.engine.runner.fake_states import ZERO_STATE, FakeStates, State, zero_state
from chairlift.engine.step_plan import LAST_SAMPLED, NewSequence, StepPlan, TokenMasks
from chairlift.engine.step_result import StepResult

STATE_BYTES = 16
"""Memory of one state that a fake with states reports."""

NEVER_WRITTEN = -1
"""Content of a KV token slot that no step has written."""


@dataclass(slots=True)
class _Slot:
    sequence: NewSequence
    salt: int = 0
    adapter: str = ""
    last_sampled: int | None = None
    tables: list[dict[int, int]] = field(default_factory=list)


class FakeRunner:
    """Runs plans on token ids only. Asserts the plan's contract.

    `hook(plan, stage)` is called at "launch" and "collect" and may raise. `row_errors(plan)` returns failing rows.
    `step_time(plan)` returns the seconds of the fake clock that a step takes, from its launch or from the end of the
    step before it. The clock advances when the step is collected, so two launches in flight behave as on a device.
    """

    def __init__(
        self, config: FakeConfig, *, clock: FakeClock | None = None,
        hook: Callable[[StepPlan, str], None] | None = None,
        row_errors: Callable[[StepPlan], list[tuple[int, ChairliftError]]] | None = None,
        step_time: Callable[[StepPlan], float] | None = None,
    ) -> None:  # fmt: skip
        assert step_time is None or clock is not None, "step_time needs a fake clock"
        self.config = config
        self._clock = clock
        self._step_time = step_time
        self._done_at: deque[float] = deque()
        self._hook = hook or (lambda plan, stage: None)
        self._row_errors = row_errors or (lambda plan: [])
        self._is_fast = not (config.verify or row_errors or config.nan is not None or config.poison is not None)
        self._slots: dict[int, _Slot] = {}
        self._done: deque[tuple[StepPlan, StepResult]] = deque()
        self._failed_samples: dict[int, set[int]] = {}  # samples behind drafts, by step_id of a step with drafts
        self._masks: dict[int, TokenMasks] = {}
        self.adapters = FakeAdapters()
        self._states = (
            FakeStates(config.num_state_checkpoints, lambda number: zero_state(self.adapters.digest(number)))
            if config.has_state and config.verify else None
        )  # fmt: skip
        num_blocks = config.num_blocks if config.verify else 0
        self._memory = np.full((len(config.windows), num_blocks, config.block_size), NEVER_WRITTEN, np.int64)
        self.started = self.stopped = False
        self.warmups = 0

    def start(self) -> RunnerInfo:
        """Return the properties of the fake model."""
        self.started, config = True, self.config
        return RunnerInfo(
            vocab_size=config.vocab_size, max_model_len=config.max_model_len, num_blocks=config.num_blocks,
            block_size=config.block_size, windows=config.windows, model_id=f"fake-{config.seed}",
            busy_cpus=config.busy_cpus, may_have_low_priority=config.may_have_low_priority, hidden_size=HIDDEN_SIZE,
            max_cached_blocks=config.max_cached_blocks, has_state=config.has_state,
            num_state_checkpoints=config.num_state_checkpoints, state_bytes=STATE_BYTES if config.has_state else 0,
        )  # fmt: skip

    def stop(self) -> None:
        """Record that the runner was stopped."""
        self.stopped = True

    def warmup(self) -> None:
        """Count the call; a fake needs no warm-up."""
        assert not self._done, "a warm-up while steps are in flight"
        self.warmups += 1

    def load_adapter(self, number: int, folder: str) -> AdapterInfo:
        """Load an adapter; see FakeAdapters."""
        return self.adapters.load(number, folder)

    def drop_adapter(self, number: int) -> None:
        """Forget an adapter."""
        self.adapters.drop(number)

    def release_blocks(self, num_kept: int, moves: Sequence[tuple[int, int]] = ()) -> int:
        """Erase all but the first blocks; returns a byte for each."""
        for source, target in moves:
            self._memory[:, target] = self._memory[:, source]
        self._memory[:, num_kept:] = NEVER_WRITTEN
        return self.config.num_blocks - num_kept

    def launch(self, plan: StepPlan) -> None:
        """Run the step at once.

        Raises the hook's error, and ValueError for a poison token; the masks of the step are lost then.
        """
        masks = self._masks.pop(plan.step_id, None)
        try:
            self._hook(plan, "launch")
            self._update_slots(plan)
            is_fast = self._is_fast and not len(plan.num_drafts)
            self._done.append((plan, self._compute_fast(plan) if is_fast else self._compute(plan)))
        except Exception:
            self._lose_states(plan)
            raise
        if masks is not None:
            self._masks[plan.step_id] = masks
        self._spend(self.config.seconds_per_step + self.config.seconds_per_token * plan.num_tokens)
        if self._step_time is not None and self._clock is not None:
            started_at = max(self._clock.now(), self._done_at[-1] if self._done_at else 0.0)
            self._done_at.append(started_at + self._step_time(plan))

    def supply_masks(self, step_id: int, masks: TokenMasks) -> None:
        """Store the masks until the step is collected."""
        self._masks[step_id] = masks

    def collect(self) -> StepResult:
        """Return the oldest result. Raises the hook's error."""
        plan, result = self._done.popleft()
        if len(plan.masked_samples):
            result = self._apply_masks(plan, result, self._masks.pop(plan.step_id))
        if len(plan.num_drafts):
            result = self._confirm(plan, result)
        if self._done_at and self._clock is not None:
            self._clock.advance(max(0.0, self._done_at.popleft() - self._clock.now()))
        try:
            self._hook(plan, "collect")
        except Exception:
            self._lose_states(plan, *(later for later, _ in self._done))
            self._done.clear()
            self._done_at.clear()
            self._masks.clear()
            self._failed_samples.clear()
            raise
        return result

    def _lose_states(self, *plans: StepPlan) -> None:
        """Leave any state in the slots of discarded plans: a real runner may have computed a part of them."""
        if self._states is not None:
            for plan in plans:
                self._states.lose(plan)

    def _spend(self, seconds: float) -> None:
        if self._clock is not None:
            self._clock.advance(seconds)
        elif seconds:
            time.sleep(seconds)

    def _update_slots(self, plan: StepPlan) -> None:
        for slot in plan.released_slots:
            self._slots.pop(slot, None)
        for sequence in plan.new_sequences:
            prompt = sequence.token_ids[: len(sequence.token_ids) - sequence.num_output_tokens]
            adapter = self.adapters.digest(sequence.adapter)
            salt = 0 if self.config.verify else _salt(prompt, sequence.params, adapter)
            self._slots[sequence.slot] = _Slot(sequence, salt, adapter, tables=[{} for _ in self.config.windows])
            params = sequence.params
            is_plain = params.logprobs is None and params.prompt_logprobs is None and not sequence.pooling
            self._is_fast = self._is_fast and is_plain
        if not self.config.verify:
            return
        for slot, group, index, block in plan.new_blocks.tolist():
            assert 0 <= block < self.config.num_blocks, f"block {block} does not exist"
            self._slots[slot].tables[group][index] = block
        source, target = plan.block_copies.T
        self._memory[:, target] = self._memory[:, source]
        if self._states is not None:
            self._states.apply(plan)

    def _compute_fast(self, plan: StepPlan) -> StepResult:
        """Compute tokens from the prompts and positions only, for all rows at once."""
        ends = (plan.start_positions + plan.num_new_tokens)[plan.sample_rows]
        slots, vocab = self._slots, self.config.vocab_size
        rows = zip(plan.slots[plan.sample_rows].tolist(), ends.tolist(), strict=True)
        tokens = [(slots[slot].salt + end * _STRIDE) % vocab for slot, end in rows]
        return StepResult(plan.step_id, np.array(tokens, np.int32), np.arange(len(tokens) + 1, dtype=np.int32))

    def _compute(self, plan: StepPlan) -> StepResult:
        """Compute all samples, as if every draft were confirmed."""
        errors = dict(self._row_errors(plan))
        num_drafts = plan.num_drafts.tolist() if len(plan.num_drafts) else [0] * len(plan.sample_rows)
        sampled = dict(zip(plan.sample_rows.tolist(), num_drafts, strict=True))
        failed_samples = set[int]()
        tokens: list[int] = []
        logprobs: list[TokenLogprob | None] = []
        prompt_logprobs: list[tuple[int, tuple[TokenLogprob, ...]]] = []
        pooled: list[tuple[int, NDArray[np.float64]]] = []
        saves: dict[int, dict[int, int]] = {}
        for row, number, checkpoint in plan.state_saves.tolist():
            saves.setdefault(row, {})[number] = checkpoint
        ids, at = plan.input_ids.tolist(), 0
        rows = zip(plan.slots.tolist(), plan.num_new_tokens.tolist(), plan.start_positions.tolist(), strict=True)
        assert plan.num_new_tokens.tolist() == sorted(plan.num_new_tokens.tolist(), key=lambda count: count != 1)
        for row, (slot_index, count, start) in enumerate(rows):
            slot = self._slots[slot_index]
            assert slot.adapter == self.adapters.digest(slot.sequence.adapter), "a row's adapter was dropped"
            new, at = ids[at : at + count], at + count
            if LAST_SAMPLED in new:
                assert new.index(LAST_SAMPLED) == count - 1, "only the last id can be unknown"
                if self.config.verify:
                    assert slot.last_sampled is not None, "no token was sampled for this slot yet"
                    new[-1] = slot.last_sampled
            if self.config.poison is not None and self.config.poison in new:
                raise ValueError(f"the fake model cannot read token {self.config.poison}")
            first = count - sampled.get(row, 0)  # new tokens before the first draft
            if self.config.nan is not None and self.config.nan in new[:first]:
                errors.setdefault(row, NonFiniteLogits("the fake logits are NaN"))
            context = self._write(slot, start, new) if self.config.verify else []
            states = (
                [ZERO_STATE] * count if self._states is None
                else self._states.advance(slot_index, start, new, saves.get(row, {}))
            )  # fmt: skip
            if len(entries := self._prompt_logprobs(slot.sequence, start, count)):
                prompt_logprobs.append((row, entries))
            if (hidden := self._pooled(slot, context, start, count)) is not None:
                pooled.append((row, hidden))
            for end in range(first, count + 1) if row in sampled else ():
                token = 0 if row in errors else self._sample(slot, context[: start + end], start + end, states[end - 1])
                if self.config.nan is not None and self.config.nan in new[first:end]:
                    failed_samples.add(len(tokens))
                slot.last_sampled = token
                tokens.append(token)
                logprobs.append(None if slot.sequence.params.logprobs is None else TokenLogprob(token, -1.0))
        assert at == len(ids), "input ids do not add up"
        assert len(tokens) == plan.num_samples, "samples do not add up"
        if len(plan.num_drafts):
            self._failed_samples[plan.step_id] = failed_samples
        bounds = plan.sample_bounds
        reported = tuple(logprobs) if any(entry is not None for entry in logprobs) else ()
        return StepResult(
            plan.step_id, np.array(tokens, np.int32), bounds, reported, tuple(errors.items()), tuple(prompt_logprobs),
            tuple(pooled),
        )  # fmt: skip

    def _sample(self, slot: _Slot, context: Sequence[int], position: int, state: State) -> int:
        if self.config.verify:
            choice = slot.sequence.choice_index
            return next_token(context, slot.sequence.params, self.config, choice, state, slot.adapter)
        return (slot.salt + position * _STRIDE) % self.config.vocab_size

    def _confirm(self, plan: StepPlan, result: StepResult) -> StepResult:
        """Keep the tokens of each row up to the first one that is not its draft; forget the other drafts."""
        tokens, drafts, bounds = result.tokens.tolist(), plan.next_drafts.tolist(), plan.sample_bounds.tolist()
        failed = self._failed_samples.pop(plan.step_id)
        kept: list[int] = []
        cu_tokens = [0]
        for sample_row, (first, end) in enumerate(pairwise(bounds)):
            last = first
            while last + 1 < end and tokens[last] == drafts[last] and last + 1 not in failed:
                last += 1
            kept += range(first, last + 1)
            cu_tokens.append(len(kept))
            row = int(plan.sample_rows[sample_row])
            slot = int(plan.slots[row])
            self._slots[slot].last_sampled = tokens[last]
            num_known = int(plan.start_positions[row] + plan.num_new_tokens[row]) - (end - 1 - last)
            if self._states is not None:
                self._states.reject(slot, num_known)
        logprobs = tuple(result.logprobs[index] for index in kept) if result.logprobs else ()
        return replace(result, tokens=result.tokens[kept], cu_tokens=np.array(cu_tokens, np.int32), logprobs=logprobs)

    def _pooled(self, slot: _Slot, context: Sequence[int], start: int, count: int) -> NDArray[np.float64] | None:
        """Return the pooled hidden states of a row's tokens, if requested."""
        sequence, adapter, end = slot.sequence, slot.adapter, start + count
        if not self.config.verify:
            context = sequence.token_ids
        if sequence.pooling == "mean":
            return sum(
                (hidden_state(context[: at + 1], self.config, adapter) for at in range(start, end)),
                np.zeros(HIDDEN_SIZE),
            )
        is_end = end == len(sequence.token_ids) - sequence.num_output_tokens
        return hidden_state(context[:end], self.config, adapter) if sequence.pooling == "last" and is_end else None

    @staticmethod
    def _prompt_logprobs(sequence: NewSequence, start: int, count: int) -> tuple[TokenLogprob, ...]:
        """Return made-up logprobs of the prompt tokens after a row's tokens, if requested."""
        if sequence.params.prompt_logprobs is None:
            return ()
        end = min(start + count + 1, len(sequence.token_ids) - sequence.num_output_tokens)
        return tuple(
            TokenLogprob(sequence.token_ids[at], -1.0)
            for at in range(max(start + 1, sequence.prompt_logprobs_from), end)
        )

    def _apply_masks(self, plan: StepPlan, result: StepResult, masks: TokenMasks) -> StepResult:
        """Replace the sampled token of each masked row by an allowed one."""
        assert masks.sample_indices.tolist() == plan.masked_samples.tolist(), (
            "masks for other rows than the plan's masked samples"
        )
        tokens, logprobs, errors = result.tokens.copy(), list(result.logprobs), dict(result.row_errors)
        bounds = plan.sample_bounds
        for sample_index, bits in masks.by_row().items():
            sample_row = int(bounds.searchsorted(sample_index, side="right")) - 1
            row = int(plan.sample_rows[sample_row])
            if row in errors:
                continue
            token = masked_token(int(tokens[sample_index]), bits, self.config.vocab_size)
            if token is None and sample_index > bounds[sample_row]:
                self._failed_samples[plan.step_id].add(sample_index)
                continue
            if token is None:
                errors[row] = NoAllowedToken("no token is left that the structured output allows")
                continue
            tokens[sample_index] = self._slots[int(plan.slots[row])].last_sampled = token
            if logprobs and logprobs[sample_index] is not None:
                logprobs[sample_index] = TokenLogprob(token, -1.0)
        return replace(result, tokens=tokens, logprobs=tuple(logprobs), row_errors=tuple(errors.items()))

    def _write(self, slot: _Slot, start: int, new: list[int]) -> list[int]:
        """Write new ids to every group, then read the context back through each group's window."""
        size, end, key = self.config.block_size, start + len(new), cache_key(slot.adapter)
        for group, table in enumerate(slot.tables):
            for position, token in enumerate(new, start=start):
                self._memory[group, table[position // size], position % size] = token ^ key
        context = [NEVER_WRITTEN] * end
        for group, (table, window) in enumerate(zip(slot.tables, self.config.windows, strict=True)):
            for position in range(0 if window is None else max(0, start + 1 - window), end):
                content = int(self._memory[group, table[position // size], position % size])
                assert content != NEVER_WRITTEN, f"position {position} of group {group} was never computed"
                token = content ^ key
                assert context[position] in {NEVER_WRITTEN, token}, f"groups disagree at position {position}"
                context[position] = token
        return context


def build(payload: bytes) -> FakeRunner:
    """Build a fake from a msgpack FakeConfig; "chairlift.engine.runner.fake:build" names this."""
    return FakeRunner(msgspec.msgpack.decode(payload, type=FakeConfig))
