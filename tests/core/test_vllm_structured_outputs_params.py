"""StructuredOutputsParams: the form of vLLM is checked at construction, and errors name the member."""

import re
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.vllm_structured_outputs_params import StructuredOutputsParams
from support_shares import for_each


@for_each(
    ("options", "message"),
    [
        ({}, "structured_outputs needs exactly one of json, regex"),
        ({"json": {}, "regex": "a"}, "got json and regex"),
        ({"choice": []}, "structured_outputs.choice must not be empty"),
        ({"regex": 5}, "structured_outputs.regex must be a string"),
        ({"regex": "a", "whitespace_pattern": " "}, "structured_outputs.whitespace_pattern is not supported"),
        ({"structural_tag": "{}"}, "structured_outputs.structural_tag is not supported"),
        ({"regex": "a", "disable_any_whitespace": True}, "disable_any_whitespace is not supported"),
    ],
)
def test_the_form_of_vllm_is_checked_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        StructuredOutputsParams(**options)
