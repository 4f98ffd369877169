"""load_model, random_model, parameter_shapes: dtypes, lengths, the shapes of the file, and errors of loading."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from chairlift.core.errors import ConfigError, ModelError
from chairlift.model.config.architectures.config_parsing import read_decoder_config
from chairlift.model.config.layer_groups import AttentionShape
from chairlift.model.device.dtypes import DTYPES, torch_dtype
from chairlift.model.loading.model_building import load_model, parameter_shapes, random_model
from chairlift.model.weights.checkpoint import Checkpoint
from support_models import KINDS, save_tiny

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_are_those_of_the_saved_file(kind: str, tmp_path: Path) -> None:
    folder = save_tiny(kind, tmp_path)
    saved = {name: tuple(tensor.shape) for name, tensor in load_file(folder / "model.safetensors").items()}
    assert parameter_shapes(read_decoder_config(folder)) == saved


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_is_loaded_in_the_dtype_that_is_asked_for(dtype: str, tmp_path: Path) -> None:
    model, config = load_model(save_tiny("qwen3", tmp_path), dtype=dtype, device=CPU, max_model_len=8)
    assert config.dtype == dtype
    assert model.logits(torch.zeros(1, 64, dtype=torch_dtype(dtype))).dtype == torch_dtype(dtype)


def test_auto_is_the_dtype_of_the_config_else_of_the_weights(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path)
    assert load_model(folder, dtype="auto", device=CPU, max_model_len=8)[1].dtype == "float32"
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"dtype": "float32"', '"dtype": "float16"'))
    assert load_model(folder, dtype="auto", device=CPU, max_model_len=8)[1].dtype == "float16"
    path.write_text(path.read_text().replace('"dtype": "float16"', '"dtype": null'))
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor.bfloat16() for name, tensor in weights.items()}, folder / "model.safetensors")
    assert load_model(folder, dtype="auto", device=CPU, max_model_len=8)[1].dtype == "bfloat16"


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="dtype 'int8' is unknown; known are float64"):
        load_model(save_tiny("llama", tmp_path), dtype="int8", device=CPU, max_model_len=8)


def test_dynamic_rope_is_refused_past_its_original_length_before_weights_are_touched(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    folder = save_tiny("llama", tmp_path, rope_parameters=rope)
    load_model(folder, dtype="auto", device=CPU, max_model_len=1024)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"max_model_len is 1025, the model.s limit is 1024"):
        load_model(folder, dtype="auto", device=CPU, max_model_len=1025)


@pytest.mark.parametrize(
    "error", [RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError("all gone"), OSError("disk gone")]
)
def test_what_goes_wrong_while_weights_are_read_ends_with_the_folder(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> torch.Tensor:
        raise error

    folder = save_tiny("llama", tmp_path)
    monkeypatch.setattr(Checkpoint, "read", read)
    with pytest.raises(ModelError, match=f"cannot load the weights of .*: {error}") as caught:
        load_model(folder, dtype="auto", device=CPU, max_model_len=8)
    assert caught.value.details["file"] == str(folder)


def test_a_random_model_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    config = read_decoder_config(save_tiny("gemma3", tmp_path))
    hidden = torch.randn(3, 64)

    def logits(seed: int) -> torch.Tensor:
        model, made = random_model(config, seed=seed, dtype="auto", device=CPU, max_model_len=32)
        assert made.dtype == "float32"
        return model.logits(hidden)

    assert torch.equal(logits(1), logits(1))
    assert not torch.equal(logits(1), logits(2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_says_what_the_runner_asks_of_it(kind: str, tmp_path: Path) -> None:
    folder = save_tiny(kind, tmp_path)
    model, config = load_model(folder, dtype="auto", device=CPU, max_model_len=8)
    assert (model.vocab_size, model.groups.caches[0].shape) == (304, AttentionShape(2, config.head_dim))
    found = [model.groups.windows[group] for group, _ in model.groups.places]
    assert tuple(found) == config.layer_windows
