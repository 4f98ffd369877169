"""Random engines and requests from a seed, run for some steps and checked on the way."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

from chairlift.core.errors import ChairliftError, SamplingFailed
from chairlift.core.request import GenerateRequest
from chairlift.engine.config import SchedulerConfig, SpeculationConfig
from chairlift.engine.kv.layer_groups import LayerGroupLayout
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.scheduler.batching_policy import NAMES as BATCHING_POLICIES
from chairlift.engine.scheduler.waiting_queue.base import POLICIES
from chairlift.engine.sequence import SequenceId
from chairlift.engine.step_plan import StepPlan
from support_adapter_versions import NAMES, AdapterVersions
from support_engine import EngineHarness, make_request

BAD_TOKENS = (48, 49)
"""The poison and the NaN token of a run that has them; nine of ten prompts avoid both."""


def peak_blocks(windows: tuple[int | None, ...], block_size: int, num_tokens: int, lookahead: int) -> int:
    """Return the most blocks that one sequence of num_tokens tokens holds."""
    return sum(LayerGroupLayout(window, block_size).peak_blocks(num_tokens, lookahead) for window in windows)


def make_random_engine(
    rng: random.Random, *, no_faults: bool, keep_plans: bool = False, has_state: bool = False
) -> EngineHarness:
    """Make an engine with random limits, from very small to large ones."""
    options: dict[str, Any] = {
        "max_batch_tokens": rng.choice([4, 16, 64, 512]),
        "max_running_requests": rng.choice([1, 3, 32, 32, 32]),
        "max_prefill_tokens": rng.choice([None, None, 3, 10]),
        "max_chunk_tokens": rng.choice([None, None, 1, 7]),
        "long_prefill_threshold": rng.choice([None, 5]),
        "overlap": rng.random() < 0.5,
        "max_bypass": rng.choice([0, 1, 16]),
        "prefix_wait_steps": rng.choice([0, 2, 256]),
        "protect_after_preemptions": rng.choice([1, 3]),
        "batching_policy": rng.choice(["mixed", "mixed", "mixed", *BATCHING_POLICIES]),
        "scheduling_policy": rng.choice(["fifo", *POLICIES]),
        "priority_ageing": rng.choice([0.01, 1.0]),
        "tenant_weights": rng.choice([{}, {"other": 3.0}]),
        "target_itl_ms": rng.choice([None, None, None, 0.1, 20.0]),
        "max_queue_size": rng.choice([5, 1000]),
    }
    block_size = rng.choice([1, 2, 4, 16, 37])
    windows = rng.choice([(None,), (None,), (8,), (None, 8, 8), (None, 20), (3, 11), (1,)])
    if has_state and rng.random() < 0.15:
        windows = ()  # all layers keep a state
    config = SchedulerConfig(**options)
    sees_no_past = windows == (1,)  # a token sees only itself, so a bad token in the past does no harm
    peak = peak_blocks(windows, block_size, 80, config.max_prefill_chunk * config.max_in_flight_steps)
    fake = FakeConfig(
        vocab_size=50, max_model_len=80, num_blocks=int(peak * rng.choice([0.6, 1, 1.3, 1.3, 1.6, 2, 6])) + 1,
        block_size=block_size, windows=windows, seed=rng.randrange(1000),
        poison=BAD_TOKENS[0] if rng.random() < 0.4 and not sees_no_past else None,
        nan=BAD_TOKENS[1] if rng.random() < 0.4 and not sees_no_past else None,
        has_state=has_state, num_state_checkpoints=rng.choice([0, 1, 2, 5, 20, 200]) if has_state else 0,
    )  # fmt: skip
    failure_rng = random.Random(rng.random())
    failure_rate = 0.0 if no_faults else rng.choice([0, 0, 0.02, 0.2])

    def hook(plan: StepPlan, stage: str) -> None:
        if failure_rng.random() < failure_rate:
            raise RuntimeError(f"{stage} fails")

    def row_errors(plan: StepPlan) -> list[tuple[int, ChairliftError]]:
        if failure_rng.random() < failure_rate / 2:
            return [(failure_rng.randrange(plan.num_rows), SamplingFailed("chosen to fail"))]
        return []

    harness = EngineHarness(
        fake, caching=rng.random() < 0.8, hook=hook, row_errors=row_errors, keep_plans=keep_plans, **options
    )
    draft_rng = random.Random(failure_rng.random())
    if draft_rng.random() < 0.5:
        harness.use_drafter(draft_rng, wrong=draft_rng.choice([0.0, 0.3, 1.0]), max_drafts=draft_rng.choice([1, 4, 30]))
    elif draft_rng.random() < 0.5:
        _use_random_draft_model(harness, draft_rng)
    return harness


def _use_random_draft_model(harness: EngineHarness, rng: random.Random) -> None:
    """Let a second fake model draft, which agrees or not, has much memory or little, and may fail."""
    failure_rate = rng.choice([0.0, 0.0, 0.0, 0.01])

    def hook(plan: StepPlan, stage: str) -> None:
        if rng.random() < failure_rate:
            raise RuntimeError(f"the draft model's {stage} fails")

    fake, agrees = harness.fake, not harness.fake.has_state and rng.random() < 0.7
    harness.use_draft_model(
        replace(
            fake, poison=None, nan=None, has_state=False, num_state_checkpoints=0,
            windows=fake.windows if agrees else rng.choice([(None,), (None, 8), (3,)]),
            seed=fake.seed if agrees else fake.seed + 1, num_blocks=rng.choice([3, 10, 50, 1000]),
            vocab_size=fake.vocab_size if agrees else rng.choice([40, 50, 60]),
            block_size=rng.choice([fake.block_size, fake.block_size, 5]), max_model_len=rng.choice([80, 80, 30]),
        ),
        max_drafts=rng.choice([1, 4, 30]), max_sequences=rng.choice([1, 4, 32]), hook=hook,
    )  # fmt: skip


def make_random_request(
    rng: random.Random, name: str, prefixes: list[list[int]], *, no_faults: bool, has_state: bool = False
) -> GenerateRequest:
    """Make a request that often shares a prefix with others, sometimes of another tenant.

    With has_state it may name prefix boundaries and have several choices.
    """
    base = rng.choice(prefixes)
    top = 50 if rng.random() < 0.1 else BAD_TOKENS[0]
    prompt = base[: rng.randrange(len(base) + 1)] + [rng.randrange(top) for _ in range(rng.randrange(1, 20))]
    timeout = rng.uniform(0.01, 1.5) if not no_faults and rng.random() < 0.2 else None
    stop = (7,) if rng.random() < 0.3 else ()
    outputs = rng.randrange(1, 82 - len(prompt) if rng.random() < 0.99 else 100)
    tenant, priority = rng.choice(["", "", "other"]), rng.choice([0, 0, -1, 5])
    options: dict[str, Any] = {}
    if has_state:
        boundaries = tuple(rng.randrange(len(prompt) + 1) for _ in range(rng.choice([0, 0, 1, 3, 12])))
        options = {"n": rng.choice([1, 1, 1, 2, 4]), "seed": rng.randrange(9), "prefix_boundaries": boundaries}
    return make_request(name, prompt, outputs, stop=stop, tenant=tenant, timeout=timeout, priority=priority, **options)


def abort_one(harness: EngineHarness, seq_id: SequenceId) -> None:
    """Abort a request, or one of its further choices."""
    if isinstance(seq_id, tuple):
        harness.abort(*seq_id)
    else:
        harness.abort(seq_id)


def run_random_engine(
    seed: int, steps: int, *, keep_plans: bool = False, has_state: bool = False,
    speculation: SpeculationConfig | None = None, totals: Counter[str] | None = None,
) -> EngineHarness:  # fmt: skip
    """Run a random engine for about `steps` steps, then until all requests end, and check it.

    speculation: the method whose drafters it has, instead of random ones that know the outputs.
    totals: with it requests have LoRA adapters, whose versions are replaced meanwhile; counts what happened to these.
    """
    rng = random.Random(seed)
    no_faults = rng.random() < 0.4
    harness = make_random_engine(rng, no_faults=no_faults, keep_plans=keep_plans, has_state=has_state)
    if speculation is not None:
        harness.use_method(speculation)
    versions, adapter_rng = AdapterVersions(harness), random.Random(-seed)
    prefixes = [[rng.randrange(BAD_TOKENS[0]) for _ in range(rng.randrange(40))] for _ in range(3)]
    arrival_rate = rng.choice([0.05, 0.3, 1.0])
    try:
        for _ in range(steps):
            if rng.random() < arrival_rate and len(harness.scheduler.sequences) < 60:
                name = str(len(harness.requests))
                request = make_random_request(rng, name, prefixes, no_faults=no_faults, has_state=has_state)
                if totals is not None:
                    request = replace(request, adapter=versions.version(adapter_rng.choice(NAMES)))
                harness.submit(request)
            if totals is not None:
                versions.change(adapter_rng)
            if not no_faults and rng.random() < 0.03 and harness.scheduler.sequences:
                abort_one(harness, rng.choice(list(harness.scheduler.sequences)))
            if rng.random() < 0.005:
                harness.cache.evict_all()
            if not harness.loop.is_idle:
                harness.step()
            harness.clock.advance(rng.choice([0.0, 0.01, 0.05]))
            if rng.random() < 0.02:
                assert harness.loop.check_integrity() == []
        harness.drain()
        harness.check_outputs(no_faults=no_faults)
        if totals is not None:
            totals.update(reloads=versions.num_reloads, dropped=versions.num_dropped)
    finally:
        harness.close()
    return harness
