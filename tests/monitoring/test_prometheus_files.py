"""deploy/prometheus: valid for Prometheus's own tools, about metrics that exist, each alert with its test and page."""

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from chairlift.engine.ipc.liveness_limits import LivenessConfig
from support_monitoring import PROMETHEUS_FOLDER as FOLDER
from support_monitoring import exported_names, names_in, rules
from support_services_processes import require_service
from support_shares import FULL
from support_source_tree import ROOT

CONFIGS = ("prometheus.yml", "prometheus-dns.yml", "prometheus-kubernetes.yml")


def run(program: str, *words: str, cwd: Path = FOLDER) -> str:
    done = subprocess.run([require_service(program), *words], cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def unit_tests() -> list[dict[str, Any]]:
    """Return the unit tests of all files: for each alert the one with its name, and further cases as "NAME: ..."."""
    return [test for file in (FOLDER / "tests").glob("*.yml") for test in yaml.safe_load(file.read_text())["tests"]]


@pytest.mark.parametrize("name", CONFIGS)
def test_promtool_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    """Debian's build knows no Kubernetes, so its targets are replaced by a list; the relabelling is checked."""
    config = yaml.safe_load((FOLDER / name).read_text())
    for job in config["scrape_configs"]:
        if job.pop("kubernetes_sd_configs", None):
            job["static_configs"] = [{"targets": ["pod:8000"]}]
    (tmp_path / name).write_text(yaml.safe_dump(config))
    (tmp_path / "rules").symlink_to(FOLDER / "rules")
    assert "FAILED" not in run("promtool", "check", "config", name, cwd=tmp_path)


def test_amtool_finds_nothing_wrong() -> None:
    assert "SUCCESS" in run("amtool", "check-config", "alertmanager.yml")


def test_every_alert_fires_and_clears_in_its_unit_test() -> None:
    files = [str(file.relative_to(FOLDER)) for file in sorted((FOLDER / "tests").glob("*.yml"))]
    assert len(files) == 3
    if not FULL:
        files = ["tests/error_rate_test.yml"]  # a second of processor time; the others take 30
    assert run("promtool", "test", "rules", *files).count("SUCCESS") == len(files)


def test_every_alert_has_a_unit_test_in_which_it_fires_once_and_is_over_once() -> None:
    tests = [test for test in unit_tests() if ": " not in test["name"]]
    assert Counter(test["name"] for test in tests) == Counter(rule["alert"] for rule in rules("alert"))
    for test in tests:
        fires, clears = test["promql_expr_test"]
        query = f'ALERTS{{alertname="{test["name"]}",alertstate="firing"}}'
        assert fires["expr"] == query and fires["exp_samples"][0]["value"] == 1
        assert clears["expr"] == f"count({query})" and clears["exp_samples"] == []


@pytest.mark.full
def test_further_cases_are_about_the_alert_that_they_name() -> None:
    cases = [test for test in unit_tests() if ": " in test["name"]]
    for case in cases:
        alert = case["name"].partition(": ")[0]
        assert alert in {rule["alert"] for rule in rules("alert")}
        for check in case["promql_expr_test"]:
            assert check["expr"] == f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})', case["name"]
    assert len({case["name"] for case in cases}) == len(cases) > 0


def test_a_hanging_engine_raises_its_alert_before_the_server_ends_it() -> None:
    (rule,) = [rule for rule in rules("alert") if rule["alert"] == "EngineHangs"]
    (minutes,) = set(re.findall(r"\[(\d+)m\]", rule["expr"]))
    seconds = int(rule["for"].removesuffix("s"))
    interval = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["global"]["scrape_interval"].removesuffix("s")
    assert 60 * int(minutes) + seconds + int(interval) < LivenessConfig().step_timeout


def test_every_alert_says_how_bad_it_is_and_has_a_page() -> None:
    pages = set()
    for rule in rules("alert"):
        assert rule["labels"]["severity"] in {"critical", "warning"} and not rule["annotations"]["summary"].endswith(
            "."
        )
        assert rule["annotations"]["description"].endswith("."), rule["alert"]
        page = re.fullmatch(r"\{\{ \$externalLabels.runbooks \}\}/([a-z-]+\.md)", rule["annotations"]["runbook_url"])
        assert page is not None, rule["alert"]
        text = (ROOT / "docs" / "runbooks" / page[1]).read_text()
        assert f"`{rule['alert']}`" in text.split("##", maxsplit=1)[0]
        for heading in ("What it means", "How to see it", "What to do"):
            assert f"\n## {heading}\n" in text
        pages.add(page[1])
    assert pages == {file.name for file in (ROOT / "docs" / "runbooks").iterdir()}


def test_rules_read_metrics_that_exist_and_series_that_are_recorded() -> None:
    recorded = {rule["record"] for rule in rules("record")}
    for rule in [*rules("alert"), *rules("record")]:
        assert names_in(rule["expr"]) <= exported_names(), rule
        assert set(re.findall(r"\w+:chairlift_\w+:\w+", rule["expr"])) <= recorded, rule


def test_pages_and_the_guide_name_metrics_and_alerts_that_exist() -> None:
    names = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in exported_names()}
    for page in [ROOT / "docs" / "monitoring.md", *(ROOT / "docs" / "runbooks").iterdir()]:
        assert set(re.findall(r"chairlift_\w+", page.read_text())) <= names, page.name
    guide = (ROOT / "docs" / "monitoring.md").read_text()
    assert {rule["alert"] for rule in rules("alert")} <= set(re.findall(r"`(\w+)`", guide))


def test_a_name_that_does_not_exist_is_found() -> None:
    assert names_in('rate(chairlift_x_total{instance="chairlift_y"}[5m]) > job:chairlift_z:rate5m') == {
        "chairlift_x_total"
    }
