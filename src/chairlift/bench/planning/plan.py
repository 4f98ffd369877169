"""make_plan: joins memory, parallel sizes and capacity into the number of replicas and devices that a load needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chairlift.bench.planning.capacity import CapacityEstimate, Targets, Trial, find_capacity, try_rate
from chairlift.bench.planning.hardware_spec import Hardware
from chairlift.bench.planning.model_memory import ModelMemory
from chairlift.bench.planning.parallel_sizes_and_memory import ReplicaMemory, fitting_replicas
from chairlift.bench.planning.roofline import estimate_step_model
from chairlift.bench.planning.simulated_replica import RequestLoad, SimulatedReplica
from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.core.errors import ConfigError
from chairlift.engine.config import SchedulerConfig

MAX_SPLITS = 4
"""Most splits of a replica whose capacity is simulated, those with the fewest devices first."""

NATIVE_PREFILL_TOKENS = 256
"""Prompt tokens that the native CPU kernels prefer in a step (RunnerInfo.preferred_prefill_tokens)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """What a plan is made from.

    Attributes:
        memory: the model with its options.
        hardware: the devices.
        load: the requests.
        rate: requests a second of all replicas.
        targets: latencies to keep.
        scheduler: limits of a replica.
        step_model: fitted step times of a replica; None estimates them.
        count: requests of a simulated trial; None chooses it.
    """

    memory: ModelMemory
    hardware: Hardware
    load: RequestLoad
    rate: float
    targets: Targets
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    step_model: SimStepModel | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise ConfigError(f"rate must be a positive number of requests per second, got {self.rate:g}",
                              option="rate")  # fmt: skip
        longest = self.memory.shape.max_positions
        if self.load.tokens > longest:
            raise ConfigError(
                f"a request of {self.load.tokens} tokens is longer than the model's {longest} positions", option="input"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """The result.

    Attributes:
        given: what it was made from.
        replica: split and memory of a replica.
        step_model: its step times.
        capacity: what a replica can do.
        at_rate: a replica at its share of the rate.
        others: splits that were tried too, with their capacity or the reason against them.
    """

    given: PlanInput
    replica: ReplicaMemory
    step_model: SimStepModel
    capacity: CapacityEstimate
    at_rate: Trial
    others: Mapping[str, str]

    @property
    def replicas(self) -> int:
        """Replicas that the rate needs."""
        return self.capacity.replicas(self.given.rate)

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.replica.sizes.devices

    @property
    def missing_devices(self) -> int:
        """Devices that are needed beside those at hand; 0 for CPU machines."""
        return max(0, self.devices - self.given.hardware.gpus) if self.given.hardware.gpus else 0

    @property
    def rate_at_hand(self) -> float:
        """Requests a second that the GPUs at hand serve within the targets."""
        return self.given.hardware.gpus // self.replica.sizes.devices * self.capacity.rate

    @property
    def utilization(self) -> float:
        """The rate as a share of what the replicas could do."""
        return self.given.rate / (self.replicas * self.capacity.rate)

    @property
    def cost_per_hour(self) -> float | None:
        """Price of all devices for an hour."""
        price = self.given.hardware.price
        return None if price is None else price * self.devices

    def cost_per_million(self, tokens_of_request: int) -> float | None:
        """Return the price of a million tokens, of which a request has `tokens_of_request`."""
        cost = self.cost_per_hour
        return None if cost is None else cost / (self.given.rate * tokens_of_request * 3600) * 1e6

    @property
    def step_shares(self) -> dict[str, float]:
        """Parts of a replica's time: the constant part of a step, matrix products, reading the KV cache."""
        model, load, batch = self.step_model, self.given.load, max(1.0, self.at_rate.mean_running)
        pairs = load.input * (load.input + 1) / 2
        parts = {
            "constant": load.output * model.step / batch,
            "products": load.output * model.row + load.input * model.prefill_token + pairs * model.prefill_pair,
            "kv_cache": load.output * model.context_token * (load.input + load.output / 2),
        }
        whole = sum(parts.values())
        return {name: value / whole for name, value in parts.items()}


def make_plan(given: PlanInput, note: Callable[[str], None] = lambda text: None) -> CapacityPlan:
    """Choose the split of a replica that needs the fewest devices for the rate, and count its replicas.

    `note` gets the text of each simulation before it begins: "trial 3 at 12.5 requests/s (tensor 2, ..)".

    Raises ConfigError when memory is too small, or the targets cannot be reached.
    """
    replicas = fitting_replicas(
        given.memory, given.hardware.device_memory, given.load.tokens, given.hardware.max_devices
    )  # fmt: skip
    plans: list[CapacityPlan] = []
    errors: list[ConfigError] = []
    tried: dict[str, str] = {}
    # The largest split first: it keeps tight targets best, and bounds the search for the others.
    for replica in reversed(replicas[: MAX_SPLITS if given.step_model is None else 1]):
        try:
            plan = _plan_of(given, replica, min((one.devices for one in plans), default=None), note)
        except ConfigError as error:
            errors.append(error)
            tried[str(replica.sizes)] = error.message
            continue
        if plan is None:
            tried[str(replica.sizes)] = "needs more devices"
            continue
        plans.append(plan)
        tried[str(replica.sizes)] = f"{plan.capacity.rate:.3g} requests/s a replica, {plan.devices} devices"
    if not plans:
        raise errors[0]
    best = min(plans, key=lambda plan: (plan.devices, plan.replica.sizes.devices, -plan.capacity.rate))
    del tried[str(best.replica.sizes)]
    return CapacityPlan(
        given=given, replica=best.replica, step_model=best.step_model, capacity=best.capacity, at_rate=best.at_rate,
        others=tried,
    )  # fmt: skip


def simulated_replica(given: PlanInput, replica: ReplicaMemory, step_model: SimStepModel) -> SimulatedReplica:
    """Return the replica that is simulated: one group of requests for each stage, which share the KV cache."""
    groups = replica.sizes.pipeline
    blocks = -(-given.load.tokens // given.memory.block_size)
    scheduler = given.scheduler if given.hardware.gpus else given.scheduler.with_runner_defaults(NATIVE_PREFILL_TOKENS)
    return SimulatedReplica(
        step_model=step_model, scheduler=scheduler,
        num_blocks=max(blocks, replica.kv_cache // groups * blocks // replica.request),
        block_size=given.memory.block_size, groups=groups,
    )  # fmt: skip


def _plan_of(
    given: PlanInput, replica: ReplicaMemory, most_devices: int | None, note: Callable[[str], None]
) -> CapacityPlan | None:
    """Return the plan with this split; None where it needs more than most_devices devices."""
    model = given.step_model or estimate_step_model(
        given.memory, given.hardware.device_speed, replica.sizes, given.load.tokens
    )
    simulated = simulated_replica(given, replica, model)
    least_rate = 0.0 if most_devices is None else given.rate / (most_devices // replica.sizes.devices or 1)
    num_trials = 0

    def try_at(rate: float) -> Trial:
        nonlocal num_trials
        num_trials += 1
        note(f"trial {num_trials} at {rate:.3g} requests/s ({replica.sizes})")
        return try_rate(simulated, given.load, given.targets, rate, given.count)

    capacity = find_capacity(simulated, given.load, given.targets, least_rate=least_rate, try_at=try_at)
    if capacity is None:
        return None
    return CapacityPlan(
        given=given, replica=replica, step_model=model, capacity=capacity, others={},
        at_rate=try_at(given.rate / capacity.replicas(given.rate)),
    )  # fmt: skip
