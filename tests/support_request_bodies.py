"""Minimal bodies of chats and completions, and functions that parse them with more fields."""

from typing import Any

import pytest
from hypothesis import strategies as st

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling_params import MODEL_DEFAULTS, SamplingParams
from chairlift.server.openai.chat_request import read_chat
from chairlift.server.openai.completion_request import read_completion
from chairlift.text.tool_formats.json_calls import HERMES

CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
COMPLETION_BODY = {"model": "m", "prompt": "Hello."}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4) | st.sampled_from(["{}", '{"x": NaN}', "c"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6,
)  # fmt: skip
"""Any JSON value, often one that a tool call may have."""


def unset(**fields: Any) -> SamplingParams:
    """Return the parameters of a body with these fields: the model decides the others."""
    return SamplingParams(**{**MODEL_DEFAULTS, **fields})


def chat(**more: Any) -> Any:
    """Parse a minimal chat body with more fields."""
    return read_chat({**CHAT_BODY, **more}, HERMES)


def completion(**more: Any) -> Any:
    """Parse a minimal completion body with more fields."""
    return read_completion({**COMPLETION_BODY, **more})


def rejection_message(parse: Any, param: str, **more: Any) -> str:
    """Assert that a body is rejected for the field `param`.

    Returns the error message, which starts with the field's name.
    """
    with pytest.raises(InvalidRequest) as caught:
        parse(**more)
    error = caught.value
    assert error.details["param"] == param
    assert error.message.startswith(param), error.message
    assert len(error.message) < 400
    return error.message


def schema_form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


def nested(depth: int) -> Any:
    """Return a value of objects and lists, `depth` levels deep."""
    result: Any = "x"
    for level in range(depth):
        result = [result] if level % 2 else {"a": result}
    return result


def outcome(parse: Any, *args: Any, **fields: Any) -> Any:
    """Return the parsed value, or the error that rejects it."""
    try:
        return parse(*args, **fields)
    except InvalidRequest as error:
        return error
