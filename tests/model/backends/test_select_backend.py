"""select_backend: native kernels if they can run a model, else torch; an error if the options require the kernels."""

from dataclasses import replace

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.backends.native_backend import NativeBackend
from chairlift.model.backends.select_backend import select_backend
from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.kernels.cpu import library
from chairlift.model.layers.batch_invariant_ops import BatchInvariantOps
from chairlift.model.loading.tiny_model import tiny_config
from support_native import need_native

CPU = torch.device("cpu")
FIT = replace(tiny_config(), dtype="bfloat16")


def test_native_kernels_run_what_they_can() -> None:
    need_native()
    assert isinstance(select_backend(RunnerConfig(), FIT, CPU), NativeBackend)
    for dtype, computed in (("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float32")):
        chosen = select_backend(RunnerConfig(), replace(FIT, dtype=dtype), CPU)
        assert isinstance(chosen, NativeBackend) and chosen.compute_dtype(dtype) == computed
    chosen = select_backend(RunnerConfig(kernels="native", quantization="int8", cpu_threads=1), FIT, CPU)
    assert isinstance(chosen, NativeBackend) and (chosen.quantization, chosen.threads) == ("int8", 1)


@pytest.mark.parametrize(
    "config",
    [
        RunnerConfig(kernels="torch"),
        RunnerConfig(attention_backend="torch"),
        RunnerConfig(block_size=8),
        RunnerConfig(kv_cache_dtype="fp8"),
        RunnerConfig(quantization="fp8"),
    ],
)
def test_torch_runs_the_rest(config: RunnerConfig) -> None:
    assert isinstance(select_backend(config, FIT, CPU), TorchBackend)


def test_torch_says_why_it_was_chosen() -> None:
    chosen = select_backend(RunnerConfig(), replace(FIT, dtype="float64"), CPU)
    assert "bfloat16 and float32, not in float64" in dict(chosen.report())["kernels"]
    chosen = select_backend(RunnerConfig(kv_cache_dtype="fp8"), FIT, CPU)
    assert dict(chosen.report())["kernels"] == "torch (kv_cache_dtype is fp8)"


def test_weights_of_8_bit_floats_are_torchs_and_in_its_report() -> None:
    chosen = select_backend(RunnerConfig(quantization="fp8", kv_cache_dtype="fp8"), FIT, CPU)
    assert isinstance(chosen, TorchBackend) and chosen.packer is not None
    assert dict(chosen.report()) == {
        "kernels": "torch (quantization is fp8)", "quantization": "fp8 (e4m3), 0 weights of layers in 0.0 MiB",
    }  # fmt: skip
    assert TorchBackend.best(torch.bfloat16, CPU).packer is None
    with pytest.raises(ConfigError, match="the model's dtype is float64; set dtype to bfloat16"):
        select_backend(RunnerConfig(quantization="fp8"), replace(FIT, dtype="float64"), CPU)
    with pytest.raises(ConfigError, match="native kernels alone"):
        select_backend(RunnerConfig(quantization="fp8", deterministic=True), FIT, CPU)


@pytest.mark.parametrize("asked", [{"kernels": "native"}, {"quantization": "int8"}])
def test_what_was_asked_for_and_cannot_be_is_an_error(asked: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="not in float64"):
        select_backend(RunnerConfig(**asked), replace(FIT, dtype="float64"), CPU)  # type: ignore[arg-type]


def test_without_a_library_torch_runs_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", "not-compiled.so")
    library.load.cache_clear()
    try:
        chosen = select_backend(RunnerConfig(), FIT, CPU)
        assert isinstance(chosen, TorchBackend)
        assert "not compiled" in dict(chosen.report())["kernels"]
        with pytest.raises(ConfigError, match="not compiled"):
            select_backend(RunnerConfig(quantization="int8"), FIT, CPU)
    finally:
        library.load.cache_clear()


def test_on_a_cpu_deterministic_is_what_the_native_kernels_are_and_nothing_else() -> None:
    need_native()
    assert isinstance(select_backend(RunnerConfig(deterministic=True), FIT, CPU), NativeBackend)
    with pytest.raises(ConfigError, match="native kernels alone") as caught:
        select_backend(RunnerConfig(deterministic=True, kernels="torch"), FIT, CPU)
    assert caught.value.details["option"] == "deterministic"
    ops = TorchBackend.best(torch.bfloat16, torch.device("cuda"), deterministic=True).ops
    assert isinstance(ops, BatchInvariantOps)
