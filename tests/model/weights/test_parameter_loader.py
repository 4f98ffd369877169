"""ParameterLoader: parameters are new, contiguous, in the requested order, and packed for projections."""

from collections.abc import Sequence

import torch
from torch import Tensor

from chairlift.model.weights.linear_weight import LinearWeight
from chairlift.model.weights.parameter_loader import ParameterLoader, Part

FILE = {"a": torch.arange(6.0).view(2, 3), "b": torch.full((1, 3), 7.0), "n": torch.ones(3)}


def read(name: str, shape: tuple[int, ...]) -> Tensor:
    assert FILE[name].shape == shape
    return FILE[name]


def test_a_parameter_is_a_copy() -> None:
    taken = ParameterLoader(read)("n", (3,))
    assert torch.equal(taken, FILE["n"])
    assert taken.data_ptr() != FILE["n"].data_ptr()


def test_float32_is_not_rounded_to_the_dtype_of_the_others() -> None:
    exact = {"b": torch.tensor([1.0 + 2.0**-20])}
    take = ParameterLoader(lambda name, shape: exact[name].bfloat16(), read_float32=lambda name, shape: exact[name])
    assert torch.equal(take.float32("b", (1,)), exact["b"]) and take("b", (1,)).item() == 1.0
    rounded = ParameterLoader(lambda name, shape: exact[name].bfloat16()).float32("b", (1,))
    assert rounded.dtype == torch.float32 and rounded.item() == 1.0


def test_rows_stand_in_the_order_in_which_they_are_asked_for() -> None:
    both = ParameterLoader(read).concat([("b", (1, 3)), ("a", (2, 3))])
    assert torch.equal(both, torch.cat((FILE["b"], FILE["a"])))


def tensor(weight: LinearWeight) -> Tensor:
    assert isinstance(weight, Tensor)
    return weight


def test_a_matrix_is_packed_once_and_whole() -> None:
    packed: list[tuple[list[tuple[int, ...]], bool]] = []

    def pack(parts: Sequence[Part], loader: ParameterLoader, *, gated: bool) -> Tensor:
        packed.append(([shape for _, shape in parts], gated))
        return torch.cat([loader.read(*part) for part in parts]) * 2

    take = ParameterLoader(read, pack=pack)
    assert torch.equal(
        tensor(take.linear_weight([("a", (2, 3)), ("b", (1, 3))])), torch.cat((FILE["a"], FILE["b"])) * 2
    )
    assert packed == [([(2, 3), (1, 3)], False)]
    take("n", (3,)), take.concat([("a", (2, 3))]), take.embedding("a", (2, 3), tied=True)
    assert len(packed) == 1
    take.linear_weight([("a", (2, 3))], gated=True)
    assert packed[1:] == [([(2, 3)], True)]


def test_a_table_is_packed_where_it_is_the_head_and_that_is_wanted() -> None:
    take = ParameterLoader(
        read, pack=lambda parts, loader, *, gated: loader.read(*parts[0]) * 2, packs_table=lambda name, tied: tied
    )
    assert torch.equal(tensor(take.embedding("a", (2, 3), tied=True)), FILE["a"] * 2)
    assert torch.equal(tensor(take.embedding("a", (2, 3), tied=False)), FILE["a"])
