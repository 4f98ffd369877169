"""LoRARequest: vLLM's field names and order, and the check of their values."""

from typing import Any

import pytest

import chairlift
from chairlift.core.errors import InvalidRequest
from chairlift.lora.request import LoRARequest


def test_the_fields_are_those_of_vllm() -> None:
    request = LoRARequest("sql", 1, "/adapters/sql")
    assert (request.lora_name, request.lora_int_id, request.lora_path) == ("sql", 1, "/adapters/sql")
    assert chairlift.LoRARequest is LoRARequest


@pytest.mark.parametrize(("values", "field"), [
    (("", 1, "p"), "lora_name"), (("a", 0, "p"), "lora_int_id"), (("a", True, "p"), "lora_int_id"),
    (("a", 1, ""), "lora_path"), (("a", 1, None), "lora_path"),
])  # fmt: skip
def test_other_values_are_refused(values: tuple[Any, ...], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LoRARequest(*values)
    assert caught.value.details["param"] == field
