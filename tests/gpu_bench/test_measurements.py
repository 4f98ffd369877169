"""measurements.py: parts share models and one runner, and a failure leaves no runner open."""

from typing import Any

import pytest
import torch

from gpu_bench import measurements as module
from gpu_bench.bench_shapes import SIZES
from gpu_bench.measurements import Measurements
from gpu_bench.part_budget import PartSkipped

CPU, TINY = torch.device("cpu"), SIZES["tiny"]


@pytest.fixture
def measurements() -> Measurements:
    return Measurements(CPU, TINY)


def test_shares_of_the_goals_fit_in_eight_minutes(measurements: Measurements) -> None:
    names = [part.name for part in measurements.parts]
    assert len(set(names)) == len(names) and names[0] == "device"
    assert sum(part.seconds for part in measurements.parts[: names.index("baseline-8b") + 1]) <= 0.8 * 480


def test_decode_is_compared_with_the_peaks_of_the_run(
    measurements: Measurements, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "copy_bandwidth", lambda timer, num_bytes: 1e9)
    monkeypatch.setattr(module, "gemm_peak", lambda timer, size: 1e12)
    result = measurements.measure_decode(TINY.small, 60.0)
    # two layers: 32 * (64 + 2 * 32) + 64 * 32 + 3 * 32 * 48 weights; keys and values of 2 * 16 numbers
    weight_bytes = 2 * (2 * (32 * 128 + 64 * 32 + 3 * 32 * 48) + 32 * 300)
    assert (result["weight_bytes"], result["kv_bytes_per_token"]) == (weight_bytes, 2 * 2 * 2 * 32)
    assert list(result["batches"]) == ["3", "1"]
    for batch, row in result["batches"].items():
        roofline = (weight_bytes + int(batch) * row["mean_context"] * 256) / 1e9
        assert row["roofline_seconds"] == pytest.approx(roofline)
        assert row["share_of_roofline"] == pytest.approx(roofline / row["step_seconds"])
        assert row["output_tokens_per_second"] == pytest.approx(int(batch) / row["step_seconds"])


def test_prefill_is_a_share_of_the_peak_of_the_run(measurements: Measurements, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gemm_peak", lambda timer, size: 1e12)
    result = measurements.measure_prefill(TINY.large)
    assert result["flops"] == TINY.large.prefill_flops(40) and result["all_seconds"][2] == result["seconds"]
    assert result["share_of_gemm_peak"] == pytest.approx(result["flops"] / result["seconds"] / 1e12)


@pytest.mark.full
def test_models_are_loaded_once_and_one_runner_is_open(
    measurements: Measurements, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, closes = list[str](), list[Any]()
    load, close = module.load_random, module.RunnerSteps.close
    monkeypatch.setattr(module, "load_random", lambda shape, device: (loads.append(shape.name), load(shape, device))[1])
    monkeypatch.setattr(module.RunnerSteps, "close", lambda steps: (closes.append(steps), close(steps)))
    measurements.measure_prefill(TINY.large)
    measurements.measure_prefill(TINY.large)
    assert closes == []
    measurements.measure_prefill(TINY.small)
    measurements.measure_mixed(TINY.large, 60.0)
    assert loads == [TINY.large.name, TINY.small.name] and len(set(closes)) == len(closes) == 2
    measurements.close()
    assert len(closes) == 2


def test_a_part_that_fails_closes_the_runner_and_keeps_its_error(
    measurements: Measurements, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []

    def close(steps: Any) -> None:
        closed.append(True)
        raise RuntimeError("the device is lost")

    def fail(*arguments: Any) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(module.RunnerSteps, "close", close)
    monkeypatch.setattr(module.RunnerSteps, "time_decode", fail)
    part = next(part for part in measurements.parts if part.name == "decode-8b")
    with pytest.raises(MemoryError, match="no memory"):
        part.measure(part.seconds)
    assert closed == [True]


def test_the_baseline_runs_the_same_shorter_workload(
    measurements: Measurements, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[Any, float]] = []

    def transformers(config: Any, device: torch.device, workload: Any, limit: float) -> dict[str, Any]:
        runs.append((workload, limit))
        return {"output_tokens_per_second": 10.0, "digest": workload.digest()}

    monkeypatch.setattr(module, "run_transformers", transformers)
    result = measurements.measure_baseline(TINY.large, 100.0)
    ((workload, limit),) = runs
    assert result["chairlift"]["digest"] == result["transformers"]["digest"] == workload.digest() and limit == 60.0
    assert result["ratio"] == result["chairlift"]["output_tokens_per_second"] / 10.0
    assert len(workload.items) == 3 and max(item.output_tokens for item in workload.items) <= 6
    assert result["shortened"] == "the first 3 of 5 requests, at most 6 output tokens each"


def test_overlap_is_compared_on_one_workload(measurements: Measurements) -> None:
    result = measurements.compare_overlap(TINY.small, 60.0)
    arms = result["overlap"]
    assert [arms[name]["engine"]["overlap"] for name in ("True", "False")] == [True, False]
    assert arms["True"]["digest"] == arms["False"]["digest"]
    speeds = [arms[name]["output_tokens_per_second"] for name in ("True", "False")]
    assert result["ratio"] == speeds[0] / speeds[1]


@pytest.mark.full
def test_options_are_compared_with_the_default(measurements: Measurements, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "option_arms", dict)
    with pytest.raises(PartSkipped, match="none of the runner options"):
        measurements.compare_options(TINY.small, 60.0)
    monkeypatch.setattr(module, "option_arms", lambda: {"reference": {"attention_backend": "reference"}})
    seconds = measurements.compare_options(TINY.small, 60.0)["step_seconds"]
    assert list(seconds) == ["default", "reference"] and all(list(arm) == ["3", "1"] for arm in seconds.values())
    monkeypatch.setattr(
        module, "option_arms", lambda: {"no": {"attention_backend": "no"}, "twice": {"block_size": 16}, "own": {}}
    )
    seconds = measurements.compare_options(TINY.small, 60.0)["step_seconds"]
    assert seconds["no"]["failed"].startswith("ConfigError: ") and "failed" in seconds["twice"]
    assert list(seconds["own"]) == list(seconds["default"]) == ["3", "1"]
    seconds = measurements.compare_options(TINY.small, -1.0)["step_seconds"]
    assert all("skipped" in arm for arm in seconds.values())
