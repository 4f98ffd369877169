"""NativeExperts against torch's experts in float64: every routing, kinds of weights, the same bits in every batch."""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.model.backends.native_backend import NativeBackend
from chairlift.model.backends.native_experts import NativeExperts
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.experts_config import ExpertsConfig, read_experts
from chairlift.model.config.runner_config import FILE_QUANTIZATION
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.packing import PackedWeight, Packer
from chairlift.model.kernels.cpu.threads import get_thread_pool
from chairlift.model.kernels.cpu.weight_kinds import DTYPES, KINDS
from chairlift.model.layers.expert_router import ChosenExperts
from chairlift.model.layers.experts import Experts
from chairlift.model.layers.ops import TorchOps
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.formats.safetensors import stored_weights
from chairlift.model.weights.formats.stacked_experts import canonical_experts
from chairlift.model.weights.gguf_blocks import dequantize
from chairlift.model.weights.parameter_loader import ParameterLoader, Part
from chairlift.model.weights.stored_weight import by_name
from support_experts import EXPERTS, NAME, config_of
from support_native import Operations, blocks, instruction_sets, linear, need_native, row_dtype
from support_shares import for_each

OPS = TorchOps()
HIDDEN = 96
ARCHITECTURES = (
    "MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM", "GraniteMoeForCausalLM",
    "DeepseekV3ForCausalLM", "Lfm2MoeForCausalLM",
)  # fmt: skip
BOUNDS = {"bfloat16": 0.01, "float32": 2e-6, "int8": 0.04, "int4": 0.35}
"""Kind of weights -> largest relative error of a layer: rounded weights and rows, and rounded gates in bfloat16."""


def parameters(config: ExpertsConfig, seed: int = 0) -> ParameterLoader:
    """Return a loader of random numbers that bfloat16 has exactly."""

    def read(name: str, shape: tuple[int, ...]) -> Tensor:
        dice = torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))
        scale = 0.3 if "bias" in name else 1.0 if ".gate.w" in name or "shared_expert_gate" in name else 0.15
        return (torch.randn(shape, generator=dice) * scale).bfloat16().double()

    return ParameterLoader(read)


def packed(loader: ParameterLoader, kind: str) -> ParameterLoader:
    """Return a loader whose weights are packed as a kind."""
    need_native()
    dtype = row_dtype(KINDS[kind])
    packer = Packer(get_thread_pool(2), KINDS[kind], dtype)

    def pack(parts: Sequence[Part], own: ParameterLoader, *, gated: bool) -> PackedWeight:
        return packer.pack([own.read(*part).float() for part in parts], gated=gated)[0]

    return replace(loader, read=lambda name, shape: loader.read(name, shape).to(dtype), pack=pack)


class Layer:
    """A decoder of one layer of experts."""

    def __init__(
        self, experts: Experts, name: str, dtype: torch.dtype, *, threads: int = 2, adds: bool = False,
        factor: float = 1.0, hidden: int = HIDDEN,
    ) -> None:  # fmt: skip
        self.hidden = hidden
        self.on = Operations(name, threads)
        self.native = NativeExperts(self.on.handle, self.on.pool, dtype, hidden)
        self.sources = {kind: self.on.buffer(kind, hidden) for kind in self.native.input_kinds(experts)}
        self.out = self.on.buffer(library.F32, hidden)
        self.residual = self.on.buffer(library.F32, hidden)
        self.has_norm = experts.router.config.norm_eps is not None
        self.native.add(
            experts,
            self.sources,
            self.out,
            adds=adds,
            factor=factor,
            router_rows=self.residual if self.has_norm else None,
        )

    def __call__(self, x: Tensor, *, initial: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        count = len(x)
        assert self.on.native.reserve(self.on.handle, count) == 0
        for kind, source in self.sources.items():
            dtype = torch.float32 if kind == library.F32 else torch.bfloat16
            self.on.rows(source, count, dtype)[:, : self.hidden] = x.to(dtype)
        out = self.on.rows(self.out, count, torch.float32)[:, : self.hidden]
        out.fill_(7.0) if initial is None else out.copy_(initial)
        if residual is not None:
            self.on.rows(self.residual, count, torch.float32)[:, : self.hidden] = residual
        self.on.run(count)
        return out.clone()


def rows(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed)).bfloat16().double()


def pair_of(architecture: str, kind: str, **changes: Any) -> tuple[Experts, Experts]:
    """Return a layer with packed weights, and the same one in float64."""
    config = config_of(architecture, **changes)
    exact = parameters(config)
    return (
        Experts.load(packed(exact, kind), NAME, config, HIDDEN),
        Experts.load(exact, NAME, config, HIDDEN),
    )


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("kind", BOUNDS)
@for_each("count", [1, 2, 45])
@for_each("architecture", ARCHITECTURES)
@for_each("name", instruction_sets())
def test_a_layer_is_that_of_float64(name: str, architecture: str, count: int, kind: str) -> None:
    native, exact = pair_of(architecture, kind)
    x = rows(count)
    found, expected = Layer(native, name, row_dtype(KINDS[kind]))(x), exact(x, OPS)
    assert error(found, expected) < BOUNDS[kind]
    assert expected.std() > 0.05


