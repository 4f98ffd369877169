"""MessagesFromBlocks: the messages of Anthropic's API, made of content blocks, as messages of chat completions.

thinking, text, tool_use, tool_use  ──>  one message of the assistant, with its reasoning and calls
tool_result                         ──>  a message of the role tool
text, text                          ──>  one message of the user
"""

import re
from typing import Any

from chairlift.core.validation import invalid_param
from chairlift.protocol.anthropic.block_texts import MEDIA, TEXT_BLOCKS, block_text, media_error
from chairlift.protocol.anthropic.messages_request_fields import OTHER_BLOCKS, TOOL_BLOCKS
from chairlift.protocol.field_check import call_arguments, format_short, string_member
from chairlift.protocol.left_out_types import LeftOutTypes, unread_members
from chairlift.protocol.request_fields import MAX_MESSAGES
from chairlift.protocol.translation.base import Json

ROLES = ("user", "assistant", "system")
PUBLISHED_MEMBERS = (
    "role", "content", "id", "type", "model", "name", "status", "phase", "stop_reason", "stop_sequence",
    "stop_details", "usage", "container", "context_management", "cache_control",
)  # fmt: skip
"""Members of Anthropic's messages, those of responses included; none but the first two has anything for the model."""

ERROR_PREFIX = "Error: "
"""What the result of a tool that has failed begins with, because chat completions have no field for it."""

_BLOCKS = {
    "user": (*TEXT_BLOCKS, "tool_result"),
    "result": TEXT_BLOCKS,
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
_CLIENT_HEADERS = re.compile(r"\A(?:x-anthropic-[a-z-]+:[^\n]*(?:\n+|\Z))+")
"""Lines in the form of HTTP headers at the beginning of a text, such as `x-anthropic-billing-header: cch=1f;`."""


class MessagesFromBlocks:
    """Collects messages. Consecutive ones of one role are joined, as Anthropic's API does.

    Attributes:
        messages: the messages so far; until `finish` their texts are lists of texts.
        places: for each of them the place in the request.
        paths: beginning of a path in `messages` -> that in the request, where a place does not say it.
        left_out: types of the blocks that have nothing for a message, and members of messages that nothing reads.
    """

    def __init__(self) -> None:
        """Begin without messages."""
        self.messages: list[Json] = []
        self.places: list[str] = []
        self.paths: dict[str, str] = {}
        self.left_out = LeftOutTypes()

    def add_system(self, system: Any) -> None:
        """Add the field `system`, a text or a list of text blocks. Raises InvalidRequest."""
        texts = _without_client_headers(_texts(_blocks(system, "system"), "system"))
        if any(texts):
            self._append_text("system", texts, "system")

    def add_messages(self, messages: Any) -> None:
        """Add the field `messages`. Raises InvalidRequest."""
        if not isinstance(messages, list):
            raise invalid_param("messages", f"must be a list of messages, got {format_short(messages)}")
        if not 0 < len(messages) <= MAX_MESSAGES:
            raise invalid_param("messages", f"must have 1 to {MAX_MESSAGES} messages, got {len(messages)}")
        for index, message in enumerate(messages):
            self._add_message(message, f"messages[{index}]")

    def finish(self) -> bool:
        """End the list; return whether the answer continues the last message, a text of the assistant.

        Removes a last message of the assistant that is empty. Raises InvalidRequest for one that ends with a call or
        has no text. A conversation whose blocks are all left out has an empty message of the user.
        """
        if not self.messages:
            self._append({"role": "user", "content": [""]}, "messages[0]")
        for message in self.messages:
            for name in ("content", "reasoning_content"):
                if name in message:
                    message[name] = "\n".join(message[name])
        last = self.messages[-1]
        if last["role"] != "assistant":
            return False
        if last.get("tool_calls"):
            raise invalid_param(self.places[-1], "ends with a tool_use block, whose tool_result must follow")
        if last["content"]:
            return True
        if "reasoning_content" in last:
            raise invalid_param(self.places[-1], "has no text that the answer continues, only thinking")
        if len(self.messages) == 1:
            raise invalid_param("messages", "must have at least one message that is not empty")
        self.messages.pop()
        self.places.pop()
        return False

    def _add_message(self, message: Any, at: str) -> None:
        if not isinstance(message, dict):
            raise invalid_param(at, f"must be an object, got {format_short(message)}")
        role = message.get("role")
        if role not in ROLES:
            raise invalid_param(f"{at}.role", f"must be user, assistant or system, got {format_short(role)}")
        if "content" not in message:
            raise invalid_param(f"{at}.content", "is missing")
        for name in unread_members(message, PUBLISHED_MEMBERS):
            self.left_out.add("messages", name)
        content_at = f"{at}.content"
        blocks = _blocks(message["content"], content_at)
        if role == "assistant":
            self._add_answer(blocks, content_at, at)
        elif role == "system":
            texts = _texts(blocks, content_at)
            if (rest := _without_client_headers(texts)) or not texts:
                self._append_text("system", rest, at)
        else:
            self._add_user_blocks(blocks, content_at, at)

    def _add_user_blocks(self, blocks: list[Any], content_at: str, at: str) -> None:
        """Add text blocks in a row as one message of the user, and each result of a tool as a message of its own."""
        texts: list[str] = [] if blocks else [""]
        for index, block in enumerate(blocks):
            block_at = f"{content_at}[{index}]"
            match _kind(block, "user", block_at):
                case kind if kind in TEXT_BLOCKS:
                    texts.append(block_text(block, block_at))
                case "tool_result":
                    if texts:
                        self._append_text("user", texts, at)
                        texts = []
                    result = {"role": "tool", "content": _result_texts(block, block_at)}
                    self._append(result | {"tool_call_id": string_member(block, "tool_use_id", block_at)}, block_at)
                case other:
                    self.left_out.add("messages", other)
        if texts:
            self._append_text("user", texts, at)

    def _add_answer(self, blocks: list[Any], content_at: str, at: str) -> None:
        self._append_text("assistant", [], at)
        answer = self.messages[-1]
        for index, block in enumerate(blocks):
            block_at = f"{content_at}[{index}]"
            match _kind(block, "assistant", block_at):
                case "text":
                    if text := string_member(block, "text", block_at):
                        answer["content"].append(text)
                case "thinking":
                    if text := string_member(block, "thinking", block_at):
                        answer.setdefault("reasoning_content", []).append(text)
                case "tool_use":
                    self._add_call(answer, block, block_at)
                case "redacted_thinking":
                    pass  # encrypted, so that it has nothing for a model
                case other:
                    self.left_out.add("messages", other)

    def _add_call(self, answer: Json, block: Json, at: str) -> None:
        arguments = call_arguments(block.get("input"), f"{at}.input")
        call_id, name = string_member(block, "id", at), string_member(block, "name", at)
        calls = answer.setdefault("tool_calls", [])
        inner = f"messages[{len(self.messages) - 1}].tool_calls[{len(calls)}]"
        self.paths[f"{inner}.function.arguments"] = f"{at}.input"
        calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})

    def _append_text(self, role: str, texts: list[str], at: str) -> None:
        """Add texts to the message before, if it has this role, or as a new one."""
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += texts
        else:
            self._append({"role": role, "content": [*texts]}, at)

    def _append(self, message: Json, at: str) -> None:
        if len(self.messages) >= MAX_MESSAGES:
            raise invalid_param("messages", f"has more than {MAX_MESSAGES} messages and results, which is the limit")
        self.messages.append(message)
        self.places.append(at)


