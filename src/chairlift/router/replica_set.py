"""ReplicaSet and Reservation: the replicas of a router, and one request's place on one of them.

    discovery ── update ──>  ReplicaSet  ── pick ──> Reservation ── record, release ──> ReplicaSet
    probes ── apply_probe ──>    │
                                 └── Transition ──> log, metrics, webhook, shared state

Belongs to one event loop; does no I/O and reads no clock.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from random import Random

from chairlift.core.errors import ConfigError, NotFound
from chairlift.core.load_report import ReplicaState
from chairlift.router.endpoint import MAX_WEIGHT, Endpoint, ReplicaKind
from chairlift.router.health.breaker import BreakerState, HealthOutcome
from chairlift.router.health.config import HealthConfig, may_eject
from chairlift.router.health.health_state import HealthState, Transition, TransitionCause
from chairlift.router.health.outliers import LatencyOutliers
from chairlift.router.health.probe import ProbeResult
from chairlift.router.health.replica_load import ReplicaLoad
from chairlift.router.health.served_models import ServedModels
from chairlift.router.policies.base import Policy
from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.routing_request import RoutingRequest
from chairlift.router.replicas.replica_event_listeners import ReplicaEvents
from chairlift.router.replicas.replica_status import ReplicaStatus
from chairlift.router.replicas.reservation import Reservation
from chairlift.router.replicas.routed_replica import RoutedReplica

log = logging.getLogger(__name__)
USABLE = frozenset({HealthState.HEALTHY, HealthState.EJECTED, HealthState.PROBING})
MAY_BE_EJECTED = frozenset({HealthState.HEALTHY, HealthState.PENDING})


class ReplicaSet:
    """The replicas of a router.

    Attributes:
        listeners: receive every change of a replica's state, after the log.
        restart_listeners: called with a replica's id and its new incarnation; its prefix cache is a new one.
        membership_listeners: called after `update` has added or removed a replica.
        num_suppressed_ejections: ejections that did not happen because half of a pool was ejected.
        num_panic_picks: picks while no replica of the pool was healthy.
    """

    def __init__(self, config: HealthConfig) -> None:
        self._events = ReplicaEvents()
        self.listeners = self._events.listeners
        self.restart_listeners = self._events.restart_listeners
        self.membership_listeners = self._events.membership_listeners
        self.num_suppressed_ejections = self.num_panic_picks = 0
        self._config = config
        self._replicas: dict[str, RoutedReplica] = {}  # in order of their ids
        self._leaving: dict[str, RoutedReplica] = {}  # removed, with open requests
        self._pools: dict[str, list[RoutedReplica]] = {}  # by model
        self._without_models: list[RoutedReplica] = []
        self._outliers = LatencyOutliers(config.outliers)
        self._next_expiry = float("inf")
        self._panic_models: set[str] = set()

    # -- membership ------------------------------------------------------------------------------------------------

    def update(self, endpoints: Iterable[Endpoint], now: float) -> None:
        """Apply a snapshot of endpoints; of two with one URL the first counts.

        An added replica is probed before it gets requests while others are healthy. A removed one gets no new requests
        and keeps the open ones.
        """
        snapshot: dict[str, Endpoint] = {}
        for endpoint in endpoints:
            snapshot.setdefault(endpoint.url, endpoint)
        is_warm = not self._replicas
        removed = [replica for url, replica in self._replicas.items() if url not in snapshot]
        added = [endpoint for url, endpoint in snapshot.items() if url not in self._replicas]
        transitions: list[Transition | None] = []
        for replica in removed:
            del self._replicas[replica.replica_id]
            if replica.open_requests:
                self._leaving[replica.replica_id] = replica
            self._outliers.forget(replica.replica_id)
            transitions.append(replica.health.remove(now))
        for replica in self._replicas.values():
            if replica.endpoint != snapshot[replica.replica_id]:
                replica.set_endpoint(snapshot[replica.replica_id])
        for endpoint in added:
            transitions.append(self._add(endpoint, now, is_warm=is_warm))
        self._replicas = dict(sorted(self._replicas.items()))
        self._rebuild_pools(now)
        for transition in transitions:  # a listener that looks at the set finds the new one
            self._events.emit(transition)
        if added or removed:
            self._events.membership_changed()

    def _add(self, endpoint: Endpoint, now: float, *, is_warm: bool) -> Transition:
        replica = self._leaving.pop(endpoint.url, None)
        if replica is None:
            replica = RoutedReplica(endpoint, self._config, now, is_warm=is_warm)
        else:
            replica.rejoin(endpoint, self._config, now)
        self._replicas[endpoint.url] = replica
        return Transition(
            replica_id=endpoint.url, old=HealthState.REMOVED, new=replica.health.state, cause=TransitionCause.ADDED,
            reason=replica.health.reason, at_seconds=now,
        )  # fmt: skip

    def _rebuild_pools(self, now: float) -> None:
        self._pools = {}
        for replica in self._replicas.values():
            for model in dict.fromkeys(replica.models):
                self._pools.setdefault(model, []).append(replica)
        self._without_models = [replica for replica in self._replicas.values() if not replica.models]
        self._panic_models &= self._pools.keys() | {""}
        for pool in (*self._pools.values(), self._without_models):
            self._return_surplus(pool, now)

    def _return_surplus(self, pool: list[RoutedReplica], now: float) -> None:
        """End ejections of a pool that has become smaller until at most half of it is ejected."""
        ejected = [replica for replica in pool if replica.health.is_ejected]
        ejected.sort(key=lambda replica: replica.health.breaker.ejected_until)
        for num_left in range(len(ejected), 0, -1):
            if may_eject(num_left - 1, len(pool)):
                return
            replica = ejected[len(ejected) - num_left]
            reason = f"{num_left} of {len(pool)} replicas are ejected, the limit is half of them"
            self._events.emit(replica.health.end_ejection(now, TransitionCause.EJECTION_LIMIT, reason))

    # -- choice ----------------------------------------------------------------------------------------------------

    def candidates(
        self, model: str, excluded: Collection[str], now: float, *, fingerprint: str = ""
    ) -> list[Candidate]:
        """Return the replicas that may get a request, in order of their ids.

        These are the healthy ones, or all if none is healthy (panic mode), except drained ones and those of weight 0.
        Whether any is healthy is judged before the excluded ones are taken out.

        Args:
            model: the request's model; "" for any replica.
            excluded: ids of replicas that the request has tried.
            now: monotonic seconds.
            fingerprint: only replicas with these weights of the model, to resume a stream; "" for any.
        """
        replicas, _ = self._eligible(model, now, fingerprint)
        return [replica.candidate(now) for replica in replicas if replica.replica_id not in excluded]

    def pick(
        self, request: RoutingRequest, model: str, policy: Policy, excluded: Collection[str], now: float, *,
        fingerprint: str = "",
    ) -> Reservation | None:  # fmt: skip
        """Choose a replica and count the request there at once; None if no replica is left.

        A replica whose ejection is over gets the next first attempt as its trial; a later attempt only where no other
        replica is left. The caller releases the reservation in `finally`.
        """
        replicas, trial = self._eligible(model, now, fingerprint)
        candidates = [replica.candidate(now) for replica in replicas if replica.replica_id not in excluded]
        if trial is not None and trial.replica_id not in excluded and not (candidates and excluded):
            return self._reserve(trial, request, model, now)
        if not candidates:
            return None
        chosen = policy.pick(request, candidates, now)
        if model in self._panic_models:
            self.num_panic_picks += 1
        return self._reserve(self._replicas[chosen.replica_id], request, model, now)

    def _eligible(self, model: str, now: float, fingerprint: str) -> tuple[list[RoutedReplica], RoutedReplica | None]:
        """Return the replicas for a request, and one whose trial is due, None if there is none."""
        self._advance(now)
        pool = self._pool(model)
        if fingerprint:
            pool = [replica for replica in pool if replica.fingerprint(model) == fingerprint]
        trial: RoutedReplica | None = None
        healthy: list[RoutedReplica] = []
        for replica in pool:
            state = replica.health.state
            if state is HealthState.HEALTHY and replica.weight > 0:
                healthy.append(replica)
            elif state is HealthState.PROBING and trial is None and replica.weight > 0:
                trial = replica if replica.health.has_due_trial(now) else None
        eligible = healthy or self._for_panic(pool)
        if not fingerprint:
            self._note_panic(model, is_panic=bool(eligible) and not healthy)
        return eligible, trial

    @staticmethod
    def _for_panic(pool: Collection[RoutedReplica]) -> list[RoutedReplica]:
        """Return what is used when none is healthy; those that say they are not ready only where all say so."""
        rest = [each for each in pool if each.health.state is not HealthState.DRAINED and each.weight > 0]
        return [each for each in rest if each.health.state is not HealthState.NOT_READY] or rest

    def _pool(self, model: str) -> Collection[RoutedReplica]:
        """Return the replicas that serve a model, or those of unknown models if none is known to serve it."""
        return self._pools.get(model, self._without_models) if model else self._replicas.values()

    def _note_panic(self, model: str, *, is_panic: bool) -> None:
        if is_panic == (model in self._panic_models) or (model and model not in self._pools):
            return
        shown = model or "any model"
        if is_panic:
            self._panic_models.add(model)
            log.warning("no replica for %s is healthy, so all of them are used", shown)
        else:
            self._panic_models.discard(model)
            log.info("a replica for %s is healthy again", shown)

    def _reserve(self, replica: RoutedReplica, request: RoutingRequest, model: str, now: float) -> Reservation:
        is_trial = replica.health.has_due_trial(now)
        if is_trial:
            replica.health.breaker.begin_trial(now)
        prompt_tokens = max(0, request.prompt_tokens - request.matched_tokens(replica.replica_id))
        replica.open(prompt_tokens)
        return Reservation(self, replica, model=model, prompt_tokens=prompt_tokens, is_trial=is_trial)

    # -- health ----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due by time: ends of ejections, and ejections of latency outliers. Call it every second."""
        self._advance(now)
        for outlier in self._outliers.find(now):
            if (replica := self._replicas.get(outlier.replica_id)) is not None:
                self._eject(replica, now, outlier.cause, outlier.reason)

    def _advance(self, now: float) -> None:
        if now < self._next_expiry:
            return
        self._next_expiry = float("inf")
        for replica in self._replicas.values():
            self._events.emit(replica.health.advance(now))
            if replica.health.breaker.state is BreakerState.EJECTED:
                self._next_expiry = min(self._next_expiry, replica.health.breaker.ejected_until)

    def _eject(
        self, replica: RoutedReplica, now: float, cause: TransitionCause, reason: str, seconds: float | None = None
    ) -> bool:
        if replica.health.state not in MAY_BE_EJECTED or replica.health.is_ejected:
            return False
        pools = [self._pools[model] for model in replica.models] or [self._without_models]
        if not all(may_eject(sum(each.health.is_ejected for each in pool), len(pool)) for pool in pools):
            self.num_suppressed_ejections += 1
            return False
        self._events.emit(replica.health.eject(now, cause, reason, seconds=seconds))
        self._outliers.forget(replica.replica_id)
        self._next_expiry = min(self._next_expiry, replica.health.breaker.ejected_until)
        return True

    def eject_by_other_router(self, replica_id: str, seconds: float, reason: str, now: float) -> bool:
        """Eject a replica for `seconds` because another router did; return whether this set's limits allow it."""
        replica = self._replicas.get(replica_id)
        return replica is not None and self._eject(replica, now, TransitionCause.OTHER_ROUTER, reason, seconds)

    def return_by_other_router(self, replica_id: str, now: float) -> bool:
        """End an ejection that another router decided, because that router uses the replica again."""
        replica = self._replicas.get(replica_id)
        if replica is None or not replica.health.is_ejected or not replica.health.was_ejected_by_other_router:
            return False
        reason = "another router uses it again"
        self._events.emit(replica.health.end_ejection(now, TransitionCause.OTHER_ROUTER, reason))
        return True

    def record_outcome(self, replica: RoutedReplica, outcome: HealthOutcome, now: float, *, epoch: int) -> None:
        """Count the outcome of a request that was not a trial; called by its Reservation."""
        if replica.health.state not in MAY_BE_EJECTED:
            return
        if (wish := replica.health.breaker.record(outcome, now, epoch=epoch)) is not None:
            self._eject(replica, now, wish.cause, wish.reason)

    def end_trial(self, replica: RoutedReplica, outcome: HealthOutcome, now: float, *, epoch: int) -> None:
        """End a trial request; called by its Reservation."""
        self._events.emit(replica.health.end_trial(outcome, now, epoch=epoch))
        if replica.health.breaker.state is BreakerState.EJECTED:
            self._next_expiry = min(self._next_expiry, replica.health.breaker.ejected_until)

    def record_latency(
        self, replica: RoutedReplica, model: str, cause: TransitionCause, seconds: float, now: float
    ) -> None:
        """Add a latency sample; called by a Reservation."""
        if replica.health.state is HealthState.HEALTHY:
            self._outliers.record(replica.replica_id, model, cause, seconds, now)

    def forget_if_left(self, replica: RoutedReplica) -> None:
        """Drop a removed replica that has nothing open any more; called by a Reservation."""
        if not replica.open_requests and self._leaving.get(replica.replica_id) is replica:
            del self._leaving[replica.replica_id]

    # -- reports ---------------------------------------------------------------------------------------------------

    def apply_probe(self, replica_id: str, result: ProbeResult, now: float) -> None:
        """Take over what a probe found out; a probe of a replica that was removed meanwhile is ignored."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return
        if result.kind is not ReplicaKind.AUTO and replica.endpoint.kind is ReplicaKind.AUTO:
            replica.kind = result.kind
        if result.version:
            replica.server_version = result.version
        if result.models is not None and replica.set_models(result.models):
            self._rebuild_pools(now)
        if result.load is not None:
            self._record_process(replica, result.load.incarnation, now)
            replica.set_load(result.load)
        health, was_unhealthy = replica.health, replica.health.active.is_healthy is False
        state = result.reported_state or (ReplicaState.READY if result.is_success else None)
        self._events.emit(health.record_probe(now, is_success=result.is_success, reason=result.reason, state=state))
        if was_unhealthy and health.active.is_healthy and not replica.incarnation:
            self._restart(replica, "", now)  # a foreign server has no process id to tell

    def record_load(self, replica: RoutedReplica, load: ReplicaLoad, now: float) -> None:
        """Take over a load report; a new process id voids what is known of the last process."""
        if replica.health.state is HealthState.REMOVED:
            return
        self._record_process(replica, load.incarnation, now)
        replica.set_load(load)
        if load.state is not None:
            self._events.emit(replica.health.record_report(load.state, now))

    def _record_process(self, replica: RoutedReplica, incarnation: str, now: float) -> None:
        if incarnation and not replica.incarnation:
            replica.restart(incarnation)  # the first one it reports, of the process that is known already
        elif incarnation and incarnation != replica.incarnation:
            self._restart(replica, incarnation, now)

    def _restart(self, replica: RoutedReplica, incarnation: str, now: float) -> None:
        replica.restart(incarnation)
        self._outliers.forget(replica.replica_id)
        self._events.emit(replica.health.record_restart(now))
        self._events.restarted(replica.replica_id, incarnation)

    # -- administration --------------------------------------------------------------------------------------------

    def drain(self, replica_id: str, now: float) -> None:
        """Send a replica no new requests until `undrain`. Raises NotFound."""
        self._events.emit(self._find(replica_id).health.drain(now))

    def undrain(self, replica_id: str, now: float) -> None:
        """End a drain. Raises NotFound."""
        self._events.emit(self._find(replica_id).health.undrain(now))

    def set_weight(self, replica_id: str, weight: float | None) -> None:
        """Set a replica's weight in place of its source's, None to use that again. Raises NotFound, ConfigError."""
        if weight is not None and not 0 <= weight <= MAX_WEIGHT:
            raise ConfigError(f"weight of {replica_id} must be between 0 and {MAX_WEIGHT:g}, got {weight:g}")
        self._find(replica_id).set_weight(weight)

    def _find(self, replica_id: str) -> RoutedReplica:
        if (replica := self._replicas.get(replica_id)) is None:
            names = ", ".join(list(self._replicas)[:20]) or "none"
            raise NotFound(f"there is no replica {replica_id[:200]!r}; the replicas are {names}")
        return replica

    # -- views -----------------------------------------------------------------------------------------------------

    def statuses(self, now: float) -> list[ReplicaStatus]:
        """Return every replica, those that are leaving at the end."""
        self._advance(now)
        return [replica.status(now) for replica in (*self._replicas.values(), *self._leaving.values())]

    def num_by_state(self) -> Mapping[HealthState, int]:
        """Return the number of replicas in each state, zeros included."""
        counts = Counter(replica.health.state for replica in (*self._replicas.values(), *self._leaving.values()))
        return {state: counts[state] for state in HealthState}

    def open_requests(self) -> Mapping[str, int]:
        """Return the number of open requests of each replica."""
        return {each.replica_id: each.open_requests for each in (*self._replicas.values(), *self._leaving.values())}

    @property
    def models(self) -> tuple[str, ...]:
        """Names of all models that any replica serves, sorted."""
        return tuple(sorted(self._pools))

    @property
    def only_model(self) -> str:
        """The name of the model that all replicas serve, their first where it has several; "" without one.

        Names of one model have one fingerprint.
        """
        served = [(model, replica) for replica in self._replicas.values() for model in replica.base_models]
        names = list(dict.fromkeys(model for model, _ in served))
        fingerprints = {replica.fingerprint(model) for model, replica in served}
        is_one = len(names) == 1 or (len(fingerprints) == 1 and "" not in fingerprints)
        return names[0] if is_one else ""

    @property
    def aliases(self) -> Mapping[str, tuple[str, ...]]:
        """The further names that requests may use for models, each with a name of every model that it may mean.

        Names of one model have one fingerprint.
        """
        found: dict[str, dict[str, str]] = {}
        for replica in self._replicas.values():
            for alias in replica.aliases if replica.base_models else ():
                model = replica.base_models[0]
                found.setdefault(alias, {}).setdefault(replica.fingerprint(model) or model, model)
        return {alias: tuple(dict.fromkeys(models.values())) for alias, models in found.items()}

    def served_models(self, model: str) -> list[ServedModels]:
        """Return the lists of models of the replicas of a model."""
        return [replica.served for replica in self._pool(model) if replica.served is not None]

    @property
    def incarnations(self) -> Mapping[str, str]:
        """The process of each replica by replica id, "" where it is unknown."""
        return {replica_id: replica.incarnation for replica_id, replica in self._replicas.items()}

    def has_usable(self, now: float, model: str = "") -> bool:
        """Return whether some replica of a weight above 0 may answer: healthy, or ejected though its probes succeed.

        `model`: only those for this model count; "" for any.
        """
        self._advance(now)
        return any(replica.health.state in USABLE and replica.weight > 0 for replica in self._pool(model))

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The endpoints by replica id, without those that are leaving."""
        return {replica_id: replica.endpoint for replica_id, replica in self._replicas.items()}

    def endpoint(self, replica_id: str) -> Endpoint | None:
        """Return a replica's endpoint, None if it is not in the set."""
        replica = self._replicas.get(replica_id)
        return None if replica is None else replica.endpoint

    def next_probe_seconds(self, replica_id: str, random: Random) -> float:
        """Return the seconds until a replica's next probe."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return self._config.probes.interval_seconds
        return replica.health.active.next_delay_seconds(random)
