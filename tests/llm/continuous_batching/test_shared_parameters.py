"""SharedParameters: a parameter that is replaced is named, one that is changed in place is not."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from chairlift.llm.continuous_batching.attach import attach
from chairlift.llm.continuous_batching.shared_parameters import SharedParameters
from support_bridged_models import bridged_model


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


def test_the_end_of_a_pause_names_a_replaced_parameter_and_requests_go_on() -> None:
    model = attach(bridged_model("gpt2", dtype=torch.float32).eval())
    manager = model.init_continuous_batching(max_new_tokens=3)
    manager.start()
    new = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="change parameters in place"), manager.pause():
        model.load_state_dict(new, assign=True)
    manager.add_request([5, 6, 7], "r")
    assert manager.get_result("r", timeout=60).is_finished()
    manager.stop()
