"""Offline benchmark: a run on the tiny model has every report field, is warmed up and passes the integrity check."""

import json
from pathlib import Path

import pytest

from chairlift.bench.offline import offline_benchmark
from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.offline.offline_benchmark import WARM_UP, main, measure
from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.bench.workload.generators import generate
from chairlift.core.errors import ConfigError, InvalidRequest
from chairlift.core.load_report import LoadReport
from chairlift.llm.builtin_models import RANDOM
from chairlift.llm.text_service import TextService
from support_services import fake_service

SMALL = {"num_blocks": 300, "max_running_requests": 4}


def order(name: str = "longtail", requests: int = 6, **options: object) -> RunSpec:
    return RunSpec(
        model=RANDOM, options={**SMALL, **options}, workload=WorkloadSpec(name=name, requests=requests, seed=2)
    )


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"engine_mode": "process"}, {"batching_policy": "static", "overlap": True}])
def test_a_run_tells_everything(options: dict[str, object]) -> None:
    heard: list[int] = []
    seen = measure(order(**options), lambda tokens, ended: heard.append(tokens))
    made = generate("longtail", vocab_size=259, seed=2, count=6)
    assert seen["workload_digest"] == made.digest()
    assert seen["workload_tokens"] == {"prompt": made.prompt_tokens, "output": made.output_tokens}
    assert seen["requests"]["completed"] == 6 and seen["tokens"]["output"] == made.output_tokens == sum(heard)
    assert seen["output_tokens_per_second"] == pytest.approx(made.output_tokens / seen["seconds"])
    assert seen["steps"] >= max(item.output_tokens for item in made.items)
    assert seen["peak_running_requests"] == 4 and seen["preemptions"] == 0
    assert (
        0 < seen["kv_cache_usage"]["mean"] <= seen["kv_cache_usage"]["peak"] < 1
        and 0 < seen["kv_cache_waste"]["mean"] < 0.5
    )
    assert seen["kv_cache_usage"]["total_kv_tokens"] == 300 * 16
    assert seen["engine"]["num_blocks"] == 300 and seen["engine"]["batching_policy"] == options.get(
        "batching_policy", "mixed"
    )
    assert seen["engine"]["engine_mode"] == options.get("engine_mode", "inline")
    assert seen["integrity_errors"] == [] and seen["vocab_size"] == 259
    assert seen["threads"] >= 1 and seen["peak_memory_bytes"] > 10_000_000


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


def test_the_warm_up_leaves_no_trace_and_fits_the_smallest_model() -> None:
    requests, _, output = WARM_UP
    service = fake_service()
    offline_benchmark.warm_up(service)
    assert service.client.load().output_tokens == requests * output
    assert service.client.cache_state()["cached_blocks"] == 0
    service.client.close()
    service = fake_service(max_model_len=3)
    offline_benchmark.warm_up(service)
    assert service.client.load().output_tokens == 0
    service.client.close()


def test_it_obeys_an_order_from_a_file(tmp_path: Path) -> None:
    files = [tmp_path / "order.json", tmp_path / "result.json"]
    files[0].write_bytes(order(requests=2).encode())
    assert main([str(file) for file in files]) == 0
    assert json.loads(files[1].read_text())["requests"]["completed"] == 2
