"""Layers of one input: found by the identity of the tensor, and right for any order of calls."""

import torch
from torch import Tensor, nn

from chairlift.model.transformers.linear_layers_with_shared_input import SharedLinear, SharedProduct, find_shared_inputs


class Layers(nn.Module):
    """Projections of the same and of other inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.twice = (nn.Linear(4, 4) for _ in range(4))
        self.child = nn.ModuleDict({"d": nn.Linear(4, 4)})

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.a(x) + self.b(x) + self.child["d"](x)
        return self.twice(self.c(y)) + self.twice(x)


def test_layers_of_one_parent_and_one_input_are_found() -> None:
    model = Layers()
    assert find_shared_inputs(model, lambda: model(torch.zeros(1, 4))) == [["a", "b"]]
    assert not any(module._forward_pre_hooks for module in model.modules())


def shared() -> tuple[list[SharedLinear], list[nn.Linear], list[int]]:
    linears, count = [nn.Linear(4, size) for size in (3, 1, 5)], [0]
    weight, bias = (torch.cat([getattr(each, name) for each in linears]) for name in ("weight", "bias"))

    def multiply(x: Tensor) -> Tensor:
        count[0] += 1
        return nn.functional.linear(x, weight, bias)

    product = SharedProduct(multiply, [3, 1, 5])
    return (
        [SharedLinear(product, index, 4, linear.out_features) for index, linear in enumerate(linears)],
        linears,
        count,
    )


def test_one_product_serves_all_layers_and_nothing_is_kept() -> None:
    made, linears, count = shared()
    x = torch.randn(2, 4)
    for order in ((0, 1, 2), (2, 0, 1)):
        count[0] = 0
        for index in order:
            assert torch.allclose(made[index](x), linears[index](x), atol=1e-6)
        assert count[0] == 1 and made[0].product._input is None


def test_other_inputs_and_repeated_calls_are_computed_again() -> None:
    made, linears, _ = shared()
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    for index, value in ((0, x), (1, y), (0, x), (0, x), (2, y), (1, y)):
        assert torch.allclose(made[index](value), linears[index](value), atol=1e-6)
    x = torch.randn(2, 4)
    made[0](x)
    x += 1  # a repeated call computes from what the tensor holds now
    assert torch.allclose(made[0](x), linears[0](x), atol=1e-6)
