"""SimRouter: the router of a simulated fleet: production policy, prefix index and moves, and the held requests."""

from bisect import insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import overload

from chairlift.bench.fleet_simulation.fleet_replica import FleetReplica
from chairlift.bench.fleet_simulation.sim_request_and_interfaces import SimRequest
from chairlift.router.policies.candidate import Candidate, CandidateSequence
from chairlift.router.policies.registry import STICKY_POLICIES, make_policy
from chairlift.router.policies.routing_request import RoutingRequest
from chairlift.router.prefix_index import PrefixIndex
from chairlift.router.replicas.move_decision import choose_moves

_id = attrgetter("replica_id")


class ReadyReplicas(CandidateSequence):
    """The ready replicas in order of their ids, as candidates; each is built only when a policy looks at it."""

    def __init__(self) -> None:
        self.replicas: list[FleetReplica] = []
        self.now = 0.0

    @property
    def has_equal_weights(self) -> bool:
        """Return True: simulated replicas have no weights."""
        return True

    def __len__(self) -> int:
        return len(self.replicas)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> list[Candidate]: ...
    def __getitem__(self, index: int | slice) -> Candidate | list[Candidate]:
        if isinstance(index, slice):
            return [replica.candidate(self.now) for replica in self.replicas[index]]
        return self.replicas[index].candidate(self.now)

    def __iter__(self) -> Iterator[Candidate]:
        now = self.now
        return (replica.candidate(now) for replica in self.replicas)


class SimRouter:
    """Sends requests to ready replicas; holds them while there is none.

    Attributes:
        held: requests that wait for a replica, oldest first.
        held_tokens: their prompt tokens.
    """

    def __init__(self, policy: str, seed: int) -> None:
        self.held: list[SimRequest] = []
        self.held_tokens = 0
        self._policy, self._index = make_policy(policy, seed), PrefixIndex()
        self._moves_requests = policy not in STICKY_POLICIES
        self._ready = ReadyReplicas()
        self._by_id: dict[str, FleetReplica] = {}
        self._incarnations: dict[str, str] = {}

    @property
    def ready(self) -> list[FleetReplica]:
        """The replicas that get requests."""
        return self._ready.replicas

    def add(self, replica: FleetReplica) -> list[SimRequest]:
        """Take a replica into use; return the requests that were held, which are to be routed now."""
        insort(self._ready.replicas, replica, key=_id)
        self._by_id[replica.replica_id] = replica
        self._incarnations[replica.replica_id] = ""
        held, self.held, self.held_tokens = self.held, [], 0
        return held

    def remove(self, replica: FleetReplica) -> None:
        """Send a replica no more requests."""
        self._ready.replicas.remove(replica)
        del self._by_id[replica.replica_id], self._incarnations[replica.replica_id]

    def route(self, request: SimRequest, now: float) -> FleetReplica | None:
        """Send a request to the replica that the policy picks; None if it is held."""
        if not self._by_id:
            self.held.append(request)
            self.held_tokens += request.prompt_tokens
            return None
        self._ready.now = now
        prefix = request.prefix
        if prefix is None:
            routing = RoutingRequest(session_key=request.session_key, prompt_tokens=request.prompt_tokens)
        else:
            routing = RoutingRequest(
                session_key=request.session_key, prompt_tokens=prefix.num_tokens, prefix=prefix.hashes,
                prefix_tokens=prefix.token_counts,
                prefix_matches=self._index.match(prefix.hashes, self._incarnations),
            )  # fmt: skip
        replica = self._by_id[self._policy.pick(routing, self._ready, now).replica_id]
        request.routed_tokens = routing.prompt_tokens - routing.matched_tokens(replica.replica_id)
        if prefix is not None:
            self._index.record(replica.replica_id, "", prefix.hashes)
        replica.open(request, now)
        return replica

    def choose_moves(
        self, ready_ids: Collection[str], waiting: Mapping[str, Sequence[SimRequest]], now: float
    ) -> list[tuple[SimRequest, FleetReplica]]:
        """Return the requests that move to replicas that became ready; `waiting` has those at each replica."""
        if not self._moves_requests:
            return []
        names = [name for name in dict.fromkeys([*ready_ids, *waiting]) if name in self._by_id]
        moves = choose_moves([self._by_id[name].queue(now) for name in names], ready_ids, waiting)
        return [(request, self._by_id[name]) for request, name in moves]

    def move(self, request: SimRequest, old: FleetReplica, new: FleetReplica, now: float) -> bool:
        """Move a request; return False if it has started and stays."""
        if not old.withdraw(request):
            return False
        request.num_moves += 1
        request.routed_tokens = request.prompt_tokens
        if request.prefix is not None:
            self._index.record(new.replica_id, "", request.prefix.hashes)
        new.open(request, now)
        return True

    def record_answer(self, replica: FleetReplica, request: SimRequest) -> None:
        """Remember that the replica has computed the prompt and its answer."""
        if request.prefix is not None:
            self._index.record(replica.replica_id, "", request.prefix.extended(request.output_token_ids))
