"""read_call_object: calls are read with their keys in any order."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from chairlift.text.tool_formats.json_calls import HERMES
from support_tool_formats import read

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(max_size=8), VALUES, st.booleans(), st.booleans())
def test_any_arguments_come_back(name: str, value: Any, is_turned: bool, ascii_only: bool) -> None:
    call = {"name": name or "f", "arguments": {"value": value}}
    order = dict(reversed(call.items())) if is_turned else call
    result = read(HERMES, *f"<tool_call>{json.dumps(order, ensure_ascii=ascii_only)}</tool_call>")
    ((call_name, arguments),) = result.calls
    assert (result.text, call_name, json.loads(arguments)) == ("", name or "f", {"value": value})
