"""make_policy: every name, every set of candidates, and equal choices from equal seeds."""

from dataclasses import replace
from random import Random

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.registry import DEFAULT_POLICY, POLICY_NAMES, make_policy
from chairlift.router.policies.routing_request import RoutingRequest
from support_shares import for_each


def test_the_names_are_those_of_the_documentation() -> None:
    assert set(POLICY_NAMES) == {
        "round_robin", "weighted", "random", "least_connections", "ip_hash", "session", "power_of_two",
        "prefix", "lora",
    }  # fmt: skip
    assert DEFAULT_POLICY == "prefix"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown routing policy 'best'; choose one of round_robin, weighted,"):
        make_policy("best", 0)


def changing_candidates(rng: Random, pool: dict[str, Candidate]) -> list[Candidate]:
    """Change the pool as a fleet changes between two picks, and return some of it in order."""
    for name in rng.sample(sorted(pool), 2):
        pool[name] = replace(
            pool[name], incarnation=str(rng.randrange(3)), weight=rng.choice([0.01, 0.5, 1.0, 3.0, 1000.0]),
            open_requests=rng.choice([0, 1, 50]), running_requests=rng.choice([0, 2, 80]),
            waiting_tokens=rng.choice([0, 5000]), expected_wait_seconds=rng.choice([0.0, 0.1, 30.0]),
            prefill_tokens_per_second=rng.choice([0.0, 900.0]), adapters=frozenset(rng.sample(["x", "y"], 1)),
        )  # fmt: skip
    return [pool[name] for name in sorted(rng.sample(sorted(pool), rng.randrange(1, len(pool))))]


def random_request(rng: Random, number: int) -> RoutingRequest:
    return RoutingRequest(
        request_id=str(number), client_address=rng.choice(["", "10.0.0.1"]), session_key=rng.choice(["", "s1", "s2"]),
        prefix=(b"1", b"2"), prefix_tokens=(400, 800), prompt_tokens=rng.choice([0, 800, 3000]),
        prefix_matches={f"r{rng.randrange(12)}": rng.randrange(4) for _ in range(3)},
        adapter=rng.choice(["", "x", "z"]),
    )  # fmt: skip


@pytest.mark.share(6)
@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_changing_fleet_gets_a_valid_choice_each_time_and_a_seed_replays_it(name: str) -> None:
    def run() -> list[str]:
        rng, policy, chosen = Random(7), make_policy(name, 3), []
        pool = {f"r{index}": Candidate(replica_id=f"r{index}") for index in range(10)}
        for number in range(600):
            given = changing_candidates(rng, pool)
            choice = policy.pick(random_request(rng, number), given, float(number))
            assert any(choice is each for each in given)
            chosen.append(choice.replica_id)
        return chosen

    first = run()
    assert first == run()
    assert len(set(first)) == 10


@for_each("name", POLICY_NAMES)
def test_a_single_candidate_is_always_chosen(name: str) -> None:
    policy, only = make_policy(name, 0), Candidate(replica_id="a", open_requests=10**6, expected_wait_seconds=1e9)
    assert all(policy.pick(random_request(Random(seed), seed), [only], 0.0) is only for seed in range(50))
