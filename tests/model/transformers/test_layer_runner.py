"""base_states: positions are given to models that take them; unsupported: the error with its reason."""

from typing import Any

import pytest
import torch
from torch import nn

from chairlift.model.transformers.layer_runner import base_states, unsupported


class Recording(nn.Module):
    """A base model that records its options and returns zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.options: dict[str, Any] = {}

    def forward(self, input_ids: torch.Tensor, **options: Any) -> Any:
        self.options = options
        return type("Output", (), {"last_hidden_state": torch.zeros(*input_ids.shape, 4)})()


class WithPositions(Recording):
    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None, **options: Any) -> Any:
        return super().forward(input_ids, position_ids=position_ids, **options)


@pytest.mark.parametrize(("kind", "takes_positions"), [(Recording, False), (WithPositions, True)])
def test_positions_are_given_to_models_that_take_them(kind: type[Recording], takes_positions: bool) -> None:
    base, positions = kind(), torch.tensor([4, 5, 0])
    assert base_states(base, torch.tensor([7, 8, 9]), positions, use_cache=False).shape == (3, 4)
    assert base.options["use_cache"] is False and base.options["return_dict"] is True
    assert ("position_ids" in base.options) == takes_positions
    if takes_positions:
        assert base.options["position_ids"].tolist() == [[4, 5, 0]]


def test_the_reason_is_in_the_message_and_in_the_details() -> None:
    error = unsupported("it is round")
    assert error.message == "this model cannot run on a paged KV cache: it is round"
    assert error.details["reason"] == "it is round" and "causal attention" in str(error.details["remedy"])
