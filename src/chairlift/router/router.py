"""Router: the state that all routes share: replicas, policy, model routes, admission, lifecycle and telemetry."""

import random
from asyncio import get_running_loop
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import ModelNotFound
from chairlift.core.load_report import ReplicaState
from chairlift.core.model_names import matching_name
from chairlift.core.validation import invalid_param
from chairlift.observability.latency_targets import LatencyTargets
from chairlift.observability.tracing.tracer import Tracer
from chairlift.router.attempts.actions import PickReplica
from chairlift.router.attempts.events import NoReplica
from chairlift.router.attempts.hedging import HedgeController
from chairlift.router.attempts.retry_budget import RetryBudget
from chairlift.router.config import RouterConfig
from chairlift.router.discovery.base import SourceStatus
from chairlift.router.endpoint import ReplicaKind
from chairlift.router.health.health_state import HealthState
from chairlift.router.live.request_timelines import RequestTimelines
from chairlift.router.live.transition_log import TransitionLog
from chairlift.router.policies.base import AssignedReplica
from chairlift.router.policies.registry import STICKY_POLICIES, make_policy
from chairlift.router.policies.routing_request import RoutingRequest
from chairlift.router.prefix_index import PrefixIndex
from chairlift.router.prompt_prefix_and_length import PromptPrefix, count_prompt_tokens, prompt_prefix
from chairlift.router.proxy.request_mover import RequestMover
from chairlift.router.proxy.request_proxy import RequestProxy
from chairlift.router.proxy.upstream import Upstream
from chairlift.router.replica_set import ReplicaSet
from chairlift.router.replicas.reservation import Reservation
from chairlift.router.request_hold import RequestHold
from chairlift.router.shared_state.build import create_shared_state
from chairlift.router.shared_state.tenant_limiter import SharedTenantLimiter
from chairlift.router.telemetry import RouterTelemetry
from chairlift.web.admission import AdmissionController
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.service.http_config import HttpConfig

PREFIX_POLICY, SESSION_POLICY = "prefix", "session"
NO_REPLICA = "no replica is ready"
NO_MODELS = f"no models, as {NO_REPLICA}"

UNKNOWN_WEIGHTS_SECONDS = 0.2
"""Time after which a probe may have learnt which weights a replica has."""


