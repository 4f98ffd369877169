"""SimReplicaSettings: what a replica of a simulated fleet runs on; makes its engine."""

from dataclasses import dataclass, field

import numpy as np

from chairlift.bench.fleet_simulation.load.arrivals import Arrivals
from chairlift.bench.fleet_simulation.real_engine_model import EngineModel
from chairlift.bench.fleet_simulation.sim_request_and_interfaces import ServingModel
from chairlift.bench.fleet_simulation.simplified_engine_model import SimplifiedEngineModel
from chairlift.bench.simulation.sim_step_model import SMOL135_CPU, SimStepModel
from chairlift.core.errors import InvalidRequest
from chairlift.engine.config import SchedulerConfig

NOMINAL_PREFILL_SPEED = 1e6
"""Prompt tokens per second that a replica reports if its step model has no cost of a prompt token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimReplicaSettings:
    """Model and settings of every replica.

    Attributes:
        step_model: predicts the duration of a step.
        config: settings of the scheduler.
        num_blocks: blocks of the KV cache.
        block_size: tokens in a block.
        enable_prefix_caching: whether full blocks are shared.
        seed: seed of the noise of the step times.
    """

    step_model: SimStepModel = SMOL135_CPU
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    num_blocks: int = 4096
    block_size: int = 16
    enable_prefix_caching: bool = False
    seed: int = 0

    @property
    def uses_engine(self) -> bool:
        """Whether replicas run the real engine: SimplifiedEngineModel does not follow these settings."""
        config = self.config
        has_other_policy = (config.scheduling_policy, config.batching_policy) != ("fifo", "mixed")
        has_limits = config.overlap or config.target_itl_ms is not None
        return self.enable_prefix_caching or self.step_model.noise > 0 or has_other_policy or has_limits

    @property
    def prefill_speed(self) -> float:
        """Prompt tokens per second that a replica reports."""
        cost = self.step_model.prefill_token
        return 1 / cost if cost else NOMINAL_PREFILL_SPEED

    def make_model(self, number: int) -> ServingModel:
        """Return the engine of the replica with this number."""
        if not self.uses_engine:
            return SimplifiedEngineModel(self.step_model, self.config, self.num_blocks, self.block_size)
        return EngineModel(
            self.step_model, self.config, self.num_blocks, self.block_size,
            enable_prefix_caching=self.enable_prefix_caching, seed=self.seed + number,
        )  # fmt: skip

    def check(self, arrivals: Arrivals) -> None:
        """Raise InvalidRequest if a request can never be served."""
        longest = int(np.max(arrivals.prompt_tokens + arrivals.output_tokens))
        limit = min(self.num_blocks * self.block_size, self.config.max_model_len or longest)
        if longest > limit:
            raise InvalidRequest(f"the longest request of the load has {longest} tokens, the limit is {limit}")
