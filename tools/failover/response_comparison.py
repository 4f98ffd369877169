"""read_response: what a response says, without how it was cut into chunks, so that two responses can be compared."""

import json
from collections.abc import Mapping
from typing import Any


class BadResponse(Exception):
    """A response is incomplete or contradicts itself; the message says how."""


def read_response(body: bytes, *, is_streamed: bool) -> dict[str, Any]:
    """Return the content of a complete response of status 200.

    "choices" has by index: each text of it, tool calls, token ids, logprobs and the finish reason. Members that differ
    between two runs of one request (`created`, cached tokens, tokens of a prediction) are left out. Raises BadResponse.
    """
    content = _read_stream(body) if is_streamed else _read_object(body)
    content.pop("created", None)
    if content.get("usage"):
        content["usage"].pop("prompt_tokens_details", None)
        details = content["usage"].get("completion_tokens_details") or {}
        for name in ("accepted_prediction_tokens", "rejected_prediction_tokens"):
            details.pop(name, None)
    return content


def num_received_tokens(body: bytes) -> int:
    """Return the number of tokens of a stream so far: its token ids, or its chunks where it has no ids."""
    lists = [part.partition(b"]")[0] for part in body.split(b'"token_ids":[')[1:]]
    return sum(1 + part.count(b",") for part in lists if part) if lists else body.count(b'"choices":[{')


def difference(expected: Mapping[str, Any], received: Mapping[str, Any]) -> str:
    """Return the first difference of two contents as a sentence, "" if they are equal."""
    return _difference("response", expected, received)


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(body)
    except ValueError:
        raise BadResponse(f"the body is no JSON: {body[-200:]!r}") from None
    return content


def _read_stream(body: bytes) -> dict[str, Any]:
    if not body.endswith(b"data: [DONE]\n\n"):
        raise BadResponse(f"the stream ends without [DONE]: {body[-300:]!r}")
    content: dict[str, Any] = {"choices": {}}
    num_counted = 0
    for event in body.split(b"\n\n")[:-2]:
        if event.startswith(b":"):
            continue  # a comment of a stream that was silent
        if not event.startswith(b"data: {"):
            raise BadResponse(f"the stream has another event: {event[:300]!r}")
        chunk = json.loads(event.removeprefix(b"data: "))
        for name in ("id", "model", "object", "system_fingerprint", "created"):
            if content.setdefault(name, chunk.get(name)) != chunk.get(name):
                raise BadResponse(f"{name} changes from {content[name]} to {chunk.get(name)}")
        for choice in chunk["choices"]:
            _add(content["choices"].setdefault(choice["index"], {}), choice)
        if usage := chunk.get("usage"):
            if "usage" in content:
                raise BadResponse("the stream goes on behind its usage")
            if chunk["choices"] or num_counted:
                num_counted = _count(usage, num_counted, content["choices"], is_last=not chunk["choices"])
            if not chunk["choices"]:
                content["usage"] = usage
    return content


def _count(usage: dict[str, int], before: int, choices: dict[int, dict[str, Any]], *, is_last: bool) -> int:
    """Return the output tokens that a chunk counts; `before` are those of the chunk before."""
    num_tokens = usage["completion_tokens"]
    if num_tokens < before or (is_last and num_tokens != before):
        raise BadResponse(f"the stream counts {num_tokens} tokens behind {before}")
    if usage["total_tokens"] != usage["prompt_tokens"] + num_tokens:
        raise BadResponse(f"the total of {usage} is no sum")
    known = [len(choice["token_ids"]) for choice in choices.values() if "token_ids" in choice]
    if known and len(known) == len(choices) and sum(known) != num_tokens:
        raise BadResponse(f"the stream counts {num_tokens} tokens of {sum(known)}")
    return num_tokens


def _add(joined: dict[str, Any], choice: dict[str, Any]) -> None:
    """Add a chunk's choice to what its choice has so far."""
    if joined.get("finish_reason"):
        raise BadResponse(f"choice {choice['index']} goes on behind its finish reason")
    joined["finish_reason"] = choice["finish_reason"]
    if (token_ids := choice.get("token_ids")) is not None:
        own = joined.setdefault("token_ids", [])
        if choice["position"] != len(own):
            raise BadResponse(f"choice {choice['index']} is at token {choice['position']} instead of {len(own)}")
        own += token_ids
    for name, value in (choice.get("logprobs") or {}).items():
        if value is not None:
            joined.setdefault("logprobs", {}).setdefault(name, []).extend(value)
    texts = choice["delta"] if "delta" in choice else {"text": choice["text"]}
    for name, value in texts.items():
        if name == "tool_calls":
            _add_tool_calls(joined.setdefault("tool_calls", {}), value)
        elif value is not None:
            joined[name] = joined.get(name, "") + value


def _add_tool_calls(joined: dict[int, dict[str, Any]], calls: list[dict[str, Any]]) -> None:
    for call in calls:
        own = joined.setdefault(call["index"], {"arguments": ""})
        function = call.get("function", {})
        own["arguments"] += function.get("arguments") or ""
        for name, value in (("id", call.get("id")), ("name", function.get("name")), ("type", call.get("type"))):
            if value is not None and own.setdefault(name, value) != value:
                raise BadResponse(f"the {name} of tool call {call['index']} changes from {own[name]} to {value}")


def _difference(path: str, expected: Any, received: Any) -> str:
    if isinstance(expected, dict) and isinstance(received, dict):
        for name in [*expected, *(name for name in received if name not in expected)]:
            if found := _difference(f"{path}.{name}", expected.get(name), received.get(name)):
                return found
        return ""
    if isinstance(expected, list) and isinstance(received, list) and len(expected) == len(received):
        pairs = enumerate(zip(expected, received, strict=True))
        return next((found for at, (a, b) in pairs if (found := _difference(f"{path}[{at}]", a, b))), "")
    if expected == received:
        return ""
    if isinstance(expected, str | list) and isinstance(received, type(expected)):
        pairs = enumerate(zip(expected, received, strict=False))
        at = next((at for at, (a, b) in pairs if a != b), min(len(expected), len(received)))
        return (
            f"{path} has length {len(received)} instead of {len(expected)} and differs from {at} on: "
            f"{received[at : at + 60]!r} instead of {expected[at : at + 60]!r}"
        )
    return f"{path} is {received!r} instead of {expected!r}"
