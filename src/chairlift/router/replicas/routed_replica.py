"""RoutedReplica: one replica of the router with its health, its load and what is open there."""

from collections.abc import Mapping

from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.health.config import HealthConfig
from chairlift.router.health.replica_health import ReplicaHealth
from chairlift.router.health.replica_load import ReplicaLoad
from chairlift.router.health.served_models import ServedModels
from chairlift.router.policies.candidate import Candidate
from chairlift.router.replicas.replica_status import ReplicaStatus

MAX_REPORT_AGE_SECONDS = 15.0
"""A load report that is older no longer counts: three probes have brought no new one. The replica is not ill for it."""


class RoutedReplica:
    """One replica. Belongs to its ReplicaSet, which alone changes it.

    Attributes:
        endpoint: what its discovery source says.
        health: its health.
        kind: which server it is; AUTO as long as that is unknown.
        models: models that it serves: by its source, else by its own answer; () if unknown.
        incarnation: id of its process, "" if unknown.
        weight_override: an administrator's weight, None for none.
        open_requests: requests that this router has open there.
        num_attempts: requests that this router has sent there.
        num_restarts: how often its process was a new one.
        server_version: version of its server, "" if unknown.
    """

    def __init__(self, endpoint: Endpoint, config: HealthConfig, now: float, *, is_warm: bool) -> None:
        self.endpoint = endpoint
        self.health = ReplicaHealth(endpoint.url, config, now, is_warm=is_warm)
        self.kind = endpoint.kind
        self.incarnation = self.server_version = ""
        self.weight_override: float | None = None
        self.open_requests = self.num_attempts = self.num_restarts = 0
        self._waiting_tokens = 0
        self._load: ReplicaLoad | None = None
        self._served: ServedModels | None = None
        self._candidate: Candidate | None = None
        self._candidate_until = 0.0

    @property
    def replica_id(self) -> str:
        """The replica's URL."""
        return self.endpoint.url

    @property
    def models(self) -> tuple[str, ...]:
        """Models that the replica serves, () if unknown."""
        return self.endpoint.models or (() if self._served is None else self._served.names)

    @property
    def weight(self) -> float:
        """Weight without the slow start."""
        return self.endpoint.weight if self.weight_override is None else self.weight_override

    def fingerprint(self, model: str) -> str:
        """Return the fingerprint of a model's weights there, "" if unknown."""
        sources: list[Mapping[str, str]] = []
        if self._served is not None:
            sources.append(self._served.fingerprints)
        if self._load is not None:
            sources.append(self._load.fingerprints)
        return next((found for each in sources if (found := each.get(model) or each.get("", ""))), "")

    def is_resumable(self, model: str) -> bool:
        """Return whether a stream of a model can go on on another replica."""
        return self.kind is ReplicaKind.CHAIRLIFT and bool(self.fingerprint(model))

    @property
    def base_models(self) -> tuple[str, ...]:
        """The models that are no LoRA adapters, () if unknown."""
        adapters = frozenset[str]() if self._served is None else self._served.adapters
        return tuple(model for model in self.models if model not in adapters)

    @property
    def aliases(self) -> tuple[str, ...]:
        """Names beside `models` that requests may use for its model, () if unknown."""
        return () if self._load is None else self._load.aliases

    @property
    def served(self) -> ServedModels | None:
        """The models as the replica lists them, None if unknown."""
        return self._served

    # -- changes ---------------------------------------------------------------------------------------------------

    def set_endpoint(self, endpoint: Endpoint) -> None:
        """Take over what the source says now."""
        if endpoint.kind is not self.endpoint.kind:
            self.kind = endpoint.kind
        self.endpoint = endpoint
        self._candidate = None

    def rejoin(self, endpoint: Endpoint, config: HealthConfig, now: float) -> None:
        """Begin anew as an added replica, with what is still open there."""
        self.health = ReplicaHealth(endpoint.url, config, now, is_warm=False)
        self.health.incarnation = self.incarnation
        self.weight_override = None
        self.set_endpoint(endpoint)

    def set_load(self, load: ReplicaLoad) -> None:
        """Take over a load report."""
        old = self._load
        if old is not None and load.incarnation in {"", old.incarnation}:
            load = load.completed_by(old)
        self._load, self._candidate = load, None

    def set_models(self, served: ServedModels) -> bool:
        """Take over what the replica serves; return whether its models have changed."""
        old = self.models
        self._served, self._candidate = served, None
        return self.models != old

    def set_weight(self, weight: float | None) -> None:
        """Take over an administrator's weight."""
        self.weight_override, self._candidate = weight, None

    def restart(self, incarnation: str) -> None:
        """Forget what was known of the last process; what it has open is released by its reservations."""
        if self.incarnation or not incarnation:
            self.num_restarts += 1
            self._load = None
        self.incarnation = self.health.incarnation = incarnation
        self._candidate = None

    def open(self, prompt_tokens: int) -> None:
        """Count a request that was picked for the replica."""
        self.open_requests += 1
        self.num_attempts += 1
        self._waiting_tokens += prompt_tokens
        self._candidate = None

    def end_wait(self, prompt_tokens: int) -> None:
        """Count down the prompt tokens of a request whose first token has come."""
        self._waiting_tokens -= prompt_tokens
        self._candidate = None

    def release(self) -> None:
        """Count down a request that has ended."""
        self.open_requests -= 1
        assert self.open_requests >= 0, f"{self.replica_id} has {self.open_requests} open requests"
        self._candidate = None

    # -- views -----------------------------------------------------------------------------------------------------

    def candidate(self, now: float) -> Candidate:
        """Return the replica as policies see it."""
        if self._candidate is not None and now < self._candidate_until and not self.health.is_in_slow_start:
            return self._candidate
        load, factor = self._load, self.health.weight_factor(now)
        is_stale = load is None or now > load.at_seconds + MAX_REPORT_AGE_SECONDS
        adapters = frozenset() if self._served is None else self._served.adapters
        weight = self.weight * factor
        if load is None or is_stale:
            candidate = Candidate(
                replica_id=self.replica_id, incarnation=self.incarnation, weight=weight,
                open_requests=self.open_requests, pending_prefill_tokens=self._waiting_tokens, adapters=adapters,
            )  # fmt: skip
        else:
            candidate = Candidate(
                replica_id=self.replica_id, incarnation=self.incarnation, weight=weight,
                open_requests=self.open_requests, pending_prefill_tokens=self._waiting_tokens,
                waiting_tokens=load.waiting_tokens,
                running_requests=load.running_requests, expected_wait_seconds=load.expected_wait_seconds,
                prefill_tokens_per_second=load.prefill_tokens_per_second, adapters=adapters | load.adapters,
            )  # fmt: skip
        self._candidate = candidate
        self._candidate_until = float("inf") if load is None or is_stale else load.at_seconds + MAX_REPORT_AGE_SECONDS
        return candidate

    def status(self, now: float) -> ReplicaStatus:
        """Return the replica as /admin/replicas lists it."""
        health, load = self.health, self._load
        return ReplicaStatus(
            replica_id=self.replica_id, state=health.state, cause=health.cause, reason=health.reason,
            seconds_in_state=round(max(0.0, now - health.since_seconds), 3), weight=self.weight,
            weight_override=self.weight_override, effective_weight=round(self.weight * health.weight_factor(now), 6),
            open_requests=self.open_requests, load=load,
            load_age_seconds=None if load is None else round(max(0.0, now - load.at_seconds), 3),
            kind=self.kind, resumable=any(map(self.is_resumable, self.models or ("",))),
            server_version=self.server_version, version=self.endpoint.version, zone=self.endpoint.zone,
            models=self.models, incarnation=self.incarnation, num_attempts=self.num_attempts,
            num_ejections=health.breaker.num_ejections, num_restarts=self.num_restarts,
        )  # fmt: skip
