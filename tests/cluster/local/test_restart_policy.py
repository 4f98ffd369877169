"""Restarts: delays that double, crash loops, and places that failed replicas hold."""

from dataclasses import replace
from pathlib import Path

import pytest

from chairlift.cluster.local.local_config import LocalConfig
from chairlift.cluster.local.process_record import ProcessRecord, RecordState
from chairlift.cluster.local.restart_policy import (
    RestartPlan,
    describe_restart,
    elapsed,
    end_reason,
    failures_after,
    holds_place,
    is_crash_loop,
    plan_restarts,
    restart_delay,
)
from support_shares import for_each

CONFIG = LocalConfig(folder=Path("f"))
FAILED = ProcessRecord(
    replica_id="r-1", port=1, version="v", state=RecordState.FAILED, started_at=100.0, ended_at=101.0, exit_code=3
)


@for_each(("before", "seconds"), [(0, 1), (1, 2), (2, 4), (5, 32), (6, 60), (500, 60)])
def test_the_delay_doubles_up_to_its_maximum(before: int, seconds: float) -> None:
    assert restart_delay(replace(FAILED, num_restarts=before), CONFIG) == seconds


def test_the_delay_is_the_first_again_after_a_long_run() -> None:
    record = replace(FAILED, num_restarts=4)
    assert restart_delay(replace(record, ended_at=159.9), CONFIG) == 16
    assert restart_delay(replace(record, ended_at=160.0), CONFIG) == 1


def test_five_starts_in_a_row_without_serving_are_a_crash_loop() -> None:
    assert not is_crash_loop(replace(FAILED, num_failures=3), CONFIG)
    assert is_crash_loop(replace(FAILED, num_failures=4), CONFIG)
    assert is_crash_loop(replace(FAILED, num_failures=4, ended_at=900.0), CONFIG)  # slow failures are failures
    served = replace(FAILED, num_failures=4, has_served=True)
    assert not is_crash_loop(served, CONFIG) and failures_after(served) == 0


def test_a_failed_replica_holds_a_place_for_its_version_until_it_is_replaced() -> None:
    assert holds_place(FAILED, "v")
    assert not holds_place(FAILED, "w")
    assert not holds_place(replace(FAILED, is_replaced=True), "v")
    assert not any(holds_place(replace(FAILED, state=state), "v") for state in RecordState if state != "failed")


def plan(now: float, missing: int, *records: ProcessRecord) -> tuple[list[str], int]:
    result: RestartPlan = plan_restarts(records, "v", missing, CONFIG, now)
    return [each.replica_id for each in result.restarts], result.num_new


def test_a_restart_waits_for_its_delay_and_nothing_starts_instead() -> None:
    assert plan(101.9, 1, FAILED) == ([], 0)
    assert plan(102.0, 1, FAILED) == (["r-1"], 0)
    assert plan(102.0, 0, FAILED) == ([], 0)
    assert plan(101.9, 3, FAILED) == ([], 2)
    assert plan(102.0, 3, FAILED) == (["r-1"], 2)


def test_a_replica_that_is_due_comes_before_one_in_a_crash_loop() -> None:
    looping = replace(FAILED, replica_id="r-0", num_failures=4, ended_at=50.0)
    assert plan(500.0, 1, looping) == ([], 0)
    assert plan(500.0, 1, looping, FAILED) == (["r-1"], 0)
    assert plan(500.0, 2, looping, FAILED) == (["r-1"], 0)
    assert plan(500.0, 3, looping, FAILED) == (["r-1"], 1)


def test_a_clock_that_was_set_back_gives_no_negative_time() -> None:
    assert elapsed(100.0, 90.0) == 0.0


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (None, "unknown"),
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "it was killed, probably for lack of memory"),
        (-99, "signal 99"),
    ],
)
def test_the_end_is_described(code: int | None, text: str) -> None:
    assert text in end_reason(replace(FAILED, exit_code=code))
    assert end_reason(replace(FAILED, exit_code=code, note="a note")) == "a note"


def test_the_reason_says_what_happened_what_comes_and_the_last_lines() -> None:
    text = describe_restart(FAILED, CONFIG, 101.5, ["loading", "broken"])
    assert "exit code 3" in text and "restarted in 0.5 s" in text and "loading | broken" in text
    loop = describe_restart(replace(FAILED, num_failures=4), CONFIG, 101.5, [])
    assert "crash loop: 5 starts" in loop and "its log is empty" in loop
    assert "another replica was started" in describe_restart(replace(FAILED, is_replaced=True), CONFIG, 101.5, [])
    assert describe_restart(replace(FAILED, note="no memory"), CONFIG, 101.5, []).startswith("no memory; ")
