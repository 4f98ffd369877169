"""Step scenarios: the inter-token latency target, a small block pool, paged against preallocated KV cache."""

from dataclasses import dataclass, replace

from chairlift.bench.report.percentiles import percentile
from chairlift.bench.simulation.sim_step_model import SMALL_CPU, SimStepModel
from chairlift.bench.simulation.simulation import SimMachine, max_request_tokens, simulate
from chairlift.bench.workload.generators import generate
from chairlift.bench.workload.workload import Workload
from chairlift.engine.config import SchedulerConfig
from policy_scenarios.scenario_loads import LARGE_GPU, at_once

Numbers = dict[str, float]

NOISE = 0.1
"""Noise of the step times; SimStepModel describes it."""

# -- target_itl_ms -------------------------------------------------------------------------------------------------

BUDGETS = tuple(round(16 * 2 ** (step / 8)) for step in range(57))
"""Prompt tokens per step, from 16 to 2,048 in increments of 9 %."""


@dataclass(frozen=True, slots=True)
class ItlCase:
    """A machine and a load for the inter-token latency target.

    Attributes:
        times: the machine's step time model.
        target_ms: target duration of a step.
        max_running: most running requests.
        prompts: least and most prompt tokens.
        outputs: least and most output tokens.
    """

    times: SimStepModel
    target_ms: float
    max_running: int
    prompts: tuple[int, int] = (256, 2048)
    outputs: tuple[int, int] = (32, 160)


ITL_CASES = {
    "small_cpu": ItlCase(SMALL_CPU, 300.0, 24),
    "large_gpu": ItlCase(LARGE_GPU, 25.0, 64),
}


def itl_scenario(case: ItlCase, seed: int = 0) -> Numbers:
    """Compare a step time target to the best fixed prompt budget, with long prompts, noisy steps.

    More prompt tokens per step increase both throughput and step times, so bisection of BUDGETS finds the best budget
    whose p99 stays within 1.2 times the target. Returns tokens per second and the p99 of the step time over the target,
    for the run with the target and for that budget.
    """
    workload = at_once(6 * case.max_running, case.prompts, case.outputs, seed)
    runs: dict[int, tuple[float, float]] = {}
    low, high = -1, len(BUDGETS)
    while high - low > 1:
        middle = (low + high) // 2
        runs[BUDGETS[middle]] = run = one_run(case, workload, budget=BUDGETS[middle])
        low, high = (middle, high) if run[1] <= 1.2 else (low, middle)
    within_target = {budget: rate for budget, (rate, late) in runs.items() if late <= 1.2}
    best = max(within_target, key=lambda budget: within_target[budget], default=0)
    rate, late = one_run(case, workload, target_ms=case.target_ms)
    return {
        "tokens_per_second": rate,
        "p99_over_target": late,
        "best_fixed_budget": float(best),
        "best_fixed_tokens_per_second": within_target.get(best, 0.0),
        "best_fixed_p99_over_target": runs[best][1] if within_target else float("inf"),
        "share_of_best": rate / within_target[best] if within_target else float("inf"),
        "unbounded_tokens_per_second": one_run(case, workload)[0],
    }


def one_run(
    case: ItlCase, workload: Workload, *, budget: int | None = None, target_ms: float | None = None
) -> tuple[float, float]:
    """Return tokens per second, and the p99 of the step time over the case's target."""
    config = SchedulerConfig(
        max_running_requests=case.max_running, max_batch_tokens=2048 + case.max_running, max_prefill_tokens=budget,
        target_itl_ms=target_ms,
    )  # fmt: skip
    machine = SimMachine(step_model=replace(case.times, noise=NOISE), seed=workload.seed, enable_prefix_caching=False)
    result = simulate(workload, config, machine)
    p99 = percentile(sorted(result.step_seconds), 99)
    tokens = workload.prompt_tokens + workload.output_tokens
    return tokens / result.seconds, p99 * 1e3 / case.target_ms


# -- a small pool --------------------------------------------------------------------------------------------------


def small_pool(times: SimStepModel, load: str = "broadtail", seed: int = 0) -> Numbers:
    """Run a load with a block pool that is never full, and with a third of the blocks of its peak use.

    "broadtail" is the workload of that name. In "growing", prompts are short and outputs long, so that sequences that
    start together exceed the pool later. Returns both throughputs and their ratio, the ratio to a third run, the number
    of preemptions and the share of recomputed tokens. The third run has the large pool, and as many running requests as
    the small pool had on average: a machine whose steps cost nearly the same for few and for many sequences is slower
    with a third of them under any scheduler.
    """
    if load == "broadtail":
        workload = generate("broadtail", vocab_size=10_000, seed=seed, count=600)
    else:
        workload = at_once(200, (16, 32), (256, 512), seed)
    config = SchedulerConfig(max_running_requests=96, max_batch_tokens=1024)
    large = simulate(workload, config, SimMachine(step_model=times))
    peak_blocks = max(step.allocated_kv_tokens for step in large.steps) // SimMachine().block_size
    small = simulate(workload, config, SimMachine(step_model=times, num_blocks=peak_blocks // 3))
    mean_running_requests = max(1, round(small.mean_running))
    matched = simulate(
        workload, replace(config, max_running_requests=mean_running_requests), SimMachine(step_model=times)
    )
    return {
        "wanted_blocks": float(peak_blocks),
        "blocks": float(peak_blocks // 3),
        "large_tokens_per_second": workload.output_tokens / large.seconds,
        "small_tokens_per_second": workload.output_tokens / small.seconds,
        "ratio": large.seconds / small.seconds,
        "ratio_at_equal_running": matched.seconds / small.seconds,
        "large_mean_running": large.mean_running,
        "small_mean_running": small.mean_running,
        "preemptions": float(small.preemptions),
        "computed_again": small.computed_again,
    }


# -- paged against preallocated ------------------------------------------------------------------------------------


def paged_against_preallocated(max_model_len: int, requests: int = 2000, seed: int = 0) -> Numbers:
    """Compare a paged KV cache to one with max_model_len tokens per request, in the same memory.

    Returns the largest and the mean number of running requests of each, throughputs, and the ratios.
    """
    block_size, num_blocks = 16, 16_384 // 16
    workload = generate("longtail", vocab_size=10_000, seed=seed, count=requests)
    assert max_request_tokens(workload) <= max_model_len
    machine = SimMachine(
        step_model=SMALL_CPU, num_blocks=num_blocks, block_size=block_size, enable_prefix_caching=False
    )
    arms = {"paged": 4096, "preallocated": num_blocks * block_size // max_model_len}
    numbers: Numbers = {"max_model_len": float(max_model_len), "token_slots": float(num_blocks * block_size)}
    for name, max_running in arms.items():
        config = SchedulerConfig(max_running_requests=max_running, max_batch_tokens=4096, max_model_len=max_model_len)
        result = simulate(workload, config, machine)
        backlogged = [
            num_running for num_running, step in zip(result.num_running, result.steps, strict=True) if step.waiting
        ]
        numbers[f"{name}_peak"] = float(result.peak_running)
        numbers[f"{name}_mean"] = sum(backlogged) / max(1, len(backlogged))
        numbers[f"{name}_output_tokens_per_second"] = workload.output_tokens / result.seconds
    for kind in ("peak", "mean", "output_tokens_per_second"):
        numbers[f"{kind}_ratio"] = numbers[f"paged_{kind}"] / numbers[f"preallocated_{kind}"]
    return numbers
