"""SimulatedReplica, RequestLoad: a replica in simulated time, and the requests that it serves."""

from dataclasses import dataclass, field

from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.bench.simulation.simulation import SimMachine, SimResult, simulate
from chairlift.bench.workload.poisson_arrivals import with_poisson_arrivals
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLoad:
    """The requests: every one has `input` prompt tokens and `output` output tokens."""

    input: int
    output: int

    def __post_init__(self) -> None:
        for option, value in (("input", self.input), ("output", self.output)):
            if value < 1:
                raise ConfigError(f"{option} must be at least 1, got {value}", option=option)

    @property
    def tokens(self) -> int:
        """Tokens of one request."""
        return self.input + self.output

    def workload(self, count: int, rate: float | None) -> Workload:
        """Return `count` requests that arrive at a rate, or all at once."""
        prompt = (1,) * self.input
        item = WorkloadRequest(at=0.0, prompt_token_ids=prompt, output_tokens=self.output)
        workload = Workload(name="plan", seed=0, items=(item,) * count)
        return workload if rate is None else with_poisson_arrivals(workload, rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedReplica:
    """One replica, or one of the groups of requests that take turns in its pipeline stages.

    Attributes:
        step_model: its step times.
        scheduler: its limits.
        num_blocks: blocks of the KV cache.
        block_size: tokens of a block.
        groups: equal groups of which this is one; the replica's rate is that of all.
    """

    step_model: SimStepModel
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    num_blocks: int
    block_size: int = 16
    groups: int = 1

    def run(self, workload: Workload) -> SimResult:
        """Simulate a workload; its prompts share no cached prefix."""
        machine = SimMachine(
            step_model=self.step_model, num_blocks=self.num_blocks, block_size=self.block_size,
            enable_prefix_caching=False,
        )  # fmt: skip
        return simulate(workload, self.scheduler, machine)

    def most_running(self, load: RequestLoad) -> int:
        """Return how many requests run at once at most."""
        blocks = -(-load.tokens // self.block_size)
        return max(1, min(self.scheduler.max_running_sequences, self.num_blocks // blocks))

    def rate_limit(self, load: RequestLoad) -> float:
        """Return a rate above any that can last: that of the largest batch without a step for prefill alone."""
        model, batch = self.step_model, self.most_running(load)
        pairs = load.input * (load.input + 1) / 2
        prefill = (model.prefill_token * load.input + model.prefill_pair * pairs) * (load.input > 1)
        context = model.decode_context_token * (load.input + load.output / 2)
        step = model.step / model.tokens_per_step / batch
        return 1 / (prefill + load.output * (step + model.row + context))
