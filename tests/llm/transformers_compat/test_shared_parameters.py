"""SharedParameters: a replaced or removed parameter is an error that names it; changes in place are none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from chairlift.llm.transformers_compat.shared_parameters import SharedParameters


def test_changes_in_place_are_no_replacement() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    shared = SharedParameters(model)
    with torch.no_grad():
        model[0].weight.zero_()
        model[1].bias.data = torch.ones(2)
    shared.check()
    model[1].bias = nn.Parameter(torch.ones(2))
    with pytest.raises(RuntimeError, match=r"the parameter 1\.bias was replaced"):
        shared.check()


@pytest.mark.parametrize("model", [None, "folder", Path("folder")])
def test_what_has_no_parameters_changes_nothing(model: Any) -> None:
    SharedParameters(model).check()


def test_a_removed_parameter_is_named() -> None:
    model = nn.Linear(2, 2)
    shared = SharedParameters(model)
    model.bias = None
    with pytest.raises(RuntimeError, match="bias"):
        shared.check()
