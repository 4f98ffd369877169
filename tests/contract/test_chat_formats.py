"""Reasoning and calls of models of several kinds over HTTP: each API, streamed and not, chosen and forced calls.

The engine, its grammars, the tokenizers, the parsers and the routes are the real ones; the model writes what the test
says, in the tokens of a tokenizer that has the markers of the format.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import httpx
import pytest

from support_chat_formats import ARGUMENTS, FORMATS, PARAMETERS, THOUGHT, FormatRunner, format_service
from support_server import MODEL, events, open_server, run

Json = dict[str, Any]
NAMES = ("qwen-3.5", "gemma-4", "granite-3.3", "lfm-2", "lfm-2.5", "olmo-3-think", "ministral-3", "gpt-oss")
CALLS = [("look", ARGUMENTS), ("stop", {})]
FUNCTIONS = {"look": PARAMETERS, "stop": {"type": "object"}}
MAX_TOKENS = 2000


class Read(NamedTuple):
    """What a client has of an answer."""

    reasoning: str
    text: str
    calls: list[tuple[str, Any]]


class Api(NamedTuple):
    """One API.

    Attributes:
        path: its route.
        body: the tools, the reasoning and the limit of a request.
        user: member of the messages.
        choices: forced calls: of any tool, and of look.
        read: reads a response that is not streamed.
        read_stream: reads a streamed one.
        next_turn: messages of the answer in a response, with results for its calls.
    """

    path: str
    body: Json
    messages: str
    choices: tuple[Any, Any] | None
    read: Callable[[Json], Read]
    read_stream: Callable[[str], Read]
    next_turn: Callable[[Json], list[Json]]


def loads(calls: list[list[str]]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


def read_chat(body: Json) -> Read:
    message = body["choices"][0]["message"]
    calls = [[each["function"]["name"], each["function"]["arguments"]] for each in message.get("tool_calls", ())]
    return Read(message.get("reasoning_content", ""), message["content"] or "", loads(calls))


def read_chat_stream(text: str) -> Read:
    reasoning, content, calls = "", "", []
    *chunks, done = events(text)
    assert done == "[DONE]"
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
        reasoning += delta.get("reasoning_content") or ""
        content += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"].get("arguments", "")
    return Read(reasoning, content, loads(calls))


def next_chat_turn(body: Json) -> list[Json]:
    message = body["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": content}
        for call, content in zip(message["tool_calls"], ("sunny", "so"), strict=True)
    ]
    return [message, *results]


def read_response(body: Json) -> Read:
    reasoning, content, calls = "", "", []
    for item in body["output"]:
        if item["type"] == "reasoning":
            reasoning += "".join(part["text"] for part in item["content"])
        elif item["type"] == "message":
            content += "".join(part["text"] for part in item["content"])
        else:
            calls.append([item["name"], item["arguments"]])
    return Read(reasoning, content, loads(calls))


def read_response_stream(text: str) -> Read:
    found = [event for _, event in events(text)]
    deltas = "".join(each["delta"] for each in found if each["type"] == "response.function_call_arguments.delta")
    read = read_response(next(each["response"] for each in found if each["type"] == "response.completed"))
    assert deltas.replace(" ", "") == "".join(json.dumps(each, ensure_ascii=False) for _, each in read.calls).replace(
        " ", ""
    )
    return read


def next_response_turn(body: Json) -> list[Json]:
    calls = [item for item in body["output"] if item["type"] == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": output}
        for call, output in zip(calls, ("sunny", "so"), strict=True)
    ]
    return [*body["output"], *results]


def read_message(body: Json) -> Read:
    reasoning, content, calls = "", "", []
    for block in body["content"]:
        reasoning += block.get("thinking", "")
        content += block.get("text", "")
        if block["type"] == "tool_use":
            calls.append((block["name"], block["input"]))
    return Read(reasoning, content, calls)


def read_message_stream(text: str) -> Read:
    reasoning, content, calls = "", "", []
    for _, event in events(text):
        block, delta = event.get("content_block", {}), event.get("delta", {})
        if block.get("type") == "tool_use":
            calls.append([block["name"], ""])
        reasoning += delta.get("thinking", "")
        content += delta.get("text", "")
        if "partial_json" in delta:
            calls[-1][1] += delta["partial_json"]
    return Read(reasoning, content, loads([[name, arguments or "{}"] for name, arguments in calls]))


def next_message_turn(body: Json) -> list[Json]:
    calls = [block for block in body["content"] if block["type"] == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": content}
        for call, content in zip(calls, ("sunny", "so"), strict=True)
    ]
    return [{"role": "assistant", "content": body["content"]}, {"role": "user", "content": results}]


def read_ollama(*bodies: Json) -> Read:
    messages = [body["message"] for body in bodies]
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    return Read(
        "".join(message.get("thinking", "") for message in messages),
        "".join(message["content"] for message in messages),
        [(call["name"], call["arguments"]) for call in calls],
    )


def next_ollama_turn(body: Json) -> list[Json]:
    message = body["message"]
    results = [
        {"role": "tool", "tool_name": call["function"]["name"], "content": content}
        for call, content in zip(message["tool_calls"], ("sunny", "so"), strict=True)
    ]
    return [message, *results]


CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in FUNCTIONS.items()
]
APIS = {
    "chat": Api(
        "/v1/chat/completions", {"tools": CHAT_TOOLS, "reasoning_effort": "high", "max_tokens": MAX_TOKENS}, "messages",
        ("required", {"type": "function", "function": {"name": "look"}}), read_chat, read_chat_stream, next_chat_turn,
    ),
    "responses": Api(
        "/v1/responses",
        {
            "tools": [{"type": "function", "name": name, "parameters": schema} for name, schema in FUNCTIONS.items()],
            "reasoning": {"effort": "high"}, "max_output_tokens": MAX_TOKENS, "store": False,
        },
        "input", ("required", {"type": "function", "name": "look"}), read_response, read_response_stream,
        next_response_turn,
    ),
    "anthropic": Api(
        "/v1/messages",
        {
            "tools": [{"name": name, "input_schema": schema} for name, schema in FUNCTIONS.items()],
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": MAX_TOKENS,
        },
        "messages", ({"type": "any"}, {"type": "tool", "name": "look"}), read_message, read_message_stream,
        next_message_turn,
    ),
    "ollama": Api(
        "/api/chat", {"tools": CHAT_TOOLS, "think": True, "options": {"num_predict": MAX_TOKENS}}, "messages", None,
        read_ollama, lambda text: read_ollama(*map(json.loads, text.splitlines())), next_ollama_turn,
    ),
}  # fmt: skip


def serve(name: str, check: Callable[[httpx.AsyncClient, FormatRunner], Awaitable[None]]) -> None:
    """Serve the scripted model of a kind."""

    async def scenario() -> None:
        service, runner = format_service(name)
        async with open_server(service) as server:
            await check(server.http, runner)

    run(scenario())


async def ask(http: httpx.AsyncClient, api: Api, messages: list[Json], stream: bool, **more: Any) -> httpx.Response:
    body = {"model": MODEL, api.messages: messages, "stream": stream, **api.body, **more}
    response = await http.post(api.path, json=body)
    assert response.status_code == 200, response.text
    return response


USER: Json = {"role": "user", "content": "Where?"}


@pytest.mark.share(4)
@pytest.mark.parametrize("api", APIS.values(), ids=list(APIS))
@pytest.mark.parametrize("name", NAMES)
def test_reasoning_and_calls_and_the_turn_with_their_results(name: str, api: Api) -> None:
    thought = THOUGHT if FORMATS[name].reasoning else ""

    async def check(http: httpx.AsyncClient, runner: FormatRunner) -> None:
        runner.reply = FORMATS[name].answer
        expected = Read(thought, "", CALLS)
        response = await ask(http, api, [USER], False)
        assert api.read(response.json()) == expected
        assert api.read_stream((await ask(http, api, [USER], True)).text) == expected
        runner.prompts.clear()
        runner.reply = "It is sunny." if name != "gpt-oss" else "<|channel|>final<|message|>It is sunny."
        if FORMATS[name].begins_open:
            runner.reply = f"So.</think>{runner.reply}"
        answer = await ask(http, api, [USER, *api.next_turn(response.json())], False)
        assert api.read(answer.json()).text == "It is sunny."
        (prompt,) = runner.prompts
        at = 0
        for text in FORMATS[name].written:
            assert (at := prompt.find(text, at)) >= 0, (text, prompt)

    serve(name, check)


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "api", [each for each in APIS.values() if each.choices], ids=["chat", "responses", "anthropic"]
)
@pytest.mark.parametrize("name", NAMES)
def test_forced_calls(name: str, api: Api) -> None:
    """Behind the reasoning, and without it where the prompt does not begin it."""
    assert api.choices is not None
    choices = api.choices
    answer = FORMATS[name].answer
    thoughts = [answer.partition("\n</think>")[0] + "\n</think>\n"] if "</think>" in answer else []
    thoughts += [] if FORMATS[name].begins_open else [""]
    if name == "gemma-4":
        thoughts.append(f"<|channel>thought\n{THOUGHT}\n<channel|>")
    if name == "ministral-3":
        thoughts.append(f"[THINK]{THOUGHT}[/THINK]")

    async def check(http: httpx.AsyncClient, runner: FormatRunner) -> None:
        for thought in thoughts:
            runner.reply = thought + FORMATS[name].forced
            expected = Read(THOUGHT if thought else "", "", [("look", {"place": "Rome", "all": True})])
            for choice in choices:
                response = await ask(http, api, [USER], False, tool_choice=choice)
                assert api.read(response.json()) == expected
                streamed = await ask(http, api, [USER], True, tool_choice=choice)
                assert api.read_stream(streamed.text) == expected

    serve(name, check)


@pytest.mark.parametrize("name", ["gemma-4", "ministral-3", "olmo-3-think", "lfm-2.5"])
def test_json_that_a_client_asks_for_may_have_reasoning_before_it(name: str) -> None:
    answer = FORMATS[name].answer
    ends = {"gemma-4": "<channel|>", "ministral-3": "[/THINK]"}
    end = ends.get(name, "</think>")

    async def check(http: httpx.AsyncClient, runner: FormatRunner) -> None:
        runner.reply = f'{answer.partition(end)[0]}{end}{{"a": 1}}'
        body = {"model": MODEL, "messages": [USER], "reasoning_effort": "high", "max_tokens": MAX_TOKENS}
        form = {"type": "json_object"}
        response = await http.post("/v1/chat/completions", json={**body, "response_format": form})
        message = response.json()["choices"][0]["message"]
        assert json.loads(message["content"]) == {"a": 1} and message["reasoning_content"] == THOUGHT

    serve(name, check)


def test_a_call_that_max_tokens_has_cut_off_has_its_beginning() -> None:
    async def check(http: httpx.AsyncClient, runner: FormatRunner) -> None:
        runner.reply = FORMATS["lfm-2"].answer
        response = await ask(http, APIS["chat"], [USER], False, max_tokens=30)
        choice = response.json()["choices"][0]
        assert choice["finish_reason"] == "length"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "look" and call["function"]["arguments"].startswith('{"place": "')

    serve("lfm-2", check)
