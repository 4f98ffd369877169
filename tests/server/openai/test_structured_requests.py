"""Constraints over HTTP: what clients of other servers send is followed, and what is not enforced is named."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from chairlift.llm.build import build_service
from support_server import CHAT, COMPLETIONS, MODEL, open_server

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
PARAMETERS = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "uniqueItems": True, "maxItems": 2},
        "name": {"not": {"pattern": "^x"}, "type": "string", "maxLength": 3},
        "list": {"type": "array", "contains": {"const": 1}, "maxItems": 3, "items": {"enum": [1, 2]}},
        "mode": {"enum": ["a", "b"], "if": {"pattern": "^a"}, "then": {"const": "a"}},
    },
    "required": ["mode"],
}
SHORT = {"temperature": 0, "frequency_penalty": 2, "presence_penalty": 2}
"""Sampling that does not repeat white space."""

MESSAGES = [{"role": "user", "content": "x"}]
IGNORED = ("tags/uniqueItems", "name/not", "mode/if")
"""Places below /properties that no grammar enforces; it enforces `contains` over a finite set."""


def post(path: str, *bodies: dict[str, Any]) -> list[httpx.Response]:
    """Send requests to a server of the embedded model."""

    async def scenario() -> list[httpx.Response]:
        async with open_server(build_service(None, {})) as server:
            return [await server.http.post(path, json=body) for body in bodies]

    return asyncio.run(scenario())


def tool_body(**function: Any) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS, **function}}
    return {"model": MODEL, "messages": MESSAGES, "tools": [tool], "tool_choice": "required",
            "parallel_tool_calls": False, **SHORT, "max_tokens": 400}  # fmt: skip


@pytest.mark.full
def test_keywords_that_no_grammar_enforces_are_named_and_do_not_break_the_tool() -> None:
    [response] = post(CHAT, tool_body())
    assert response.status_code == 200, response.text
    places = {f"tools[0].function.parameters/properties/{place}" for place in IGNORED}
    assert set(response.headers["x-ignored-parameters"].split(", ")) == places
    [call] = response.json()["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["mode"] in ("a", "b") and 1 in arguments.get("list", [1])


def test_with_strict_such_a_keyword_is_400_by_name() -> None:
    [response] = post(CHAT, tool_body(strict=True))
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == "tools[0].function.parameters"
    assert "/properties/tags/uniqueItems" in error["message"] and len(error["message"]) < 400


CASES: list[tuple[dict[str, Any], Callable[[str], Any]]] = [
    ({"structured_outputs": {"json": SCHEMA}}, lambda text: json.loads(text)["a"] in (1, 2)),
    ({"structured_outputs": {"regex": "[ab]{3}"}}, lambda text: re.fullmatch("[ab]{3}", text)),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda text: text in ("yes", "no")),
    ({"structured_outputs": {"json_object": True, "disable_fallback": True}}, lambda text: text.lstrip()[0] == "{"),
    ({"guided_json": json.dumps(SCHEMA)}, lambda text: json.loads(text)["a"] in (1, 2)),
    ({"guided_regex": "[ab]{3}"}, lambda text: re.fullmatch("[ab]{3}", text)),
    ({"guided_choice": ["<tool_call>"]}, lambda text: text == "<tool_call>"),
    ({"guided_grammar": 'root ::= "a" "b"?'}, lambda text: text in ("a", "ab")),
    ({"response_format": {"type": "regex", "regex": "[ab]{3}"}}, lambda text: re.fullmatch("[ab]{3}", text)),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, lambda text: json.loads(text)["a"] in (1, 2)),
]


@pytest.mark.full
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_every_constraint_of_another_server_is_followed(path: str) -> None:
    prompt: dict[str, Any] = {"prompt": "x"} if path == COMPLETIONS else {"messages": MESSAGES}
    bodies = [{"model": MODEL, **prompt, "max_tokens": 150, **SHORT, **more} for more, _ in CASES]
    for (more, follows), response in zip(CASES, post(path, *bodies), strict=True):
        assert response.status_code == 200, response.text
        [choice] = response.json()["choices"]
        assert follows(choice["text"] if path == COMPLETIONS else choice["message"]["content"]), (more, choice)
        ignored = "structured_outputs.disable_fallback" if "disable_fallback" in str(more) else None
        assert response.headers.get("x-ignored-parameters") == ignored


def test_an_error_of_the_compiler_has_the_name_of_the_client() -> None:
    base = {"model": MODEL, "prompt": "x"}
    bad: list[dict[str, Any]] = [{"guided_regex": "(("}, {"structured_outputs": {"regex": "(("}}]
    for response, body in zip(post(COMPLETIONS, *({**base, **each} for each in bad)), bad, strict=True):
        error = response.json()["error"]
        assert response.status_code == 400 and [error["param"]] == [*body]
        assert error["message"] == f"{error['param']}: invalid regex: unclosed group"