@for_each(("kind", "bound"), [("float16", 1e-4), ("int8-channel", 0.06), ("int6", 0.08)])
@for_each("architecture", ["Qwen2MoeForCausalLM", "GptOssForCausalLM"])
@for_each("name", instruction_sets())
def test_other_kinds_of_weights(name: str, architecture: str, kind: str, bound: float) -> None:
    native, exact = pair_of(architecture, kind)
    x, dtype = rows(21), row_dtype(KINDS[kind])
    together = Layer(native, name, dtype)(x)
    assert error(together, exact(x, OPS)) < bound
    assert torch.equal(Layer(native, name, dtype, threads=1)(x[4:6]), together[4:6])


@for_each("kinds", [("bfloat16", "int8"), ("int8", "bfloat16"), ("int8", "int8-channel")])
@for_each("name", instruction_sets())
def test_the_shared_expert_may_have_another_kind_than_the_others(name: str, kinds: tuple[str, str]) -> None:
    config = config_of("Qwen2MoeForCausalLM")
    exact = parameters(config)
    of_experts, of_shared = (packed(exact, kind) for kind in kinds)

    def pack(parts: Sequence[Part], own: ParameterLoader, *, gated: bool) -> PackedWeight:
        loader = of_shared if ".shared_expert." in parts[0][0] else of_experts
        weight = loader.linear_weight(parts, gated=gated)
        assert isinstance(weight, PackedWeight)
        return weight

    native = Experts.load(replace(of_experts, pack=pack), NAME, config, HIDDEN)
    layer, x = Layer(native, name, torch.bfloat16), rows(23)
    assert len(layer.sources) == (2 if "bfloat16" in kinds else 1)
    assert error(layer(x), Experts.load(exact, NAME, config, HIDDEN)(x, OPS)) < 0.05


@for_each("kind", ["bfloat16", "int8"])
@for_each("name", instruction_sets())
def test_the_result_is_added_and_multiplied_by_a_factor(name: str, kind: str) -> None:
    native, _ = pair_of("Qwen2MoeForCausalLM", kind)
    x, initial = rows(9), torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(3))
    dtype = row_dtype(KINDS[kind])
    plain = Layer(native, name, dtype)(x)
    added = Layer(native, name, dtype, adds=True, factor=0.22)(x, initial=initial)
    torch.testing.assert_close(added, initial + 0.22 * plain, rtol=1e-5, atol=1e-6)


@for_each("kind", BOUNDS)
@for_each(
    ("architecture", "sizes"),
    [
        ("Qwen2MoeForCausalLM", {"moe_intermediate_size": 45, "shared_expert_intermediate_size": 37}),
        ("GptOssForCausalLM", {"intermediate_size": 45}),
    ],
)
@for_each("name", instruction_sets())
def test_sizes_that_fill_no_vector(name: str, architecture: str, sizes: dict[str, int], kind: str) -> None:
    config = config_of(architecture, **sizes)
    exact = parameters(config)
    native, reference = (Experts.load(loader, NAME, config, 77) for loader in (packed(exact, kind), exact))
    x = rows(9)[:, :77]
    found = Layer(native, name, row_dtype(KINDS[kind]), hidden=77)(x)
    assert found.shape == (9, 77) and error(found, reference(x, OPS)) < BOUNDS[kind]


@for_each("kind", BOUNDS)
@for_each("architecture", ["Qwen3MoeForCausalLM", "GptOssForCausalLM", "DeepseekV3ForCausalLM"])
@for_each("name", instruction_sets())
def test_a_row_has_the_same_bits_in_every_batch_and_with_any_threads(
    name: str, architecture: str, kind: str
) -> None:  # fmt: skip
    native, _ = pair_of(architecture, kind)
    x, dtype = rows(70), row_dtype(KINDS[kind])
    together = Layer(native, name, dtype)(x)
    for first, count in ((0, 1), (3, 2), (10, 7), (20, 50), (0, 70)):
        alone = Layer(native, name, dtype, threads=1 + count % 3)(x[first : first + count])
        assert torch.equal(alone, together[first : first + count])
    order = torch.randperm(70, generator=torch.Generator().manual_seed(5))
    assert torch.equal(Layer(native, name, dtype, threads=3)(x[order]), together[order])


