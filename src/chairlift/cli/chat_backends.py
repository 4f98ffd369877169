"""Talkers: who answers in a terminal chat, a model in this process or a server elsewhere; both answer in pieces."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from chairlift.core.errors import ChairliftError, ConfigError, InvalidRequest
from chairlift.core.sampling import SamplingParams
from chairlift.llm.batch_run import run_batch
from chairlift.llm.text_service import TextService
from chairlift.protocol.sse import EventReader

Message = dict[str, Any]
CONNECT_SECONDS = 10.0
READ_BYTES = 65_536


class ChatFailed(ChairliftError):
    """The other side did not answer, or with an error."""

    code = "chat_failed"


@dataclass(slots=True)
class AnswerStats:
    """What one answer took.

    Attributes:
        prompt_tokens: 0 where nobody said.
        output_tokens: 0 where nobody said.
        seconds: from the question to the end.
        first: seconds to the first text; None where there was none.
        reason: why it ended; "" where nobody said.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    first: float | None = None
    reason: str = ""

    def line(self) -> str:
        """Say it in a line."""
        first = "" if self.first is None else f", the first after {self.first * 1000:.0f} ms"
        speed = f" ({self.output_tokens / self.seconds:.1f} tokens/s{first})" if self.seconds > 0 else ""
        return f"{self.prompt_tokens} tokens in, {self.output_tokens} out in {self.seconds:.2f} s{speed}, {self.reason}"


class ChatBackend(Protocol):
    """Answers a conversation."""

    @property
    def name(self) -> str:
        """Who it is, for people."""
        ...

    def answer(self, messages: list[Message], options: dict[str, Any], counted: AnswerStats) -> Iterator[str]:
        """Yield an answer's text as it comes, and fill in what it took; closing the iterator early ends it.

        Raises InvalidRequest for a conversation or options that cannot be, ChatFailed and other ChairliftErrors.
        """
        ...


class LocalBackend:
    """A model that is loaded in this process."""

    def __init__(self, service: TextService) -> None:
        self._service = service

    @property
    def name(self) -> str:
        """Who it is."""
        return self._service.model

    def answer(self, messages: list[Message], options: dict[str, Any], counted: AnswerStats) -> Iterator[str]:
        """See Talker."""
        began = time.monotonic()
        assembler = self._service.prepare_chat(messages, SamplingParams(**options))
        with closing(run_batch(self._service.client, [assembler], 1)) as events:
            for _, event in events:
                if event.error is not None:
                    raise event.error
                if event.delta:
                    counted.first = counted.first or time.monotonic() - began
                    yield event.delta
                if event.usage is not None:
                    counted.prompt_tokens = event.usage.prompt_tokens
                    counted.output_tokens = event.usage.completion_tokens
                counted.reason = str(event.finish_reason or "")
                counted.seconds = time.monotonic() - began


class RemoteBackend:
    """A server that speaks OpenAI's API."""

    def __init__(self, url: str, model: str | None, key: str) -> None:
        """Reach it. Raises ConfigError for an address that is none, ChatFailed where nobody answers.

        Args:
            url: with or without /v1 at its end.
            model: a name that it serves; None is the first of those.
            key: "" for none.
        """
        told = urlsplit(url)
        if told.scheme not in ("http", "https") or not told.hostname:
            raise ConfigError(f"an address begins with http:// or https://, got {url!r}", option="url")
        self._make: Callable[[], http.client.HTTPConnection]
        kind = http.client.HTTPSConnection if told.scheme == "https" else http.client.HTTPConnection
        self._make = lambda: kind(told.hostname or "", told.port, timeout=CONNECT_SECONDS)
        self._base = told.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._url = url
        self._model = model or self._first_model()

    @property
    def name(self) -> str:
        """Who it is."""
        return f"{self._model} at {self._url}"

    def answer(self, messages: list[Message], options: dict[str, Any], counted: AnswerStats) -> Iterator[str]:
        """See Talker."""
        began, reader = time.monotonic(), EventReader()
        body = {"model": self._model, "messages": messages, **options, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        with closing(self._make()) as connection:
            answer = self._asked(connection, "POST", "/chat/completions", json.dumps(body))
            if connection.sock is not None:
                connection.sock.settimeout(None)  # a model may think for long
            while piece := answer.read1(READ_BYTES):
                for event in reader.push(piece):
                    if event.data == "[DONE]":
                        counted.seconds = time.monotonic() - began
                        return
                    yield from self._deltas(json.loads(event.data), counted, began)
        raise ChatFailed(f"{self._url} ended its answer in the middle")

    def _deltas(self, told: Message, counted: AnswerStats, began: float) -> Iterator[str]:
        if "error" in told:
            raise ChatFailed(str(told["error"].get("message", told["error"])))
        if told.get("usage"):
            counted.prompt_tokens = told["usage"]["prompt_tokens"]
            counted.output_tokens = told["usage"]["completion_tokens"]
        for choice in told.get("choices", ()):
            counted.reason = choice.get("finish_reason") or counted.reason
            if text := choice["delta"].get("content"):
                counted.first = counted.first or time.monotonic() - began
                yield text

    def _first_model(self) -> str:
        with closing(self._make()) as connection:
            told = json.loads(self._asked(connection, "GET", "/models", None).read())
        if not told.get("data"):
            raise ChatFailed(f"{self._url} serves no model")
        return str(told["data"][0]["id"])

    def _asked(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None
    ) -> http.client.HTTPResponse:  # fmt: skip
        """Return an answer that is good. Raises ChatFailed, and InvalidRequest for what the server calls a bad one."""
        try:
            connection.request(method, self._base + path, body, self._headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ChatFailed(f"{self._url} does not answer: {error or type(error).__name__}") from None
        if answer.status == http.client.OK:
            return answer
        raw = answer.read()
        try:
            said = str(json.loads(raw)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            said = raw.decode("utf-8", "replace")[:200]
        kind = InvalidRequest if answer.status == http.client.BAD_REQUEST else ChatFailed
        raise kind(f"{said} ({answer.status})")
