"""What the tests of deploy/prometheus and deploy/grafana share: rules, and the names of exported series."""

import re
from typing import Any

import yaml

from chairlift.observability.metrics import METRICS, PREFIX, MetricKind
from support_source_tree import ROOT

PROMETHEUS_FOLDER = ROOT / "deploy" / "prometheus"


def rules(kind: str) -> list[dict[str, Any]]:
    """Return the rules that are alerts, or that record."""
    files = [yaml.safe_load(file.read_text()) for file in (PROMETHEUS_FOLDER / "rules").glob("*.yml")]
    groups = [group for file in files for group in file["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def exported_names() -> set[str]:
    """Return the name of every series that a process of Chairlift exports."""
    suffixes = {
        MetricKind.COUNTER: ("_total",), MetricKind.GAUGE: ("",), MetricKind.HISTOGRAM: ("_bucket", "_sum", "_count"),
    }  # fmt: skip
    return {PREFIX + name + each for name, spec in METRICS.items() for each in suffixes[spec.kind]}


def names_in(expr: str) -> set[str]:
    """Return the metrics of Chairlift that an expression reads; labels and recorded series are left out."""
    return set(re.findall(r"(?<![:\w])chairlift_\w+(?![:\w])", re.sub(r'"[^"]*"', "", expr)))
