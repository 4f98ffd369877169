"""measure: a run reports its workload, speed, use of the KV cache, engine, threads and peak memory."""

import pytest

from chairlift.bench.offline.offline_benchmark import measure
from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.bench.workload.generators import generate
from chairlift.llm.builtin_models import RANDOM

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
