"""plain_choice: words of several APIs for a choice of a tool."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.plain_choice import allows_one_call, plain_choice
from support_shares import for_each

NAMED = {"type": "function", "name": "f"}


@for_each(("choice", "expected"), [
    ("any", "required"), ({"type": "any"}, "required"), ({"type": "required"}, "required"), ({"type": "auto"}, "auto"),
    ({"type": "none"}, "none"), ({"type": "tool", "name": "f"}, NAMED),
    *((each, each) for each in (
        None, "auto", "none", "required", "", "f", 7, [], ["any"], {}, {"type": None}, {"type": ["any"]}, NAMED,
        {"type": "function", "function": {"name": "f"}}, {"type": "web_search"}, {"type": "allowed_tools"},
    )),
])  # fmt: skip
def test_a_choice(choice: Any, expected: Any) -> None:
    assert plain_choice(choice) == expected


def test_one_call_at_most() -> None:
    assert allows_one_call({"type": "auto", "disable_parallel_tool_use": True})
    for choice in (None, "auto", {}, {"type": "any"}, {"disable_parallel_tool_use": False},
                   {"disable_parallel_tool_use": None}):  # fmt: skip
        assert not allows_one_call(choice)
    with pytest.raises(InvalidRequest, match=r"^tool_choice\.disable_parallel_tool_use must be"):
        allows_one_call({"disable_parallel_tool_use": "yes"})
