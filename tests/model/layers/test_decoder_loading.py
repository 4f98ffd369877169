"""load_decoder: norms where the config has them, and one rotation table for equal rotations."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from chairlift.model.config.decoder_config import DecoderConfig, LayerNorms
from chairlift.model.layers.decoder import Attention, DecoderSpec
from chairlift.model.layers.decoder_loading import load_decoder
from chairlift.model.layers.rope import RopeTable
from chairlift.model.loading.tiny_model import tiny_config
from chairlift.model.weights.parameter_loader import ParameterLoader

CPU = torch.device("cpu")


def loaded(config: DecoderConfig) -> tuple[DecoderSpec, list[str]]:
    names: list[str] = []

    def read(name: str, shape: tuple[int, ...]) -> Tensor:
        names.append(name)
        return torch.ones(shape)

    return load_decoder(config, ParameterLoader(read), 8, torch.float32, CPU), names


def ropes(spec: DecoderSpec) -> list[RopeTable]:
    mixers = [layer.mixer for layer in spec.layers]
    return [mixer.rope for mixer in mixers if isinstance(mixer, Attention)]


def test_every_parameter_is_loaded_once() -> None:
    _, names = loaded(tiny_config())
    assert len(set(names)) == len(names) == 2 * 9 + 3


@pytest.mark.parametrize("after", [None, "post_norm"])
def test_a_norm_after_the_mlp_is_loaded_where_the_config_names_one(after: str | None) -> None:
    spec, names = loaded(replace(tiny_config(), norms=LayerNorms(after_mlp=after)))
    assert (spec.layers[0].after_mlp is None) is (after is None)
    assert ("model.layers.0.post_norm.weight" in names) is (after is not None)


def test_an_offset_is_added_to_weights_of_norms_which_are_then_float32() -> None:
    spec, _ = loaded(replace(tiny_config(), norm_offset=1.0))
    norm = spec.layers[1].before_mlp
    assert norm.in_float32 and norm.weight.dtype == torch.float32 and bool((norm.weight == 2.0).all())


def test_equal_rotations_share_one_table() -> None:
    config = tiny_config()
    first, second = ropes(loaded(config)[0])
    assert first is second and first.cos.shape == (8, 8)
    sliding = replace(config, sliding_rope=replace(config.rope, theta=50.0), layer_windows=(None, 4))
    first, second = ropes(loaded(sliding)[0])
    assert not torch.equal(first.cos, second.cos)


def test_a_layer_without_rotation_has_a_table_that_rotates_nothing() -> None:
    first, second = ropes(loaded(replace(tiny_config(), unrotated_layers=(1,)))[0])
    assert bool((second.cos == 1).all()) and not second.sin.any()
    assert first.sin.any()
