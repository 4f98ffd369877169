"""Recorded sessions of clients: their requests with expanded texts, and the texts that a prompt must have.

tools/record_clients writes the files in tests/contract/recorded_sessions.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from record_clients.session_redaction import BILLING_HEADER
from record_clients.text_placeholder import TextPlaceholder

FOLDER = Path(__file__).parent / "contract" / "recorded_sessions"
MARKER = re.compile(r"\A(begin\d+text) .* (end\d+text)\Z", re.DOTALL)
GENERATING_PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")
TOOLS_OF_CLIENT = ("function", "custom", "namespace", None)
"""Types of tools that the model can call; None is a tool of Anthropic's API, which has no type."""


@dataclass(frozen=True)
class RecordedRequest:
    """One request: its path may have a query; the body has the texts instead of their placeholders."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any

    @property
    def generates(self) -> bool:
        """Whether the request asks for an answer of a model."""
        return self.method == "POST" and self.path.partition("?")[0] in GENERATING_PATHS


@dataclass(frozen=True)
class RecordedSession:
    """The requests of one run of a client, in order."""

    client: str
    version: str
    requests: tuple[RecordedRequest, ...]


def recorded_sessions() -> list[RecordedSession]:
    """Return every recorded session. Bodies are made anew for each call, so a test may change them."""
    return [_read_session(path) for path in sorted(FOLDER.glob("*.json"))]


def _read_session(path: Path) -> RecordedSession:
    stored = json.loads(path.read_text(encoding="utf-8"))
    requests = tuple(RecordedRequest(**{**each, "body": _expand(each["body"])}) for each in stored["requests"])
    return RecordedSession(stored["client"], stored["version"], requests)


def _expand(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _expand(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_expand(each) for each in value]
    return _expand_text(value) if isinstance(value, str) else value


@cache
def _expand_text(text: str) -> str:
    placeholder = TextPlaceholder.parse(text)
    return text if placeholder is None else placeholder.expand()


def texts_of(body: Mapping[str, Any], *, with_parameters: bool = True) -> list[str]:
    """Return every text that the prompt of a request must have, in order: markers, or a whole text if it is short.

    These are the texts of instructions, messages, results, and descriptions of the tools that a model can call. Not
    among them are a line of a client for its provider's accounts, grammars, and descriptions of namespaces.

    Args:
        body: a request's body with expanded texts.
        with_parameters: whether the descriptions of the tools' parameters are among them.
    """
    parts = [body.get(name) for name in ("instructions", "system", "messages", "input")]
    texts = [marker for part in parts for text in _message_texts(part) for marker in _markers(text)]
    for tool in body.get("tools") or []:
        texts += [marker for text in _tool_texts(tool, with_parameters) for marker in _markers(text)]
    return list(dict.fromkeys(texts))


def _message_texts(value: Any) -> Iterator[str]:
    """Yield the texts of messages, items, blocks and parts, and the inputs of calls as far as they have markers."""
    if isinstance(value, str):
        if value.strip() and not value.startswith(BILLING_HEADER):
            yield value.strip()
    elif isinstance(value, list):
        for each in value:
            yield from _message_texts(each)
    elif isinstance(value, dict) and value.get("type") != "reasoning":
        for name in ("content", "text", "output", "reasoning_content", "thinking"):
            yield from _message_texts(value.get(name))


def _tool_texts(tool: Mapping[str, Any], with_parameters: bool) -> Iterator[str]:
    if tool.get("type") not in TOOLS_OF_CLIENT:
        return
    if tool.get("type") == "namespace":
        for each in tool["tools"]:
            yield from _tool_texts(each, with_parameters)
        return
    definition = tool.get("function") or tool.get("custom") or tool
    yield from filter(None, [definition["name"], definition.get("description")])
    if with_parameters:
        schema = definition.get("parameters") or definition.get("input_schema")
        yield from (text for text in _strings(schema) if MARKER.match(text))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _markers(text: str) -> tuple[str, ...]:
    match = MARKER.match(text)
    return (text,) if match is None else match.groups()
