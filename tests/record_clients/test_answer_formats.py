"""The real client libraries read the scripted answers, whole and streamed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import ollama
import openai
import pytest

from record_clients.answer_formats import ANSWER_FORMATS
from record_clients.scripted_answer import TEXT, ScriptedCall
from record_clients.stand_in_server import run_stand_in

CALL = ScriptedCall("read", {"path": "a"}, "I read.")
USER: Any = {"role": "user", "content": "Read a."}
SCHEMA: Any = {"type": "object", "properties": {"path": {"type": "string"}}}
FUNCTION: Any = {"name": "read", "parameters": SCHEMA}
Answer = tuple[str, list[tuple[str, Any]]]


async def ask_chat(url: str, stream: bool) -> Answer:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    tools: Any = [{"type": "function", "function": {**FUNCTION, "strict": True}}]
    asked = {"model": "m", "messages": [USER], "tools": tools}
    if not stream:
        message = (await client.chat.completions.create(**asked)).choices[0].message
    else:
        async with client.chat.completions.stream(**asked) as events:
            message = (await events.get_final_completion()).choices[0].message
    return message.content or "", [(each.function.name, each.function.arguments) for each in message.tool_calls or ()]


async def ask_responses(url: str, stream: bool) -> Answer:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    asked: Any = {"model": "m", "input": "Read a.", "tools": [{"type": "function", **FUNCTION}]}
    if not stream:
        response = await client.responses.create(**asked)
    else:
        async with client.responses.stream(**asked) as events:
            response = await events.get_final_response()
    return response.output_text, [
        (each.name, each.input if each.type == "custom_tool_call" else each.arguments)
        for each in response.output
        if each.type in ("function_call", "custom_tool_call")
    ]


async def ask_messages(url: str, stream: bool) -> Answer:
    client = anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0)
    tools: Any = [{"name": "read", "input_schema": SCHEMA}]
    asked: Any = {"model": "m", "max_tokens": 9, "messages": [USER], "tools": tools}
    if not stream:
        message = await client.messages.create(**asked)
    else:
        async with client.messages.stream(**asked) as events:
            message = await events.get_final_message()
    texts = [block.text for block in message.content if block.type == "text"]
    return "".join(texts), [(block.name, block.input) for block in message.content if block.type == "tool_use"]


async def ask_ollama(url: str, stream: bool) -> Answer:
    client = ollama.AsyncClient(host=url)
    asked: Any = {"model": "m", "messages": [USER], "tools": [{"type": "function", "function": FUNCTION}]}
    answer: Any = await client.chat(**asked, stream=stream)
    parts = [part async for part in answer] if stream else [answer]
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    text = "".join(part.message.content or "" for part in parts)
    return text, [(call.function.name, dict(call.function.arguments)) for call in calls]


CLIENTS = {
    "/v1/chat/completions": ask_chat, "/v1/responses": ask_responses, "/v1/messages": ask_messages,
    "/api/chat": ask_ollama,
}  # fmt: skip
OBJECT, STRING = {"path": "a"}, '{"path": "a"}'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ANSWER_FORMATS)
def test_clients_read_a_call_and_a_text(path: str, stream: bool) -> None:
    ask: Callable[[str, bool], Awaitable[Answer]] = CLIENTS[path]

    async def run(script: list[ScriptedCall]) -> Answer:
        async with run_stand_in(script) as server:
            return await ask(server.url, stream)

    arguments = OBJECT if path in ("/v1/messages", "/api/chat") else STRING
    assert asyncio.run(run([CALL])) == ("I read.", [("read", arguments)])
    assert asyncio.run(run([])) == (TEXT, [])


@pytest.mark.parametrize("stream", [False, True])
def test_a_string_is_a_call_of_a_custom_tool(stream: bool) -> None:
    async def run() -> Answer:
        async with run_stand_in([ScriptedCall("apply_patch", "*** Begin Patch")]) as server:
            return await ask_responses(server.url, stream)

    assert asyncio.run(run()) == ("", [("apply_patch", "*** Begin Patch")])
