"""load: the tiny model follows its seed, the id of a model its weights; a backend that cannot run is refused before."""

import os
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError, ModelError
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner.model_loading import load
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.parameter_loader import ParameterLoader
from support_models import save_tiny
from support_native import need_native
from support_runner import GREEDY, PROMPT, alone


def test_the_tiny_model_is_the_same_for_the_same_seed_and_talks_in_more_than_one_token() -> None:
    def outputs_of(seed: int) -> list[int]:
        return alone(load(RunnerConfig(seed=seed, device="cpu")), PROMPT, GREEDY, 40).outputs

    assert outputs_of(1) == outputs_of(1)
    assert outputs_of(1) != outputs_of(2)
    for seed in range(4):
        assert len(set(outputs_of(seed))) > 10


def test_the_model_id_follows_the_weights(tmp_path: Path) -> None:
    def name(**options: object) -> str:
        return load(RunnerConfig(**{"device": "cpu", "model": str(tmp_path)} | options)).model_id

    save_tiny("llama", tmp_path)
    first = name()
    assert name() == first
    assert name(dtype="float64") != first
    assert name(kv_cache_dtype="fp8") != first, "blocks of two dtypes are not the same"
    tiny, float8 = name(model=""), name(model="", kv_cache_dtype="fp8")
    assert tiny != float8 and tiny == name(model="", kv_cache_dtype="auto")
    assert len({first, name(quantization="fp8"), name(quantization="fp8", kv_cache_dtype="fp8")}) == 3
    assert len({tiny, float8, name(model="", quantization="fp8")}) == 3
    file = tmp_path / "model.safetensors"
    os.utime(file, (1, 1))
    assert name() == first, "a copy on another machine has another time"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert name() != first
    assert name(model="", seed=1) != name(model="", seed=2)


@pytest.mark.parametrize("model_impl", ["native", "transformers"])
def test_float16_weights_are_computed_with_in_float32(model_impl: str, tmp_path: Path) -> None:
    need_native()
    save_tiny("llama", tmp_path)
    options = {"model": str(tmp_path), "device": "cpu", "model_impl": model_impl, "dtype": "float16"}
    native, plain = load(RunnerConfig(**options)), load(RunnerConfig(**options, kernels="torch"))
    assert (native.config.dtype, plain.config.dtype) == ("float32", "float16")
    assert "weights: float16" in dict(native.report)["kernels"]
    assert native.model_id != plain.model_id, "blocks of float32 and of float16 are not the same"
    assert {each.weights_config.dtype for each in (native, plain)} == {"float16"}
    assert native.model_id != load(RunnerConfig(**options | {"dtype": "float32"})).model_id
    prompt = list(b"One chair passes the platform.")
    assert alone(native, prompt, GREEDY, 12).outputs == alone(plain, prompt, GREEDY, 12).outputs


@pytest.mark.parametrize("model_impl", ["native", "transformers"])
def test_an_attention_backend_that_cannot_run_is_refused_before_the_weights_are_read(
    model_impl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny("llama", tmp_path)
    monkeypatch.setattr(Checkpoint, "loader", lambda *_: ParameterLoader(read_weights, join=lambda parts: parts[0]))
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", read_weights)
    options = {"model": str(tmp_path), "device": "cpu", "model_impl": model_impl}
    with pytest.raises(ConfigError, match="attention_backend 'fa3' needs an NVIDIA GPU, the device is cpu"):
        load(RunnerConfig(**options, attention_backend="fa3"))
    with pytest.raises((AssertionError, ModelError), match="the weights are read"):
        load(RunnerConfig(**options, attention_backend="torch"))


def test_a_package_s_backend_is_refused_for_heads_of_several_shapes_before_the_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny("gemma4", tmp_path)
    monkeypatch.setattr(Checkpoint, "loader", lambda *_: ParameterLoader(read_weights, join=lambda parts: parts[0]))
    options = {"model": str(tmp_path), "device": "cpu", "kernels": "torch", "attention_backend": "flashinfer"}
    with pytest.raises(ConfigError, match="attention_backend 'flashinfer' cannot run a model whose layers have"):
        load(RunnerConfig(**options))


def read_weights(*arguments: object, **options: object) -> None:
    raise AssertionError("the weights are read")
