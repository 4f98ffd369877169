"""speed_up divides every time of a rule file by one factor and changes nothing else."""

from pathlib import Path

import yaml

from fast_alert_rules.__main__ import main
from fast_alert_rules.speed_up import speed_up

RULES = """
groups:
  - name: a
    interval: 30s
    rules:
      - alert: A
        expr: rate(x_total{code=~"5m|[a-z]x"}[1h30m]) > 60 and y offset 5m > 2 * 86400
        for: 2m
        labels: {severity: critical}
      - record: b:c_5m
        expr: increase(x_total[250ms])
"""


def test_times_are_divided_and_thresholds_stay() -> None:
    group = yaml.safe_load(speed_up(RULES, 60))["groups"][0]
    alert, record = group["rules"]
    assert group["interval"] == "500ms" and alert["for"] == "2000ms"
    assert "[90000ms]" in alert["expr"] and "offset 5000ms" in alert["expr"]
    assert "> 60" in alert["expr"] and "> 2 * 86400" in alert["expr"]
    assert record == {"record": "b:c_5m", "expr": "increase(x_total[4ms])"}
    assert alert["labels"] == {"severity": "critical"}


def test_the_command_writes_every_rule_file(tmp_path: Path) -> None:
    source, target = tmp_path / "rules", tmp_path / "fast"
    source.mkdir()
    (source / "a.yml").write_text(RULES)
    (source / "b.yml").write_text(RULES)
    assert main([str(source), str(target), "--speed", "2"]) == 0
    assert {file.name: file.read_text() for file in target.iterdir()} == dict.fromkeys(
        ("a.yml", "b.yml"), speed_up(RULES, 2)
    )
