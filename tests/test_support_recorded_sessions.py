"""The recorded sessions have two turns or more, no prose of a client, and texts that a test can look for."""

import json
from typing import Any

import pytest

from record_clients.clients import CLIENTS
from record_clients.recorded_client import NOTE
from support_recorded_sessions import FOLDER, RecordedSession, recorded_sessions, texts_of

MAX_FILE_BYTES = 150_000
SESSIONS = {session.client: session for session in recorded_sessions()}


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    each = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for item in each for text in strings(item)]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_session_is_small_and_has_several_turns(name: str) -> None:
    session: RecordedSession = SESSIONS[name]
    generating = [request for request in session.requests if request.generates]
    assert len(generating) >= 2 and session.version
    assert (FOLDER / f"{name}.json").stat().st_size < MAX_FILE_BYTES
    texts = [texts_of(request.body) for request in generating]
    assert all(texts) and max(map(len, texts)) > 2
    if name != "aider":  # it has no tools: the model writes edits as text
        results = [text for request in generating for text in json.dumps(request.body).split('"') if "call_0" in text]
        assert results or session.client.endswith("ollama")


def test_texts_are_expanded_and_equal_ones_stay_equal() -> None:
    for session in SESSIONS.values():
        written = strings([request.body for request in session.requests])
        assert not [text for text in written if "⟦text" in text], session.client
        begins = {text.split()[0]: text for text in written if text.startswith("begin") and " end" in text}
        assert all(
            begins[text.split()[0]] == text for text in written if text.split()[:1] and text.split()[0] in begins
        )


def test_the_system_prompt_of_a_session_stays_the_same() -> None:
    for name in ("codex", "opencode", "qwen-code", "cline", "continue"):
        bodies = [
            request.body for request in SESSIONS[name].requests if request.generates and request.body.get("tools")
        ]
        first = [texts_of({**body, "tools": []})[0] for body in bodies]
        assert len(set(first)) == 1, name


def test_texts_are_those_that_the_model_must_see() -> None:
    marked = "begin1text word end1text"
    described = {"description": "begin2text word end2text"}
    schema = {"type": "object", "properties": {"a": {"description": "begin3text word end3text", "type": "string"}}}
    body = {
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": marked}],
        "messages": [
            {"role": "user", "content": " Hello. "},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": "{}"}}]},
            {"role": "tool", "content": [{"type": "text", "text": "one result"}]},
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "two"}]}]},
        ],
        "input": [{"type": "function_call_output", "output": "three"}, {"type": "reasoning", "content": ["hidden"]}],
        "tools": [
            {"type": "function", "function": {"name": "read", **described, "parameters": schema}},
            {"name": "write", "input_schema": schema}, {"type": "web_search", **described},
            {"type": "namespace", "name": "n", **described, "tools": [{"type": "function", "name": "inner"}]},
            {"type": "custom", "name": "patch", "format": {"definition": marked}},
        ],
    }  # fmt: skip
    messages = ["begin1text", "end1text", "Hello.", "one result", "two", "three"]
    tools = ["read", "begin2text", "end2text", "begin3text", "end3text", "write", "inner", "patch"]
    assert texts_of(body) == [*messages, *tools]
    assert texts_of(body, with_parameters=False) == [*messages, *(each for each in tools if "3text" not in each)]
    assert texts_of({"input": "a", "instructions": "b"}) == ["b", "a"]


def test_nothing_of_the_recording_machine_is_stored() -> None:
    for path in FOLDER.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert not [word for word in ("/tmp", "/root/", "localhost") if word in text], path.name
    assert NOTE.strip() == "Lunch is at noon."
