"""Offline benchmark: a run on the tiny model has every report field, is warmed up and passes the integrity check."""

import json
from pathlib import Path

import pytest

from chairlift.bench.offline import offline_benchmark
from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.offline.offline_benchmark import main, measure
from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.bench.workload.generators import generate
from chairlift.core.errors import ConfigError, InvalidRequest
from chairlift.core.load_report import LoadReport
from chairlift.llm.builtin_models import RANDOM
from chairlift.llm.text_service import TextService

SMALL = {"num_blocks": 300, "max_running_requests": 4}


def order(name: str = "longtail", requests: int = 6, **options: object) -> RunSpec:
    return RunSpec(
        model=RANDOM, options={**SMALL, **options}, workload=WorkloadSpec(name=name, requests=requests, seed=2)
    )


@pytest.mark.full
def test_shared_prefixes_are_found_but_not_those_of_the_warm_up() -> None:
    seen = measure(order("w2", 5))
    assert seen["tokens"]["cached"] == 4 * 512
    assert measure(order("w2", 5, enable_prefix_caching=False))["tokens"]["cached"] == 0


@pytest.mark.full
def test_preemptions_of_a_tight_pool_are_counted() -> None:
    assert measure(order("uniform", 12, num_blocks=40, max_running_requests=12))["preemptions"] > 0


@pytest.mark.full
def test_what_the_warm_up_cost_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before: list[LoadReport] = []
    warm_up = offline_benchmark.warm_up

    def watched(service: TextService) -> None:
        warm_up(service)
        drive_workload(service, generate("uniform", vocab_size=259, count=12))
        before.append(service.client.load())

    monkeypatch.setattr(offline_benchmark, "warm_up", watched)
    seen = measure(order("uniform", 1, num_blocks=40, max_running_requests=12))
    (cost,) = before
    assert cost.preemptions > 0 and cost.steps > 0
    assert seen["preemptions"] == 0 and seen["steps"] == 44


def test_a_workload_that_the_model_cannot_hold_is_one_sentence() -> None:
    with pytest.raises(InvalidRequest, match=r"request 0 of the workload: prompt has \d+ tokens, the limit is 1024"):
        measure(order("w3", 1))
    with pytest.raises(ConfigError, match="unknown option 'batchin'"):
        measure(order(batchin="mixed"))


def test_it_obeys_an_order_from_a_file(tmp_path: Path) -> None:
    files = [tmp_path / "order.json", tmp_path / "result.json"]
    files[0].write_bytes(order(requests=2).encode())
    assert main([str(file) for file in files]) == 0
    assert json.loads(files[1].read_text())["requests"]["completed"] == 2
