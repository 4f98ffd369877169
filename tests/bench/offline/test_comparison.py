"""Comparison: arms alternate on the same workload, and the result is the ratio of medians."""

import sys
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.offline import comparison
from chairlift.bench.offline.comparison import Arm, ArmRuns, arms_of, check_comparison, ratios, run_interleaved
from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.bench.peers.registry import Peer
from chairlift.bench.report.machine_noise import NoiseSample
from chairlift.core.errors import ConfigError
from chairlift.llm.builtin_models import RANDOM

SPEC = RunSpec(
    model="m", options={"scheduling_policy": "fifo", "batching_policy": "mixed"}, workload=WorkloadSpec(name="w1")
)
PEER = Peer(name="other", command=("other", "run"), setting_values={"slots": "3"})


def run(speed: float, p99: float | None = 1.0, digest: str = "d") -> dict[str, Any]:
    return {
        "output_tokens_per_second": speed, "total_tokens_per_second": 2 * speed, "latency_seconds": {"p99": p99},
        "ttft_seconds": {"mean": 0.5}, "workload_digest": digest, "requests": {"failed": 0},
    }  # fmt: skip


def arm_runs(*speeds: float, name: str = "x") -> ArmRuns:
    return ArmRuns(Arm(name=name, command=()), [run(speed) for speed in speeds])


# -- arms --------------------------------------------------------------------------------------------------------------


def test_without_a_comparison_there_is_one_arm() -> None:
    (only,) = arms_of({}, [])
    assert (only.name, dict(only.options), only.is_peer) == ("chairlift", {}, False)
    assert only.command == (sys.executable, "-P", "-m", "chairlift.bench.offline.offline_benchmark")


def test_each_combination_of_options_is_an_arm_and_peers_come_last() -> None:
    made = arms_of({"batching_policy": ["mixed", "static"], "block_size": [8, 16]}, [PEER])
    assert [arm.name for arm in made] == [
        "batching_policy=mixed,block_size=8", "batching_policy=mixed,block_size=16",
        "batching_policy=static,block_size=8",
        "batching_policy=static,block_size=16", "other",
    ]  # fmt: skip
    assert made[2].options == {"batching_policy": "static", "block_size": 8}
    assert [arm.is_peer for arm in made] == [False] * 4 + [True] and made[4].command == PEER.command
    assert made[4].settings == {"slots": "3"}


def test_peers_need_a_model_of_files_and_requests_that_come_at_once() -> None:
    alone, both = arms_of({}, []), arms_of({}, [PEER])
    rated, at_once = (WorkloadSpec(name="w1", rate=rate, requests=3).check() for rate in (1.0, None))
    check_comparison(alone, RANDOM, rated)
    check_comparison(both, "m", at_once)
    check_comparison(both, None, at_once)
    with pytest.raises(ConfigError, match="other cannot run chairlift:random, which only Chairlift runs"):
        check_comparison(both, RANDOM, at_once)
    with pytest.raises(ConfigError, match="arrive all at once"):
        check_comparison(both, "m", rated)


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "wait_until_quiet", lambda patience: NoiseSample(0.01, 0.002, patience))


class FakeSend:
    """A fake of send() that records its calls."""

    def __init__(self, **digests: str) -> None:
        self.digests = digests
        self.seen: list[tuple[str, dict[str, Any], Any]] = []
        self.settings: list[dict[str, str]] = []

    def __call__(self, command: tuple[str, ...], spec: RunSpec, *, threads: int | None, shown: bool) -> dict[str, Any]:
        self.seen.append((command[-1], spec.options, threads))
        self.settings.append(spec.settings)
        return run(float(len(self.seen)), digest=self.digests.get(command[-1], "d"))


