"""Random runs of the engine on a real model: requests, arrivals, aborts and limits of a seed, step by step.

scheduling_run(seed)   the run of a seed
play(run, runner)      runs it with a runner; returns the tokens of each request
alone(run, runner)     the tokens of each request when no other one runs
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.drafters.base import Drafter
from chairlift.engine.engine_counters import Counters
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.base import Runner
from chairlift.engine.scheduler.batching_policy import NAMES
from chairlift.engine.scheduler.waiting_queue.base import POLICIES
from support_engine import submit

VOCAB_SIZE = 304
MAX_PROMPT, MAX_OUTPUT = 40, 12
MAX_MODEL_LEN = 64
PLENTY = 600
"""Blocks that are enough for every request."""

MOST_STEPS = 20_000

MakeRunner = Callable[[int, int, int], Runner]
"""Makes a runner of (blocks of the KV cache, tokens of a block, tokens of a step)."""


@dataclass(frozen=True, slots=True)
class SchedulingRun:
    """What happens in a run.

    Attributes:
        requests: requests in the order of their arrival.
        arrivals: step of each arrival.
        aborts: request id -> step in which it is aborted.
        block_size, num_blocks: of the KV cache; more blocks than the largest request needs, fewer than all need.
        config: limits and policies of the scheduler.
        enable_prefix_caching: whether blocks are shared.
    """

    requests: tuple[GenerateRequest, ...]
    arrivals: tuple[int, ...]
    aborts: dict[str, int]
    block_size: int
    num_blocks: int
    config: SchedulerConfig
    enable_prefix_caching: bool


def _request(
    rng: random.Random, number: int, bases: Sequence[tuple[int, ...]], longest: int, most_tokens: int
) -> GenerateRequest:
    length = rng.choice((rng.randrange(1, 9), rng.randrange(1, longest + 1)))
    base = rng.choice(bases)[: rng.randrange(longest + 1)] if rng.random() < 0.6 else ()
    own = tuple(rng.randrange(8, VOCAB_SIZE) for _ in range(length))
    prompt = rng.choice(bases)[:longest] if rng.random() < 0.1 else (base + own)[:longest]
    params = SamplingParams(
        temperature=rng.choice((0.0, 0.0, 0.8, 1.2)), top_k=rng.choice((None, 20)), top_p=rng.choice((1.0, 0.9)),
        seed=rng.randrange(1000), max_tokens=rng.randrange(1, most_tokens + 1), ignore_eos=rng.random() < 0.5,
    ).with_defaults({}, max_tokens=MAX_OUTPUT, seed=0)  # fmt: skip
    return GenerateRequest(
        request_id=f"r{number}", prompt_token_ids=prompt, params=params, priority=rng.randrange(3),
        eos_token_ids=() if params.ignore_eos else (2, 7),
        tenant=rng.choice(("", "", "other")),
    )  # fmt: skip


def scheduling_run(
    seed: int, num_groups: int = 1, *, most_requests: int = 10, longest_prompt: int = MAX_PROMPT,
    most_tokens: int = MAX_OUTPUT,
) -> SchedulingRun:  # fmt: skip
    """Return the run of a seed.

    Args:
        seed: of everything in it.
        num_groups: layer groups of the model, which share the blocks.
        most_requests: upper bound of the number of requests.
        longest_prompt: upper bound of the tokens of a prompt.
        most_tokens: upper bound of the tokens of an output.
    """
    rng = random.Random(f"scheduling {seed}")
    bases = [tuple(rng.randrange(8, VOCAB_SIZE) for _ in range(longest_prompt)) for _ in range(2)]
    requests = tuple(
        _request(rng, number, bases, longest_prompt, most_tokens)
        for number in range(rng.randrange(2, most_requests + 1))
    )
    arrivals = sorted(rng.choice((0, rng.randrange(30))) for _ in requests)
    aborts = {each.request_id: rng.randrange(40) for each in requests if rng.random() < 0.15}
    block_size = rng.choice((1, 3, 4, 8, 16, 20))
    lengths = (len(request.prompt_token_ids) + (request.params.max_tokens or 0) for request in requests)
    largest = num_groups * max(-(-length // block_size) for length in lengths)
    config = SchedulerConfig(
        max_batch_tokens=rng.choice((8, 16, 33, 64, 512)), max_running_requests=rng.choice((1, 4, 16, 16)),
        max_chunk_tokens=rng.choice((None, 1, 5, 16)), max_model_len=MAX_MODEL_LEN, overlap=rng.random() < 0.5,
        scheduling_policy=rng.choice(sorted(POLICIES)), batching_policy=rng.choice(NAMES),
    )  # fmt: skip
    num_blocks = largest + rng.choice((1, 1, 2, 2, rng.randrange(1, largest + 2), 4 * largest))
    return SchedulingRun(
        requests, tuple(arrivals), aborts, block_size, num_blocks, config, enable_prefix_caching=rng.random() < 0.75
    )


@dataclass(frozen=True, slots=True)
class Played:
    """What a run made: the tokens and the last output of each request, and the engine's counters."""

    tokens: dict[str, list[int]]
    last: dict[str, EngineOutput]
    counters: Counters

    @property
    def preemptions(self) -> int:
        """How often a sequence was preempted."""
        return self.counters.preemptions


