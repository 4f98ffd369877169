"""Runs one Case of support_oracle: its requests, its client, and checks of its tokens and factors.

check_case(case)    runs a case, again where an abort came too late, and checks everything
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from queue import SimpleQueue

from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.client.base import EngineClient
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.client.process import start_engine_process
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.runner.base import RunnerInfo, RunnerSpec
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.select_model_config import read_config
from support_engine import submit
from support_models import HYBRIDS
from support_oracle import MAX_OUTPUT, Case, lengths, oracle, own_prompt, shared_prompt

WAIT = 120.0
MAX_MODEL_LEN = 512
PLENTY = 3000
GAPS = (0, 1, 2, 4)
"""Steps between two arrivals with which a preemption must happen; the test cannot fix the arrival times."""

ATTEMPTS = 3
"""Most runs of a case until an abort reaches the engine before its request has finished."""


@dataclass(slots=True)
class Run:
    """The requests and the engine configuration of one case.

    Attributes:
        num_blocks: blocks of the KV cache.
        arrives_at_once: whether all requests must have arrived before the first step, so that one is preempted.
    """

    warm_up: list[GenerateRequest]
    kept: list[GenerateRequest]
    aborted: list[GenerateRequest]
    num_blocks: int
    config: SchedulerConfig
    arrives_at_once: bool = False
    outputs: "SimpleQueue[list[EngineOutput]]" = field(default_factory=SimpleQueue)


def request_of(
    name: str, prompt: tuple[int, ...], max_tokens: int, ignore_eos: bool, *, priority: int = 0, tenant: str = ""
) -> GenerateRequest:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=ignore_eos)
    eos = () if ignore_eos else (2, 7)
    resolved = params.with_defaults({}, max_tokens=max_tokens, seed=0)
    return GenerateRequest(
        request_id=name, prompt_token_ids=prompt, params=resolved, eos_token_ids=eos, priority=priority, tenant=tenant
    )


def own_tokens(case: Case, prefix: int, random_length: int) -> int:
    """Return how many tokens a prompt has behind the shared prefix.

    If a preemption must happen, all prompts are about equally long and their outputs need one more block.
    """
    size = case.block_size
    if not case.preemption:
        return random_length
    if case.crossed:  # short, else the blocks freed behind the window are enough
        return max(6, size - 3)
    return (size - 3 - prefix) % size or size if size > MAX_OUTPUT else max(1, 45 - prefix + random_length % 4)


def prompts_of(case: Case, rng: random.Random) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return (prompts for the warm-up, prompts of the batch) such that the case's kind of prefix hit happens."""
    size, count, sizes = case.block_size, case.requests, lengths(case)
    if case.hit == "none":
        return [], [own_prompt(number, own_tokens(case, 0, next(sizes))) for number in range(count)]
    blocks = {1: 20, 16: 2}.get(size, 1)
    if case.hit == "exact prompt":
        again = shared_prompt(0, blocks * size + own_tokens(case, blocks * size, rng.randrange(1, size + 1)), 0)
        own = [len(again) if case.preemption else next(sizes) for _ in range(1, count)]
        return [again], [again, *(own_prompt(number, length) for number, length in enumerate(own, start=1))]
    prefix = blocks * size + (size // 2 if case.hit == "partial block" else 0)
    tails = [shared_prompt(n, prefix, own_tokens(case, prefix, rng.randrange(1, 20))) for n in range(count + 1)]
    if case.crossed and not case.preemption:
        tails[1] = shared_prompt(1, prefix, max(1, size + 26 - prefix))
    return ([], tails[1:]) if case.hit == "in flight" else (tails[:1], tails[1:])


def tightest(case: Case, run: Run, windows: tuple[int | None, ...]) -> int:
    """Return the smallest pool, in blocks, that the largest request fits into."""
    info = RunnerInfo(
        vocab_size=304, max_model_len=MAX_MODEL_LEN, num_blocks=PLENTY, block_size=case.block_size, windows=windows
    )
    limits = RequestLimits.from_config(run.config, info)
    all_requests = [*run.warm_up, *run.kept, *run.aborted]
    return max(limits.blocks_needed(len(r.prompt_token_ids) + (r.params.max_tokens or 0) - 1) for r in all_requests)


def ordered(case: Case, arrivals: list[GenerateRequest]) -> list[GenerateRequest]:
    """Return the requests in the order in which they arrive."""
    arrivals = list(arrivals)
    if case.arrival == "shuffled":
        random.Random(f"order {case.seed}").shuffle(arrivals)
    return arrivals


def preemptions(case: Case, run: Run, windows: tuple[int | None, ...], num_blocks: int, gap: int) -> int:
    """Return the preemptions in a fake run of the same requests with `gap` steps between two arrivals."""
    fake = FakeConfig(
        vocab_size=304, max_model_len=MAX_MODEL_LEN, num_blocks=num_blocks, block_size=case.block_size,
        windows=windows, verify=False,
    )  # fmt: skip
    loop = EngineLoop(FakeRunner(fake), run.config)
    loop.start()
    for request in run.warm_up:
        submit(loop, request)
    while not loop.is_idle:
        loop.step()
    for request in ordered(case, run.kept):
        submit(loop, request)
        for _ in range(gap):
            loop.step()
    while not loop.is_idle:
        loop.step()
    loop.stop()
    return loop.scheduler.counters.preemptions


def preempting_pool(case: Case, run: Run, windows: tuple[int | None, ...]) -> tuple[int, bool]:
    """Return the smallest pool with a preemption, and whether it is one only if all requests arrive at once."""
    smallest = tightest(case, run, windows)
    for gaps in (GAPS, (0,)):
        for num_blocks in range(smallest, 8 * smallest + 200, max(1, smallest // 12)):
            if all(preemptions(case, run, windows, num_blocks, gap) for gap in gaps):
                return num_blocks, gaps is not GAPS
    raise AssertionError("no pool makes this case preempt")


def windows_of(case: Case) -> tuple[int | None, ...]:
    """Return the windows of the layer groups of the case's model."""
    config = read_config(oracle(*case.variant).folder, case.model_impl)
    return config.layer_groups.windows


def run_of(case: Case) -> Run:
    rng = random.Random(f"run {case.seed}")
    ignore_eos = case.preemption or case.aborts or rng.random() < 0.3
    warm_prompts, batch = prompts_of(case, rng)
    config = SchedulerConfig(
        max_batch_tokens=rng.choice((64, 256, 2048)), max_chunk_tokens=case.chunk, overlap=case.overlap,
        max_running_requests=64, max_model_len=MAX_MODEL_LEN, scheduling_policy=case.scheduling_policy,
        batching_policy=case.batching_policy,
    )  # fmt: skip
    tenants = ("", "other") if case.hit == "none" else ("",)  # a tenant shares only its own prefixes
    output = MAX_OUTPUT if case.preemption else None
    kept = [
        request_of(
            f"kept-{number}",
            prompt,
            output or rng.randrange(2, MAX_OUTPUT + 1),
            ignore_eos,
            priority=number % 3,
            tenant=tenants[number % len(tenants)],
        )
        for number, prompt in enumerate(batch)
    ]
    if case.crossed:
        kept[0] = request_of("kept-0", batch[0], MAX_OUTPUT, True)
    num_aborted = max(1, case.requests // 3) if case.aborts else 0
    aborted = [request_of(f"gone-{n}", own_prompt(40 + n, 9), MAX_OUTPUT, True) for n in range(num_aborted)]
    warm_up = [request_of(f"warm-{n}", prompt, 2, True) for n, prompt in enumerate(warm_prompts)]
    run = Run(warm_up, kept, aborted, PLENTY, config)
    if case.preemption:
        run.num_blocks, run.arrives_at_once = preempting_pool(case, run, windows_of(case))
    return run


@contextmanager
def client_of(case: Case, run: Run) -> Iterator[EngineClient]:
    settings = RunnerConfig(
        model=str(oracle(*case.variant).folder), dtype="float64", device="cpu", block_size=case.block_size,
        num_blocks=run.num_blocks, max_batch_tokens=run.config.max_batch_tokens,
        max_model_len=None if case.preemption else MAX_MODEL_LEN, max_running_requests=64,
        attention_backend=case.backend, model_impl=case.model_impl,
    )  # fmt: skip
    spec = RunnerSpec("chairlift.model.runner.torch_runner:build", settings.encode())
    client: EngineClient
    if case.engine_mode == "inline" or run.arrives_at_once:  # an engine in another process cannot be paused
        client = InlineClient(EngineLoop(spec.build(), run.config))
    else:
        client = start_engine_process(spec, run.config)
    try:
        yield client
    finally:
        client.close()


class RequestRecord:
    """The outputs of one request so far."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.last: EngineOutput | None = None


def run_case(case: Case, run: Run, client: EngineClient) -> dict[str, RequestRecord]:
    """Submit all requests as the case's arrival says, abort those to abort, and wait for every final output."""
    rng = random.Random(f"ride {case.seed}")
    records: dict[str, RequestRecord] = defaultdict(RequestRecord)
    for request in run.warm_up:
        client.submit(request, run.outputs.put)
    _collect(run, client, records, {request.request_id for request in run.warm_up}, {})
    late = run.aborted if case.preemption else []  # their aborts must not free blocks before the pool is full
    arrivals = ordered(case, run.kept if late else [*run.aborted, *run.kept])
    aborts = {request.request_id: rng.randrange(1, MAX_OUTPUT // 2) for request in run.aborted}
    awaited = {request.request_id for request in [*arrivals, *late]}
    step = (
        len(arrivals)
        if case.arrival != "staggered" or run.arrives_at_once
        else max(2, len(arrivals) - 1 if case.preemption else len(arrivals) // 3)
    )
    for start in range(0, len(arrivals), step):
        with client.paused() if run.arrives_at_once and isinstance(client, InlineClient) else nullcontext():
            for request in arrivals[start : start + step]:
                client.submit(request, run.outputs.put)
        if start + step < len(arrivals):
            _receive(run, client, records, aborts)
    while (
        late
        and not client.scheduler_state()["preemptions"]
        and any(records[r.request_id].last is None for r in arrivals)
    ):
        _receive(run, client, records, aborts)
    for request in late:
        client.submit(request, run.outputs.put)
    _collect(run, client, records, awaited, aborts)
    return records


def _receive(run: Run, client: EngineClient, records: dict[str, RequestRecord], aborts: dict[str, int]) -> None:
    for output in run.outputs.get(timeout=WAIT):
        record = records[output.request_id]
        assert record.last is None, f"{output.request_id} has outputs after its final one"
        record.tokens += output.token_ids
        if output.finish_reason is not None:
            record.last = output
        elif len(record.tokens) >= aborts.get(output.request_id, MAX_OUTPUT + 1):
            client.abort(output.request_id)


def _collect(
    run: Run, client: EngineClient, records: dict[str, RequestRecord], awaited: set[str], aborts: dict[str, int]
) -> None:
    while any(records[name].last is None for name in awaited):
        _receive(run, client, records, aborts)


def check_tokens(case: Case, run: Run, records: dict[str, RequestRecord]) -> None:
    reference = oracle(*case.variant)
    for request in [*run.warm_up, *run.kept]:
        expected = reference.continuation(request.prompt_token_ids, ignore_eos=request.params.ignore_eos)
        limit = request.params.max_tokens
        record = records[request.request_id]
        assert record.last is not None
        assert record.last.error is None, record.last.error
        assert record.tokens == expected[:limit], f"{request.request_id} of {case}"
    for request in run.aborted:
        expected = reference.continuation(request.prompt_token_ids, ignore_eos=True)
        assert records[request.request_id].tokens == expected[: len(records[request.request_id].tokens)]


def aborted_in_time(run: Run, records: dict[str, RequestRecord]) -> bool:
    """Whether an abort reached the engine before its request had finished, which depends on the machine's load."""
    return any(records[r.request_id].last.finish_reason is FinishReason.ABORT for r in run.aborted)  # type: ignore[union-attr]


def check_factors(case: Case, run: Run, records: dict[str, RequestRecord], client: EngineClient) -> None:
    """Check that every factor of the case happened."""
    scheduler, cache = client.scheduler_state(), client.cache_state()
    assert scheduler["max_in_flight"] == (2 if case.overlap else 1)
    has_states = case.architecture in HYBRIDS
    # Where states are the reason for a hit, the second request may wait, and need no block too many.
    assert (scheduler["preemptions"] > 0) == case.preemption or (has_states and case.preemption)
    assert (cache["window_blocks_freed"] > 0) == case.crossed
    cached = [records[r.request_id].last.usage.cached_tokens for r in run.kept]  # type: ignore[union-attr]
    if case.hit == "none":
        assert not any(cached)
    elif not case.preemption and not has_states:
        assert max(cached) > 0
    if case.hit == "exact prompt" and not case.preemption:
        whole = len(run.kept[0].prompt_token_ids)
        assert cached[0] == (whole - 1) // case.block_size * case.block_size
    if case.hit in {"full", "partial block"} and not case.preemption:
        prefix = {1: 20, 16: 32}.get(case.block_size, case.block_size)
        # The state at the end of the prefix is saved by the second request that has it.
        assert cached == [prefix] * len(cached) or (has_states and set(cached) <= {0, prefix})
    if case.aborts:
        assert aborted_in_time(run, records)
    assert client.check_integrity() == []
    assert cache["allocated_blocks"] == 0


def check_case(case: Case) -> None:
    """Run a case and check its tokens and factors."""
    for attempt in range(ATTEMPTS):
        run = run_of(case)
        with client_of(case, run) as client:
            records = run_case(case, run, client)
            check_tokens(case, run, records)
            if attempt < ATTEMPTS - 1 and case.aborts and not aborted_in_time(run, records):
                continue
            check_factors(case, run, records, client)
            break
