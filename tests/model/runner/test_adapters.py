"""TorchRunner with LoRA adapters: what it reports of them, what it refuses, and that a failed load leaves nothing."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from chairlift.core.errors import ConfigError, ModelError
from chairlift.engine.runner.base import LoadsAdapters
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner.torch_runner import TorchRunner
from support_adapters import ADAPTER_KINDS, adaptable_of, adapted_model
from support_bridged_models import save_bridged
from support_models import save_tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("qwen3", tmp_path_factory.mktemp("base"), seed=5)


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    adapted_model("qwen3", 5, ADAPTER_KINDS["patterns"], 1, set(adaptable_of(base))).save_pretrained(folder)
    return folder


@pytest.fixture
def runner(base: Path) -> Iterator[TorchRunner]:
    made = TorchRunner(RunnerConfig(model=str(base), device="cpu", num_blocks=20, enable_lora=True))
    made.start()
    yield made
    made.stop()


def test_a_loaded_adapter_is_described_and_its_number_is_free_again_when_it_is_dropped(
    runner: TorchRunner, adapter: Path
) -> None:
    assert isinstance(runner, LoadsAdapters)
    info = runner.load_adapter(1, str(adapter))
    assert info.rank == 7 and info.num_bytes > 1000 and len(info.digest) == 64
    assert runner.load_adapter(2, str(adapter)) == info
    runner.drop_adapter(1)
    runner.drop_adapter(1)
    assert runner.load_adapter(1, str(adapter)) == info


def test_the_memory_of_an_adapter_is_that_of_the_numbers_that_are_kept(
    runner: TorchRunner, adapter: Path, tmp_path: Path
) -> None:
    """Files of half the bytes become the same float32 numbers in memory."""
    half = tmp_path / "half"
    shutil.copytree(adapter, half)
    tensors = load_file(half / "adapter_model.safetensors")
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, half / "adapter_model.safetensors")
    info = runner.load_adapter(1, str(half))
    assert info.num_bytes == sum(4 * tensor.numel() for tensor in tensors.values())
    assert runner.load_adapter(2, str(adapter)).num_bytes == info.num_bytes


def test_a_failed_load_leaves_nothing(runner: TorchRunner, adapter: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(adapter, broken)
    fields = json.loads((broken / "adapter_config.json").read_text())
    (broken / "adapter_config.json").write_text(json.dumps({**fields, "r": 3}))
    with pytest.raises(ModelError, match="require"):
        runner.load_adapter(1, str(broken))
    runner.load_adapter(1, str(adapter))


def test_without_the_option_an_adapter_is_refused_by_its_name(base: Path, adapter: Path) -> None:
    runner = TorchRunner(RunnerConfig(model=str(base), device="cpu", num_blocks=20))
    runner.start()
    with pytest.raises(ConfigError, match="adapters need the option enable_lora"):
        runner.load_adapter(1, str(adapter))
    runner.drop_adapter(1)
    runner.stop()
    runner.drop_adapter(1)


def test_modules_of_transformers_take_no_adapters(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="transformers' modules run") as caught:
        TorchRunner(RunnerConfig(model=str(save_bridged("gpt2", tmp_path)), device="cpu", enable_lora=True)).start()
    assert caught.value.details["option"] == "enable_lora"
