"""SLO: the dashboard of latency and availability targets."""

from grafana_dashboards.dashboard_classes_and_promql import (
    JOB,
    JOBS,
    Dashboard,
    Panel,
    Query,
    Row,
    Variable,
    share_met,
    sum_rate,
)

MODEL = f'{JOB},model=~"$model"'

SLO = Dashboard(
    "slo", "Chairlift: targets",
    (JOBS, Variable("model", "chairlift_model_requests_total", "model")),
    (
        Row("Latency targets", (
            Panel("Requests within the target", "percentunit", (
                Query(share_met("model, slo", "chairlift_slo_requests_total", MODEL), "{{model}} {{slo}}"),
            ), "The alert LatencyTargetMissed needs less than 95 %."),
            Panel("Requests within the target, one hour", "percentunit", (
                Query(share_met("model, slo", "chairlift_slo_requests_total", MODEL, "1h"), "{{model}} {{slo}}"),
            )),
            Panel("Targets", "s", (
                Query(f"max by (job, slo) (chairlift_slo_target_seconds{{{JOB}}})", "{{job}} {{slo}}"),
            )),
            Panel("95th percentile of the time to the first token", "s", (
                Query(f"instance:chairlift_time_to_first_token_seconds:p95_5m{{{JOB}}}", "{{instance}}"),
            )),
            Panel("95th percentile of the inter-token latency", "s", (
                Query("instance:chairlift_inter_token_latency_seconds:p95_5m", "{{instance}}"),
            )),
            Panel("95th percentile of the time to the end", "s", (
                Query(f"instance:chairlift_e2e_request_latency_seconds:p95_5m{{{JOB}}}", "{{instance}}"),
            )),
        )),
        Row("Availability", (
            Panel("Requests that succeed", "percentunit", (
                Query(f"1 - job:chairlift_request_errors:ratio_rate5m{{{JOB}}}", "{{job}} 5 minutes"),
                Query(f"1 - job:chairlift_request_errors:ratio_rate3d{{{JOB}}}", "{{job}} 3 days"),
            )),
            Panel("Burn rate of the errors that are allowed", "short", (
                Query(f"job:chairlift_request_errors:ratio_rate1h{{{JOB}}} / 0.001", "{{job}} 1 hour"),
                Query(f"job:chairlift_request_errors:ratio_rate6h{{{JOB}}} / 0.001", "{{job}} 6 hours"),
            ), "1 uses up the allowed errors in 30 days, 14.4 in two."),
            Panel("Requests by result", "reqps", (
                Query(sum_rate("chairlift_model_requests_total", "result", MODEL), "{{result}}"),
            )),
        )),
    ),
)  # fmt: skip
