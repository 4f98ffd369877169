"""ChatBackend: answers a terminal chat with a local model or with a server."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from chairlift.cli.http_request import MAX_RESPONSE_BYTES, error_reason
from chairlift.core.errors import ChairliftError, ConfigError, InvalidRequest
from chairlift.core.sampling_params import MODEL_DEFAULTS, SamplingParams
from chairlift.llm.batch_run import run_batch
from chairlift.llm.text_service import TextService
from chairlift.protocol.sse import EventReader

Message = dict[str, Any]
CONNECT_SECONDS = 10.0
"""Timeout of the connection and of the response's first byte, in seconds."""

READ_BYTES = 65_536
"""Most bytes of one read from the socket."""

MAX_ERROR_CHARS = 200
"""Most characters of an error body that is not JSON, in an error message."""


class ChatFailed(ChairliftError):
    """The server cannot be reached, or its response is an error."""

    code = "chat_failed"


@dataclass(slots=True)
class AnswerStats:
    """Token counts and durations of one answer.

    Attributes:
        prompt_tokens: number of prompt tokens; 0 without a usage object from the server.
        output_tokens: number of output tokens; 0 without a usage object from the server.
        seconds: duration of the answer.
        first_token_seconds: time to the first text; None before it.
        finish_reason: why the answer ended; "" without a reason.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    first_token_seconds: float | None = None
    finish_reason: str = ""

    def summary(self) -> str:
        """Return one line for people."""
        first = self.first_token_seconds
        latency = "" if first is None else f", first token after {first * 1000:.0f} ms"
        speed = f" ({self.output_tokens / self.seconds:.1f} tokens/s{latency})" if self.seconds > 0 else ""
        return (
            f"{self.prompt_tokens} prompt tokens, {self.output_tokens} output tokens in {self.seconds:.2f} s{speed}, "
            f"finish reason {self.finish_reason}"
        )


class ChatBackend(Protocol):
    """Generates the next message of a conversation."""

    @property
    def name(self) -> str:
        """The name of the model, for people."""
        ...

    def stream_answer(self, messages: list[Message], options: dict[str, Any], stats: AnswerStats) -> Iterator[str]:
        """Yield the text of an answer as it is generated, and fill in `stats`.

        Closing the iterator aborts the request.

        Raises:
            InvalidRequest: the conversation or an option is not valid.
            ChatFailed: the server fails; a local model raises other ChairliftErrors.
        """
        ...


class LocalBackend:
    """Backend with a model in this process."""

    def __init__(self, service: TextService) -> None:
        self._service = service

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._service.model

    def stream_answer(self, messages: list[Message], options: dict[str, Any], stats: AnswerStats) -> Iterator[str]:
        """See ChatBackend."""
        started = time.monotonic()
        processor = self._service.prepare_chat(messages, SamplingParams(**{**MODEL_DEFAULTS, **options}))
        with closing(run_batch(self._service.client, [processor], 1)) as events:
            for _, event in events:
                if event.error is not None:
                    raise event.error
                if event.delta:
                    stats.first_token_seconds = stats.first_token_seconds or time.monotonic() - started
                    yield event.delta
                if event.usage is not None:
                    stats.prompt_tokens = event.usage.prompt_tokens
                    stats.output_tokens = event.usage.completion_tokens
                stats.finish_reason = str(event.finish_reason or "")
                stats.seconds = time.monotonic() - started


class RemoteBackend:
    """Backend with a server that has the OpenAI API."""

    def __init__(self, url: str, model: str | None, key: str) -> None:
        """Connect to a server to find its model.

        Args:
            url: URL of the server, with or without /v1 at its end.
            model: a model name of the server; None is its first.
            key: API key; "" for none.

        Raises:
            ConfigError: the URL is not valid.
            ChatFailed: the server cannot be reached, or serves no model.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url must begin with http:// or https:// and name a host, got {url!r}", option="url")
        self._make_connection: Callable[[], http.client.HTTPConnection]
        connection_type = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._make_connection = lambda: connection_type(parts.hostname or "", parts.port, timeout=CONNECT_SECONDS)
        self._base = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._url = url
        self._model = model or self._first_model()

    @property
    def name(self) -> str:
        """The name of the model and the URL of its server."""
        return f"{self._model} at {self._url}"

    def stream_answer(self, messages: list[Message], options: dict[str, Any], stats: AnswerStats) -> Iterator[str]:
        """See ChatBackend."""
        started, reader = time.monotonic(), EventReader()
        body = {"model": self._model, "messages": messages, **options, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        with closing(self._make_connection()) as connection:
            response = self._send_request(connection, "POST", "/chat/completions", json.dumps(body))
            if connection.sock is not None:
                connection.sock.settimeout(None)  # the time between two tokens has no limit
            while data := self._read(response.read1, READ_BYTES):
                for event in reader.push(data):
                    if event.data == "[DONE]":
                        stats.seconds = time.monotonic() - started
                        return
                    yield from self._deltas(event.data, stats, started)
        raise ChatFailed(f"{self._url} closed the connection before the end of its response")

    def _read(self, read: Callable[[int], bytes], max_bytes: int) -> bytes:
        """Return bytes of a response. Raises ChatFailed."""
        try:
            return read(max_bytes)
        except (OSError, http.client.HTTPException) as error:
            raise ChatFailed(f"{self._url} closed the connection: {error_reason(error)}") from None

    def _deltas(self, data: str, stats: AnswerStats, started: float) -> Iterator[str]:
        try:
            text, error = _read_chunk(json.loads(data), stats)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ChatFailed(f"{self._url} sent an event that is no part of a chat completion") from None
        if error:
            raise ChatFailed(error)
        if text:
            stats.first_token_seconds = stats.first_token_seconds or time.monotonic() - started
            yield text

    def _first_model(self) -> str:
        with closing(self._make_connection()) as connection:
            body = self._read(self._send_request(connection, "GET", "/models", None).read, MAX_RESPONSE_BYTES)
        try:
            models = json.loads(body)["data"]
            if models == []:
                raise ChatFailed(f"{self._url} serves no model")
            return str(models[0]["id"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise ChatFailed(f"{self._url} has no list of models at {self._base}/models: no OpenAI API") from None

    def _send_request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None
    ) -> http.client.HTTPResponse:  # fmt: skip
        """Return a response with status 200. Raises InvalidRequest for status 400, else ChatFailed."""
        try:
            connection.request(method, self._base + path, body, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ChatFailed(f"{self._url} does not respond: {error_reason(error)}") from None
        if response.status == http.client.OK:
            return response
        raw = self._read(response.read, READ_BYTES)
        try:
            message = str(json.loads(raw)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = raw.decode("utf-8", "replace")[:MAX_ERROR_CHARS] or response.reason
        error_type = InvalidRequest if response.status == http.client.BAD_REQUEST else ChatFailed
        raise error_type(f"{message} ({response.status})")


def _read_chunk(chunk: Message, stats: AnswerStats) -> tuple[str, str]:
    """Return the text and the error of one event, and fill in `stats`. Raises the errors of fields that are missing."""
    if "error" in chunk:
        error = chunk["error"]
        return "", str(error.get("message", error) if isinstance(error, dict) else error)
    if usage := chunk.get("usage"):
        stats.prompt_tokens, stats.output_tokens = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
    texts = []
    for choice in chunk.get("choices") or ():
        stats.finish_reason = str(choice.get("finish_reason") or stats.finish_reason)
        texts.append(choice["delta"].get("content") or "")
    return "".join(texts), ""
