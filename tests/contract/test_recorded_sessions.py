"""Recorded requests of agents with templates of seven kinds of models: 200, no text is lost, and tool calls loop."""

import json
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest

from support_server import run
from support_session_replay import (
    Json,
    Replay,
    answer_of,
    first_function,
    replaying,
    value_of,
    with_result,
    written_call,
    written_text,
)
from support_shares import FULL

TEMPLATES = ("llama-3.1", "mistral-small", "qwen-3.5", "gemma-3", "gpt-oss", "deepseek-v3.2", "command-r7b")
NO_NESTED_DESCRIPTIONS = ("gpt-oss",)
"""Those that leave out the descriptions of parameters within others, as the published ones do."""

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string", "description": "zqparameter"}}}
FUNCTION = {"name": "read_file", "description": "zqdescription", "parameters": PARAMETERS}
FLAT = {"type": "function", **FUNCTION}
BLOCK = {"name": "read_file", "description": "zqdescription", "input_schema": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "zqpath"}'}}


class Request(NamedTuple):
    """A request that asks for an answer, with the texts that its prompt must have."""

    path: str
    body: Json
    texts: tuple[str, ...]


OWN: dict[str, list[Request]] = {
    "own-chat": [Request("/v1/chat/completions", {
        "messages": [
            {"role": "system", "content": "zqsystem"}, {"role": "developer", "content": "zqdeveloper"},
            {"role": "user", "content": [{"type": "text", "text": "zquser1"}, {"type": "text", "text": "zquser2"}]},
            {"role": "assistant", "content": "zqanswer", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "zqresult"},
            {"role": "system", "content": "zqreminder"}, {"role": "user", "content": "zquser3"},
        ],
        "tools": [TOOL, {"type": "function", "function": {"name": "bare"}}],
    }, ("zqsystem", "zqdeveloper", "zquser1", "zquser2", "zqanswer", "zqpath", "zqresult", "zqreminder", "zquser3",
        "zqdescription", "zqparameter", "bare"))],
    "own-messages": [Request("/v1/messages?beta=true", {
        "max_tokens": 1000,
        "system": [{"type": "text", "text": "zqsystem1"}, {"type": "text", "text": "zqsystem2"}],
        "messages": [
            {"role": "user", "content": "zquser1"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "zqanswer"},
                {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "zqpath"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "zqresult"}]},
                {"type": "text", "text": "zquser2"},
            ]},
        ],
        "tools": [BLOCK],
    }, ("zqsystem1", "zqsystem2", "zquser1", "zqanswer", "zqpath", "zqresult", "zquser2", "zqdescription",
        "zqparameter"))],
    "own-responses": [Request("/v1/responses", {
        "instructions": "zqinstructions",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "zqdeveloper"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "zquser1"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "zquser2"}]},
            {"type": "function_call", "call_id": "call_1", "name": "read_file", "arguments": '{"path": "zqpath"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "zqresult"},
        ],
        "tools": [FLAT], "store": False,
    }, ("zqinstructions", "zqdeveloper", "zquser1", "zquser2", "zqpath", "zqresult", "zqdescription", "zqparameter"))],
    "own-ollama": [Request("/api/chat", {
        "messages": [
            {"role": "system", "content": "zqsystem"}, {"role": "user", "content": "zquser"},
            {"role": "assistant", "content": "zqanswer", "tool_calls": [
                {"function": {"name": "read_file", "arguments": {"path": "zqpath"}}},
            ]},
            {"role": "tool", "tool_name": "read_file", "content": "zqresult"},
        ],
        "tools": [TOOL],
    }, ("zqsystem", "zquser", "zqanswer", "zqpath", "zqresult", "zqdescription", "zqparameter"))],
}  # fmt: skip
"""Small conversations of each API; the recorded ones of real programs are further sessions."""


def sessions(*, with_parameters: bool = True) -> dict[str, list[Request]]:
    """Return the requests of each session."""
    recorded: dict[str, list[Request]] = {}
    if find_spec("support_recorded_sessions") is not None:
        module: Any = import_module("support_recorded_sessions")
        for at, session in enumerate(module.recorded_sessions()):
            recorded[f"{session.client}-{at}"] = [
                Request(each.path, each.body, tuple(module.texts_of(each.body, with_parameters=with_parameters)))
                for each in session.requests if each.generates
            ]  # fmt: skip
    return OWN | recorded


@pytest.mark.share(16)
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("session", sessions())
def test_a_session_of_a_client_is_answered(name: str, session: str) -> None:
    """Streamed and not, directly and through the router, each once; all four with CHAIRLIFT_FULL."""
    ways = [("direct", True), ("router", False), ("router", True), ("direct", False)]
    requests = sessions(with_parameters=name not in NO_NESTED_DESCRIPTIONS)[session]

    async def scenario() -> None:
        async with replaying(name) as replay:
            for number, request in enumerate(requests if FULL else requests[-2:]):
                for place, stream in ways if FULL else ways[number % 2 :: 2][:1]:
                    await check_loop(replay, name, place, request, {**request.body, "stream": stream})

    run(scenario(), timeout_seconds=300)


async def check_loop(replay: Replay, name: str, place: str, request: Request, body: Json) -> None:
    """Send a request, and another one with the result of the call that the model makes."""
    called = made_call(body)
    reply = written_text(name, "zqreply", has_tools=False) if called is None else written_call(name, *called)
    response, prompt = await replay.send(place, request.path, body, reply)
    check_texts(prompt, request.texts)
    text, calls = answer_of(request.path, response)
    if called is None:
        assert (text, calls) == ("zqreply", [])
        return
    [call] = calls
    assert (call.name, call.arguments) == called and not text.strip()
    more = with_result(request.path, body, call, "zqoutput")
    response, prompt = await replay.send(place, request.path, more, written_text(name, "zqreply", has_tools=True))
    check_texts(prompt, (*request.texts, "zqoutput", *(["zqargument"] if "zqargument" in reply else [])))
    assert answer_of(request.path, response) == ("zqreply", [])


def made_call(body: Json) -> tuple[str, Json] | None:
    """Return the name and the arguments of a call of a request's first function, None without one."""
    found = first_function(body)
    if found is None:
        return None
    name, parameters = found
    every = {**parameters, "required": parameters.get("required") or [*parameters.get("properties", {})][:1]}
    return name, value_of({"type": "object", **every}, "zqargument")


def check_texts(prompt: str, texts: tuple[str, ...]) -> None:
    """Check that a prompt has every text, as it is or as JSON."""
    lost = [text for text in texts if text not in prompt and json.dumps(text, ensure_ascii=False)[1:-1] not in prompt]
    assert not lost, f"{len(lost)} of {len(texts)} texts are not in the prompt: {lost[:5]}"