class Router:
    """Many replicas behind one API server. Belongs to one event loop.

    Attributes:
        config: the operator's settings.
        lifecycle: starting, ready, draining.
        telemetry: metrics of requests and attempts.
        admission: the admission queue of requests without a first byte.
        shared_state: what several routers share.
        tenants: the limits of tenants.
        open_proxies: the requests that have not ended.
        replicas: the replicas with their health and load.
        hold: the requests that wait while no replica is ready.
        timelines: the timelines of open and recent requests.
        transitions: the last changes of replicas' health.
        upstream: the connections to them.
        source_statuses: returns how each discovery source does.
        random: source of the seeds of requests that have none.
        clock: the clock of all decisions.
        tracer: traces requests; None traces none.
        shown_settings: the settings of the process, without secrets.
        debug_parts: further parts of /admin/debug: each function returns one as JSON has it.
    """

    def __init__(
        self, config: RouterConfig, clock: Clock | None = None, more_metrics: frozenset[str] = frozenset(),
        tracer: Tracer | None = None,
    ) -> None:  # fmt: skip
        """Make the parts; the event loop runs. Raises ConfigError for files that cannot be read."""
        self.config, self.tracer = config, tracer
        self.clock = clock or SystemClock()
        self.lifecycle = Lifecycle()
        targets = LatencyTargets.of_milliseconds(config.http.slo_ttft_ms, config.http.slo_itl_ms)
        self.telemetry = RouterTelemetry(more_metrics, self.clock, targets)
        self.admission = AdmissionController(config.http.admission, self.clock)
        self.replicas = ReplicaSet(config.health)
        self.hold = RequestHold(config.hold_timeout, lambda: self.is_ready, self.clock)
        self.timelines, self.transitions = RequestTimelines(self.clock), TransitionLog()
        self.replicas.listeners.append(self.transitions)
        self.source_statuses: Callable[[], tuple[SourceStatus, ...]] = tuple
        self.random = random.Random(config.seed or None)
        self.shared_state = create_shared_state(config.shared_state, clock=self.clock)  # may raise, and opens nothing
        self.upstream = Upstream(config.upstream)
        self.tenants = SharedTenantLimiter(config.http.tenant, self.shared_state.tenant_usage, self.clock)
        self.open_proxies: set[RequestProxy] = set()
        self.shown_settings: Mapping[str, Any] = {}
        self.debug_parts: dict[str, Callable[[], Any]] = {}
        self._policy = make_policy(config.policy, config.seed)
        self._index = PrefixIndex() if config.policy == PREFIX_POLICY else None
        if self._index is not None:
            self.replicas.membership_listeners.append(self._retain_prefixes)
            self.replicas.restart_listeners.append(self._forget_prefixes)
        self._budgets: dict[str, RetryBudget] = {}
        self._hedging: dict[str, HedgeController] = {}
        self._known_models: tuple[str, ...] = ()
        self._known_aliases: Mapping[str, tuple[str, ...]] = {}
        self._mover = RequestMover(
            self.replicas, self.open_proxies, self.clock.now,
            lambda seconds, call: get_running_loop().call_later(seconds, call),
        )  # fmt: skip
        if config.policy not in STICKY_POLICIES:
            self.replicas.listeners.append(self._mover)

    @property
    def is_ready(self) -> bool:
        """Whether some replica may get a request."""
        return self.replicas.has_usable(self.clock.now())

    @property
    def num_open_requests(self) -> int:
        """Requests that have not ended, held ones included."""
        return len(self.open_proxies) + self.hold.num_requests

    @property
    def num_requests_without_replica(self) -> int:
        """Requests that wait for a replica: those that are held, and those whose replica was lost."""
        return self.hold.num_requests + sum(proxy.is_waiting for proxy in self.open_proxies)

    def mark_started(self) -> None:
        """Serve requests from now on."""
        self.lifecycle.mark_started(
            lambda: ReplicaState.READY if self.hold.is_enabled or self.is_ready else ReplicaState.STARTING, NO_REPLICA
        )

    def reload_limits(self, limits: HttpConfig) -> None:
        """Apply the limits of another config."""
        self.admission.renew(limits.admission)
        self.tenants.renew(limits.tenant)

    def update_gauges(self) -> None:
        """Set the gauges of replicas and requests."""
        num_open, num_waiting = self.num_open_requests, self.admission.waiting_requests
        is_ready = self.lifecycle.state is ReplicaState.READY
        self.telemetry.update_gauges(num_open, num_waiting, self.num_requests_without_replica, is_ready=is_ready)
        self._known_aliases = self.replicas.aliases or self._known_aliases
        for model in self.models:
            self.telemetry.counters.add_model(model)
        self.telemetry.update_sources(self.source_statuses())
        self.telemetry.update_shared_state(self.shared_state.status())

    def abort_all(self) -> int:
        """Abort all open requests; returns their number."""
        proxies, num_held = list(self.open_proxies), self.hold.num_requests
        for proxy in proxies:
            proxy.abort()
        self.hold.close()
        return len(proxies) + num_held

    # -- pools -----------------------------------------------------------------------------------------------------

    def choose_pool(self, model: Any, key: str, *, needs_model: bool = True) -> str:
        """Return the pool of a request's model; "" lets every replica answer, which reports what is wrong.

        A request without a model, or with an empty name, is for the only model. Raises ModelNotFound, and
        InvalidRequest where a request that `needs_model` names none of several.
        """
        if isinstance(model, str) and model:
            name = model if model in self.config.routes.routes else self._known_name(model) or model
            return self.config.routes.choose(name, key, self.models)
        if pool := self._only_pool():
            return pool
        if needs_model and self.models and model in (None, ""):
            raise invalid_param("model", f"is missing: name one of {', '.join(self.model_names())}")
        return ""

    def resolve_model(self, name: str) -> str:
        """Return the model name that a request's name means, "" is the only one.

        Raises ModelNotFound, and InvalidRequest where there are several for "".
        """
        found = self._known_name(name) if name else self.choose_pool(name, "")
        if not found:
            raise ModelNotFound(name, ", ".join(self.model_names()) or NO_MODELS)
        return found

    def _only_pool(self) -> str:
        pools = self.models
        return pools[0] if len(pools) == 1 else self.replicas.only_model

    def _known_name(self, name: str) -> str:
        """Return the name of a pool, or of a route to one, that a name means, also an alias or with a tag; or "".

        Raises InvalidRequest for an alias of several models.
        """
        if name in self.models:
            return name
        if known := matching_name(name, self.model_names()):
            return known
        aliases = self.aliases
        found = sorted(aliases.get(matching_name(name, aliases), ()))
        if len(found) > 1:
            raise invalid_param("model", f"{name!r} may mean several models: name one of {', '.join(found)}")
        return found[0] if found else ""

    @property
    def aliases(self) -> Mapping[str, tuple[str, ...]]:
        """Further names of models, each with a name of every model that it may mean; remembered as `models` are."""
        return self.replicas.aliases or (self._known_aliases if self.hold.is_enabled else {})

    def must_hold(self, model: Any, key: str) -> bool:
        """Return whether a request must wait for a replica. Raises as choose_pool: a wrong name is worth no start."""
        if not self.hold.is_enabled or self.is_ready:
            return False
        if self.models:
            self.choose_pool(model, key)
        return True

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the pools; those of the last replicas while there is none and requests are held."""
        if models := self.replicas.models:
            self._known_models = models
        return models or (self._known_models if self.hold.is_enabled else ())

    def model_names(self) -> list[str]:
        """Return every model name that clients may use."""
        return self.config.routes.names(self.models)

    def max_model_len(self, name: str) -> int | None:
        """Return the most tokens of a request that every replica of a name takes, None if none states its limit."""
        pools = self.config.routes.pools_of(name, self.models)
        listed = [(each, pool) for pool in pools for each in self.replicas.served_models(pool)]
        return min((each.max_model_lens[pool] for each, pool in listed if pool in each.max_model_lens), default=None)

    def model_details(self, name: str) -> Mapping[str, Any] | None:
        """Return what is known of the model of a name, None if nothing is."""
        pools = sorted(self.config.routes.pools_of(name, self.models))
        listed = ((each, pool) for pool in pools for each in self.replicas.served_models(pool))
        return next((each.details[pool] for each, pool in listed if pool in each.details), None)

    def budget(self, pool: str) -> RetryBudget:
        """Return the retry budget of a pool."""
        if pool not in self._budgets:
            self._budgets[pool] = RetryBudget(self.config.retry_budget)
        return self._budgets[pool]

    def hedging(self, pool: str) -> HedgeController | None:
        """Return what decides about the hedges of a pool; None where requests are not hedged."""
        if self.config.hedging is None:
            return None
        if pool not in self._hedging:
            self._hedging[pool] = HedgeController(self.config.hedging)
        return self._hedging[pool]

    # -- replicas --------------------------------------------------------------------------------------------------

    def routing_request(
        self, fields: Mapping[str, Any], pool: str, *, request_id: str, client_address: str, session_key: str,
        tenant: str, assigned_replica_id: str = "",
    ) -> tuple[RoutingRequest, PromptPrefix | None]:  # fmt: skip
        """Return what the policy knows about a request, and its prompt's prefix where the policy uses it."""
        adapter = str(fields.get("lora") or "")
        request = RoutingRequest(
            request_id=request_id, client_address=client_address, session_key=session_key, adapter=adapter,
            assigned_replica_id=assigned_replica_id,
        )  # fmt: skip
        if self._index is None:
            return replace(request, prompt_tokens=count_prompt_tokens(fields)), None
        prefix = prompt_prefix(fields, model=pool, adapter=adapter, tenant=tenant)
        request = replace(
            request, prompt_tokens=prefix.num_tokens, prefix=prefix.hashes, prefix_tokens=prefix.token_counts,
            prefix_matches=self._index.match(prefix.hashes, self.replicas.incarnations),
        )  # fmt: skip
        return request, prefix

    def pick(self, request: RoutingRequest, pool: str, action: PickReplica) -> Reservation | None:
        """Reserve a replica of a pool for an attempt; None if there is none."""
        incarnations = self.replicas.incarnations if action.excluded else {}
        excluded = {replica for replica, incarnation in action.excluded if incarnations.get(replica, "") == incarnation}
        policy = AssignedReplica(self._policy) if request.assigned_replica_id else self._policy
        if action.replica_id:
            excluded |= self.replicas.endpoints.keys() - {action.replica_id}
            if request.adapter and request.adapter not in self._adapters(pool, excluded):
                return None
        reservation = self.replicas.pick(
            request, pool, policy, excluded, self.clock.now(), fingerprint=action.fingerprint
        )
        if reservation is not None and self._index is not None and request.prefix:
            self._index.record(reservation.replica_id, reservation.incarnation, request.prefix)
        return reservation

    def no_replica(self, pool: str, action: PickReplica) -> NoReplica:
        """Return which healthy replicas the attempt cannot use; it may come back soon for one of unknown weights."""
        healthy = [
            each for each in self.replicas.statuses(self.clock.now())
            if each.state is HealthState.HEALTHY and each.weight > 0 and (not pool or pool in each.models)
        ]  # fmt: skip
        is_unknown = action.fingerprint and any(
            not each.resumable and each.kind is not ReplicaKind.OPENAI for each in healthy
        )
        ready = {(each.replica_id, each.incarnation) for each in healthy if each.resumable or not action.fingerprint}
        return NoReplica(action.attempt, UNKNOWN_WEIGHTS_SECONDS if is_unknown else None, frozenset(ready))

    def _adapters(self, pool: str, excluded: set[str]) -> frozenset[str]:
        """Return the adapters that are loaded on the replicas of a pool."""
        candidates = self.replicas.candidates(pool, excluded, self.clock.now())
        return frozenset[str]().union(*(each.adapters for each in candidates))

    def drain_replica(self, replica_id: str) -> None:
        """Send a replica nothing new, and hand its streams over to others. Raises NotFound."""
        self.replicas.drain(replica_id, self.clock.now())
        for proxy in list(self.open_proxies):
            proxy.report_draining(replica_id)

    def _retain_prefixes(self) -> None:
        """Forget the prefixes of replicas that are gone."""
        if self._index is not None:
            self._index.retain(self.replicas.endpoints.keys())

    def _forget_prefixes(self, replica_id: str, incarnation: str) -> None:
        """Forget the prefixes of a process that has no id; the index tells others apart by theirs."""
        if self._index is not None and not incarnation:
            self._index.forget(replica_id)

    async def assigned_replica(self, pool: str, session_key: str) -> str:
        """Return the replica that serves a session, "" for none; only the session policy keeps such a table."""
        if self.config.policy != SESSION_POLICY or not session_key:
            return ""
        return await self.shared_state.sessions.get(_session_name(pool, session_key)) or ""

    async def assign_session(self, pool: str, session_key: str, replica_id: str, before: str) -> None:
        """Record which replica serves a session, instead of the one before."""
        if self.config.policy == SESSION_POLICY and session_key and replica_id != before:
            name = _session_name(pool, session_key)
            await self.shared_state.sessions.assign(name, replica_id, replacing=before or None)

    def learn_prefix(
        self, reservation: Reservation | None, prefix: PromptPrefix | None, token_ids: Sequence[int]
    ) -> None:  # fmt: skip
        """Record that a replica has cached the output, too, where prompt and output are known as token ids."""
        if self._index is not None and reservation is not None and prefix is not None and token_ids:
            self._index.record(reservation.replica_id, reservation.incarnation, prefix.extended(token_ids))

    async def close(self) -> None:
        """Close the connections."""
        self.hold.close()
        self._mover.close()
        await self.shared_state.close()
        await self.upstream.close()


def _session_name(pool: str, session_key: str) -> str:
    """Return the name of a session in the table: sessions of two pools are two."""
    return f"{pool}\0{session_key}"
