"""compare_policies: runs conversations through routing policies and replicas that are real engines with a cache."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chairlift.bench.fleet_simulation.fleet_result import FleetResult
from chairlift.bench.fleet_simulation.fleet_run import FleetOptions, simulate_fleet
from chairlift.bench.fleet_simulation.load.conversations import (
    CONVERSATION_LOADS,
    DEFAULT_CACHE_TOKENS,
    ConversationLoad,
    ConversationSource,
)
from chairlift.bench.fleet_simulation.scaling_rules import StaticRule
from chairlift.bench.fleet_simulation.sim_replica_settings import SimReplicaSettings
from chairlift.bench.simulation.sim_step_model import SMALL_CPU
from chairlift.engine.config import SchedulerConfig

BLOCK_SIZE = 16
CACHING_MACHINE = SimReplicaSettings(
    step_model=SMALL_CPU, config=SchedulerConfig(max_running_requests=16, max_model_len=16_384),
    num_blocks=DEFAULT_CACHE_TOKENS // BLOCK_SIZE, block_size=BLOCK_SIZE, enable_prefix_caching=True,
)  # fmt: skip
"""The replica for which the conversations are made: its cache holds DEFAULT_CACHE_TOKENS."""


def simulate_conversations(
    load: ConversationLoad, policy: str, num_replicas: int, machine: SimReplicaSettings, seed: int
) -> FleetResult:
    """Simulate conversations on a fixed number of replicas; equal arguments give an equal result."""
    options = FleetOptions(machine=machine, policy=policy, initial_replicas=num_replicas, seed=seed)
    return simulate_fleet(ConversationSource(load, seed), StaticRule(num_replicas), options, seconds=0.0)


def compare_policies(
    name: str, policies: Sequence[str], num_replicas: int, machine: SimReplicaSettings
) -> dict[str, Any]:
    """Return the fields of a report of the conversations of this name under several policies."""
    machine, load = replace(machine, enable_prefix_caching=True), CONVERSATION_LOADS[name]
    arms = []
    for policy in policies:
        result = simulate_conversations(load, policy, num_replicas, machine, machine.seed)
        spread = max(result.requests_by_replica.values()) * num_replicas / max(1, result.num_requests)
        fields = result.report(0.0)
        arms.append({
            "policy": policy, "largest_share_of_mean": spread,
            **{name: fields[name] for name in ("requests", "prefix_hit_rate", "ttft_seconds", "tpot_seconds")},
        })  # fmt: skip
    cache_tokens = machine.num_blocks * machine.block_size
    return {
        "load": name,
        "replicas": num_replicas,
        "cache_pressure": load.working_set_tokens / cache_tokens,
        "arms": arms,
    }


def policy_table(report: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines of the printed table."""
    yield (
        f"{report['load']}: {report['replicas']} replicas; later prompts repeat {report['cache_pressure']:.1f} times "
        "what one of them caches"
    )
    yield f"{'policy':<18} {'hit rate':>8} {'TTFT mean':>10} {'p99':>8} {'most/mean':>9}"
    for row in report["arms"]:
        ttft = row["ttft_seconds"]
        yield (
            f"{row['policy']:<18} {row['prefix_hit_rate']:>8.1%} {ttft['mean']:>8.3f} s {ttft['p99']:>6.2f} s "
            f"{row['largest_share_of_mean']:>9.2f}"
        )
