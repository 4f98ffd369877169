"""DecisionLog: which decisions are written, and what a line says."""

import logging

import pytest

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.decision_log import DecisionLog, decision_line
from chairlift.autoscaler.rules.base import RuleResult
from support_autoscaler import STARTING, pool, ready, silent

SAMPLE = pool(0, ready("a"), silent("b", STARTING), held_requests=3.0)


def test_a_line_has_the_numbers_that_led_to_the_decision() -> None:
    rules = {"concurrency": RuleResult(3.14159, {"running": 22.0, "service_s": None}), "cpu": RuleResult(None)}
    decision = Decision(
        at_seconds=0, current=2, target=4, reason="panic", limits=("step",), recommended=3.14159, rules=rules,
        cost_per_hour=12.5,
    )  # fmt: skip
    assert decision_line(decision, SAMPLE) == (
        "autoscaler: 2 -> 4 replicas, reason=panic; limits=step; ready=1; starting=1; draining=0; held=3; "
        "rule concurrency: need=3.14 (running=22 service_s=missing); rule cpu: need=missing; need=3.14; "
        "cost_per_hour=12.5"
    )


def test_a_line_names_what_goes_and_says_that_nothing_is_done() -> None:
    removal = Decision(at_seconds=0, current=30, target=18, reason="shrink", remove=tuple("abcdefghijkl"))
    line = decision_line(removal, SAMPLE, is_dry_run=True)
    assert "remove=a,b,c,d,e,f,g,h,i,j and 2 more; dry run, nothing is changed" in line


def test_changes_and_new_reasons_are_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = DecisionLog()

    def is_written(at: float, reason: str, target: int = 1) -> bool:
        caplog.clear()
        decision = Decision(at_seconds=at, current=1, target=target, reason=reason)
        log.write(decision, SAMPLE, AutoscalerConfig())
        return len(caplog.records) == 1

    assert is_written(0, "steady")
    assert not is_written(100, "steady")
    assert is_written(102, "stabilisation")
    assert not is_written(104, "steady"), "reasons that alternate write a line a minute"
    assert is_written(106, "growth", target=2)
    assert not is_written(108, "growth", target=2), "it had no effect, and comes again"
    assert is_written(110, "growth", target=3)
    assert is_written(170, "growth", target=3)
    assert is_written(230, "steady")
