"""FLEET: the dashboard of routers and autoscalers: replicas, health, attempts, scaling."""

from grafana_dashboards.dashboard_classes_and_promql import (
    Dashboard,
    Panel,
    Query,
    Row,
    Variable,
    histogram_quantiles,
    or_zero,
    sum_rate,
)

HERE = 'instance=~"$router"'
ROUTERS = f'{HERE},job="chairlift-router"'


def _rate(metric: str, by: str, more: str = "") -> str:
    return sum_rate(metric, by, HERE + more)


REQUESTS = Row("Requests", (
    Panel("Requests by result", "reqps", (
        Query(_rate("chairlift_model_requests_total", "model, result", ',job="chairlift-router",model=~"$model"'),
              "{{model}} {{result}}"),
    )),
    Panel("Requests that fail", "percentunit", (
        Query("job:chairlift_request_errors:ratio_rate5m", "{{job}} 5 minutes"),
        Query("job:chairlift_request_errors:ratio_rate1h", "{{job}} 1 hour"),
    ), "The objective is 0.1 % at most over 30 days."),
    Panel("Open, waiting and held requests", "short", (
        Query(f"chairlift_requests_open{{{ROUTERS}}}", "{{instance}} open"),
        Query(f"chairlift_admission_waiting_requests{{{ROUTERS}}}", "{{instance}} waiting"),
        Query(f"chairlift_router_held_requests{{{ROUTERS}}}", "{{instance}} held"),
    ), "Held: no replica is ready."),
    Panel("Time to the first byte", "s", histogram_quantiles("chairlift_time_to_first_token_seconds", ROUTERS)),
    Panel("Time to the end of the response", "s",
          histogram_quantiles("chairlift_e2e_request_latency_seconds", ROUTERS)),
    Panel("Attempts of a request", "short", (
        Query(f"{_rate('chairlift_router_request_attempts_sum', 'instance')} / "
              f"{_rate('chairlift_router_request_attempts_count', 'instance')}", "{{instance}}"),
    ), "More than 1: replicas fail, and others take over."),
))  # fmt: skip

REPLICAS = Row("Replicas", (
    Panel("Replicas by state", "short", (
        Query(f"sum by (state) (chairlift_router_replicas{{{HERE}}})", "{{state}}"),
    )),
    Panel("Open requests by replica", "short", (
        Query(f"chairlift_router_replica_open_requests{{{HERE}}}", "{{replica}}"),
    )),
    Panel("Replicas that Prometheus reaches", "short", (
        Query('sum by (job) (up{job=~"chairlift-.+"})', "{{job}} up"),
        Query('count by (job) (up{job=~"chairlift-.+"})', "{{job}} all"),
    )),
    Panel("Changes of a replica's state", "ops", (
        Query(_rate("chairlift_router_replica_transitions_total", "state"), "{{state}}"),
    )),
    Panel("Ejections by reason", "ops", (
        Query(or_zero(_rate("chairlift_router_ejections_total", "reason")), "{{reason}}"),
        Query(_rate("chairlift_router_ejections_suppressed_total", "instance"), "suppressed"),
    ), "Suppressed: half of the replicas were ejected already."),
    Panel("Attempts by outcome", "ops", (Query(_rate("chairlift_router_attempts_total", "outcome"), "{{outcome}}"),)),
    Panel("Health checks by outcome", "ops", (
        Query(_rate("chairlift_router_probes_total", "outcome"), "{{outcome}}"),
    )),
    Panel("New processes of replicas", "ops", (
        Query(_rate("chairlift_router_replica_restarts_total", "replica"), "{{replica}}"),
    )),
    Panel("Sources and shared state", "short", (
        Query(f"chairlift_router_source_up{{{HERE}}}", "{{instance}} {{source}}"),
        Query(f"chairlift_router_shared_state_up{{{HERE}}}", "{{instance}} shared state"),
    ), "0 is down; the last good list stays in use."),
))  # fmt: skip

AUTOSCALER = Row("Autoscaler", (
    Panel("Replicas that are wanted and there", "short", (
        Query(f"chairlift_autoscaler_target_replicas{{{HERE}}}", "wanted"),
        Query(f"chairlift_autoscaler_current_replicas{{{HERE}}}", "starting and ready"),
    )),
    Panel("Replicas by state", "short", (Query(f"chairlift_autoscaler_replicas{{{HERE}}}", "{{state}}"),)),
    Panel("Replicas that each rule wants", "short", (
        Query(f"chairlift_autoscaler_desired_replicas{{{HERE}}}", "{{rule}}"),
    ), "The largest one decides."),
    Panel("Decisions by direction", "ops", (
        Query(_rate("chairlift_autoscaler_decisions_total", "direction"), "{{direction}}"),
    )),
    Panel("Failures by action", "ops", (Query(_rate("chairlift_autoscaler_failures_total", "action"), "{{action}}"),)),
    Panel("Panic and missing data", "short", (
        Query(f"chairlift_autoscaler_panic{{{HERE}}}", "panic"),
        Query(f"chairlift_autoscaler_data_missing{{{HERE}}}", "data missing"),
    )),
    Panel("Cost per hour", "short", (Query(f"chairlift_autoscaler_cost_per_hour{{{HERE}}}", "{{instance}}"),)),
    Panel("Time of a start", "s", (Query(f"chairlift_autoscaler_cold_start_seconds{{{HERE}}}", "{{instance}}"),)),
    Panel("Requests that wait for a first replica", "short", (
        Query(f"chairlift_autoscaler_held_requests{{{HERE}}}", "{{instance}}"),
    )),
))  # fmt: skip

FLEET = Dashboard(
    "fleet", "Chairlift: fleet",
    (Variable("router", "chairlift_router_replicas", "instance"),
     Variable("model", "chairlift_model_requests_total", "model")),
    (REQUESTS, REPLICAS, AUTOSCALER),
)  # fmt: skip