@for_each("kind", BOUNDS)
@for_each("name", instruction_sets())
def test_products_of_experts_have_the_bits_of_linear_operations(name: str, kind: str) -> None:
    """The layer has the products of its experts, each multiplied alone, and no other roundings but of the sum."""
    native, exact = pair_of("Qwen3MoeForCausalLM", kind, moe_intermediate_size=64)
    x, number = rows(12), KINDS[kind]
    chosen = exact.router(x, OPS)
    expected = torch.zeros(12, HIDDEN)
    for row in range(12):
        for expert, factor in zip(chosen.experts[row], chosen.factors[row], strict=True):
            gate_up, down = native.weights.gate_up[expert], native.weights.down[expert]
            assert isinstance(gate_up, PackedWeight) and isinstance(down, PackedWeight)
            inputs = x[row : row + 1].to(row_dtype(number) if number in DTYPES else torch.bfloat16)
            gated = gated_rows_of(name, inputs, gate_up, number)
            expected[row] += factor.float() * linear(name, gated, down, number)[0, :HIDDEN]
    found = Layer(native, name, row_dtype(number))(x)
    bound = 1e-6 if number in DTYPES else 0.02  # gates of quantized layers are float32 here and bfloat16 there
    assert error(found, expected.double()) < bound


def gated_rows_of(name: str, x: Tensor, weight: PackedWeight, kind: int) -> Tensor:
    return linear(name, x, weight, kind, mode=library.GATED)[:, :64]


@for_each(("kind", "inner"), [("MXFP4", 64), ("Q4_0", 32)])
@for_each("name", instruction_sets())
def test_experts_in_blocks_of_a_file_multiply_as_their_numbers(name: str, kind: str, inner: int) -> None:
    need_native()
    config = config_of("MixtralForCausalLM", intermediate_size=inner)
    exact, packer = parameters(config), Packer(get_thread_pool(2), library.BFLOAT16)
    dense: dict[str, Tensor] = {}

    def pack(parts: Sequence[Part], own: ParameterLoader, *, gated: bool) -> PackedWeight:
        of_parts = [blocks(kind, *shape, seed=zlib.crc32(part.encode())) for part, shape in parts]
        dense.update({part: dense_of(each) for (part, _), each in zip(parts, of_parts, strict=True)})
        weight, damaged = packer.pack_blocks(of_parts, gated=gated)
        assert not any(damaged)
        return weight

    def read(name: str, shape: tuple[int, ...]) -> Tensor:
        return dense[name] if name in dense else exact.read(name, shape)

    native = Experts.load(replace(exact, pack=pack), NAME, config, HIDDEN)
    reference = Experts.load(replace(exact, read=read), NAME, config, HIDDEN)
    x = rows(11)
    found, expected = Layer(native, name, torch.bfloat16)(x), reference(x, OPS)
    assert expected.isfinite().all() and error(found, expected) < 0.05


