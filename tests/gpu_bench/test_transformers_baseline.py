"""transformers_baseline.py: transformers runs the same workload with paged SDPA, and reports a run that cannot end."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chairlift.core.errors import ModelError
from gpu_bench.bench_shapes import SIZES
from gpu_bench.mixed_load import mixed_workload
from gpu_bench.part_budget import PartSkipped
from gpu_bench.transformers_baseline import _drive, run_transformers

CPU, TINY = torch.device("cpu"), SIZES["tiny"]


class FakeManager:
    """Finishes requests in order, at most `num_finished`; then it has nothing to say."""

    def __init__(self, num_finished: int, *, runs: bool = True, error: str | None = None) -> None:
        self.added: list[tuple[int, int]] = []
        self._results: list[Any] = []
        self._left, self._runs, self._error = num_finished, runs, error

    def add_request(self, ids: list[int], *, max_new_tokens: int, eos_token_id: int) -> None:
        self.added.append((len(ids), max_new_tokens))
        if self._left:
            self._left -= 1
            tokens = list(range(max_new_tokens))
            self._results.append(
                SimpleNamespace(is_finished=lambda: True, error=self._error, generated_tokens=tokens)
            )  # fmt: skip

    def get_result(self, timeout: float) -> Any:
        return self._results.pop(0) if self._results else None

    def is_running(self) -> bool:
        return self._runs


def test_every_token_is_counted() -> None:
    workload, manager = mixed_workload(4, (4, 12), 300), FakeManager(4)
    num_tokens, num_requests, seconds = _drive(manager, workload, 60.0)
    assert (num_tokens, num_requests) == (workload.output_tokens, 4) and seconds > 0
    assert manager.added == [(len(item.prompt_token_ids), item.output_tokens) for item in workload.items]


def test_at_the_limit_only_finished_requests_count() -> None:
    workload = mixed_workload(4, (4, 12), 300)
    num_tokens, num_requests, _ = _drive(FakeManager(3), workload, 0.05)
    assert num_requests == 3 and num_tokens == sum(item.output_tokens for item in workload.items[:3])


def test_a_manager_that_stops_and_a_request_that_fails_are_errors() -> None:
    workload = mixed_workload(2, (4, 12), 300)
    with pytest.raises(ModelError, match="stopped after 1 requests"):
        _drive(FakeManager(1, runs=False), workload, 60.0)
    with pytest.raises(ModelError, match="failed a request: no memory"):
        _drive(FakeManager(1, error="no memory"), workload, 60.0)


@pytest.mark.share(1)
@pytest.mark.parametrize("shape", [TINY.large, TINY.small], ids=lambda shape: shape.name)
def test_transformers_generates_the_workload(shape: Any) -> None:
    pytest.importorskip("transformers")
    workload = mixed_workload(3, (4, 12), 300)
    result = run_transformers(shape.config, CPU, workload, 60.0)
    assert result["is_complete"] and result["output_tokens"] == workload.output_tokens
    assert "sdpa" in result["attention"] and result["digest"] == workload.digest()


def test_without_transformers_the_part_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(PartSkipped, match="transformers cannot be imported"):
        run_transformers(TINY.large.config, CPU, mixed_workload(1, (4, 12), 300), 1.0)
