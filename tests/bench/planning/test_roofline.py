"""roofline: its terms, and its prediction against committed measurements."""

import json
from pathlib import Path

import pytest

from chairlift.bench.planning.device_speed import DeviceSpeed, host_speed
from chairlift.bench.planning.model_memory import ModelMemory
from chairlift.bench.planning.parallel_sizes_and_memory import ParallelSizes
from chairlift.bench.planning.roofline import ALL_REDUCE_SECONDS, estimate_step_model
from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.bench.simulation.simulation import SimMachine, simulate
from chairlift.bench.workload.generators import generate
from chairlift.engine.config import SchedulerConfig
from support_planning import published_shape
from support_source_tree import ROOT

PEAK = DeviceSpeed(
    bandwidth=1e12, speed=1e14, bandwidth_share=1.0, context_share=1.0, speed_share=1.0, overhead=0.0
)  # fmt: skip


def memory(name: str, quantization: str = "none") -> ModelMemory:
    return ModelMemory(shape=published_shape(name), dtype="bfloat16", quantization=quantization)


def estimate(name: str, sizes: ParallelSizes | None = None, length: int = 641) -> SimStepModel:
    return estimate_step_model(memory(name), PEAK, sizes or ParallelSizes(), length)


def test_each_term_is_bytes_by_bandwidth_or_operations_by_speed() -> None:
    model, shape = estimate("Qwen3-8B"), published_shape("Qwen3-8B")
    assert model.step == pytest.approx(2 * (shape.parameters - shape.table) / 1e12)
    assert model.row == pytest.approx(2 * (shape.matrices + shape.table) / 1e14)
    assert model.prefill_token == pytest.approx(2 * shape.matrices / 1e14)
    assert model.context_token == pytest.approx(2 * 2 * 36 * 8 * 128 / 1e12, rel=0.01)
    assert model.prefill_pair == pytest.approx(4 * 36 * 32 * 128 / 1e14)


def test_tensor_devices_share_every_term_at_a_loss() -> None:
    one, four = estimate("llama-70b"), estimate("llama-70b", ParallelSizes(tensor=4))
    share = 4 * 0.95**2
    assert four.step == pytest.approx(one.step / share + 160 * ALL_REDUCE_SECONDS)
    assert four.row == pytest.approx(one.row / share) and four.prefill_token == pytest.approx(one.prefill_token / share)
    assert four.context_token == pytest.approx(one.context_token / 4)


def test_context_devices_share_prompts_and_cache_and_stages_share_nothing() -> None:
    one, two = estimate("Qwen3-8B"), estimate("Qwen3-8B", ParallelSizes(context=2))
    assert (two.step, two.row) == (one.step, one.row) and two.context_token == one.context_token / 2
    assert (two.prefill_token, two.prefill_pair) == (one.prefill_token / 2, one.prefill_pair / 2)
    assert estimate("Qwen3-8B", ParallelSizes(pipeline=2)) == one


def test_a_window_bounds_what_a_token_reads() -> None:
    short, long = estimate("Mistral-7B-v0.1", length=2000), estimate("Mistral-7B-v0.1", length=32_000)
    assert long.context_token < 0.2 * short.context_token and long.prefill_pair < 0.2 * short.prefill_pair


@pytest.mark.share(5)
@pytest.mark.parametrize(
    ("model", "name"), [("qwen06", "Qwen3-0.6B"), ("smol135", "smol135")]
)  # fmt: skip
@pytest.mark.parametrize("case", ["w1-bf16", "w2-bf16", "w3-bf16", "w1-int8"])
def test_the_defaults_of_a_cpu_predict_committed_results_on_the_safe_side(model: str, name: str, case: str) -> None:
    workload, quantization = case.split("-")
    report = json.loads(Path(ROOT / f"benchmarks/results/cpu-{model}-{case}.json").read_text(encoding="utf-8"))
    assert report["environment"]["hardware"]["cores"] == 2
    sizes = memory(name, "int8" if quantization == "int8" else "none")
    times = estimate_step_model(sizes, host_speed(2), ParallelSizes(), 1000)
    result = simulate(
        generate(workload, vocab_size=40_000), SchedulerConfig(max_prefill_tokens=256), SimMachine(step_model=times)
    )
    ratio = result.report()["output_tokens_per_second"] / report["output_tokens_per_second"]
    assert 0.5 < ratio < 1.0
