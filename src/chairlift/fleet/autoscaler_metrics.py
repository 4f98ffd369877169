"""AutoscalerMetrics: writes the autoscaler's values to a metrics page; the autoscaler itself names no metric."""

from chairlift.autoscaler.status import AutoscalerValues
from chairlift.observability.metrics import Metrics


class AutoscalerMetrics:
    """The metrics `chairlift_autoscaler_*` on one page."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._rules: set[str] = set()

    def update(self, values: AutoscalerValues) -> None:
        """Write the values."""
        for name, value in (
            ("target_replicas", values.target), ("current_replicas", values.current), ("panic", values.is_panic),
            ("data_missing", values.is_data_missing), ("held_requests", values.held_requests),
            ("cost_per_hour", values.cost_per_hour), ("cold_start_seconds", values.cold_start_seconds),
        ):  # fmt: skip
            self._metrics.gauge(f"autoscaler_{name}").set(value)
        for state, num in values.replicas.items():
            self._metrics.gauge("autoscaler_replicas", state).set(num)
        self._rules |= values.desired.keys()
        for rule in self._rules:  # a rule without data has no opinion: not the one of before
            self._metrics.gauge("autoscaler_desired_replicas", rule).set(values.desired.get(rule, float("nan")))
        for direction, num in values.decisions.items():
            self._metrics.raise_to(num, "autoscaler_decisions", direction)
        for action, num in values.failures.items():
            self._metrics.raise_to(num, "autoscaler_failures", action)
