"""RequestCounters: counts requests and tokens by model and tenant, and how many were within the latency targets."""

from chairlift.observability.latency_targets import LatencyTargets
from chairlift.observability.metrics import Metrics
from chairlift.observability.request_results import RequestResult
from chairlift.observability.tracing.gen_ai_attributes import OPERATIONS

MAX_TENANT_LABELS = 100
"""Tenants with time series of their own. Those that come later share the label `other`: a token may name any tenant."""

NONE, OTHER = "none", "other"
"""Labels of requests without a tenant or a model, and of those beyond the limit."""

TTFT, ITL = "ttft", "itl"
"""Labels of the targets: time to the first token, and inter-token latency."""


class RequestCounters:
    """Counts by model and tenant on one metrics page. Call it from one thread."""

    def __init__(self, metrics: Metrics, targets: LatencyTargets) -> None:
        """Export the targets, and each counter at zero as soon as its model or tenant is known."""
        self._metrics = metrics
        self._tenants: dict[str, str] = {}
        self._targets = {TTFT: targets.ttft_seconds, ITL: targets.itl_seconds}
        for slo, seconds in self._targets.items():
            if seconds is not None:
                metrics.gauge("slo_target_seconds", slo).set(seconds)
        for result in RequestResult:
            metrics.counter("model_requests", NONE, result)

    def tenant_label(self, tenant: str) -> str:
        """Return the label of a tenant: its name, or OTHER where MAX_TENANT_LABELS tenants have one already."""
        if tenant not in self._tenants:
            if len(self._tenants) >= MAX_TENANT_LABELS:
                return OTHER
            self._tenants[tenant] = tenant or NONE
        return self._tenants[tenant]

    def add_model(self, model: str) -> None:
        """Export the counters of a model at zero, so that its first request changes them."""
        for slo, seconds in self._targets.items():
            for met in ("true", "false") if seconds is not None else ():
                self._metrics.counter("slo_requests", slo, met, model)
        for result in RequestResult:
            self._metrics.counter("model_requests", model, result)

    def record_ttft(self, seconds: float, model: str, tenant: str) -> None:
        """Count a request by its time to the first token."""
        target = self._targets[TTFT]
        if target is not None:
            self._count(TTFT, seconds <= target, model, tenant)

    def record_no_first_token(self, result: RequestResult, seconds: float, model: str, tenant: str) -> None:
        """Count a request that ended without a first token after `seconds`.

        An error of the server misses the target, one of the request itself does not count. A request that its client
        gave up counts only where the wait misses the target.
        """
        target = self._targets[TTFT]
        is_late = target is not None and seconds > target
        if target is None or result in (RequestResult.CLIENT_ERROR, RequestResult.REJECTED):
            return
        if result is not RequestResult.ABORTED or is_late:
            self._count(TTFT, result is RequestResult.SUCCESS and not is_late, model, tenant)

    def record_itl(self, seconds: float, model: str, tenant: str) -> None:
        """Count a streamed request by its mean time between two tokens."""
        target = self._targets[ITL]
        if target is not None:
            self._count(ITL, seconds <= target, model, tenant)

    def record_finished(self, result: RequestResult, model: str, tenant: str, num_tokens: int) -> None:
        """Count a request that has ended, with the tokens of its prompt and its output."""
        self._metrics.counter("model_requests", model, result).inc()
        self._metrics.counter("tenant_tokens", self.tenant_label(tenant)).inc(num_tokens)

    def record_response(self, route: str, tenant: str, status: int, *, was_submitted: bool) -> None:
        """Count the response to a tenant's request on a route that needs the model.

        A request that `was_submitted` has its result counted by `record_finished`.
        """
        if route in OPERATIONS:
            self._metrics.counter("tenant_requests", self.tenant_label(tenant), str(status)).inc()
            if not was_submitted:
                self._metrics.counter("model_requests", NONE, RequestResult.of_status(status)).inc()

    def _count(self, slo: str, is_met: bool, model: str, tenant: str) -> None:
        met = "true" if is_met else "false"
        self._metrics.counter("slo_requests", slo, met, model).inc()
        self._metrics.counter("tenant_slo_requests", slo, met, self.tenant_label(tenant)).inc()
