"""The files in deploy/grafana are those of the generator, and their queries are about metrics that exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana_dashboards.__main__ import DASHBOARDS, files, main
from grafana_dashboards.dashboard_classes_and_promql import Dashboard
from support_monitoring import exported_names, names_in, rules
from support_source_tree import ROOT

FOLDER = ROOT / "deploy" / "grafana"
each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)


def queries(dashboard: Dashboard) -> list[str]:
    """Return every query, those of the variables too."""
    exprs = [query.expr for row in dashboard.rows for panel in row.panels for query in panel.queries]
    return [*exprs, *(f"{each.metric}" for each in dashboard.variables)]


def test_the_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    assert main(tmp_path) == 0
    written = {file.name: file.read_text() for file in (FOLDER / "dashboards").iterdir()}
    assert written == files() == {file.name: file.read_text() for file in tmp_path.iterdir()}


@each_dashboard
def test_queries_are_about_metrics_that_exist(dashboard: Dashboard) -> None:
    recorded = {rule["record"] for rule in rules("record")}
    for expr in queries(dashboard):
        assert names_in(expr) <= exported_names(), expr
        assert set(re.findall(r"\w+:chairlift_\w+:\w+", expr)) <= recorded, expr


@each_dashboard
def test_every_variable_is_used_and_every_used_one_is_there(dashboard: Dashboard) -> None:
    used = {name for expr in queries(dashboard) for name in re.findall(r"\$(\w+)", expr)} - {"__rate_interval"}
    assert used == {variable.name for variable in dashboard.variables}


def test_links_keep_only_variables_that_mean_the_same_elsewhere() -> None:
    """A link hands over all values: an address of a replica would leave a dashboard of routers empty."""
    labels: dict[str, set[tuple[str, str]]] = {}
    for dashboard in DASHBOARDS:
        for variable in dashboard.variables:
            labels.setdefault(variable.name, set()).add((variable.metric, variable.label))
    assert all(len(meanings) == 1 for meanings in labels.values()), labels


def test_a_zero_is_drawn_only_where_nothing_was_counted() -> None:
    zeros = [expr for dashboard in DASHBOARDS for expr in queries(dashboard) if "vector(0)" in expr]
    assert zeros and all(expr.endswith(" or on () vector(0)") for expr in zeros)


@each_dashboard
def test_panels_do_not_overlap_and_have_data_sources(dashboard: Dashboard) -> None:
    page: dict[str, Any] = json.loads(files()[f"chairlift-{dashboard.name}.json"])
    cells: set[tuple[int, int]] = set()
    for panel in page["panels"]:
        place = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells and place["x"] + place["w"] <= 24, panel["title"]
        cells |= own
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in page["panels"]}) == len(page["panels"])
    assert {link["title"] for link in page["links"]} >= {"Traces (Tempo)", "Traces (Jaeger)"}


def test_the_provisioning_names_the_data_sources_that_the_dashboards_link_to() -> None:
    sources = yaml.safe_load((FOLDER / "provisioning" / "datasources" / "chairlift.yml").read_text())["datasources"]
    by_uid = {source["uid"]: source["type"] for source in sources}
    assert by_uid == {"prometheus": "prometheus", "tempo": "tempo", "jaeger": "jaeger"}
    text = json.dumps([json.loads(each)["links"] for each in files().values()])
    assert set(re.findall(r'datasource\\\\":\\\\"(\w+)', json.dumps(text))) <= by_uid.keys()
    providers = yaml.safe_load((FOLDER / "provisioning" / "dashboards" / "chairlift.yml").read_text())["providers"]
    assert providers[0]["options"]["path"] == "/etc/grafana/dashboards"
