"""base_states: one sequence for the modules, with positions where they take them."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from chairlift.model.transformers.base_model_runner import base_states


class Base(nn.Module):
    """Notes its arguments."""

    def forward(self, input_ids: Tensor, return_dict: bool, position_ids: Tensor | None = None, **rest: Any) -> Any:
        self.seen = {"ids": input_ids, "positions": position_ids, **rest}
        return SimpleNamespace(last_hidden_state=input_ids[..., None].float())


class WithoutPositions(Base):
    """Has no positions, as Bloom."""

    def forward(self, input_ids: Tensor, return_dict: bool, use_cache: bool = True) -> Any:  # type: ignore[override]
        return super().forward(input_ids, return_dict, use_cache=use_cache)


def test_tokens_are_one_sequence_and_positions_are_given_to_those_who_take_them() -> None:
    ids, positions = torch.tensor([5, 6, 7]), torch.tensor([0, 9, 3])
    base = Base()
    assert base_states(base, ids, positions, use_cache=False).tolist() == [[5.0], [6.0], [7.0]]
    assert base.seen["ids"].shape == (1, 3) and base.seen["positions"].tolist() == [[0, 9, 3]]
    assert base.seen["use_cache"] is False
    plain = WithoutPositions()
    assert base_states(plain, ids, positions, use_cache=False).shape == (3, 1) and plain.seen["positions"] is None
