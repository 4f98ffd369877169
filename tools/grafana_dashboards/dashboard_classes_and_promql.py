"""Panel, Row, Variable and Dashboard: what a dashboard shows, and its JSON for Grafana."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PANEL_WIDTH, PANEL_HEIGHT, PANELS_PER_LINE = 8, 8, 3
"""Sizes in units of Grafana's grid, which is 24 units wide."""

SCHEMA_VERSION = 39
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel.

    Attributes:
        expr: PromQL with variables of Grafana.
        legend: name of each series, with labels as {{label}}.
    """

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time.

    Attributes:
        title: what it shows.
        unit: Grafana's name of the unit.
        queries: what it is drawn from.
        text: what a bad value means, for people who point at the panel.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a common title.

    Attributes:
        title: what they are about.
        panels: the panels.
        needs: what must be there for the row to have data, as "an NVIDIA GPU"; "" for nothing.
    """

    title: str
    panels: tuple[Panel, ...]
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """A label of metrics whose values an operator may choose.

    Attributes:
        name: name in queries, with $ before it.
        metric: a metric that has the label.
        label: the label.
    """

    name: str
    metric: str
    label: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of panels.

    Attributes:
        name: part of the file's name and of the uid.
        title: its title.
        variables: what can be chosen, besides the data source.
        rows: the rows.
    """

    name: str
    title: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the dashboard as Grafana reads it."""
        return {
            "uid": f"chairlift-{self.name}",
            "title": self.title,
            "tags": ["chairlift"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "graphTooltip": 1,
            "links": _links(),
            "templating": {"list": [_datasource_variable(), *map(_variable, self.variables)]},
            "panels": list(_grid(self.rows)),
        }


def sum_rate(metric: str, by: str, matchers: str, window: str = "$__rate_interval") -> str:
    """Return the query of a counter's rate, summed by these labels."""
    return f"sum by ({by}) (rate({metric}{{{matchers}}}[{window}]))"


def or_zero(expr: str) -> str:
    """Return a query that has a zero where nothing was counted yet."""
    return f"{expr} or on () vector(0)"


def histogram_quantiles(
    metric: str, matchers: str, quantiles: Sequence[float] = (0.5, 0.95, 0.99)
) -> tuple[Query, ...]:
    """Return queries of the quantiles of a histogram."""
    rate = sum_rate(f"{metric}_bucket", "le", matchers)
    return tuple(Query(f"histogram_quantile({each:g}, {rate})", f"p{each * 100:g}") for each in quantiles)


def _links() -> list[dict[str, Any]]:
    """Return links to the other dashboards, which keep time and variables, and to the traces."""
    explore = '/explore?left={"datasource":"%s","queries":[{"refId":"A"}],"range":{"from":"now-1h","to":"now"}}'
    return [
        {"title": "Chairlift", "type": "dashboards", "tags": ["chairlift"], "asDropdown": True, "keepTime": True,
         "includeVars": True},
        {"title": "Traces (Tempo)", "type": "link", "url": explore % "tempo", "targetBlank": True},
        {"title": "Traces (Jaeger)", "type": "link", "url": explore % "jaeger", "targetBlank": True},
    ]  # fmt: skip


def _datasource_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.metric}, {variable.label})"
    return {
        "name": variable.name, "type": "query", "datasource": DATASOURCE, "definition": query,
        "query": {"query": query, "refId": variable.name}, "refresh": 2, "sort": 1, "multi": True,
        "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _grid(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows and panels with their places and ids."""
    placed: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        title = f"{row.title} (needs {row.needs})" if row.needs else row.title
        placed.append({
            "type": "row", "title": title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
        })  # fmt: skip
        y += 1
        for number, panel in enumerate(row.panels):
            place = {
                "x": number % PANELS_PER_LINE * PANEL_WIDTH, "y": y + number // PANELS_PER_LINE * PANEL_HEIGHT,
                "w": PANEL_WIDTH, "h": PANEL_HEIGHT,
            }  # fmt: skip
            placed.append(_panel(panel) | {"gridPos": place})
        y += -(-len(row.panels) // PANELS_PER_LINE) * PANEL_HEIGHT
    return [{"id": number, **each} for number, each in enumerate(placed, 1)]


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": DATASOURCE, "expr": query.expr, "legendFormat": query.legend,
         "exemplar": "_bucket{" in query.expr}
        for number, query in enumerate(panel.queries)
    ]  # fmt: skip
    return {
        "type": "timeseries", "title": panel.title, "description": panel.text, "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10}}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": targets,
    }  # fmt: skip


def share_met(by: str, metric: str, matchers: str, window: str = "$__rate_interval") -> str:
    """Return the share of a metric's rate that has the label met="true"."""
    met = sum_rate(metric, by, f'{matchers},met="true"', window)
    return f"{met} / {sum_rate(metric, by, matchers, window)}"


JOB = 'job=~"$job"'
"""Matcher of the dashboard's variable JOBS."""
JOBS = Variable("job", "chairlift_ready", "job")
