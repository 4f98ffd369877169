"""idle_time.py: busy time is the union of intervals."""

from types import SimpleNamespace

import pytest
import torch

from gpu_bench.idle_time import busy_and_span, is_work, measure_idle


@pytest.mark.parametrize(
    ("intervals", "busy", "span"),
    [
        ([], 0, 0),
        ([(5, 5)], 0, 0),
        ([(10, 12), (15, 20)], 7, 10),  # a gap
        ([(15, 20), (10, 12), (12, 13)], 8, 10),  # out of order, touching
        ([(0, 10), (2, 3), (4, 12)], 12, 12),  # nested and overlapping
    ],
)
def test_overlapping_intervals_count_once(intervals: list[tuple[float, float]], busy: float, span: float) -> None:
    assert busy_and_span(intervals) == (busy, span)


def test_the_work_of_a_run_is_profiled_per_step() -> None:
    left = torch.randn(64, 64)
    result = measure_idle(torch.device("cpu"), lambda: [torch.mm(left, left) for _ in range(4)], num_steps=2)
    kernels = {each["name"]: each for each in result["top_kernels"]}
    assert kernels["aten::mm"]["calls_per_step"] == 2
    assert 0 <= result["idle_share"] < 1
    assert 0 < result["busy_seconds_per_step"] <= result["span_seconds_per_step"]


def test_a_profile_without_work_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="recorded no work of cpu"):
        measure_idle(torch.device("cpu"), lambda: None, num_steps=1)


def test_only_work_of_the_device_counts() -> None:
    def event(kind: str, **more: bool) -> SimpleNamespace:
        return SimpleNamespace(device_type=SimpleNamespace(name=kind), **more)

    assert is_work(event("CUDA"), "CUDA") and is_work(event("CUDA", is_user_annotation=False), "CUDA")
    assert not is_work(event("CUDA", is_user_annotation=True), "CUDA") and not is_work(event("CPU"), "CUDA")
