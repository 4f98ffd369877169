"""model_details and read_details: what is written is read, and nothing else."""

import pytest

from chairlift.core.model_facts import ModelFacts
from chairlift.protocol.model_details import CAPABILITIES, MAX_CHARS, model_details, read_details
from support_shares import for_each

FACTS = ModelFacts(architecture="LlamaForCausalLM", dtype="bfloat16", num_parameters=7, weight_bytes=14)


def test_what_is_written_is_read() -> None:
    details = model_details(FACTS, "cpu", CAPABILITIES)
    assert details == {
        "architecture": "LlamaForCausalLM", "dtype": "bfloat16", "num_parameters": 7, "weight_bytes": 14,
        "device": "cpu", "capabilities": [*CAPABILITIES],
    }  # fmt: skip
    assert read_details(details) == details


def test_what_is_not_known_is_left_out() -> None:
    assert model_details(ModelFacts(), "", ["completion"]) == {"capabilities": ["completion"]}


@pytest.mark.parametrize("value", [None, 7, "x", [], [{}]])
def test_other_values_are_none(value: object) -> None:
    assert read_details(value) is None


@for_each("value", [
    {}, {"capabilities": "tools"}, {"capabilities": {"tools": 1}, "x": 1}, {"dtype": "x" * (MAX_CHARS + 1)},
    {"num_parameters": -1}, {"num_parameters": True}, {"weight_bytes": 2**60}, {"weight_bytes": "7"}, {"device": None},
])  # fmt: skip
def test_what_is_out_of_bounds_is_left_out(value: object) -> None:
    assert read_details(value) == {"capabilities": []}
