"""Replica sets for tests: endpoints by name, a seeded policy, and a listener that keeps what it is given."""

from collections.abc import Sequence
from random import Random

from chairlift.router.endpoint import Endpoint
from chairlift.router.health.config import HealthConfig
from chairlift.router.health.health_state import HealthState, Transition
from chairlift.router.health.probe import ProbeResult
from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.routing_request import RoutingRequest
from chairlift.router.replica_set import ReplicaSet
from chairlift.router.replicas.reservation import Reservation

REQUEST = RoutingRequest(prompt_tokens=10)
NO_PROBES = HealthConfig(has_active_probes=False)


def url(name: str) -> str:
    """Return the URL of a replica that is named by a name."""
    return f"http://{name}:8000"


def endpoints(names: str, *, models: tuple[str, ...] = ("m",)) -> list[Endpoint]:
    """Return an endpoint for each name."""
    return [Endpoint(url=url(name), models=models) for name in names]


class FirstPolicy:
    """Takes the first candidate."""

    def pick(self, request: RoutingRequest, candidates: Sequence[Candidate], now: float) -> Candidate:
        """Return the first."""
        assert candidates
        return candidates[0]


class SeededPolicy:
    """Takes a random candidate."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def pick(self, request: RoutingRequest, candidates: Sequence[Candidate], now: float) -> Candidate:
        """Return one of them."""
        return self._random.choice(candidates)


class TransitionLog:
    """Keeps transitions."""

    def __init__(self) -> None:
        self.transitions: list[Transition] = []

    def on_transition(self, transition: Transition) -> None:
        """Keep it."""
        self.transitions.append(transition)

    def drain(self) -> list[tuple[str, str, str]]:
        """Return name, new state and cause of each transition since the last call."""
        found = [(each.replica_id[7], str(each.new), str(each.cause)) for each in self.transitions]
        self.transitions.clear()
        return found


def new_set(
    names: str, *, config: HealthConfig = NO_PROBES, models: tuple[str, ...] = ("m",)
) -> tuple[ReplicaSet, TransitionLog]:  # fmt: skip
    """Return a set with these replicas at time 0, and the log of what happens after."""
    replica_set, log = ReplicaSet(config), TransitionLog()
    replica_set.update(endpoints(names, models=models), 0.0)
    replica_set.listeners.append(log)
    return replica_set, log


def pick(replica_set: ReplicaSet, now: float = 0.0, *, only: str = "", model: str = "m", **more: str) -> Reservation:
    """Pick a replica for a request; `only` one name."""
    excluded = [each for each in replica_set.endpoints if only and each != url(only)]
    reservation = replica_set.pick(REQUEST, model, FirstPolicy(), excluded, now, **more)
    assert reservation is not None
    return reservation


def states(replica_set: ReplicaSet, now: float = 0.0) -> dict[str, HealthState]:
    """Return the state of each replica by name."""
    return {status.replica_id[7]: status.state for status in replica_set.statuses(now)}


def probed(*, is_success: bool = True, **fields: object) -> ProbeResult:
    """Return the result of a probe."""
    return ProbeResult(is_success=is_success, reason="test", **fields)  # type: ignore[arg-type]
