"""plain_choice: words of several APIs for a choice of a tool."""

from typing import Any

from chairlift.protocol.plain_choice import plain_choice
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
