"""AnswerLines: a streamed response as lines of JSON: parts of the answer, then one with `done`, or with an error."""

import time
from collections.abc import Callable

import orjson

from chairlift.protocol.ollama.answer_writer import AnswerWriter, tool_call
from chairlift.protocol.translation.base import Json


class AnswerLines:
    """Writes the lines of one response; see StreamTranslation. A tool call is a line at its end."""

    def __init__(self, writer: AnswerWriter, first_token_at: Callable[[], float | None] = lambda: None) -> None:
        """Prepare a stream; `first_token_at` says when the first token came, where that is known."""
        self._writer, self._first_token_at = writer, first_token_at
        self._first_chunk_at: float | None = None
        self._call: Json | None = None
        self._arguments: list[str] = []
        self._finish_reason = "stop"
        self._usage: Json | None = None

    def chunk(self, chunk: Json) -> bytes:
        """See StreamTranslation."""
        self._usage = chunk.get("usage") or self._usage
        self._writer.name_model(chunk.get("model", ""))
        lines: list[Json] = []
        for choice in chunk["choices"]:
            if self._first_chunk_at is None:
                self._first_chunk_at = time.monotonic()
            delta = choice.get("delta") or {"content": choice.get("text")}
            calls = [call for each in delta.get("tool_calls") or () for call in self._add_call(each)]
            text, thinking = delta.get("content") or "", delta.get("reasoning_content") or ""
            logprobs = self._writer.logprobs(choice.get("logprobs"))
            if text or thinking or calls or logprobs:
                lines.append(self._writer.part(text, thinking, calls, logprobs))
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
        return _encoded(lines)

    def error(self, error: Json) -> bytes:
        """See StreamTranslation."""
        return _encoded([{"error": error["message"]}])

    def keep_alive(self, comment: bytes) -> bytes:
        """See StreamTranslation. A line without text: clients parse every line, so that none may be empty."""
        return _encoded([self._writer.part()])

    def end(self) -> bytes:
        """See StreamTranslation."""
        calls = self._end_call()
        first_token_at = self._first_token_at()
        first_token_at = self._first_chunk_at if first_token_at is None else first_token_at
        lines = [self._writer.part(calls=calls)] if calls else []
        last = self._writer.last(self._writer.part(), self._finish_reason, self._usage, first_token_at)
        return _encoded([*lines, last])

    def _add_call(self, call: Json) -> list[Json]:
        """Add a part of a call; return the call before it if that is complete."""
        ended: list[Json] = []
        function = call["function"]
        if self._call is None or self._call["index"] != call["index"]:
            ended = self._end_call()
            self._call = {"index": call["index"], "name": function["name"]}
        self._arguments.append(function.get("arguments") or "")
        return ended

    def _end_call(self) -> list[Json]:
        if self._call is None:
            return []
        whole = tool_call({"name": self._call["name"], "arguments": "".join(self._arguments)})
        self._call, self._arguments = None, []
        return [] if whole is None else [whole]


def _encoded(lines: list[Json]) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)
