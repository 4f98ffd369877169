"""FakeRunner: a Runner without a model, and a strict one: it keeps a KV cache of token ids and reads it back.

The next token is a hash of the context *as found in the paged cache through the block tables*. So a block that is
shared wrongly, freed too early, written twice or not computed gives another token than `expected_tokens()`, which
knows nothing of blocks. Faults happen where they are asked for.
"""

import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from chairlift.core.clock import FakeClock
from chairlift.core.errors import ChairliftError, NoAllowedToken, NonFiniteLogits
from chairlift.core.request import TokenLogprob
from chairlift.core.sampling import SamplingParams
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.step_plan import LAST_SAMPLED, Int32, NewSequence, StepPlan, StepResult, TokenMasks

NEVER_WRITTEN = -1
_STRIDE = 40_503  # odd and large: neighbouring positions get tokens far apart


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeConfig:
    """What the fake pretends to be.

    Attributes:
        vocab_size: ids are below this.
        max_model_len: tokens of one sequence at most.
        num_blocks: pages.
        block_size: tokens in a page.
        windows: one entry a layer group.
        seed: of all tokens.
        seconds_per_step: how long a step takes, on the fake clock if one is given, else really.
        seconds_per_token: added for each token of the step.
        poison: a step with this input id raises, whoever brings it.
        nan: a row with this input id has no finite logits.
        busy_cpus: processors that the runner reports as busy.
        verify: keep and read the cache; False makes a step cost next to nothing, and a token hangs on the prompt, its
            seed and the position alone.
    """

    vocab_size: int = 256
    max_model_len: int = 1024
    num_blocks: int = 256
    block_size: int = 16
    windows: tuple[int | None, ...] = (None,)
    seed: int = 0
    seconds_per_step: float = 0.0
    seconds_per_token: float = 0.0
    poison: int | None = None
    nan: int | None = None
    busy_cpus: tuple[int, ...] = ()
    verify: bool = True


def next_token(context: Sequence[int], params: SamplingParams, config: FakeConfig, choice: int = 0) -> int:
    """Return the token that follows a context: a pure function of the ids that the windows see, seed and choice."""
    narrowest = min((window for window in config.windows if window is not None), default=None)
    whole = all(window is not None for window in config.windows)
    widest = max((window or 0) for window in config.windows) if whole else len(context)
    seen = np.asarray(context[-widest:] if widest else context, np.int64)
    near = seen[-narrowest:] if narrowest else seen[:0]
    seed = 0 if params.greedy else params.seed
    salt = f"{config.seed} {seed} {0 if params.greedy else choice} {len(context)}".encode()
    return zlib.crc32(near.tobytes(), zlib.crc32(seen.tobytes(), zlib.crc32(salt))) % config.vocab_size


def masked_token(token: int, bits: Int32, vocab_size: int) -> int | None:
    """Return the token that a mask makes of the one that was drawn; None where it allows none."""
    allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:vocab_size])
    return int(allowed[token % len(allowed)]) if len(allowed) else None


def expected_tokens(
    prompt: Sequence[int], params: SamplingParams, config: FakeConfig, eos_token_ids: Sequence[int] = (),
    choice: int = 0,
) -> list[int]:  # fmt: skip
    """Return the whole output of a request, without any cache or batch."""
    assert params.max_tokens is not None
    context, stops = list(prompt), {*eos_token_ids, *params.stop_token_ids}
    while len(context) - len(prompt) < params.max_tokens:
        context.append(next_token(context, params, config, choice))
        if context[-1] in stops:
            break
    return context[len(prompt) :]


def unverified_token(prompt: Sequence[int], params: SamplingParams, position: int, config: FakeConfig) -> int:
    """Return the token at a position, counted from the prompt's begin, of a fake that does not verify."""
    return (_salt(prompt, params) + position * _STRIDE) % config.vocab_size


def _salt(prompt: Sequence[int], params: SamplingParams) -> int:
    return zlib.crc32(array("q", prompt).tobytes(), 0 if params.greedy else (params.seed or 0) % 2**32)


@dataclass(slots=True)
class _Slot:
    card: NewSequence
    salt: int = 0
    last_sampled: int | None = None
    tables: list[dict[int, int]] = field(default_factory=list)


