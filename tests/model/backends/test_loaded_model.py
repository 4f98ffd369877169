"""LoadedModel: facts are those of the weights, also where activations have another dtype."""

from pathlib import Path

import pytest

from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner.torch_runner import TorchRunner
from support_models import save_tiny
from support_native import need_native


@pytest.mark.parametrize("model_impl", ["native", "transformers"])
def test_facts_of_float16_weights_are_those_of_the_file(model_impl: str, tmp_path: Path) -> None:
    need_native()
    save_tiny("llama", tmp_path)
    found = []
    for kernels in ("native", "torch"):
        config = RunnerConfig(
            model=str(tmp_path), dtype="float16", device="cpu", kernels=kernels, model_impl=model_impl, num_blocks=64
        )
        runner = TorchRunner(config)
        info = runner.start()
        found.append((info.facts, dict(info.startup_report)["dtype"]))
        runner.stop()
    (native, computed), (plain, _) = found
    assert native == plain and native.dtype == "float16" and computed == "float32"
