"""make_policy: builds the routing policy of a name that users choose."""

from collections.abc import Callable, Sequence
from random import Random

from chairlift.core.errors import ConfigError
from chairlift.router.policies.base import Filter, Picker, Policy, Scorer
from chairlift.router.policies.consistent_hash import ConsistentHashPicker, client_address_key, session_key
from chairlift.router.policies.least_connections import BestScorePicker, LoadScorer
from chairlift.router.policies.lora import AdapterFilter, LoraPicker
from chairlift.router.policies.policy_pipeline import PolicyPipeline
from chairlift.router.policies.power_of_two import PowerOfTwoPicker
from chairlift.router.policies.prefix import NUM_ALTERNATIVES, AffinityFilter, PrefixPicker, PrefixScorer, wait_and_load
from chairlift.router.policies.random import RandomPicker
from chairlift.router.policies.round_robin import round_robin_picker
from chairlift.router.policies.weighted import WeightedPicker

DEFAULT_POLICY = "prefix"

PREFIX_WEIGHT, LOAD_WEIGHT = 2.0, 1.0
"""Of the scores of `prefix`: a quarter of the prompt in the cache is worth one open request against none."""

STICKY_POLICIES = frozenset({"session", "ip_hash"})
"""Policies that keep a client on one replica, for the state that it has there; its requests do not move."""

Factory = Callable[[Random], Policy]


def _pipeline(picker: Picker, *filters: Filter, scorers: Sequence[tuple[Scorer, float]] = ()) -> Policy:
    """Return a policy that, like all, sends a request with a LoRA adapter to replicas that have it, if any has."""
    return PolicyPipeline(picker, filters=(AdapterFilter(), *filters), scorers=scorers)


def _prefix(rng: Random) -> Policy:
    scorers = ((PrefixScorer(), PREFIX_WEIGHT), (LoadScorer(), LOAD_WEIGHT))
    alternative = PowerOfTwoPicker(rng, wait_and_load, NUM_ALTERNATIVES)
    return _pipeline(PrefixPicker(), AffinityFilter(alternative), scorers=scorers)


def _lora(rng: Random) -> Policy:
    return _pipeline(LoraPicker(PowerOfTwoPicker(rng), ConsistentHashPicker(lambda request: request.adapter)))


_POLICIES: dict[str, Factory] = {
    "round_robin": lambda rng: _pipeline(round_robin_picker()),
    "weighted": lambda rng: _pipeline(WeightedPicker()),
    "random": lambda rng: _pipeline(RandomPicker(rng)),
    "least_connections": lambda rng: _pipeline(BestScorePicker(rng), scorers=((LoadScorer(), 1.0),)),
    "ip_hash": lambda rng: _pipeline(ConsistentHashPicker(client_address_key)),
    "session": lambda rng: _pipeline(ConsistentHashPicker(session_key)),
    "power_of_two": lambda rng: _pipeline(PowerOfTwoPicker(rng)),
    "prefix": _prefix,
    "lora": _lora,
}

POLICY_NAMES = tuple(_POLICIES)


def make_policy(name: str, seed: int) -> Policy:
    """Return a new policy whose random choices follow from the seed. Raises ConfigError for an unknown name."""
    if name not in _POLICIES:
        raise ConfigError(f"unknown routing policy {name!r}; choose one of {', '.join(POLICY_NAMES)}")
    return _POLICIES[name](Random(seed))
