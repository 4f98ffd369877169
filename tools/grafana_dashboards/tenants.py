"""TENANTS: the dashboard of tenants: what each uses, and how well it is served."""

from grafana_dashboards.dashboard_classes_and_promql import (
    JOB,
    JOBS,
    Dashboard,
    Panel,
    Query,
    Row,
    Variable,
    or_zero,
    share_met,
    sum_rate,
)

TENANT = f'{JOB},tenant=~"$tenant"'

TENANTS = Dashboard(
    "tenants", "Chairlift: tenants",
    (JOBS, Variable("tenant", "chairlift_tenant_tokens_total", "tenant")),
    (
        Row("Use", (
            Panel("Requests", "reqps", (
                Query(sum_rate("chairlift_tenant_requests_total", "tenant", TENANT), "{{tenant}}"),
            )),
            Panel("Tokens per second", "short", (
                Query(sum_rate("chairlift_tenant_tokens_total", "tenant", TENANT), "{{tenant}}"),
            )),
            Panel("Tokens in the last hour", "short", (
                Query(f"sum by (tenant) (increase(chairlift_tenant_tokens_total{{{TENANT}}}[1h]))", "{{tenant}}"),
            )),
        )),
        Row("Quality", (
            Panel("Requests within the limits of latency", "percentunit", (
                Query(share_met("tenant, slo", "chairlift_tenant_slo_requests_total", TENANT), "{{tenant}} {{slo}}"),
            ), "Needs --slo-ttft-ms or --slo-itl-ms."),
            Panel("Rejected by a limit (429)", "reqps", (
                Query(or_zero(sum_rate("chairlift_tenant_requests_total", "tenant", f'{TENANT},status="429"')),
                      "{{tenant}}"),
            )),
            Panel("Errors of the server", "reqps", (
                Query(or_zero(sum_rate("chairlift_tenant_requests_total", "tenant", f'{TENANT},status=~"5.."')),
                      "{{tenant}}"),
            )),
        )),
    ),
)  # fmt: skip