def test_arms_take_turns_with_their_own_options_over_the_shared_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, messages = FakeSend(), []
    monkeypatch.setattr(comparison, "send", sent)
    setting_values = [
        Arm(name="a", command=("a",), options={"batching_policy": "static"}),
        Arm(name="b", command=("b",), settings={"slots": "3"}, is_peer=True),
    ]
    made = run_interleaved(
        setting_values, SPEC, repeat=2, threads=3, note=lambda arm, number, _: messages.append((arm.name, number))
    )
    assert [name for name, _, _ in sent.seen] == ["a", "b", "b", "a"], "no arm is always the last"
    assert sent.seen[0] == ("a", {"scheduling_policy": "fifo", "batching_policy": "static", "cpu_threads": 3}, 3)
    assert sent.settings == [{}, {"slots": "3"}, {"slots": "3"}, {}]
    assert sent.seen[1] == ("b", {"scheduling_policy": "fifo", "batching_policy": "mixed"}, 3)
    assert messages == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]
    assert [[each["output_tokens_per_second"] for each in one.runs] for one in made] == [[1, 4], [2, 3]]
    gaps = {"lost": 0.01, "longest_seconds": 0.002, "waited_seconds": comparison.MAX_QUIET_WAIT_SECONDS}
    assert [run["gaps_before"] for one in made for run in one.runs] == [gaps] * 4, "each run waited for a quiet machine"


def test_threads_that_an_arm_names_itself_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = FakeSend()
    monkeypatch.setattr(comparison, "send", sent)
    run_interleaved([Arm(name="a", command=("a",), options={"cpu_threads": 1})], SPEC, repeat=1, threads=3)
    run_interleaved([Arm(name="a", command=("a",))], SPEC, repeat=1)
    assert [options.get("cpu_threads") for _, options, _ in sent.seen] == [1, None]


def test_arms_that_did_other_work_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "send", FakeSend(b="other"))
    with pytest.raises(ConfigError, match="b and a did not get the same workload"):
        run_interleaved([Arm(name="a", command=("a",)), Arm(name="b", command=("b",))], SPEC, repeat=1)


# -- ratios ------------------------------------------------------------------------------------------------------------


def test_the_middle_run_is_the_one_of_median_speed() -> None:
    assert arm_runs(5.0, 1.0, 3.0).median_run()["output_tokens_per_second"] == 3.0
    assert arm_runs(4.0, 1.0).median_run()["output_tokens_per_second"] == 1.0


def test_medians_are_taken_number_by_number() -> None:
    made = arm_runs(5.0, 1.0, 3.0)
    assert made.median("output_tokens_per_second") == 3.0 and made.median("latency_seconds", "p99") == 1.0
    assert ArmRuns(made.arm, [run(1.0, p99=None)]).median("latency_seconds", "p99") is None
    assert made.median("no", "such") is None


def test_ratios_are_of_the_first_over_each_and_turn_by_turn() -> None:
    ours, theirs = arm_runs(4.0, 6.0, 8.0, name="ours"), arm_runs(2.0, 2.0, 8.0, name="theirs")
    first, second = ratios([ours, theirs])
    assert (first["arm"], second["arm"]) == ("ours", "theirs")
    assert first["first_over_this.output_tokens_per_second"] == 1.0
    assert second["output_tokens_per_second"] == 2.0 and second["first_over_this.output_tokens_per_second"] == 3.0
    assert second["by_turn"] == [2.0, 3.0, 1.0]


def test_a_peer_that_got_nothing_done_has_no_ratio() -> None:
    _, second = ratios([arm_runs(4.0), arm_runs(0.0)])
    assert second["first_over_this.output_tokens_per_second"] is None and second["by_turn"] == [None]


def test_latencies_are_not_compared_where_not_as_many_failed() -> None:
    """An arm that drops its slowest requests has the better p99."""
    ours, theirs = arm_runs(4.0, 6.0, name="ours"), arm_runs(2.0, 2.0, name="theirs")
    for each in theirs.runs:
        each["requests"] = {"failed": 3}
    first, second = ratios([ours, theirs])
    assert (first["failed"], second["failed"]) == (0, 6)
    assert second["first_over_this.latency_seconds.p99"] is None and second["latency_seconds.p99"] is not None
    assert second["first_over_this.output_tokens_per_second"] == 2.5


@pytest.mark.full
def test_what_lies_in_the_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json.py", "chairlift.py"):
        (tmp_path / name).write_text("raise SystemExit('taken from the folder')")
    monkeypatch.chdir(tmp_path)
    spec = RunSpec(model=RANDOM, options={"num_blocks": 50}, workload=WorkloadSpec(name="uniform", requests=1))
    (made,) = run_interleaved(arms_of({}, []), spec, repeat=1)
    assert made.runs[0]["requests"]["completed"] == 1
