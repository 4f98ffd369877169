"""ANSWER_FORMATS: a scripted answer in the form of each API, whole or as the events of a stream."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from record_clients.scripted_answer import ScriptedAnswer

Json = dict[str, Any]
CREATED = 1_767_225_600
"""Unix seconds of every answer: 2026-01-01."""

MODEL = "recorded-model"
"""Name of the one model that the stand-in server has."""


def format_chat(answer: ScriptedAnswer) -> Json:
    """Return a completion of /v1/chat/completions."""
    message = {"role": "assistant", "content": answer.text or None, **_chat_calls(answer)}
    choice = {"index": 0, "message": message, "finish_reason": _chat_reason(answer), "logprobs": None}
    return {**_chat_head(answer, "chat.completion"), "choices": [choice], "usage": _chat_usage()}


def stream_chat(answer: ScriptedAnswer) -> Iterator[bytes]:
    """Yield the events of a streamed completion of /v1/chat/completions."""
    head = _chat_head(answer, "chat.completion.chunk")
    deltas: list[Json] = [{"role": "assistant", "content": answer.text}]
    if calls := _chat_calls(answer):
        deltas.append({"tool_calls": [{"index": 0, **calls["tool_calls"][0]}]})
    for delta in deltas:
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _chat_reason(answer)}]})
    yield _event({**head, "choices": [], "usage": _chat_usage()})
    yield b"data: [DONE]\n\n"


def _chat_head(answer: ScriptedAnswer, kind: str) -> Json:
    return {"id": f"chatcmpl-{answer.number}", "object": kind, "created": CREATED, "model": MODEL}


def _chat_usage() -> Json:
    return {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def _chat_reason(answer: ScriptedAnswer) -> str:
    return "stop" if answer.call is None else "tool_calls"


def _chat_calls(answer: ScriptedAnswer) -> Json:
    if answer.call is None:
        return {}
    function = {"name": answer.call.tool, "arguments": answer.call.input}
    return {"tool_calls": [{"id": answer.call_id, "type": "function", "function": function}]}


def format_response(answer: ScriptedAnswer) -> Json:
    """Return a response of /v1/responses."""
    return _response(answer, "completed", _items(answer))


def stream_response(answer: ScriptedAnswer) -> Iterator[bytes]:
    """Yield the events of a streamed response of /v1/responses."""
    events: list[Json] = [
        {"type": "response.created", "response": _response(answer, "in_progress", [])},
        {"type": "response.in_progress", "response": _response(answer, "in_progress", [])},
    ]
    for index, item in enumerate(_items(answer)):
        at = {"output_index": index, "item_id": item["id"]}
        events.append({"type": "response.output_item.added", "output_index": index, "item": _started(item)})
        if item["type"] == "message":
            (part,), here = item["content"], {**at, "content_index": 0}
            events += [
                {"type": "response.content_part.added", **here, "part": {**part, "text": ""}},
                {"type": "response.output_text.delta", **here, "delta": part["text"], "logprobs": []},
                {"type": "response.output_text.done", **here, "text": part["text"], "logprobs": []},
                {"type": "response.content_part.done", **here, "part": part},
            ]
        else:
            kind, name = _call_field(item)
            events += [
                {"type": f"response.{kind}.delta", **at, "delta": item[name]},
                {"type": f"response.{kind}.done", **at, name: item[name]},
            ]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": format_response(answer)})
    for number, event in enumerate(events):
        yield _event({**event, "sequence_number": number}, event["type"])


def _response(answer: ScriptedAnswer, status: str, items: list[Json]) -> Json:
    usage = {
        "input_tokens": 100, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 110,
    }  # fmt: skip
    return {
        "id": f"resp_{answer.number}", "object": "response",
        "created_at": CREATED, "status": status, "model": MODEL, "output": items,
        "error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], "usage": usage if status == "completed" else None,
    }  # fmt: skip


def _items(answer: ScriptedAnswer) -> list[Json]:
    items: list[Json] = []
    if answer.text:
        part = {"type": "output_text", "text": answer.text, "annotations": []}
        items.append({"type": "message", "status": "completed", "role": "assistant", "content": [part]})
    if (call := answer.call) is not None:
        ids = {"call_id": answer.call_id, "name": call.tool}
        items.append(
            {"type": "custom_tool_call", "status": "completed", **ids, "input": call.input}
            if call.is_custom
            else {"type": "function_call", "status": "completed", **ids, "arguments": call.input}
        )
    return [{"id": f"item_{answer.number}_{index}", **item} for index, item in enumerate(items)]


def _started(item: Json) -> Json:
    """Return an item as it is when it begins."""
    empty: Json = {"content": []} if item["type"] == "message" else {_call_field(item)[1]: ""}
    return {**item, "status": "in_progress", **empty}


def _call_field(item: Json) -> tuple[str, str]:
    """Return the name of a call's events and the field that has its arguments."""
    is_custom = item["type"] == "custom_tool_call"
    return ("custom_tool_call_input", "input") if is_custom else ("function_call_arguments", "arguments")


