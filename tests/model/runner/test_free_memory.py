"""free_memory: where it is unknown, num_blocks must be set; mapped_weights: none are left of a built model."""

from pathlib import Path

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner.free_memory import free_memory, gibibytes, mapped_weights  # fmt: skip
from chairlift.model.runner.model_loading import load
from chairlift.model.weights.checkpoint import Checkpoint
from support_models import save_tiny

CPU = torch.device("cpu")

MIB = 2**20


def test_num_blocks_must_be_set_where_free_memory_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set num_blocks"):
        free_memory(CPU, proc=tmp_path / "no", cgroup=tmp_path / "nothing")


def test_this_very_machine_can_be_asked() -> None:
    assert 0 < free_memory(CPU).num_bytes < 2**50


def test_a_mapped_checkpoint_is_seen_until_the_model_is_built(tmp_path: Path) -> None:
    size = (save_tiny("llama", tmp_path) / "model.safetensors").stat().st_size
    before = mapped_weights()
    checkpoint = Checkpoint.open(tmp_path, "LlamaForCausalLM")
    tensor = checkpoint.read("model.norm.weight")
    assert mapped_weights() - before >= size // 2
    del checkpoint, tensor
    loaded = load(RunnerConfig(model=str(tmp_path), dtype="float32", device="cpu"))
    assert mapped_weights() == before
    assert loaded.config.dtype == "float32"


def test_bytes_are_said_in_a_unit_that_people_read() -> None:
    assert (gibibytes(3 * 2**30 // 2), gibibytes(MIB * 12)) == ("1.50 GiB", "12.0 MiB")