def test_the_codes_of_gpt_oss_stay_those_of_its_files(tmp_path: Path) -> None:
    need_native()
    architecture, dice = "GptOssForCausalLM", torch.Generator().manual_seed(2)

    def stacked(name: str, outputs: int, inputs: int) -> dict[str, Tensor]:
        blocks = torch.randint(0, 256, (6, outputs, inputs // 32, 16), generator=dice, dtype=torch.uint8)
        scales = torch.randint(120, 126, (6, outputs, inputs // 32), generator=dice, dtype=torch.uint8)
        bias = torch.randn(6, outputs, generator=dice).bfloat16()
        return {f"experts.{name}_blocks": blocks, f"experts.{name}_scales": scales, f"experts.{name}_bias": bias}

    tensors = stacked("gate_up_proj", 128, HIDDEN) | stacked("down_proj", HIDDEN, 64)
    tensors["router.weight"] = torch.randn(6, HIDDEN, generator=dice).bfloat16()
    tensors["router.bias"] = torch.randn(6, generator=dice).bfloat16()
    save_file({f"{NAME}.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(by_name(canonical_experts(EXPERTS[architecture], stored_weights(tmp_path, architecture))))
    config, cpu = config_of(architecture, intermediate_size=64), torch.device("cpu")
    loader = NativeBackend(FILE_QUANTIZATION, 2).wrap_loader(checkpoint.loader(torch.bfloat16, cpu))
    native = Experts.load(loader, NAME, config, HIDDEN)
    for weight in (*native.weights.gate_up, *native.weights.down):
        assert isinstance(weight, PackedWeight) and weight.struct.kind == library.MXFP4
    x = rows(25)
    expected = Experts.load(checkpoint.loader(torch.float64, cpu), NAME, config, HIDDEN)(x, OPS)
    for name in instruction_sets():
        assert error(Layer(native, name, torch.bfloat16)(x), expected) < 0.03


def dense_of(rows_of_blocks: Any) -> Tensor:
    return torch.from_numpy(dequantize(rows_of_blocks.rows, rows_of_blocks.type)).double()


@for_each("name", instruction_sets())
def test_gemmas_router_reads_rows_of_its_own(name: str) -> None:
    architecture = "Gemma4ForCausalLM"
    fields = {
        "num_experts": 9, "top_k_experts": 3, "moe_intermediate_size": 20, "enable_moe_block": True,
        "rms_norm_eps": 1e-6,
    }  # fmt: skip
    config = read_experts(EXPERTS[architecture], ConfigReader(fields, EXPERTS[architecture].defaults))
    assert config is not None
    exact = parameters(config)
    native, reference = (
        Experts.load(loader, NAME, config, HIDDEN) for loader in (packed(exact, "float32"), exact)
    )  # fmt: skip
    x, residual = rows(20), rows(20, seed=8) * 5
    found = Layer(native, name, torch.float32)(x, residual=residual)
    expected = reference.of_chosen(x, reference.router(residual, OPS), OPS)
    assert error(found, expected) < 3e-6


@for_each("name", instruction_sets())
def test_of_equal_logits_the_lower_index_is_chosen(name: str) -> None:
    config = config_of("GraniteMoeForCausalLM", num_local_experts=70, num_experts_per_tok=6)
    exact = parameters(config)
    zeros = replace(
        exact, read=lambda name, shape: torch.zeros(shape) if "gate.weight" in name else exact.read(name, shape)
    )
    native, reference = Experts.load(packed(zeros, "float32"), NAME, config, HIDDEN), Experts.load(
        exact, NAME, config, HIDDEN
    )  # fmt: skip
    x = rows(5)
    chosen = ChosenExperts(torch.arange(6).expand(5, 6).contiguous(), torch.full((5, 6), 1 / 6, dtype=torch.float64))
    assert error(Layer(native, name, torch.float32)(x), reference.of_chosen(x, chosen, OPS)) < 2e-6


@for_each("kind", ["bfloat16", "float32", "int8"])
@for_each("architecture", ["Qwen2MoeForCausalLM", "GptOssForCausalLM", "DeepseekV3ForCausalLM"])
@for_each("name", instruction_sets())
def test_what_is_no_number_stays_in_its_row(name: str, architecture: str, kind: str) -> None:
    native, _ = pair_of(architecture, kind)
    x, dtype = rows(8), row_dtype(KINDS[kind])
    clean = Layer(native, name, dtype)(x)
    others = [0, 1, 2, 4, 5, 6, 7]
    for bad in (torch.nan, torch.inf):
        invalid = x.clone()
        invalid[3, 5] = bad
        found = Layer(native, name, dtype)(invalid)
        assert not found[3].isfinite().all() and torch.equal(found[others], clean[others])


def test_one_decoder_may_have_several_layers_which_share_buffers() -> None:
    name = instruction_sets()[0]
    config = config_of("Qwen2MoeForCausalLM")
    on = Operations(name)
    native = NativeExperts(on.handle, on.pool, torch.bfloat16, HIDDEN)
    source = on.buffer(library.BF16, HIDDEN)
    outs, layers = [], []
    for seed in (0, 1):
        layers.append(Experts.load(packed(parameters(config, seed), "bfloat16"), NAME, config, HIDDEN))
        outs.append(on.buffer(library.F32, HIDDEN))
        native.add(layers[-1], {library.BF16: source}, outs[-1], adds=False)
    assert on.native.reserve(on.handle, 6) == 0
    x = rows(6)
    on.rows(source, 6, torch.bfloat16)[:, :HIDDEN] = x.bfloat16()
    for _ in range(2):
        on.run(6)
        for layer, out in zip(layers, outs, strict=True):
            assert torch.equal(on.rows(out, 6, torch.float32)[:, :HIDDEN], Layer(layer, name, torch.bfloat16)(x))


def test_experts_with_codes_beside_others_without_are_refused_with_a_remedy() -> None:
    config = config_of("MixtralForCausalLM")
    exact = parameters(config)
    some = packed(exact, "int8"), packed(exact, "bfloat16")

    def pack(parts: Sequence[Part], own: ParameterLoader, *, gated: bool) -> PackedWeight:
        weight = some[".3." in parts[0][0]].linear_weight(parts, gated=gated)
        assert isinstance(weight, PackedWeight)
        return weight

    experts = Experts.load(replace(some[1], pack=pack), NAME, config, HIDDEN)
    with pytest.raises(ConfigError, match="some of which have codes and others have not; set quantization to none"):
        Layer(experts, instruction_sets()[0], torch.bfloat16)


def test_plain_weights_are_an_error_of_ours() -> None:
    need_native()
    config = config_of("MixtralForCausalLM")
    experts = Experts.load(parameters(config), NAME, config, HIDDEN)
    with pytest.raises(AssertionError, match="packed weights"):
        Layer(experts, instruction_sets()[0], torch.bfloat16)
