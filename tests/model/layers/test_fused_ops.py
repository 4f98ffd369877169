"""FusedOps against TorchOps: equal in float32 up to the last bits, and no less exact in 16 bits."""

from collections.abc import Callable

import torch
from torch import Tensor

from chairlift.model.config.activations import ACTIVATIONS
from chairlift.model.layers.fused_ops import FusedOps
from chairlift.model.layers.ops import Ops, TorchOps
from chairlift.model.layers.select_ops import ops_for
from support_shares import for_each

CPU = torch.device("cpu")
PLAIN = TorchOps()


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def rotation() -> tuple[Tensor, Tensor]:
    angles = drawn(5, 1, 8)
    return torch.cat((angles.cos(), angles.cos()), -1), torch.cat((-angles.sin(), angles.sin()), -1)


CALLS: dict[str, Callable[[Ops, Callable[[Tensor], Tensor]], Tensor]] = {
    "norm": lambda ops, to: ops.rms_norm(to(drawn(5, 48) * 3), to(drawn(48)), 1e-5),
    "norm of heads": lambda ops, to: ops.rms_norm(to(drawn(5, 3, 16)), to(drawn(3, 16)), 1e-5),
    "gemma's norm": lambda ops, to: ops.rms_norm_float32(to(drawn(5, 48) * 3), to(drawn(48)).float() + 1, 1e-5),
    "gemma's norm of heads": lambda ops, to: ops.rms_norm_float32(to(drawn(5, 3, 16)), drawn(3, 16).float(), 1e-5),
    "norm of a sum": lambda ops, to: ops.add_rms_norm(to(drawn(5, 48)), to(drawn(5, 48) * 2), to(drawn(48)), 1e-5)[1],
    "gemma's norm of a sum": lambda ops, to: ops.add_rms_norm_float32(
        to(drawn(5, 48)), to(drawn(5, 48) * 2), drawn(48).float() + 1, 1e-5
    )[1],
    "rotation": lambda ops, to: ops.rotate(to(drawn(5, 7, 24))[:, 2:, :16], *map(to, rotation())),
    "cap": lambda ops, to: ops.softcap(to(drawn(5, 9) * 40), 30.0),
    "linear": lambda ops, to: ops.linear(to(drawn(5, 48)), to(drawn(7, 48)), to(drawn(7))),
    "packed": lambda ops, to: ops.linear(to(drawn(5, 48)), ops.pack(to(drawn(7, 48))), None),
    "embedding": lambda ops, to: ops.embed(torch.tensor([3, 0, 3]), to(drawn(4, 6))),
    **{
        name: lambda ops, to, name=name: ops.gated_activation(*to(drawn(4, 18)).chunk(2, -1), name)
        for name in ACTIVATIONS
    },
}


@for_each("packs", [False, True])
@for_each("name", CALLS)
def test_float32_equals_plain_torch_but_for_last_bits(name: str, packs: bool) -> None:
    ops = FusedOps(packs and ops_packs(torch.float32))
    assert torch.allclose(CALLS[name](ops, Tensor.float), CALLS[name](PLAIN, Tensor.float), rtol=2e-6, atol=5e-6)


@for_each("dtype", [torch.bfloat16, torch.float16])
@for_each("name", CALLS)
def test_16_bits_are_rounded_no_more_than_by_plain_torch(name: str, dtype: torch.dtype) -> None:
    def rounded(ops: Ops) -> Tensor:
        return CALLS[name](ops, lambda tensor: tensor.to(dtype))

    exact = CALLS[name](PLAIN, lambda tensor: tensor.to(dtype).double())
    found = rounded(FusedOps(ops_packs(dtype)))
    assert found.dtype == dtype
    error, plain = ((each.double() - exact).pow(2).mean().sqrt() for each in (found, rounded(PLAIN)))
    assert error <= 1.05 * plain


def test_nothing_changes_its_arguments() -> None:
    made: list[Tensor] = []

    def noted(tensor: Tensor) -> Tensor:
        made.append(tensor.float())
        return made[-1]

    for call in CALLS.values():
        call(FusedOps(False), noted)
        first = [tensor.clone() for tensor in made]
        made.clear()
        call(PLAIN, noted)
        assert all(torch.equal(*pair) for pair in zip(first, made, strict=True))
        made.clear()


def ops_packs(dtype: torch.dtype) -> bool:
    ops = ops_for(dtype, CPU)
    assert isinstance(ops, FusedOps)
    return ops.packs
