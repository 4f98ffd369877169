"""random_parameters: depend on seed and name only, and are drawn on the CPU or on the device, as asked."""

from pathlib import Path

import pytest
import torch

from chairlift.model.config.architectures.config_parsing import read_decoder_config
from chairlift.model.loading.model_building import parameter_shapes
from chairlift.model.weights.parameter_loader import ParameterLoader
from chairlift.model.weights.random_parameters import random_parameters
from support_models import save_tiny

CPU = torch.device("cpu")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save_tiny("llama", tmp_path / "llama", seed=1)


def draw(take: ParameterLoader, shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    return {name: take(name, shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_random_parameters_depend_on_seed_and_name_only(tmp_path: Path, kind: str) -> None:
    config = read_decoder_config(save_tiny(kind, tmp_path))
    shapes = parameter_shapes(config)
    first = draw(random_parameters(config, 3, 0.2)(torch.float32, CPU), shapes)
    again = draw(random_parameters(config, 3, 0.2)(torch.float64, CPU), dict(reversed(shapes.items())))
    other = draw(random_parameters(config, 4, 0.2)(torch.float32, CPU), shapes)
    for name, tensor in first.items():
        assert torch.equal(tensor.double(), again[name])
        assert not torch.equal(tensor, other[name])
        centre = (0.0 if kind == "gemma3" else 1.0) if "norm" in name else 0.0
        assert abs(float(tensor.mean()) - centre) < 0.15
    assert 0.19 < float(first["model.embed_tokens.weight"].std()) < 0.21


def test_random_numbers_are_drawn_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, devices = read_decoder_config(save_tiny("llama", tmp_path)), list[torch.device]()
    randn = torch.randn

    def recorded(shape: tuple[int, ...], *, generator: torch.Generator, device: torch.device) -> torch.Tensor:
        devices.append(device)
        assert generator.device == device
        return randn(shape, generator=generator, device=device)

    monkeypatch.setattr(torch, "randn", recorded)
    first, second = (
        random_parameters(config, 3, 0.2, draws_on_device=on_device)(torch.float32, CPU)("model.norm.weight", (4,))
        for on_device in (False, True)
    )
    assert devices == [CPU, CPU] and torch.equal(first, second)
    monkeypatch.setattr(torch, "Generator", devices.append)
    for on_device in (False, True):
        with pytest.raises(AttributeError):  # the stand-in of a generator cannot be seeded
            random_parameters(config, 3, 0.2, draws_on_device=on_device)(torch.float32, torch.device("cuda:0"))(
                "model.norm.weight", (4,)
            )
    assert devices[2:] == [CPU, torch.device("cuda:0")]


def test_factors_and_norms_of_experts_are_near_one(tmp_path: Path) -> None:
    config = read_decoder_config(save_tiny("gemma4_moe", tmp_path))
    drawn = draw(random_parameters(config, 3, 0.2)(torch.float32, CPU), parameter_shapes(config))
    ends = ("layernorm_1.weight", "layernorm_2.weight", "gate.scale", "gate.per_expert_scale", "layer_scalar")
    for end in ends:
        found = torch.cat([tensor.flatten() for name, tensor in drawn.items() if name.endswith(end)])
        assert abs(float(found.mean()) - 1.0) < 0.2 and 0.0 < float(found.std()) < 0.2
