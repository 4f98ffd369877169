"""Model report: describes a model folder as a start would find it and collects all errors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model import machine_and_model_report as model_report
from chairlift.model.config import device_option
from chairlift.model.config.gguf_folder import gguf_folder
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.weight_kinds import KINDS
from chairlift.model.machine_and_model_report import UNLIMITED, ModelReport, inspect_machine, inspect_model
from chairlift.model.runner.free_memory import FreeMemory
from chairlift.model.runner.torch_runner import TorchRunner
from support_bridged_models import BRIDGED, bridged_model, save_bridged
from support_gguf_models import write_gguf
from support_models import save_tiny
from support_native import need_native

PLENTY = FreeMemory(2**32, "of the test")


@pytest.fixture(autouse=True)
def _the_memory_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_report, "free_memory", lambda device: PLENTY)


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", ["llama", "gemma3", "gemma2", "deepseek_v3", "gpt_bigcode", "falcon", "gpt_neo"])
def test_a_start_takes_what_the_survey_says(kind: str, tmp_path: Path) -> None:
    folder = save_bridged(kind, tmp_path) if kind in BRIDGED else save_tiny(kind, tmp_path)
    options = RunnerConfig(model=str(folder), max_running_requests=4, block_size=4, device="cpu")
    found = inspect_model(tmp_path, options)
    assert found.problems == []
    runner = TorchRunner(options)
    info = runner.start()
    assert found.facts["num_blocks"] == info.num_blocks and found.facts["max_model_len"] == info.max_model_len
    assert runner._engine is not None
    kv = sum(one.key.nbytes + one.value.nbytes for one in runner._engine.kv)
    assert found.facts["kv_bytes"] == kv == info.block_bytes * info.num_blocks
    assert found.facts["kv_bytes_per_token"] == kv * len(info.windows) // (info.num_blocks * info.block_size)
    runner.stop()


@pytest.mark.share(1)
@pytest.mark.parametrize(
    ("kind", "architecture", "layers"),
    [
        ("gemma2", "Gemma2ForCausalLM", "2 with a window of 20, 1 with all tokens; on the paged attention"),
        ("bloom", "BloomForCausalLM", "3 with all tokens; with its own attention, one sequence after another"),
    ],
)
def test_a_model_of_transformers_is_described_without_loading_it(
    kind: str, architecture: str, layers: str, tmp_path: Path
) -> None:
    facts = inspect_model(save_bridged(kind, tmp_path), RunnerConfig(device="cpu", dtype="bfloat16")).facts
    assert (facts["model_impl"], facts["architecture"], facts["layers"]) == ("transformers", architecture, layers)
    assert (facts["dtype"], facts["checkpoint_dtype"]) == ("bfloat16", "float32")
    assert facts["parameters"] == sum(each.numel() for each in bridged_model(kind).parameters())


def test_a_native_model_is_described_as_the_option_says(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path)
    facts = [inspect_model(folder, RunnerConfig(model_impl=name)).facts for name in ("auto", "transformers")]
    assert [each["model_impl"] for each in facts] == ["native", "transformers"]
    assert facts[0]["parameters"] == facts[1]["parameters"]


def test_the_length_that_fits_is_the_one_that_a_start_takes(tmp_path: Path) -> None:
    for kind, length in (("llama", 37), ("gemma3", None)):
        folder = save_tiny(kind, tmp_path / kind)
        options = RunnerConfig(
            model=str(folder), max_running_requests=4, block_size=4, num_blocks=9, device="cpu",
            fits_length_to_cache=True,
        )  # fmt: skip
        found, runner = inspect_model(folder, options), TorchRunner(options)
        info = runner.start()
        runner.stop()
        assert found.problems == [] and found.facts["max_model_len"] == info.max_model_len
        assert length is None or info.max_model_len == length
        assert found.facts["requests_by_length"][str(info.max_model_len)] >= 1


def test_a_window_holds_no_more_blocks_than_it_sees(tmp_path: Path) -> None:
    options = RunnerConfig(model=str(save_tiny("gemma3", tmp_path)), block_size=4, device="cpu", num_blocks=600)
    counts = inspect_model(tmp_path, options).facts["requests_by_length"]
    numbers = [counts[length] for length in sorted(counts, key=int)]
    assert numbers == sorted(numbers, reverse=True) and numbers[-1] >= 1


def test_all_that_is_wrong_is_gathered(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    options = RunnerConfig(model=str(tmp_path), device="cuda:99", max_model_len=10**9)
    found = inspect_model(tmp_path, options)
    said = " · ".join(problem.message for problem in found.problems)
    assert "neither model.safetensors" in said and "cuda:99" in said and "the model's limit is" in said
    assert found.facts["parameters"] > 0 and found.facts["weight_bytes"] > 0


def test_weights_that_leave_no_room_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_report, "free_memory", lambda device: FreeMemory(1000, "of the test"))
    (problem,) = inspect_model(save_tiny("llama", tmp_path), RunnerConfig(device="cpu")).problems
    assert isinstance(problem, ConfigError) and "less the weights" in problem.message


def test_weights_and_a_step_are_taken_off_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = RunnerConfig(model=str(save_tiny("llama", tmp_path)), device="cpu", max_memory=0.5)
    facts = inspect_model(tmp_path, options).facts
    page = facts["kv_bytes"] // facts["num_blocks"]
    free = facts["weight_bytes"] + facts["step_bytes"] + 22 * page  # one block of the half is the spare one
    monkeypatch.setattr(model_report, "free_memory", lambda device: FreeMemory(free, "of the test"))
    assert inspect_model(tmp_path, options).facts["num_blocks"] == 10


def test_ranks_share_the_weights_and_the_memory_of_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_report, "free_memory", lambda _: FreeMemory(1 << 30, "free here"))
    folder, reports = save_tiny("qwen3", tmp_path), {}
    for ranks in (1, 2):
        options = RunnerConfig(device="cpu", tensor_parallel_size=ranks, max_model_len=64)
        reports[ranks] = inspect_model(folder, options)
        assert reports[ranks].problems == []
    one, two = reports[1].facts, reports[2].facts
    assert one["kv_bytes_per_token"] == 2 * two["kv_bytes_per_token"] and one["weight_bytes"] == two["weight_bytes"]
    assert two["step_bytes"] < one["step_bytes"]
    options = RunnerConfig(device="cpu", tensor_parallel_size=2, max_memory=2**20)
    alone = inspect_model(folder, replace(options, tensor_parallel_size=1)).facts
    assert inspect_model(folder, options).facts["num_blocks"] == alone["num_blocks"]
    (problem,) = inspect_model(folder, RunnerConfig(device="cpu", tensor_parallel_size=3)).problems
    assert "4 query heads cannot be shared evenly" in problem.message


def test_the_machine_has_a_cpu_and_no_limit_that_is_none() -> None:
    found = inspect_machine()
    assert found["devices"][0]["name"] == "cpu" and found["threads"] >= 1 and "reference" in found["attention_backends"]
    limits = found["memory_limits"]
    assert all(limit["bytes"] < UNLIMITED for limit in limits)
    assert len({limit["limit"] for limit in limits}) == len(limits)


@pytest.mark.parametrize(("built", "missing"), [
    (None, "torch is built without CUDA"), ("13.0", "torch finds no CUDA device"),
])  # fmt: skip
def test_a_machine_without_a_cuda_device_says_why(
    built: str | None, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = inspect_machine()
    assert found["cuda"] == {"version": built, "missing": missing} and len(found["devices"]) == 1


def test_a_cuda_device_has_its_memory_and_its_compute_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("is_available", True), ("device_count", 1), ("mem_get_info", (7, 80)), ("get_device_name", "H100"),
        ("get_device_capability", (9, 0)),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = inspect_machine()
    device = found["devices"][1]
    assert (device["name"], device["description"], device["compute_capability"]) == ("cuda:0", "H100", "9.0")
    assert (device["memory_free"], device["memory_total"]) == (7, 80) and device["native_bfloat16"] is True
    assert found["cuda"] == {"version": "13.0", "missing": None}


def test_the_report_names_the_native_kernels_or_why_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    need_native()
    found = inspect_machine()["kernels"]
    assert found["chosen"] in found["sets"] and found["threads"] >= 1 and found["missing"] is None
    assert [each["kind"] for each in found["products"]] == list(KINDS)
    monkeypatch.setattr(library, "LIBRARY", "not-compiled.so")
    library.load.cache_clear()
    try:
        found = inspect_machine()["kernels"]
    finally:
        library.load.cache_clear()
    assert found["sets"] == [] and "not compiled" in found["missing"]


def test_fp8_takes_half_of_the_layers_and_is_a_problem_where_it_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny("llama", tmp_path)

    def inspected(**options: Any) -> ModelReport:
        return inspect_model(folder, RunnerConfig(model=str(folder), dtype="bfloat16", device="cpu", **options))

    plain, float8 = inspected(), inspected(quantization="fp8")
    tables = 2 * 2 * 304 * 64
    layers = plain.facts["weight_bytes"] - tables
    assert 0.5 < (float8.facts["weight_bytes"] - tables) / layers < 0.56
    assert not float8.problems and float8.facts["parameters"] == plain.facts["parameters"]
    monkeypatch.setattr(device_option, "device_capability", lambda device: 80)
    (problem,) = inspected(quantization="fp8").problems
    assert "compute capability 8.9" in problem.message
    (problem,) = inspected(kv_cache_dtype="fp8").problems
    assert problem.details["option"] == "kv_cache_dtype"


def test_int8_takes_half_of_bfloat16_but_for_an_untied_embedding_table(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path)
    sizes = [
        inspect_model(folder, RunnerConfig(model=str(folder), dtype="bfloat16", quantization=kind)).facts[
            "weight_bytes"
        ]
        for kind in ("none", "int8", "int8-channel")
    ]
    config = json.loads((folder / "config.json").read_text())
    table = 0 if config["tie_word_embeddings"] else 2 * config["vocab_size"] * config["hidden_size"]  # in the dtype
    full, int8, channel = (size - table for size in sizes)
    assert full == 2 * channel and int8 == int(channel * 34 / 32)


def test_codes_that_the_kernels_keep_take_the_bytes_of_the_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "qwen3", lambda name: "F16" if "attn_k" in name else "Q4_0")
    folder = gguf_folder(tmp_path / "a.gguf")

    def facts(**options: Any) -> dict[str, Any]:
        return inspect_model(folder, RunnerConfig(model=str(folder), dtype="bfloat16", device="cpu", **options)).facts

    parameters, dense = facts()["parameters"], 2 * 128 * 256 + (2 * (2 * 256 + 2 * 64) + 256)  # two keys, and the norms
    assert facts()["weight_bytes"] == (parameters - dense) * 18 // 32 + 2 * dense
    assert facts(quantization="none")["weight_bytes"] == facts(kernels="torch")["weight_bytes"] == 2 * parameters