def play(run: SchedulingRun, make_runner: MakeRunner, drafter: Drafter | None = None, max_drafts: int = 4) -> Played:
    """Run the requests and aborts of a run step by step until all have ended; checks the block tables at the end."""
    runner = make_runner(run.num_blocks, run.block_size, run.config.max_batch_tokens)
    loop = EngineLoop(runner, run.config, enable_prefix_caching=run.enable_prefix_caching)
    loop.start()
    if drafter is not None:
        loop.scheduler.use_drafters([drafter], max_drafts)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in run.requests}
    last: dict[str, EngineOutput] = {}

    def receive(outputs: Sequence[EngineOutput | None]) -> None:
        for output in outputs:
            if output is not None:
                assert output.request_id not in last, f"{output.request_id} has outputs after its last one"
                tokens[output.request_id] += output.token_ids
                if output.finish_reason is not None or output.error is not None:
                    last[output.request_id] = output

    waiting = list(zip(run.arrivals, run.requests, strict=True))
    aborts = dict(run.aborts)
    try:
        for step in range(MOST_STEPS):
            while waiting and waiting[0][0] <= step:
                receive(submit(loop, waiting.pop(0)[1]))
            for name in [name for name, at in aborts.items() if at <= step and name not in last]:
                if all(request.request_id != name for _, request in waiting):
                    receive([loop.abort(name)])
                    del aborts[name]
            receive(loop.step())
            if not waiting and loop.is_idle:
                break
        assert loop.is_idle, f"requests are open after {MOST_STEPS} steps"
        assert loop.check_integrity() == []
        return Played(tokens, last, loop.scheduler.counters)
    finally:
        loop.stop()


def alone(run: SchedulingRun, make_runner: MakeRunner) -> dict[str, list[int]]:
    """Return the tokens of requests that run one after another, each alone, its prompt in one step."""
    config = SchedulerConfig(max_model_len=MAX_MODEL_LEN, max_running_requests=1)
    single = replace(
        run, arrivals=(0,) * len(run.requests), aborts={}, num_blocks=PLENTY,
        config=config, enable_prefix_caching=False,
    )  # fmt: skip
    return play(single, make_runner).tokens


def check_run(
    run: SchedulingRun, make_runner: MakeRunner, expected: dict[str, list[int]], drafter: Drafter | None = None,
    max_drafts: int = 4,
) -> Played:  # fmt: skip
    """Play a run; every request must have the expected tokens, or their beginning if it was aborted."""
    played = play(run, make_runner, drafter, max_drafts)
    for request in run.requests:
        name = request.request_id
        ended = played.last[name]
        assert ended.error is None, ended.error
        made = played.tokens[name]
        was_aborted = ended.finish_reason is FinishReason.ABORT
        assert was_aborted <= (name in run.aborts)
        assert made == (expected[name][: len(made)] if was_aborted else expected[name]), f"{name} of {run}"
    return played
