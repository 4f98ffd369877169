"""TritonOps by Triton's interpreter, in float32: equal to TorchOps up to the last bits, also in whole models."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chairlift.model.attention.base import PagedKV
from chairlift.model.attention.kv_pages import allocate_kv
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.config.activations import ACTIVATIONS
from chairlift.model.config.experts_config import CLAMPED_SWIGLU
from chairlift.model.config.state_layers import STATE_CHUNK_TOKENS
from chairlift.model.kernels.float8_linear import Float8Weight, quantize_rows
from chairlift.model.layers.causal_lm_protocol import CausalLM, ForwardContext
from chairlift.model.layers.experts import Experts
from chairlift.model.layers.ops import Ops, TorchOps
from chairlift.model.layers.triton_ops import TritonOps
from chairlift.model.loading.model_building import load_model
from support_batches import Row, make_batch
from support_experts import HIDDEN as EXPERTS_HIDDEN
from support_experts import NAME, config_of, hf_layer, layer_tensors, loader_of
from support_models import save_tiny
from support_shares import for_each
from support_state_layers import (
    CONFIGS,
    entry_states,
    make_cache,
    random_inputs,
    random_layer,
    run_chunks,
    torch_run,
)

CPU = torch.device("cpu")
PLAIN, OPS = TorchOps(), TritonOps()
HIDDEN = (576, 2304, 80)
BLOCK_SIZE = 4


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def rotation(tokens: int, width: int) -> tuple[Tensor, Tensor]:
    angles = drawn(tokens, 1, width // 2)
    return torch.cat((angles.cos(), angles.cos()), -1), torch.cat((-angles.sin(), angles.sin()), -1)


def assert_equal(call: Callable[[Ops], Tensor | tuple[Tensor, ...]], atol: float = 3e-6) -> None:
    """Check that both Ops return the same shapes and, but for last bits, the same numbers."""
    torch.testing.assert_close(call(OPS), call(PLAIN), rtol=3e-6, atol=atol)


@pytest.mark.share(6)
@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("size", HIDDEN)
@pytest.mark.parametrize("norm", ["rms_norm", "rms_norm_float32"])
def test_norms_of_rows_equal_torchs(norm: str, size: int, rows: int) -> None:
    x, y, weight = drawn(rows, size) * 3, drawn(rows, size + 1)[:, 1:], drawn(size)
    assert_equal(lambda ops: getattr(ops, norm)(x, weight, 1e-5))
    assert_equal(lambda ops: getattr(ops, f"add_{norm}")(x, y, weight, 1e-5))
    assert torch.equal(getattr(OPS, f"add_{norm}")(x, y, weight, 1e-5)[0], x + y)


@pytest.mark.parametrize("norm", ["rms_norm", "rms_norm_float32"])
def test_norms_of_heads_have_a_weight_for_each_head(norm: str) -> None:
    for tokens, heads, size in ((5, 3, 16), (1, 5, 80), (0, 2, 8)):
        x, weight = drawn(tokens, heads + 2, size + 8)[:, 1 : heads + 1, :size], drawn(heads, size)
        assert_equal(lambda ops, x=x, weight=weight: getattr(ops, norm)(x, weight, 1e-6))


def test_a_norm_takes_any_strides_and_number_of_axes() -> None:
    weight = drawn(24)
    for x in (drawn(24), drawn(2, 3, 24), drawn(24, 5).T, drawn(2, 5, 3, 24)[:, ::2], drawn(4, 60)[::2, 10:34]):
        assert_equal(lambda ops, x=x: ops.rms_norm(x, weight, 1e-6))
        assert_equal(lambda ops, x=x: ops.add_rms_norm(x, x.flip(0), weight, 1e-6))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("activation", [*ACTIVATIONS, CLAMPED_SWIGLU])
def test_gated_activations_equal_torchs(activation: str) -> None:
    for rows, size in ((0, 96), (1, 1100), (3, 37)):
        both = drawn(rows, 2 * size) * 4
        halves, (gate, up) = both.chunk(2, -1), (drawn(rows, size) * 20, drawn(size, rows).T)
        for pair in (halves, (gate, up)):  # far below 0, 1 + erf has the last bits of 1
            assert_equal(lambda ops, pair=pair: ops.gated_activation(*pair, activation), atol=2e-5)


@for_each("architecture", ["Qwen2MoeForCausalLM", "GptOssForCausalLM", "DeepseekV3ForCausalLM"])
def test_layers_of_experts_equal_torchs(architecture: str) -> None:
    tensors = layer_tensors(architecture, hf_layer(architecture))
    experts = Experts.load(loader_of(tensors, torch.float32), NAME, config_of(architecture), EXPERTS_HIDDEN)
    x = drawn(21, EXPERTS_HIDDEN)
    chosen = experts.router(x, PLAIN)
    assert_equal(lambda ops: experts.of_chosen(x, chosen, ops), atol=2e-5)
    apart = replace(experts.weights, stacked=None)  # such as those of weights with codes
    torch.testing.assert_close(
        OPS.sum_of_experts(x, *chosen, apart), OPS.sum_of_experts(x, *chosen, experts.weights), rtol=1e-5, atol=2e-5
    )


def test_the_soft_cap_equals_torchs() -> None:
    for logits in (drawn(3, 1030) * 40, drawn(0, 5), drawn(9) / 1000, drawn(4, 12)[:, ::3]):
        assert_equal(lambda ops, logits=logits: ops.softcap(logits, 30.0))


def test_rotations_equal_torchs() -> None:
    for tokens, heads, width in ((5, 7, 16), (1, 3, 80), (0, 2, 8)):
        x = drawn(tokens, heads + 3, width + 8)[:, 2:-1, :width]
        assert_equal(lambda ops, x=x: ops.rotate(x, *rotation(*x.shape[::2])))


def test_the_rest_is_torchs() -> None:
    x, weight, bias = drawn(3, 4), drawn(5, 4), drawn(5)
    assert OPS.padded_size(7) == 7
    assert OPS.pack(weight) is weight
    assert_equal(lambda ops: ops.linear(x, weight, bias))
    assert_equal(lambda ops: ops.embed(torch.tensor([4, 0]), weight))


@dataclass(frozen=True)
class Heads:
    """Heads of tokens, and what is done with them."""

    heads: Tensor
    norm: tuple[Tensor, float] | None
    rotation: tuple[Tensor, Tensor]
    slots: Tensor

    @classmethod
    def drawn(cls, slots: list[int], num_heads: int, num_kv_heads: int, width: int, normed: bool) -> "Heads":
        tokens, num_all = len(slots), num_heads + 2 * num_kv_heads
        heads = drawn(tokens, num_all * width + 3)[:, 3:].unflatten(1, (num_all, width))
        norm = (drawn(num_heads + num_kv_heads, width), 1e-6) if normed else None
        return cls(heads, norm, rotation(tokens, width), torch.tensor(slots, dtype=torch.int64))

    def by_parts(self, backend: ReferenceAttention | TorchAttention, kv: PagedKV) -> Tensor:
        num_kv_heads = kv.key.shape[2]
        rotated, value = self.heads[:, :-num_kv_heads], self.heads[:, -num_kv_heads:]
        if self.norm is not None:
            rotated = PLAIN.rms_norm(rotated, *self.norm)
        rotated = PLAIN.rotate(rotated, *self.rotation)
        backend.write_kv(rotated[:, -num_kv_heads:], value, kv, self.slots)
        return rotated[:, :-num_kv_heads]


@pytest.mark.share(3)
@pytest.mark.parametrize("backend", [ReferenceAttention(), TorchAttention()], ids=["reference", "torch"])
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "width"), [(4, 2, 16), (3, 1, 80), (14, 2, 64)])
def test_heads_are_normalised_rotated_and_written(
    num_heads: int, num_kv_heads: int, width: int, normed: bool, backend: ReferenceAttention | TorchAttention
) -> None:
    case = Heads.drawn([9, -1, 3, 16, 0], num_heads, num_kv_heads, width, normed)
    found, expected = (
        backend.allocate_kv_cache(1, 5, BLOCK_SIZE, num_kv_heads, width, torch.float32, CPU)[0] for _ in range(2)
    )
    for kv in (found, expected):
        kv.key.fill_(7)
        kv.value.fill_(7)
    query = OPS.rotate_and_write(case.heads, case.norm, case.rotation, found, case.slots)
    torch.testing.assert_close(query, case.by_parts(backend, expected).contiguous(), rtol=3e-6, atol=3e-6)
    torch.testing.assert_close(found.key, expected.key, rtol=3e-6, atol=3e-6)
    assert torch.equal(found.value, expected.value)


@pytest.mark.parametrize("backend", [ReferenceAttention(), TorchAttention()], ids=["reference", "torch"])
def test_heads_are_written_to_a_cache_of_8_bit_floats(backend: ReferenceAttention | TorchAttention) -> None:
    """The interpreter rounds wrongly to 8 bits, so keys and values have few bits and the rotation is by no angle."""
    case = Heads.drawn([9, -1, 3, 16, 0], 4, 2, 16, False)
    few_bits = (200 * case.heads).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    few_bits[0] *= 2  # beyond the limits
    case = replace(case, heads=few_bits, rotation=(torch.ones(5, 1, 16), torch.zeros(5, 1, 16)))
    found, expected = (
        backend.allocate_kv_cache(1, 5, BLOCK_SIZE, 2, 16, torch.float8_e4m3fn, CPU)[0] for _ in range(2)
    )
    query = OPS.rotate_and_write(case.heads, case.norm, case.rotation, found, case.slots)
    assert torch.equal(query, case.by_parts(backend, expected)) and query.abs().max() > 448
    for ours, theirs in ((found.key, expected.key), (found.value, expected.value)):
        assert torch.equal(ours.float(), theirs.float()) and ours.float().abs().max() == 448


Cast = Callable[[Tensor], Tensor]
ROUNDED: dict[str, Callable[[Ops, Cast], Tensor]] = {
    "norm": lambda ops, to: ops.rms_norm(to(drawn(5, 48) * 3), to(drawn(48)), 1e-5),
    "norm of heads": lambda ops, to: ops.rms_norm(to(drawn(5, 3, 16)), to(drawn(3, 16)), 1e-5),
    "gemma's norm": lambda ops, to: ops.rms_norm_float32(to(drawn(5, 48) * 3), drawn(48) + 1, 1e-5),
    "norm of a sum": lambda ops, to: ops.add_rms_norm(*to(drawn(2, 5, 48)), to(drawn(48)), 1e-5)[1],
    "rotation": lambda ops, to: ops.rotate(to(drawn(5, 7, 16)), *map(to, rotation(5, 16))),
    "cap": lambda ops, to: ops.softcap(to(drawn(5, 9) * 40), 30.0),
    **{name: lambda ops, to, name=name: ops.gated_activation(*to(drawn(2, 4, 18)), name) for name in ACTIVATIONS},
}


@for_each("name", ROUNDED)
def test_float16_is_rounded_no_more_than_by_plain_torch(name: str) -> None:
    """bfloat16 needs a GPU, because the interpreter truncates it."""
    exact = ROUNDED[name](PLAIN, lambda tensor: tensor.half().double())
    found, plain = (ROUNDED[name](ops, Tensor.half) for ops in (OPS, PLAIN))
    assert found.dtype == torch.float16
    error, allowed = ((each.double() - exact).pow(2).mean().sqrt() for each in (found, plain))
    assert error <= 1.05 * allowed


def test_no_tokens_write_nothing() -> None:
    case = Heads.drawn([], 4, 2, 16, normed=True)
    kv = ReferenceAttention().allocate_kv_cache(1, 2, BLOCK_SIZE, 2, 16, torch.float32, CPU)[0]
    assert OPS.rotate_and_write(case.heads, case.norm, case.rotation, kv, case.slots).shape == (0, 4, 16)
    assert not kv.key.any()


def test_a_product_of_8_bit_floats_is_that_of_torch() -> None:
    x = torch.randint(-8, 9, (5, 96), generator=torch.Generator().manual_seed(1))[:, 16:64] * torch.ones(5, 1)
    x[:, 7] = 448.0  # so that no number needs rounding, which the interpreter does wrongly
    weight, bias = Float8Weight(*quantize_rows(drawn(32, 48))), drawn(32)
    for each in (None, bias):
        torch.testing.assert_close(OPS.linear(x, weight, each), PLAIN.linear(x, weight, each), rtol=0, atol=1e-5)


def test_no_operation_changes_its_arguments() -> None:
    x, other, weight = drawn(2, 4, 8), drawn(2, 4, 9)[..., :8], torch.ones(8)
    before, other_before = x.clone(), other.clone()
    OPS.rms_norm(x, weight, 1e-6), OPS.add_rms_norm(x, other, weight, 1e-6), OPS.gated_activation(x, other, "silu")
    OPS.rotate(x, *rotation(2, 8)), OPS.softcap(x, 2.0)
    assert torch.equal(x, before)
    assert torch.equal(other, other_before)


@dataclass
class CountingOps(TritonOps):
    """TritonOps that counts the fused operations."""

    num_writes: int = 0
    num_sums: int = 0

    def rotate_and_write(self, *arguments, **options) -> Tensor:
        self.num_writes += 1
        return super().rotate_and_write(*arguments, **options)

    def add_rms_norm(self, *arguments, **options) -> tuple[Tensor, Tensor]:
        self.num_sums += 1
        return super().add_rms_norm(*arguments, **options)


@dataclass
class OpaqueAttention(ReferenceAttention):
    """A backend whose cache only write_kv may write."""

    has_plain_kv: bool = False
    num_writes: int = field(default=0)

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        self.num_writes += 1
        super().write_kv(key, value, kv, slot_mapping)


def loaded(folder: Path, ops: Ops) -> CausalLM:
    model, _ = load_model(
        folder, dtype="float32", device=CPU, max_model_len=64, choose_backend=lambda _: TorchBackend(ops)
    )
    return model


def greedy(
    model: CausalLM, prompt: list[int], count: int, backend: ReferenceAttention | TorchAttention
) -> tuple[list[int], Tensor]:
    """Generate tokens with two tokens of padding in every step; returns them and the logits that chose them."""
    groups, blocks = model.groups, -(-(len(prompt) + count) // BLOCK_SIZE)
    kv = allocate_kv(backend, groups, blocks * len(groups.windows), BLOCK_SIZE, torch.float32, CPU)
    tables = tuple(tuple(range(group, kv[0].key.shape[0], len(groups.windows))) for group in range(len(groups.windows)))
    tokens, new, logits = list(prompt), list(prompt), []
    for _ in range(count):
        batch = make_batch([Row(len(new), len(tokens), tables)], BLOCK_SIZE, padding=2)
        states = model.forward(torch.tensor([*new, 0, 0]), ForwardContext(batch, kv, backend, backend.plan(batch)))
        logits.append(model.logits(states[len(new) - 1 : len(new)])[0])
        new = [int(logits[-1].argmax())]
        tokens += new
    return tokens[len(prompt) :], torch.stack(logits)


@pytest.mark.share(1)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma3", "gemma3-softcap"])
def test_greedy_tokens_equal_those_of_torch(kind: str, tmp_path: Path) -> None:
    folder, prompt = save_tiny(kind, tmp_path, 4), [3, 1, 4, 15]
    expected, logits = greedy(loaded(folder, PLAIN), prompt, 7, ReferenceAttention())
    tokens, found = greedy(loaded(folder, OPS), prompt, 7, ReferenceAttention())
    assert tokens == expected
    assert len(set(tokens)) > 3, "tokens that repeat would hide errors"
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_keys_are_written_by_the_backend_where_its_cache_is_not_plain(tmp_path: Path) -> None:
    folder, prompt = save_tiny("qwen3", tmp_path, 1), [5, 90, 17]
    for backend, writes in ((OpaqueAttention(), 0), (OpaqueAttention(has_plain_kv=True), 6), (TorchAttention(), 6)):
        ops = CountingOps()
        tokens, _ = greedy(loaded(folder, ops), prompt, 2, backend)
        assert tokens == greedy(loaded(folder, PLAIN), prompt, 2, ReferenceAttention())[0]
        assert ops.num_writes == writes  # 3 layers, 2 steps
        assert getattr(backend, "num_writes", 0) == (0 if writes else 6)
        assert ops.num_sums == 2 * 6  # before and after each MLP


@for_each("name", ["delta", "mamba2"])
def test_layers_with_a_state_equal_torchs(name: str) -> None:
    """The numbers of tokens end with a whole chunk: within one the states are other ones."""
    layer, x = random_layer(CONFIGS[name], torch.float32), random_inputs(3 * STATE_CHUNK_TOKENS, torch.float32)
    outputs, states = [], []
    for ops in (OPS, PLAIN):
        cache = make_cache(layer.config, torch.float32, chunk_tokens=ops.state_chunk_tokens)
        outputs.append(run_chunks(torch_run(layer, ops), cache, x, [20, 1, len(x) - 21]))
        states.append(entry_states(cache.layers[0], 0))
    torch.testing.assert_close(outputs, [outputs[1]] * 2, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states, [states[1]] * 2, rtol=1e-5, atol=1e-5)
