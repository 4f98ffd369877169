"""SessionRedaction: makes a recorded session fit for the repository: no prose of clients, nothing of this machine."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from record_clients.text_placeholder import TextPlaceholder

KEPT_HEADERS = re.compile(
    r"content-type|accept|accept-encoding|transfer-encoding|expect|authorization|x-api-key|user-agent|anthropic-.*|x-app"
    r"|originator|session[-_]id|x-client-request-id|x-title|http-referer"
)
"""Names of the headers that a session has; others concern the connection or the client's runtime."""

EXACT_FIELDS = frozenset(
    ("name", "type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "model", "arguments", "enum", "const",
     "required", "pattern", "format", "$schema", "$ref", "prompt_cache_key")
)  # fmt: skip
"""Fields whose strings stay as they are: names, ids, and what JSON Schema says."""

MAX_KEPT_WORDS, MAX_KEPT_CHARACTERS = 4, 60
"""A longer string is prose."""

GRAMMAR = "start: line+\nline: /[^\\n]*\\n/\n"
"""Stands for the grammar of a custom tool."""

BILLING_HEADER = "x-anthropic-billing-header:"
UUID = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])")
HEX_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{32,128}(?![0-9a-f])")
ISO_TIME = re.compile(r"\b20\d\d-\d\d-\d\d(?=\b|T)(T\d\d:\d\d(:\d\d(\.\d+)?)?)?")
UNIX_MS = re.compile(r"\b17\d{11}\b|\b18\d{11}\b")
WRITTEN_DATE = re.compile(
    r"\b((?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, )?(?:January|February|March|April|May|June|July|August|September"
    r"|October|November|December) \d{1,2}, 20\d\d"
)


class SessionRedaction:
    """Replaces what must not be stored; equal values of a session are replaced by equal ones."""

    def __init__(self, values: Mapping[str, str], own_texts: Iterable[str]) -> None:
        """Take the values of `prepare_folders`, and the texts of our own, which stay."""
        self._values = {
            values["work"]: "/home/ada/project", values["home"]: "/home/ada",
            values["url"].removeprefix("http://"): "127.0.0.1:8000",
        }  # fmt: skip
        self._own_texts = frozenset(self._replace_values(text).strip() for text in own_texts)
        self._ids: dict[str, str] = {}
        self._numbers: dict[str, int] = {}

    def redact(self, session: Mapping[str, Any]) -> dict[str, Any]:
        """Return a session of `record_client` as it is stored."""
        return {
            **{name: session[name] for name in ("client", "version", "commands", "environment")},
            "requests": [self._request(request) for request in session["requests"]],
        }

    def _request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        headers = {
            name: value if name.startswith("anthropic-") else self._plain(value)  # dates are names of versions
            for name, value in request["headers"].items()
            if KEPT_HEADERS.fullmatch(name)
        }
        return {
            "method": request["method"], "path": self._plain(request["path"]), "headers": headers,
            "body": self._value(request["body"], ""),
        }  # fmt: skip

    def _value(self, value: Any, field: str) -> Any:
        if isinstance(value, dict):
            if value.get("type") == "grammar" and "definition" in value:
                value = {**value, "definition": GRAMMAR}
            return {name: self._value(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [self._value(each, field) for each in value]
        if isinstance(value, str):
            return self._text(value, field)
        if isinstance(value, int) and UNIX_MS.fullmatch(str(value)):
            return 1_767_225_600_000
        return value

    def _text(self, text: str, field: str) -> str:
        text = self._plain(text)
        is_short = len(text.split()) <= MAX_KEPT_WORDS and len(text) <= MAX_KEPT_CHARACTERS
        is_kept = field in EXACT_FIELDS or text.strip() in self._own_texts or text == GRAMMAR
        if is_short or is_kept or text.startswith(BILLING_HEADER) or _is_json_object(text):
            return text
        number = self._numbers.setdefault(text, len(self._numbers) + 1)
        return TextPlaceholder.of(text, number).written()

    def _plain(self, text: str) -> str:
        """Return a text without paths, ids and times of this machine."""
        text = self._replace_values(text)
        text = HEX_ID.sub(self._hex_id, UUID.sub(self._uuid, text))
        text = UNIX_MS.sub("1767225600000", WRITTEN_DATE.sub("Thursday, January 1, 2026", text))
        return ISO_TIME.sub(lambda match: "2026-01-01" + ("T00:00:00" if match[1] else ""), text)

    def _replace_values(self, text: str) -> str:
        for value, replacement in self._values.items():
            text = text.replace(value, replacement)
        return text

    def _uuid(self, match: re.Match[str]) -> str:
        return self._ids.setdefault(match[0], f"00000000-0000-4000-8000-{len(self._ids) + 1:012x}")

    def _hex_id(self, match: re.Match[str]) -> str:
        return self._ids.setdefault(match[0], f"{len(self._ids) + 1:x}".rjust(len(match[0]), "0"))


def _is_json_object(text: str) -> bool:
    """Whether a string is an object in JSON, as in some fields of metadata."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
