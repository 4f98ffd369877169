"""StreamWriter: what is sent before an error, and the event that reports it; comments in a silent stream."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import DetokenizeFailed, EngineDead
from chairlift.llm.text_event import TextEvent
from chairlift.server.openai.completion_request import read_completion
from chairlift.server.openai.output.generation_tracker import GenerationTracker
from chairlift.server.openai.output.stream_writer import StreamWriter
from chairlift.server.openai.response_renderers import CompletionRenderer, ResponseMeta
from chairlift.server.telemetry import Telemetry
from chairlift.web.admission import AdmissionController, AdmissionLimits
from chairlift.web.body import Message, Send
from chairlift.web.stream_keep_alive import StreamKeepAlive
from support_server import events, run

ERROR, HEAD = FinishReason.ERROR, "http.response.start"


async def write(send: Send, batches: AsyncGenerator[Any, None], end: Any, seconds: float = 0.0) -> Exception | None:
    """Write a stream, which has a comment after `seconds` of silence."""
    request = read_completion({"model": "fake", "prompt": "x", "stream": True})
    permit = AdmissionController(AdmissionLimits()).admit(1)
    tracker = GenerationTracker(Telemetry("fake", ()), permit, 0.0, [], request, is_incremental=True)
    renderer = CompletionRenderer(request, ResponseMeta("cmpl-r", "fake", 1), None)
    with StreamKeepAlive(send, seconds, comment=tracker.comment) as stream:
        return await StreamWriter(stream, [(b"x-own", b"1")], renderer.event, tracker).run(batches, "r", end)


def test_the_text_before_an_error_is_sent() -> None:
    """This holds also where text and error arrive in one batch, as for a slow client."""
    error = DetokenizeFailed("no text")

    async def batches() -> AsyncGenerator[Any, None]:
        yield [(0, TextEvent("r", "a", (1,)))]
        yield [(0, TextEvent("r", "b", (2,))), (0, TextEvent("r", "c", (3,), finish_reason=ERROR, error=error)),
               (0, TextEvent("r", "d", (4,)))]  # fmt: skip

    data: list[bytes] = []

    async def end() -> bytes:
        raise AssertionError("a stream with an error has no end")

    async def send(message: Any) -> None:
        data.append(message.get("body", b""))

    result = run(write(send, batches(), end))
    assert isinstance(result, DetokenizeFailed)
    *chunks, (event_name, event_data) = events(b"".join(data).decode())
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abc"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert event_name == "error" and event_data["error"]["code"] == "detokenize_failed"


@pytest.mark.parametrize("is_raised", [True, False], ids=["raised", "in a batch"])
@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "at once"])
def test_an_error_has_its_status_until_a_comment_has_begun_the_stream(is_silent: bool, is_raised: bool) -> None:
    messages: list[Message] = []
    error = EngineDead("the engine has stopped")

    async def batches() -> AsyncGenerator[Any, None]:
        while is_silent and len(messages) < 3:
            await asyncio.sleep(0.001)
        if is_raised:
            raise error
        yield [(0, TextEvent("r", "", (), finish_reason=ERROR, error=error))]

    async def end() -> bytes:
        raise AssertionError("a stream with an error has no end")

    async def send(message: Message) -> None:
        messages.append(message)

    if not is_silent:
        with pytest.raises(EngineDead):
            run(write(send, batches(), end, 1000.0))
        assert messages == []
        return
    assert isinstance(run(write(send, batches(), end, 0.005)), EngineDead)
    text = b"".join(message.get("body", b"") for message in messages).decode()
    assert text.startswith(": waiting\n\n: waiting\n\n") and [each["type"] for each in messages].count(HEAD) == 1
    [(name, data)] = events(text)
    assert (name, data["error"]["code"], data["error"]["retryable"]) == ("error", "engine_dead", True)


def test_a_silent_stream_ends_as_it_would_have() -> None:
    messages: list[Message] = []

    async def batches() -> AsyncGenerator[Any, None]:
        while len(messages) < 2:
            await asyncio.sleep(0.001)
        yield [(0, TextEvent("r", "a", (1,)))]
        before = len(messages)
        while len(messages) < before + 2:
            await asyncio.sleep(0.001)
        yield [(0, TextEvent("r", "b", (2,), finish_reason=FinishReason.STOP))]

    async def end() -> bytes:
        return b"data: [DONE]\n\n"

    async def send(message: Message) -> None:
        messages.append(message)

    assert run(write(send, batches(), end, 0.005)) is None
    text = b"".join(message.get("body", b"") for message in messages).decode()
    assert text.startswith(": waiting\n\n") and ": generating\n\n" in text.partition("data: ")[2]
    *chunks, done = events(text)
    assert done == "[DONE]" and "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ab"
