"""Take: what it hands out is new, in one piece, in the order asked for, and packed where a projection is meant."""

import torch
from torch import Tensor

from chairlift.model.take import Take

FILE = {"a": torch.arange(6.0).view(2, 3), "b": torch.full((1, 3), 7.0), "n": torch.ones(3)}


def read(name: str, shape: tuple[int, ...]) -> Tensor:
    assert FILE[name].shape == shape
    return FILE[name]


def test_a_parameter_is_a_copy() -> None:
    taken = Take(read)("n", (3,))
    assert torch.equal(taken, FILE["n"])
    assert taken.data_ptr() != FILE["n"].data_ptr()


def test_rows_stand_in_the_order_in_which_they_are_asked_for() -> None:
    both = Take(read).rows([("b", (1, 3)), ("a", (2, 3))])
    assert torch.equal(both, torch.cat((FILE["b"], FILE["a"])))


def test_a_matrix_is_packed_once_and_whole() -> None:
    packed: list[Tensor] = []

    def pack(weight: Tensor) -> Tensor:
        packed.append(weight)
        return weight * 2

    take = Take(read, pack=pack)
    assert torch.equal(take.matrix([("a", (2, 3)), ("b", (1, 3))]), torch.cat((FILE["a"], FILE["b"])) * 2)
    assert [tuple(weight.shape) for weight in packed] == [(3, 3)]
    take("n", (3,)), take.rows([("a", (2, 3))])
    assert len(packed) == 1
