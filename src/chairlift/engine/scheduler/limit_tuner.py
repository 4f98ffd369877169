"""decide_limits: how many requests, tokens of a step and KV blocks the scheduler may use, from measured utilization.

    upwards      at once: a limit of which 90 % is used while requests wait follows the demand, and so do the blocks
                 while requests wait though the batch is not full
    downwards    slowly: a limit of which less than 70 % was used for a whole window falls to the peak / 0.9
    target       with target_itl_ms, a step that takes longer lowers the tokens of a step, or else the requests, and no
                 limit rises that would make a step longer than the target

Limits stay within their bounds. The decision is pure; LimitTuner collects its samples, one for each interval in which
the engine works.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from chairlift.engine.kv.block_pool import BlockCounts
from chairlift.engine.scheduler.engine_limits import EngineLimits, LimitsConfig
from chairlift.engine.step_stats import StepStats

RISE, FALL = 2.0, 0.8
"""Largest factors of one change."""

COVERED_SHARE = 0.9
"""Part of the window that samples under the same limits must cover before a limit falls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSample:
    """What the engine did in one interval.

    Attributes:
        at: end of the interval, in seconds.
        limits: those that held.
        running: most running sequences.
        waiting: fewest waiting sequences.
        tokens: most tokens of a step.
        blocks: most blocks in use: held, and cached ones while prompts hit them.
        step_ms: mean duration of the steps with decoding sequences; 0 without any.
        has_prefill: whether most of the tokens were prompt tokens.
        preemptions: preemptions in the interval.
    """

    at: float
    limits: EngineLimits
    running: int
    waiting: int
    tokens: int
    blocks: int
    step_ms: float
    has_prefill: bool
    preemptions: int


@dataclass(frozen=True, slots=True)
class LimitsDecision:
    """New limits, with the reason for each that changed; without reasons nothing changed."""

    limits: EngineLimits
    reasons: Mapping[str, str]


def decide_limits(samples: Sequence[LimitSample], config: LimitsConfig, now: float) -> LimitsDecision:
    """Decide the limits from at least one sample, the newest last."""
    current = samples[-1].limits
    # Samples under other limits do not tell how much of the present ones is used.
    recent = [sample for sample in samples if now - sample.at < config.window and sample.limits == current]
    if not recent:
        return LimitsDecision(current, {})
    trial = _Decision(recent, config, current, recent[-1])
    wanted = {
        "max_batch_tokens": trial.batch_tokens(),
        "max_running_requests": trial.running_requests(),
        "num_blocks": trial.blocks(),
    }
    values, reasons = {}, {}
    for name, (value, reason) in wanted.items():
        low, high, before = (getattr(each, name) for each in (config.lowest, config.highest, current))
        values[name] = min(high, max(low, value))
        if values[name] != before:
            reasons[name] = reason
    if values["max_batch_tokens"] < values["max_running_requests"]:
        values["max_batch_tokens"] = values["max_running_requests"]
        reasons["max_batch_tokens"] = "each running request may have a token in a step"
    decided = EngineLimits(**values)
    # The correction just above may have given a limit its old value back.
    changed = {name: reason for name, reason in reasons.items() if values[name] != getattr(current, name)}
    return LimitsDecision(decided, changed)