def _blocks(content: Any, at: str) -> list[Any]:
    """Return the blocks of a content, which may be a text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise invalid_param(at, f"must be a string or a list of content blocks, got {format_short(content)}")
    return content


def _kind(block: Any, role: str, at: str) -> str:
    """Return the type of a block that a message of this role may have, or that is left out of it."""
    if not isinstance(block, dict):
        raise invalid_param(at, f"must be an object, got {format_short(block)}")
    kind, allowed = block.get("type"), _BLOCKS[role]
    is_left_out = isinstance(kind, str) and (kind.endswith(TOOL_BLOCKS) or kind in OTHER_BLOCKS)
    if isinstance(kind, str) and (kind in allowed or (is_left_out and role in ("user", "assistant"))):
        return kind
    if isinstance(kind, str) and kind in MEDIA:
        raise media_error(kind, at)
    raise invalid_param(f"{at}.type", f"must be {' or '.join(allowed)} here, got {format_short(kind)}")


def _texts(blocks: list[Any], at: str, place: str = "system") -> list[str]:
    """Return the texts of the blocks of a place; chat completions join those of one message by line breaks."""
    texts = []
    for index, block in enumerate(blocks):
        _kind(block, place, f"{at}[{index}]")
        texts.append(block_text(block, f"{at}[{index}]"))
    return texts


def _without_client_headers(texts: list[str]) -> list[str]:
    """Return texts of instructions without the lines that Claude Code sends there for Anthropic's accounts.

    Such a line differs in every request: with it no request would find the prefix of the one before in the cache.
    """
    rest = [_CLIENT_HEADERS.sub("", text) for text in texts]
    return [text for text, sent in zip(rest, texts, strict=True) if text or not sent]


def _result_texts(block: Json, at: str) -> list[str]:
    """Return the texts of a tool's result."""
    content, is_error = block.get("content"), block.get("is_error")
    if is_error is not None and not isinstance(is_error, bool):
        raise invalid_param(f"{at}.is_error", f"must be true or false, got {format_short(is_error)}")
    texts = [] if content is None else _texts(_blocks(content, f"{at}.content"), f"{at}.content", "result")
    return [ERROR_PREFIX + (texts[0] if texts else ""), *texts[1:]] if is_error else texts
