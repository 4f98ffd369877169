"""read_chat_request and others: bodies of Ollama's API as bodies of the OpenAI API."""

from collections.abc import Callable
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.ollama.fields import CHAT
from chairlift.protocol.ollama.request import (
    OllamaRequest,
    is_raw,
    read_chat_request,
    read_generate_request,
    read_raw_request,
    read_show_request,
)
from support_shares import for_each

HI = [{"role": "user", "content": "Hi"}]
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def chat(**fields: Any) -> OllamaRequest:
    return read_chat_request({"model": "m", "messages": HI, **fields})


def generate(**fields: Any) -> OllamaRequest:
    return read_generate_request({"model": "m", "prompt": "Hi", **fields})


def raw(**fields: Any) -> OllamaRequest:
    return read_raw_request({"model": "m", "prompt": "Hi", "raw": True, **fields})


def test_a_chat() -> None:
    assert chat().body == {"model": "m", "messages": HI, **STREAM}
    request = chat(model="m:latest", stream=False, options={"num_predict": 3, "num_ctx": 1}, keep_alive="5m", x=1)
    assert request.body == {"model": "m:latest", "messages": HI, "max_tokens": 3} and request.model == "m:latest"
    assert request.ignored == ("keep_alive", "x", "options.num_ctx") and request.load_reason == ""


@pytest.mark.parametrize(("think", "effort"), [
    (True, "medium"), (False, "none"), ("low", "low"), ("medium", "medium"), ("high", "high"), ("max", "max"),
])  # fmt: skip
def test_think_is_the_reasoning_effort(think: object, effort: str) -> None:
    assert chat(think=think).body["reasoning_effort"] == effort == generate(think=think).body["reasoning_effort"]
    assert raw(think=think).ignored == ("think",) and "reasoning_effort" not in chat().body


def test_formats() -> None:
    schema = {"type": "object"}
    assert chat(format="json").body["response_format"] == {"type": "json_object"}
    for request in (chat(format=schema), generate(format=schema), raw(format=schema)):
        assert request.body["response_format"] == {
            "type": "json_schema", "json_schema": {"name": "format", "schema": schema},
        }  # fmt: skip
        assert request.names.own_message("response_format.json_schema.schema is bad", "response_format") == (
            "format is bad"
        )
    assert "response_format" not in chat(format="").body


def test_tools_may_lack_their_type() -> None:
    tool = {"function": {"name": "f"}}
    assert chat(tools=[tool, 7]).body["tools"] == [{"type": "function", **tool}, 7]
    assert "tools" not in chat(tools=[]).body
    assert CHAT["tools"].schema["items"]["required"] == ["function"]


def test_a_prompt_is_a_conversation() -> None:
    system = {"role": "system", "content": "Be brief."}
    assert generate(system="Be brief.").body["messages"] == [system, *HI] and generate().body["messages"] == HI
    names = generate(system="Be brief.").names
    assert [names.own(param) for param in ("messages[0].content", "messages[1].content", "messages", "prompt")] == [
        "system", "prompt", "prompt", "prompt",
    ]  # fmt: skip
    assert generate().names.own("messages[0].content") == "prompt"
    assert generate(context=[1, 2], suffix="", template="", images=[]).ignored == ("context",)


def test_a_raw_prompt_is_a_completion() -> None:
    assert raw(stream=False).body == {"model": "m", "prompt": "Hi", "fill_context": True}
    assert raw(options={"num_predict": 3}, logprobs=True, top_logprobs=2).body == {
        "model": "m", "prompt": "Hi", "max_tokens": 3, "logprobs": 2, **STREAM,
    }  # fmt: skip
    assert is_raw({"raw": True}) and not is_raw({"raw": None}) and not is_raw({})


def test_logprobs() -> None:
    assert chat(logprobs=True, top_logprobs=20).body["top_logprobs"] == 20
    assert chat(logprobs=True).body["top_logprobs"] == 0 and "logprobs" not in chat(top_logprobs=0).body


@for_each(("keep_alive", "reason"), [
    (None, "load"), ("5m", "load"), (-1, "load"), (0, "unload"), ("0", "unload"), ("0s", "unload"), ("0h0m", "unload"),
    (0.0, "unload"), ("10s", "load"), ("", "load"), ([], "load"), (False, "load"),
])  # fmt: skip
def test_a_request_without_a_text_loads(keep_alive: object, reason: str) -> None:
    for read, body in (
        (read_chat_request, {"messages": []}), (read_chat_request, {}), (read_generate_request, {"prompt": ""}),
        (read_raw_request, {}),
    ):  # fmt: skip
        assert read({"model": "m", "keep_alive": keep_alive, **body}).load_reason == reason


BAD: list[tuple[Callable[..., OllamaRequest], dict[str, Any], str]] = [
    (chat, {"model": 7}, "model"), (chat, {"stream": "yes"}, "stream"),
    (chat, {"tools": {}}, "tools"), (chat, {"messages": [], "tools": [{}]}, "messages"), (chat, {"think": 1}, "think"),
    (chat, {"think": []}, "think"), (chat, {"format": "yaml"}, "format"), (chat, {"format": 7}, "format"),
    (chat, {"logprobs": 1}, "logprobs"), (chat, {"top_logprobs": 1}, "top_logprobs"),
    (chat, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (generate, {"prompt": 7}, "prompt"), (generate, {"system": 7}, "system"), (generate, {"raw": 1}, "raw"),
    (generate, {"images": ["x"]}, "images"), (generate, {"suffix": "x"}, "suffix"),
    (generate, {"template": "x"}, "template"), (raw, {"system": "x"}, "system"), (raw, {"think": "x"}, "think"),
    (raw, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
]  # fmt: skip


@for_each(("read", "fields", "param"), BAD)
def test_an_error_names_the_field(read: Callable[..., OllamaRequest], fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**{name: None if value is ... else value for name, value in fields.items()})
    assert caught.value.details["param"] == param and caught.value.message.startswith(param)


@for_each("read", [chat, generate, raw])
def test_a_request_without_a_model_leaves_it_to_the_inner_route(read: Callable[..., OllamaRequest]) -> None:
    for model in (None, ""):
        request = read(model=model)
        assert (request.body["model"], request.model) == ("", "")


def test_the_model_to_show() -> None:
    assert read_show_request({"model": "m:latest", "verbose": True}) == ("m:latest", ("verbose",))
    assert read_show_request({"name": "m"}) == read_show_request({"name": "m", "model": ""}) == ("m", ())
    assert read_show_request({"name": "m", "model": "m:latest"}) == ("m:latest", ())
    for body in ({}, {"name": None}, {"model": ""}, {"name": "", "model": None}):
        assert read_show_request(body) == ("", ()), "the only model"
    for body, param in (({"model": 7}, "model"), ({"name": 7}, "name"), ({"model": "m", "name": "n"}, "name")):
        with pytest.raises(InvalidRequest, match=f"^{param} "):
            read_show_request(body)