class FakeRunner:
    """Runs plans on ids alone. Asserts on every breach of the plan's contract.

    `hook(plan, stage)` is called at "launch" and "collect" and may raise; `row_faults(plan)` names rows that fail.
    `step_time(plan)` is how many seconds of the fake clock a step takes, counted from its launch or from the end of the
    step before it; they have passed when it is collected, so two launches in flight behave as on a device.
    """

    def __init__(
        self, config: FakeConfig, *, clock: FakeClock | None = None,
        hook: Callable[[StepPlan, str], None] | None = None,
        row_faults: Callable[[StepPlan], list[tuple[int, ChairliftError]]] | None = None,
        step_time: Callable[[StepPlan], float] | None = None,
    ) -> None:  # fmt: skip
        assert step_time is None or clock is not None, "only a fake clock can be moved by a step's time"
        self.config = config
        self._clock = clock
        self._step_time = step_time
        self._done_at: deque[float] = deque()
        self._hook = hook or (lambda plan, stage: None)
        self._row_faults = row_faults or (lambda plan: [])
        self._plain = not (config.verify or row_faults or config.nan is not None or config.poison is not None)
        self._slots: dict[int, _Slot] = {}
        self._done: deque[tuple[StepPlan, StepResult]] = deque()
        self._masks: dict[int, TokenMasks] = {}
        pages = config.num_blocks if config.verify else 0
        self._memory = np.full((len(config.windows), pages, config.block_size), NEVER_WRITTEN, np.int64)
        self.started = self.stopped = False
        self.warmups = 0

    def start(self) -> RunnerInfo:
        """Say what it pretends to be."""
        self.started, config = True, self.config
        return RunnerInfo(
            vocab_size=config.vocab_size, max_model_len=config.max_model_len, num_blocks=config.num_blocks,
            block_size=config.block_size, windows=config.windows, model_id=f"fake-{config.seed}",
            busy_cpus=config.busy_cpus,
        )  # fmt: skip

    def stop(self) -> None:
        """Remember that it was stopped."""
        self.stopped = True

    def warmup(self) -> None:
        """Count it; there is nothing to warm."""
        assert not self._done, "a warm-up while steps are in flight"
        self.warmups += 1

    def launch(self, plan: StepPlan) -> None:
        """Run the step at once; raises what the hook raises, and for poison; masks that came before are gone then."""
        masks = self._masks.pop(plan.step_id, None)
        self._hook(plan, "launch")
        self._admit(plan)
        self._done.append((plan, self._guess(plan) if self._plain else self._compute(plan)))
        if masks is not None:
            self._masks[plan.step_id] = masks
        self._spend(self.config.seconds_per_step + self.config.seconds_per_token * plan.num_tokens)
        if self._step_time is not None and self._clock is not None:
            began = max(self._clock.now(), self._done_at[-1] if self._done_at else 0.0)
            self._done_at.append(began + self._step_time(plan))

    def supply_masks(self, step_id: int, masks: TokenMasks) -> None:
        """Keep them until the step is collected."""
        self._masks[step_id] = masks

    def collect(self) -> StepResult:
        """Return the oldest result; raises what the hook raises."""
        plan, result = self._done.popleft()
        if len(plan.masked_samples):
            result = self._masked(plan, result, self._masks.pop(plan.step_id))
        if self._done_at and self._clock is not None:
            self._clock.advance(max(0.0, self._done_at.popleft() - self._clock.now()))
        try:
            self._hook(plan, "collect")
        except Exception:
            self._done.clear()
            self._done_at.clear()
            self._masks.clear()
            raise
        return result

    def _spend(self, seconds: float) -> None:
        if self._clock is not None:
            self._clock.advance(seconds)
        elif seconds:
            time.sleep(seconds)

    def _admit(self, plan: StepPlan) -> None:
        for slot in plan.released_slots:
            self._slots.pop(slot, None)
        for card in plan.new_sequences:
            prompt = card.token_ids[: len(card.token_ids) - card.num_output_tokens]
            salt = 0 if self.config.verify else _salt(prompt, card.params)
            self._slots[card.slot] = _Slot(card, salt, tables=[{} for _ in self.config.windows])
            self._plain = self._plain and card.params.logprobs is None and card.params.prompt_logprobs is None
        if not self.config.verify:
            return
        for slot, group, index, block in plan.new_blocks.tolist():
            assert 0 <= block < self.config.num_blocks, f"block {block} does not exist"
            self._slots[slot].tables[group][index] = block
        source, target = plan.block_copies.T
        self._memory[:, target] = self._memory[:, source]

    def _guess(self, plan: StepPlan) -> StepResult:
        """Draw from prompt and position alone, and look at nothing else."""
        ends = (plan.start_positions + plan.num_new_tokens)[plan.sample_rows]
        slots, vocab = self._slots, self.config.vocab_size
        drawn = zip(plan.slots[plan.sample_rows].tolist(), ends.tolist(), strict=True)
        tokens = [(slots[slot].salt + end * _STRIDE) % vocab for slot, end in drawn]
        return StepResult(plan.step_id, np.array(tokens, np.int32), np.arange(len(tokens) + 1, dtype=np.int32))

    def _compute(self, plan: StepPlan) -> StepResult:
        faults = dict(self._row_faults(plan))
        sampled = set(plan.sample_rows.tolist())
        tokens: list[int] = []
        logprobs: list[TokenLogprob | None] = []
        scores: list[tuple[int, tuple[TokenLogprob, ...]]] = []
        ids, at = plan.input_ids.tolist(), 0
        rows = zip(plan.slots.tolist(), plan.num_new_tokens.tolist(), plan.start_positions.tolist(), strict=True)
        assert plan.num_new_tokens.tolist() == sorted(plan.num_new_tokens.tolist(), key=lambda count: count != 1)
        for row, (number, count, start) in enumerate(rows):
            slot = self._slots[number]
            new, at = ids[at : at + count], at + count
            if LAST_SAMPLED in new:
                assert new.index(LAST_SAMPLED) == count - 1, "only the last id can be unknown"
                assert slot.last_sampled is not None, "no token was sampled for this slot yet"
                new[-1] = slot.last_sampled
            if self.config.poison is not None and self.config.poison in new:
                raise ValueError(f"the fake model cannot read token {self.config.poison}")
            if self.config.nan is not None and self.config.nan in new:
                faults.setdefault(row, NonFiniteLogits("the fake logits are NaN"))
            context = self._write(slot, start, new) if self.config.verify else []
            if len(scored := self._scored(slot.card, start, count)):
                scores.append((row, scored))
            if row in sampled:
                if row in faults:
                    token = 0
                elif self.config.verify:
                    token = next_token(context, slot.card.params, self.config, slot.card.choice_index)
                else:
                    token = (slot.salt + (start + count) * _STRIDE) % self.config.vocab_size
                slot.last_sampled = token
                tokens.append(token)
                logprobs.append(None if slot.card.params.logprobs is None else TokenLogprob(token, -1.0))
        assert at == len(ids), "input ids do not add up"
        bounds = np.arange(len(tokens) + 1, dtype=np.int32)
        said = tuple(logprobs) if any(entry is not None for entry in logprobs) else ()
        return StepResult(
            plan.step_id, np.array(tokens, np.int32), bounds, said, tuple(faults.items()), tuple(scores)
        )  # fmt: skip

    @staticmethod
    def _scored(card: NewSequence, start: int, count: int) -> tuple[TokenLogprob, ...]:
        """Pretend to score the prompt's tokens behind a row's, those that are wanted."""
        if card.params.prompt_logprobs is None:
            return ()
        end = min(start + count + 1, len(card.token_ids) - card.num_output_tokens)
        return tuple(
            TokenLogprob(card.token_ids[at], -1.0) for at in range(max(start + 1, card.prompt_logprobs_from), end)
        )

    def _masked(self, plan: StepPlan, result: StepResult, masks: TokenMasks) -> StepResult:
        """Let each masked row take, of the tokens that it may, the one at the place of the token that it drew."""
        assert masks.sample_indices.tolist() == plan.masked_samples.tolist(), "masks of other rows than those that wait"
        tokens, logprobs, faults = result.tokens.copy(), list(result.logprobs), dict(result.row_errors)
        for place, bits in masks.by_row().items():
            row = int(plan.sample_rows[place])
            if row in faults:
                continue
            token = masked_token(int(tokens[place]), bits, self.config.vocab_size)
            if token is None:
                faults[row] = NoAllowedToken("no token is left that the structure allows")
                continue
            tokens[place] = self._slots[int(plan.slots[row])].last_sampled = token
            if logprobs and logprobs[place] is not None:
                logprobs[place] = TokenLogprob(token, -1.0)
        return replace(result, tokens=tokens, logprobs=tuple(logprobs), row_errors=tuple(faults.items()))

    def _write(self, slot: _Slot, start: int, new: list[int]) -> list[int]:
        """Store new ids in every group, then read the context back as far as each group's window sees."""
        size, end = self.config.block_size, start + len(new)
        for group, table in enumerate(slot.tables):
            for position, token in enumerate(new, start=start):
                self._memory[group, table[position // size], position % size] = token
        context = [NEVER_WRITTEN] * end
        for group, (table, window) in enumerate(zip(slot.tables, self.config.windows, strict=True)):
            for position in range(0 if window is None else max(0, start + 1 - window), end):
                token = int(self._memory[group, table[position // size], position % size])
                assert token != NEVER_WRITTEN, f"position {position} of group {group} was never computed"
                assert context[position] in {NEVER_WRITTEN, token}, f"groups disagree at position {position}"
                context[position] = token
        return context


def build(payload: bytes) -> FakeRunner:
    """Make a fake from the msgpack bytes of a FakeConfig: "chairlift.engine.runner.fake:build"."""
    return FakeRunner(msgspec.msgpack.decode(payload, type=FakeConfig))
