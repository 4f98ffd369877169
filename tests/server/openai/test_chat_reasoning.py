"""Reasoning over HTTP: structure holds behind it, prompts switch it, and an answer goes on after its beginning.

The embedded model writes no reasoning, so its reasoning is delivered tokens that the request resumes from.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from chairlift.llm.build import build_service
from chairlift.llm.text_service import TextService
from chairlift.text.chat_template import ChatTemplate
from support_server import CHAT, events, open_server, run
from support_services import FAKE, AsciiTokenizer, fake_service

THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
OPENS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
HELLO = {"role": "user", "content": "Hello."}
BODY: dict[str, Any] = {"model": "fake", "messages": [HELLO], "temperature": 0, "max_tokens": 60}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def service() -> Iterator[TextService]:
    service = build_service(None, {})
    yield service
    service.client.close()


@asynccontextmanager
async def thinking_server(service: TextService, template: str, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Open a server over the embedded model with this template; the service stays open."""
    assert service.tokenizer is not None
    chat = ChatTemplate({"default": template}, service.tokenizer, **options)
    client = SharedClient(service.client)
    async with open_server(replace(service, chat_template=chat, client=client)) as server:
        yield server.http


class SharedClient:
    """An engine client that a server does not close."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def close(self) -> None:
        """Leave the client open."""


def send(service: TextService, template: str, *bodies: dict[str, Any], **options: Any) -> list[httpx.Response]:
    async def scenario() -> list[httpx.Response]:
        async with thinking_server(service, template, **options) as http:
            return [await http.post(CHAT, json={**BODY, **body}) for body in bodies]

    return run(scenario())


def ids(service: TextService, text: str) -> list[int]:
    assert service.tokenizer is not None
    return service.tokenizer.encode(text, add_special_tokens=False)


def stream_message(response: httpx.Response) -> dict[str, Any]:
    message: dict[str, Any] = {"content": "", "reasoning_content": ""}
    for event in events(response.text):
        for choice in event["choices"] if isinstance(event, dict) else ():
            for name in ("content", "reasoning_content"):
                message[name] += choice["delta"].get(name) or ""
            message["finish_reason"] = choice["finish_reason"]
    return message


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("template", "thought"), [(THINKS, "<think>Is {it}?</think>"), (OPENS, "Is {it}?\n</think>\n")]
)
@pytest.mark.parametrize(("constraint", "contents"), [
    ({"response_format": FORMAT}, None), ({"choice": ["yes", "no"]}, {"yes", "no"}),
    ({"regex": "[ab]{2}"}, {"aa", "ab", "ba", "bb"}),
])  # fmt: skip
def test_structure_holds_behind_the_reasoning(
    service: TextService, template: str, thought: str, constraint: dict[str, Any], contents: set[str] | None
) -> None:
    [response] = send(service, template, {**constraint, "resume": [ids(service, thought)]})
    [choice] = response.json()["choices"]
    assert choice["finish_reason"] == "stop" and choice["message"]["reasoning_content"] == "Is {it}?"
    content = choice["message"]["content"]
    assert isinstance(json.loads(content)["a"], bool) if contents is None else content in contents


def test_a_model_may_answer_at_once_where_the_prompt_does_not_open_the_reasoning(service: TextService) -> None:
    whole, streamed = send(
        service, THINKS, {"response_format": FORMAT}, {"response_format": FORMAT, "stream": True}
    )  # fmt: skip
    message = whole.json()["choices"][0]["message"]
    assert isinstance(json.loads(message["content"])["a"], bool) and "reasoning_content" not in message
    assert stream_message(streamed)["content"] == message["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_that_does_not_end_within_max_tokens_ends_with_length(service: TextService, stream: bool) -> None:
    [response] = send(service, OPENS, {"choice": ["yes", "no"], "max_tokens": 8, "stream": stream})
    if stream:
        message = stream_message(response)
        finish_reason = message.pop("finish_reason")
    else:
        [choice] = response.json()["choices"]
        finish_reason, message = choice["finish_reason"], choice["message"]
    assert finish_reason == "length" and message["reasoning_content"] and not message["content"]


def test_structure_begins_at_once_where_the_prompt_has_ended_the_reasoning(service: TextService) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}, "regex": "(<think>)?[ab]"}
    by_effort = {"reasoning_effort": "none", "regex": "[ab]{2}"}
    first, second = send(service, THINKS, off, by_effort)
    assert first.json()["choices"][0]["message"]["content"][-1] in "ab"
    assert second.json()["choices"][0]["message"]["content"] in {"aa", "ab", "ba", "bb"}


def test_reasoning_can_be_left_out_of_the_response(service: TextService) -> None:
    body = {"choice": ["yes"], "include_reasoning": False}
    resume = [ids(service, "<think>hm</think>")]
    whole, streamed = send(service, THINKS, {**body, "resume": resume}, {**body, "max_tokens": 8, "stream": True})
    message = whole.json()["choices"][0]["message"]
    assert message["content"] == "yes" and "reasoning_content" not in message
    assert stream_message(streamed)["reasoning_content"] == ""


def test_what_the_template_does_not_read_changes_nothing_and_is_named(service: TextService) -> None:
    plain = THINKS.partition("{% if enable_thinking")[0] + "{% endif %}"
    fields = {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high", "documents": [{"a": 1}]}
    with_fields, without = send(service, plain, fields, {})
    assert with_fields.headers["x-ignored-parameters"] == (
        "reasoning_effort, chat_template_kwargs.enable_thinking, documents"
    )
    assert with_fields.json()["choices"] == without.json()["choices"]
    [read] = send(service, THINKS, {"chat_template_kwargs": {"enable_thinking": False}})
    assert "x-ignored-parameters" not in read.headers

    async def tokenize() -> httpx.Response:
        async with thinking_server(service, plain) as http:
            return await http.post("/tokenize", json={"messages": [HELLO], "chat_template_kwargs": {"thinking": True}})

    assert run(tokenize()).headers["x-ignored-parameters"] == "chat_template_kwargs.thinking"


@pytest.mark.parametrize(("body", "param"), [
    ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template": "x"}, "chat_template"),
    ({"continue_final_message": True}, "messages"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
])  # fmt: skip
def test_what_a_request_may_not_set_is_refused(service: TextService, body: dict[str, Any], param: str) -> None:
    [response] = send(service, THINKS, body)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


@pytest.mark.share(1)
@pytest.mark.parametrize("prompt_flag", [{}, {"add_generation_prompt": False}])
def test_an_answer_goes_on_after_its_beginning(service: TextService, prompt_flag: dict[str, Any]) -> None:
    """The response is the continuation alone: the same as of the rendered text as a plain prompt."""
    assert service.tokenizer is not None
    messages = [HELLO, {"role": "assistant", "content": "Hello! I am"}]
    body = {"messages": messages, "continue_final_message": True, "max_tokens": 12, **prompt_flag}
    whole, streamed = send(service, THINKS, body, {**body, "stream": True})
    prompt = "<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\nHello! I am"

    async def complete() -> tuple[str, int]:
        async with thinking_server(service, THINKS) as http:
            completion = {"model": "fake", "prompt": prompt, "temperature": 0, "max_tokens": 12}
            response = (await http.post("/v1/completions", json=completion)).json()
            tokens = (await http.post("/tokenize", json={"messages": messages, "continue_final_message": True})).json()
            return response["choices"][0]["text"], tokens["count"]

    expected, count = run(complete())
    assert whole.json()["choices"][0]["message"]["content"] == expected == stream_message(streamed)["content"]
    assert whole.json()["usage"]["prompt_tokens"] == count


def test_a_continued_answer_may_still_reason(service: TextService) -> None:
    messages = [HELLO, {"role": "assistant", "content": "<think>\nThey say"}]
    body = {"messages": messages, "continue_final_message": True, "choice": ["yes", "no"]}
    resume = [ids(service, " hello.</think>")]
    [response] = send(service, THINKS, {**body, "resume": resume})
    message = response.json()["choices"][0]["message"]
    assert message["reasoning_content"] == "hello." and message["content"] in ("yes", "no")


def test_defaults_of_the_operator_hold_unless_the_request_decides(service: TextService) -> None:
    bodies = [{"choice": ["yes"]}, {"choice": ["yes"], "chat_template_kwargs": {"enable_thinking": True}}]
    off, on = send(service, THINKS, *bodies, default_variables={"enable_thinking": False})
    counts = [response.json()["usage"]["prompt_tokens"] for response in (off, on)]
    assert counts[0] > counts[1], "the empty block is a part of the prompt"


HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if tools %}{{ tools }}<|channel|>commentary{% endif %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


@pytest.mark.full
@pytest.mark.parametrize("before", ["<|channel|>analysis<|message|>Is {it}?<|end|><|start|>assistant", ""])
def test_structure_holds_in_the_final_channel_of_harmony(service: TextService, before: str) -> None:
    body = {"choice": ["yes", "no"], "max_tokens": 90, "resume": [ids(service, before)] if before else []}
    whole, streamed = send(service, HARMONY, body, {**body, "stream": True})
    message = whole.json()["choices"][0]["message"]
    assert message["content"] in ("yes", "no")
    assert message.get("reasoning_content") == ("Is {it}?" if before else None)
    assert stream_message(streamed)["content"] == message["content"]
    tools = [{"type": "function", "function": {"name": "f"}}]
    [with_tools] = send(service, HARMONY, {**body, "tools": tools})
    assert with_tools.json()["choices"][0]["message"]["content"] in ("yes", "no")
    assert with_tools.headers["x-ignored-parameters"] == "tools"


def test_without_a_reasoning_parser_harmony_channels_stay_in_the_content(service: TextService) -> None:
    """As with every other format: a client that reads the markers itself gets them all, in their order."""
    before = "<|channel|>analysis<|message|>Is {it}?<|end|><|start|>assistant<|channel|>final<|message|>No"
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"max_tokens": 70, "resume": [ids(service, before)]}
    for more in ({}, {"tools": tools}):
        [answer] = send(service, HARMONY, {**body, **more}, reasoning_parser="none")
        message = answer.json()["choices"][0]["message"]
        assert message["content"].startswith(before) and "reasoning_content" not in message
        [answer] = send(service, HARMONY, {**body, **more})
        message = answer.json()["choices"][0]["message"]
        assert message["reasoning_content"] == "Is {it}?" and message["content"].startswith("No")


class ThinkTokens(AsciiTokenizer):
    """A tokenizer whose markers of reasoning are special tokens."""

    special_tokens: Mapping[str, int] = {"[THINK]": 256, "[/THINK]": 257}


def test_markers_that_are_special_tokens_are_read_and_not_shown() -> None:
    """The template of a Mistral model; the tokens are delivered ones."""
    tokenizer = ThinkTokens()
    template = ChatTemplate({"default": "{{ messages[0].content }}[THINK][/THINK]{{ 'a' }}"}, tokenizer)
    service = replace(fake_service(replace(FAKE, vocab_size=258), tokenizer=tokenizer), chat_template=template)
    resume = [[256, *b"why", 257, *b"so"]]

    async def scenario() -> dict[str, Any]:
        async with open_server(service) as server:
            body = {"model": "fake", "messages": [HELLO], "max_tokens": 7, "resume": resume, "return_token_ids": True}
            message: dict[str, Any] = (await server.http.post(CHAT, json=body)).json()["choices"][0]["message"]
            return message

    message = run(scenario())
    assert (message["reasoning_content"], message["content"]) == ("why", "so")


def test_a_forced_call_comes_behind_the_reasoning(service: TextService) -> None:
    """With a format whose calls have no marker before them."""
    template = THINKS + "{% if tools %}<|python_tag|>{{ tools }}{% endif %}"
    function = {"name": "f", "parameters": SCHEMA}
    body = {"tools": [{"type": "function", "function": function}], "tool_choice": "required", "max_tokens": 90}
    resume = [ids(service, "<think>Call {it}.</think>")]
    whole, at_once = send(service, template, {**body, "resume": resume}, {**body, "resume": []})
    for response, thought in ((whole, "Call {it}."), (at_once, None)):
        message = response.json()["choices"][0]["message"]
        assert message.get("reasoning_content") == thought and message["content"] is None
        assert message["tool_calls"][0]["function"]["name"] == "f"
        assert isinstance(json.loads(message["tool_calls"][0]["function"]["arguments"])["a"], bool)


CALLS = {
    "": '{"tool_calls": [{"name": "',  # no tools in the template: the generic format
    "<tool_call>": "I look.\n<tool_call>\n",
}


@pytest.mark.full
@pytest.mark.parametrize("thought", ["<think>Call {it}.</think>\n", ""])
@pytest.mark.parametrize("marker", CALLS)
def test_a_call_that_the_model_chooses_to_make_is_enforced_behind_the_reasoning(
    service: TextService, marker: str, thought: str
) -> None:
    """In two choices, the second of which answers without a call; its end is left to the model."""
    template = THINKS + (f"{{% if tools %}}{marker}{{{{ tools }}}}{{% endif %}}" if marker else "")
    function = {"name": "f", "parameters": SCHEMA, "strict": True}
    text = "Hello" if marker else '{"response": "Hello'
    body = {
        "tools": [{"type": "function", "function": function}], "max_tokens": 90, "n": 2,
        "parallel_tool_calls": False,
        "resume": [ids(service, thought + CALLS[marker]), ids(service, thought + text)],
    }  # fmt: skip
    whole, streamed = send(service, template, body, {**body, "stream": True})
    called, answered = (choice["message"] for choice in whole.json()["choices"])
    assert "x-ignored-parameters" not in whole.headers and streamed.status_code == 200
    for message in (called, answered):
        assert message.get("reasoning_content") == ("Call {it}." if thought else None)
    first = called["tool_calls"][0]["function"]
    assert first["name"] == "f" and isinstance(json.loads(first["arguments"])["a"], bool)
    assert (called["content"] or "").strip() == ("I look." if marker else "")
    assert answered["content"].startswith("Hello") and "tool_calls" not in answered
