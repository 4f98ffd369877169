"""/v1/models, /tokenize, /detokenize and /tokenizer_info over a fake service."""

from typing import Any

import pytest

from support_server import open_server, run
from support_services import fake_service
from support_shares import for_each


def send_request(method: str, path: str, body: dict[str, Any] | None = None, **service: Any) -> Any:
    async def scenario() -> Any:
        async with open_server(fake_service(**service)) as server:
            return await server.http.request(method, path, json=body)

    return run(scenario())


def test_the_model_has_a_card() -> None:
    [card] = send_request("GET", "/v1/models").json()["data"]
    assert card["id"] == "fake" and card["object"] == "model" and card["max_model_len"] == 512
    assert card["max_input_tokens"] == card["max_tokens"] == 511
    assert send_request("GET", "/v1/models/fake").json() | {"created": 0} == card | {"created": 0}


@pytest.mark.parametrize("name", ["else", "", "a/b", "../fake"])
def test_other_models_are_not_found(name: str) -> None:
    response = send_request("GET", f"/v1/models/{name}")
    assert response.status_code == 404 and response.json()["error"]["code"] in ("model_not_found", "not_found")


def test_text_becomes_tokens_and_comes_back() -> None:
    data = send_request("POST", "/tokenize", {"prompt": "lift", "return_token_strs": True}).json()
    assert data == {"count": 4, "max_model_len": 512, "tokens": list(b"lift"), "token_strs": list("lift")}
    assert send_request("POST", "/detokenize", {"tokens": data["tokens"]}).json() == {"prompt": "lift"}


def test_the_named_tokens() -> None:
    spelled = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>", "unk_token": None}
    assert send_request("GET", "/tokenizer_info").json() == spelled
    assert send_request("GET", "/tokenizer_info", with_tokenizer=False).json() == dict.fromkeys(spelled)


def test_messages_become_the_prompt_that_a_chat_would_have() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert bytes(send_request("POST", "/tokenize", {"messages": messages}).json()["tokens"]) == b"user=hi;a="


INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
    ("/tokenize", {"prompt": 3}, "prompt"),
    ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/tokenize", {"messages": [{"role": "user", "content": "a"}] * 8193}, "messages"),
    ("/tokenize", {"messages": "a"}, "messages"),
    (
        "/tokenize",
        {"messages": [{"role": "assistant", "content": "a", "function_call": "f"}]},
        "messages[0].function_call",
    ),
    ("/tokenize", {"prompt": "a", "tools": [{"type": "function"}]}, "tools[0]"),
    ("/tokenize", {"prompt": "a", "tool_choice": "required"}, "tool_choice"),
    ("/tokenize", {"prompt": "a", "response_format": {"schema": {}}}, "response_format.type"),
    ("/tokenize", {"prompt": "a", "regex": 7}, "regex"),
    ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "regex": "a", "choice": ["a"]}, "choice"),
    ("/tokenize", {"prompt": "a", "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [128]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [True]}, "tokens"),
]


@for_each(("path", "body", "param"), INVALID)
def test_what_cannot_be_is_refused(path: str, body: dict[str, Any], param: str) -> None:
    response = send_request("POST", path, body)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_another_models_tokens_are_not_known_here() -> None:
    assert send_request("POST", "/tokenize", {"model": "else", "prompt": "a"}).status_code == 404


def test_without_a_tokenizer_there_is_no_text() -> None:
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        assert send_request("POST", path, body, with_tokenizer=False).status_code == 400


def test_fields_without_effect_are_named_and_refused_where_the_server_is_strict() -> None:
    for path, body in (("/tokenize", {"prompt": "a", "made_up": 1}), ("/detokenize", {"tokens": [1], "made_up": 1})):
        assert send_request("POST", path, body).headers["x-ignored-parameters"] == "made_up"

        async def send_to_strict_server(path: str = path, body: dict[str, Any] = body) -> Any:
            async with open_server(fake_service(), reject_unknown_fields=True) as server:
                return await server.http.post(path, json=body)

        response = run(send_to_strict_server())
        assert response.status_code == 400 and response.json()["error"]["param"] == "made_up"


def test_no_tools_are_the_same_as_none_at_all() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert (
        send_request("POST", "/tokenize", {**body, "tools": []}).json()
        == send_request("POST", "/tokenize", body).json()
    )


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("lift", "land")
]


@for_each(("fields", "names", "end"), [
    ({}, [], "hi;a="), ({"tool_choice": "none"}, [], "hi;a="), ({"tool_choice": "auto"}, ["lift", "land"], "hi;a="),
    ({"response_format": {"type": "json_object"}}, [], "hi;a="),
    ({"tool_choice": "required"}, ["lift", "land"], 'hi;a={"tool_calls": ['),
    ({"tool_choice": {"type": "function", "function": {"name": "lift"}}}, ["lift", "land"], 'hi;a={"tool_calls": ['),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
        {"type": "function", "function": {"name": "land"}}]}}}, ["land"], "hi;a="),
])  # fmt: skip
def test_messages_have_the_tokens_of_a_chat_with_these_fields(
    fields: dict[str, Any], names: list[str], end: str
) -> None:
    tools = {"tools": TOOLS} if fields else {}
    body = {"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low", **tools, **fields}
    data = send_request("POST", "/tokenize", body).json()
    text = bytes(data["tokens"]).decode()
    assert [name for name in ("lift", "land") if name in text] == names and text.endswith(end)
    assert data["count"] == len(text)


@for_each(("fields", "ignored"), [
    ({}, None), ({"response_format": {"type": "json_object"}}, "tools"), ({"regex": "a+"}, "tools"),
    ({"choice": ["a"]}, "tools"), ({"structured_outputs": {"regex": "a+", "x": 1}}, "tools, structured_outputs.x"),
    ({"guided_json": {"type": "array", "uniqueItems": True}}, "tools, guided_json/uniqueItems"),
    ({"messages": [{"role": "user", "content": "hi", "x": 1}]}, "messages.x"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
])  # fmt: skip
def test_fields_without_effect_are_those_of_a_chat(fields: dict[str, Any], ignored: str | None) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, **fields}
    response = send_request("POST", "/tokenize", body)
    assert response.headers.get("x-ignored-parameters") == ignored
    has_tools = "lift" in bytes(response.json()["tokens"]).decode()
    assert has_tools is not (ignored or "").startswith("tools"), "the prompt is that of the chat"


def test_a_choice_of_a_tool_that_is_missing_is_refused() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    choice = {"type": "function", "function": {"name": "missing"}}
    response = send_request("POST", "/tokenize", {**body, "tool_choice": choice})
    assert response.status_code == 400 and response.json()["error"]["param"] == "tool_choice"
