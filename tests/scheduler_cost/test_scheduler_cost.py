"""Scheduler cost: the cases alternate, each in its own process, and cover every policy."""

import pytest

from chairlift.core.errors import EngineDead
from chairlift.engine.scheduler.batching_policy import NAMES as BATCHINGS
from chairlift.engine.scheduler.waiting_queue.base import POLICIES
from scheduler_cost.scheduler_cost import FLATNESS, RUNNING, all_cases, flatness_cases, measure
from scheduler_cost.scheduler_cost_rig import CostCase


@pytest.mark.full
def test_arms_take_turns_and_come_back_in_order() -> None:
    messages: list[str] = []
    cases = [
        CostCase(running=32, waiting=40),
        CostCase(running=32, waiting=80),
        CostCase(scheduling_policy="priority", running=16, waiting=10),
    ]
    found = measure(cases, windows=3, steps=5, note=messages.append)
    assert [(each["scheduling_policy"], each["running"], each["waiting"]) for each in found] == [
        ("fifo", 32, 40), ("fifo", 32, 80), ("priority", 16, 10),
    ]  # fmt: skip
    for each in found:
        assert len(each["by_window"]) == 3 and sorted(each["by_window"])[1] == each["ms_per_step"]
    assert found[0]["over_first"] == 1.0
    assert len([line for line in messages if line.startswith("window")]) == 3


def test_an_arm_whose_process_ends_is_an_error_and_not_a_wait(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EngineDead, match="exit code 1"):
        measure([CostCase(scheduling_policy="none")], windows=1, steps=1)
    assert "unknown scheduling_policy 'none'" in capfd.readouterr().err


def test_every_policy_and_every_batching_is_measured_at_both_sizes() -> None:
    cases = all_cases()
    assert {(case.scheduling_policy, case.running) for case in cases} == {
        (name, size) for name in POLICIES for size in RUNNING
    }
    assert {(case.batching_policy, case.running) for case in cases} == {
        (name, size) for name in BATCHINGS for size in RUNNING
    }
    assert [case.waiting for case in flatness_cases("fair")] == list(FLATNESS)
