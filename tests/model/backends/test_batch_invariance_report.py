"""batch_invariance: the line of the startup report; refuse_deterministic: models of transformers' modules."""

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.backends.batch_invariance_report import batch_invariance, refuse_deterministic
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.loading.tiny_model import tiny_model
from chairlift.model.runner.torch_runner import TorchRunner

CPU = torch.device("cpu")


def loaded(dtype: str, device: str = "cpu", *, is_native: bool = False) -> LoadedModel:
    model, config = tiny_model(
        seed=0, dtype=dtype, device=CPU, max_model_len=None, shard=None,
        choose_backend=lambda _: TorchBackend.best(getattr(torch, dtype), CPU),
    )  # fmt: skip
    return LoadedModel(model, config, torch.device(device), "tiny", ReferenceAttention if is_native else None)


def test_the_report_says_whether_tokens_depend_on_the_batch() -> None:
    assert batch_invariance(loaded("float32", is_native=True), deterministic=False) == "yes, by the native kernels"
    assert batch_invariance(loaded("float32", "cuda"), deterministic=True) == "yes, by the option deterministic"
    assert batch_invariance(loaded("float64"), deterministic=False) == "yes, in float64"
    on_gpu, on_cpu = (batch_invariance(loaded("float32", device), deterministic=False) for device in ("cuda", "cpu"))
    assert on_gpu.startswith("no: rounding may depend on the batch, ") and on_gpu.endswith("set deterministic")
    assert on_cpu.startswith("no: rounding may depend on the batch and on the number of threads")
    assert "native kernels" in on_cpu and "resumed stream" in on_cpu


def test_the_runner_reports_it() -> None:
    runner = TorchRunner(RunnerConfig(dtype="float64", device="cpu", num_blocks=4, max_model_len=32))
    report = dict(runner.start().startup_report)
    runner.stop()
    assert report["same tokens in any batch"] == "yes, in float64"


def test_models_of_transformers_modules_are_refused() -> None:
    refuse_deterministic(RunnerConfig(), "GPT2LMHeadModel")
    with pytest.raises(ConfigError, match="GPT2LMHeadModel is computed by transformers") as caught:
        refuse_deterministic(RunnerConfig(deterministic=True), "GPT2LMHeadModel")
    assert caught.value.details["option"] == "deterministic"
