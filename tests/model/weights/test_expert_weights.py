"""ExpertWeights: plain tensors lie in one; packed ones stay apart; biases of gates come before those of ups."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chairlift.model.kernels.int4_linear import Int4Weight
from chairlift.model.weights.expert_weights import ExpertWeights
from chairlift.model.weights.linear_weight import LinearWeight
from chairlift.model.weights.parameter_loader import ParameterLoader, Part
from support_experts import HIDDEN, NAME, config_of, hf_layer, layer_tensors, loader_of
from support_int4 import drawn_weight

GPT_OSS = "GptOssForCausalLM"


def test_plain_tensors_are_parts_of_one() -> None:
    config, tensors = config_of(GPT_OSS), layer_tensors(GPT_OSS, hf_layer(GPT_OSS))
    found = ExpertWeights.load(loader_of(tensors), f"{NAME}.experts", config, HIDDEN)
    assert found.stacked is not None and found.activation == config.activation
    for parts, stacked in zip((found.gate_up, found.down), found.stacked, strict=True):
        assert isinstance(stacked, torch.Tensor) and stacked.is_contiguous() and len(parts) == len(stacked) == 6
        for part, of_stack in zip(parts, stacked, strict=True):
            assert isinstance(part, torch.Tensor) and part.data_ptr() == of_stack.data_ptr()
    gate_up, down = found.stacked
    assert isinstance(gate_up, torch.Tensor) and isinstance(down, torch.Tensor)
    for index in range(6):
        own = {each: tensors[f"{NAME}.experts.{index}.{each}_proj.weight"] for each in ("gate", "up", "down")}
        assert torch.equal(gate_up[index], torch.cat((own["gate"], own["up"])))
        assert torch.equal(down[index], own["down"])
        biases = {each: tensors[f"{NAME}.experts.{index}.{each}_proj.bias"] for each in ("gate", "up", "down")}
        assert found.gate_up_bias is not None and found.down_bias is not None
        assert torch.equal(found.gate_up_bias[index], torch.cat((biases["gate"], biases["up"])))
        assert torch.equal(found.down_bias[index], biases["down"])


@dataclass
class Opaque:
    parts: list[Part]
    gated: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return sum(shape[0] for _, shape in self.parts), self.parts[0][1][1]


def test_names_and_shapes_are_found_without_memory() -> None:
    """As model_building.parameter_shapes does: a parameter is one expanded number, and several joined are the first."""
    shapes: dict[str, tuple[int, ...]] = {}
    scalar = torch.zeros(())

    def record(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        shapes[name] = shape
        return scalar.expand(shape)

    def pack(parts: Sequence[Part], loader: ParameterLoader, *, gated: bool) -> LinearWeight:
        return loader.concat(parts)

    loader = ParameterLoader(record, join=lambda parts: parts[0], pack=pack)
    found = ExpertWeights.load(loader, f"{NAME}.experts", config_of(GPT_OSS), HIDDEN)
    expected = {name: tuple(each.shape) for name, each in layer_tensors(GPT_OSS, hf_layer(GPT_OSS)).items()}
    assert shapes == {name: shape for name, shape in expected.items() if ".experts." in name}
    assert found.stacked is None
    for weight in (*found.gate_up, *found.down):
        assert isinstance(weight, torch.Tensor) and weight.untyped_storage().data_ptr() == scalar.data_ptr()


def test_codes_of_4_bits_are_parts_of_one_weight() -> None:
    drawn = {name: drawn_weight(2 * 20 if "gate" in name else 24, 32, seed=at) for at, name in enumerate(
        f"m.{index}.{each}_proj.weight" for index in range(5) for each in ("gate", "down")
    )}  # fmt: skip

    def pack(parts: Sequence[Part], loader: ParameterLoader, *, gated: bool) -> LinearWeight:
        return drawn[parts[0][0]]

    config = config_of("MixtralForCausalLM")
    found = ExpertWeights.load(ParameterLoader(lambda name, shape: torch.empty(shape), pack=pack), "m", config, 24)
    assert found.stacked is not None
    for weights, stacked, name in zip((found.gate_up, found.down), found.stacked, ("gate", "down"), strict=True):
        assert isinstance(stacked, Int4Weight)
        own = [drawn[f"m.{index}.{name}_proj.weight"] for index in range(5)]
        assert torch.equal(stacked.dense(torch.float32), torch.cat([each.dense(torch.float32) for each in own]))
        for weight, expected in zip(weights, own, strict=True):
            assert isinstance(weight, Int4Weight) and weight.shape == expected.shape
            assert torch.equal(weight.dense(torch.float32), expected.dense(torch.float32))
            assert weight.codes.untyped_storage().data_ptr() == stacked.codes.untyped_storage().data_ptr()
    drawn["m.3.gate_proj.weight"] = drawn_weight(40, 32, torch.float32)  # scales of another dtype
    loader = ParameterLoader(lambda name, shape: torch.empty(shape), pack=pack)
    assert ExpertWeights.load(loader, "m", config, 24).stacked is None


def test_weights_of_two_types_stay_apart() -> None:
    def pack(parts: Sequence[Part], loader: ParameterLoader, *, gated: bool) -> LinearWeight:
        weight = torch.cat([loader.read(*part) for part in parts])
        return Opaque(list(parts), gated) if parts[0][0].startswith("m.2.") else weight

    loader = ParameterLoader(lambda name, shape: torch.full(shape, float(name.split(".")[1])), pack=pack)
    found = ExpertWeights.load(loader, "m", config_of("MixtralForCausalLM"), 24)
    assert found.stacked is None
    for weights in (found.gate_up, found.down):
        assert [isinstance(each, Opaque) for each in weights] == [False, False, True, False, False]
        assert [float(each[0, 0]) for each in weights if isinstance(each, torch.Tensor)] == [0.0, 1.0, 3.0, 4.0]


def test_packed_weights_stay_apart() -> None:
    def pack(parts: Sequence[Part], loader: ParameterLoader, *, gated: bool) -> LinearWeight:
        return Opaque(list(parts), gated)

    config = config_of("MixtralForCausalLM")
    found = ExpertWeights.load(ParameterLoader(lambda name, shape: torch.empty(shape), pack=pack), "m", config, 24)
    assert found.stacked is None and found.gate_up_bias is None and found.down_bias is None
    assert [(each.shape, each.gated) for each in found.gate_up if isinstance(each, Opaque)] == [((40, 24), True)] * 5
    assert [(each.shape, each.gated) for each in found.down if isinstance(each, Opaque)] == [((24, 20), False)] * 5
    last = found.gate_up[-1]
    assert isinstance(last, Opaque)
    assert [name for name, _ in last.parts] == ["m.4.gate_proj.weight", "m.4.up_proj.weight"]