def format_message(answer: ScriptedAnswer) -> Json:
    """Return a message of /v1/messages."""
    return {**_message_head(answer), "content": _blocks(answer), "stop_reason": _stop_reason(answer)}


def stream_message(answer: ScriptedAnswer) -> Iterator[bytes]:
    """Yield the events of a streamed message of /v1/messages."""
    events: list[Json] = [{"type": "message_start", "message": _message_head(answer)}]
    for index, block in enumerate(_blocks(answer)):
        if block["type"] == "text":
            start, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [
            {"type": "content_block_start", "index": index, "content_block": start},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    end = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
    events += [{"type": "message_delta", "delta": end, "usage": {"output_tokens": 10}}, {"type": "message_stop"}]
    for event in events:
        yield _event(event, event["type"])


def _message_head(answer: ScriptedAnswer) -> Json:
    return {
        "id": f"msg_{answer.number}", "type": "message", "role": "assistant", "model": MODEL, "content": [],
        "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 100, "output_tokens": 10},
    }  # fmt: skip


def _blocks(answer: ScriptedAnswer) -> list[Json]:
    blocks: list[Json] = [{"type": "text", "text": answer.text}] if answer.text else []
    if (call := answer.call) is not None:
        blocks.append({"type": "tool_use", "id": answer.call_id, "name": call.tool, "input": call.arguments})
    return blocks


def _stop_reason(answer: ScriptedAnswer) -> str:
    return "end_turn" if answer.call is None else "tool_use"


def format_ollama(answer: ScriptedAnswer) -> Json:
    """Return a whole answer of /api/chat."""
    message: Json = {"role": "assistant", "content": answer.text}
    if answer.call is not None:
        message["tool_calls"] = [{"function": {"name": answer.call.tool, "arguments": answer.call.arguments}}]
    counts = {"prompt_eval_count": 100, "eval_count": 10, "total_duration": 1, "load_duration": 0}
    return {**_ollama_head(), "message": message, "done": True, "done_reason": "stop", **counts}


def stream_ollama(answer: ScriptedAnswer) -> Iterator[bytes]:
    """Yield the lines of a streamed answer of /api/chat."""
    whole = format_ollama(answer)
    yield json.dumps({**_ollama_head(), "message": whole["message"], "done": False}).encode() + b"\n"
    yield json.dumps({**whole, "message": {"role": "assistant", "content": ""}}).encode() + b"\n"


def _ollama_head() -> Json:
    return {"model": MODEL, "created_at": "2026-01-01T00:00:00Z"}


def _event(content: Json, name: str = "") -> bytes:
    """Return a server-sent event."""
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(content).encode() + b"\n\n"


ANSWER_FORMATS: dict[str, tuple[Callable[[ScriptedAnswer], Json], Callable[[ScriptedAnswer], Iterator[bytes]]]] = {
    "/v1/chat/completions": (format_chat, stream_chat),
    "/v1/responses": (format_response, stream_response),
    "/v1/messages": (format_message, stream_message),
    "/api/chat": (format_ollama, stream_ollama),
}
"""Path -> functions that format a whole answer and the parts of a streamed one."""