@dataclass(frozen=True, slots=True)
class _Decision:
    """The samples of one decision; each method returns a limit before its bounds, with the reason."""

    recent: Sequence[LimitSample]
    config: LimitsConfig
    current: EngineLimits
    last: LimitSample

    @property
    def _is_covered(self) -> bool:
        return self.last.at - self.recent[0].at + self.config.interval >= COVERED_SHARE * self.config.window

    @property
    def _is_slow(self) -> bool:
        target = self.config.target_itl_ms
        return target is not None and self.last.step_ms > target

    @property
    def _room(self) -> float:
        """How many times as long a step may be before it takes the target's share of target_itl_ms."""
        target = self.config.target_itl_ms
        return RISE if target is None or not self.last.step_ms else self.config.target * target / self.last.step_ms

    def _slow_reason(self) -> str:
        return f"a step takes {self.last.step_ms:.1f} ms, the target is {self.config.target_itl_ms:g} ms"

    def running_requests(self) -> tuple[int, str]:
        """Follow the running sequences, and the waiting ones where the batch is full."""
        limit, last = self.current.max_running_requests, self.last
        # Where prompts make the steps slow, batch_tokens() falls instead.
        if self._is_slow and not last.has_prefill:
            return min(limit, ceil(last.running * max(FALL, self._room))), self._slow_reason()
        if last.waiting and last.running >= self.config.target * limit:
            # More sequences would preempt each other, or make steps longer still.
            if last.preemptions or self._is_slow:
                return limit, ""
            demand = ceil((last.running + last.waiting) / self.config.target)
            rise = min(demand, int(limit * RISE), max(limit, int(last.running * self._room)))
            return max(limit, rise), f"{last.waiting} requests wait and {last.running} run"
        # While the cache may still grow, blocks() answers to preemptions.
        if last.preemptions and self.current.num_blocks == self.config.highest.num_blocks:
            return min(limit, ceil(last.running * FALL)), f"{last.preemptions} preemptions in a full KV cache"
        return self._fallen(limit, max(sample.running for sample in self.recent), "requests ran")

    def batch_tokens(self) -> tuple[int, str]:
        """Follow the tokens of a step."""
        limit, last = self.current.max_batch_tokens, self.last
        if self._is_slow and last.has_prefill:
            return max(last.running, ceil(min(limit, last.tokens) * max(FALL, self._room))), self._slow_reason()
        if last.tokens >= self.config.target * limit:
            rise = max(limit, ceil(limit * min(RISE, self._room)))
            return rise, f"a step had {last.tokens} tokens"
        return self._fallen(limit, max(sample.tokens for sample in self.recent), "tokens were in a step")

    def blocks(self) -> tuple[int, str]:
        """Follow the blocks in use, and those that waiting requests will need where the batch has room for them."""
        limit, last = self.current.num_blocks, self.last
        if last.waiting and last.running < self.config.target * self.current.max_running_requests:
            demand = ceil(last.blocks * (last.running + last.waiting) / max(1, last.running))
            return max(demand, ceil(limit * RISE)), f"{last.waiting} requests wait while only {last.running} run"
        if last.blocks >= self.config.target * limit or last.preemptions:
            return ceil(limit * RISE), f"{last.blocks} blocks were in use, with {last.preemptions} preemptions"
        return self._fallen(limit, max(sample.blocks for sample in self.recent), "blocks were in use")

    def _fallen(self, limit: int, peak: int, what: str) -> tuple[int, str]:
        """Return a limit near its peak where less was used in the whole window, else the same limit."""
        if not self._is_covered or peak >= self.config.low * limit:
            return limit, ""
        lower = max(ceil(peak / self.config.target), ceil(limit * FALL))
        return lower, f"at most {peak} of {limit} {what} in {self.config.window:g} s"


class LimitTuner:
    """Collects samples of an engine's steps and decides once in each interval. Reads no clock."""

    def __init__(self, config: LimitsConfig) -> None:
        self.config = config
        self.limits = config.highest
        self._samples: deque[LimitSample] = deque(maxlen=ceil(config.window / config.interval) + 1)
        self._sample: LimitSample | None = None
        self._begin = 0.0
        self._step_ms: list[float] = []
        self._prefill_tokens = self._tokens = 0
        self._preemptions = 0
        self._cached_tokens = 0
        self._last_end = 0.0

    def record(
        self, stats: StepStats, scheduled_at: float, now: float, *, pool: BlockCounts, cached_tokens: int
    ) -> LimitsDecision | None:
        """Add a step that ended now; returns a decision that changes a limit, else None.

        Args:
            stats: the step.
            scheduled_at: its start in seconds; with two steps in flight it counts from the end of the one before.
            now: its end in seconds, by the same clock.
            pool: blocks by state.
            cached_tokens: prompt tokens from the cache since the start.
        """
        milliseconds = (now - max(scheduled_at, self._last_end)) * 1e3
        self._last_end = now
        blocks = pool.held + pool.cached * (cached_tokens > self._cached_tokens)
        sample = self._sample
        if sample is None:
            self._begin = now
            sample = LimitSample(
                at=now, limits=self.limits, running=0, waiting=stats.waiting, tokens=0, blocks=0, step_ms=0.0,
                has_prefill=False, preemptions=0,
            )  # fmt: skip
        if stats.num_sequences and stats.num_tokens > stats.num_prefill_tokens:
            self._step_ms.append(milliseconds)
        self._prefill_tokens += stats.num_prefill_tokens
        self._tokens += stats.num_tokens
        # stats.running lacks the sequences that this step has finished, hence num_sequences. The fewest that waited
        # count: a queue that was empty once within the interval asks for no more.
        self._sample = sample = replace(
            sample, running=max(sample.running, stats.running, stats.num_sequences),
            waiting=min(sample.waiting, stats.waiting), tokens=max(sample.tokens, stats.num_tokens),
            blocks=max(sample.blocks, blocks),
        )  # fmt: skip
        if now - self._begin < self.config.interval:
            return None
        self._samples.append(replace(
            sample, at=now, preemptions=stats.preemptions - self._preemptions,
            step_ms=sum(self._step_ms) / len(self._step_ms) if self._step_ms else 0.0,
            has_prefill=2 * self._prefill_tokens > self._tokens,
        ))  # fmt: skip
        self._sample, self._preemptions, self._cached_tokens = None, stats.preemptions, cached_tokens
        self._step_ms, self._prefill_tokens, self._tokens = [], 0, 0
        decision = decide_limits(self._samples, self.config, now)
        if decision.limits == self.limits:
            return None
        self.limits = decision.limits
        return decision
