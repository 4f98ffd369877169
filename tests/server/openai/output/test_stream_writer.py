"""StreamWriter: what is sent before an error, and the event that reports it."""

from collections.abc import AsyncGenerator
from typing import Any

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import DetokenizeFailed, EngineDead, RequestTimeout, Unavailable
from chairlift.llm.text_event import TextEvent
from chairlift.server.openai.output.generation_tracker import GenerationTracker
from chairlift.server.openai.output.stream_writer import StreamWriter, error_event
from chairlift.server.openai.parse_request import read_completion
from chairlift.server.openai.response_renderers import CompletionRenderer, ResponseMeta
from chairlift.server.telemetry import Telemetry
from chairlift.web.admission import AdmissionController, AdmissionLimits
from support_server import events, run

ERROR = FinishReason.ERROR


def test_the_text_before_an_error_is_sent() -> None:
    """This holds also where text and error arrive in one batch, as for a slow client."""
    request = read_completion({"model": "fake", "prompt": "x", "stream": True})
    permit = AdmissionController(AdmissionLimits()).admit(1)
    tracker = GenerationTracker(Telemetry("fake", ()), permit, 0.0, [], request, is_incremental=True)
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

    renderer = CompletionRenderer(request, ResponseMeta("cmpl-r", "fake", 1), None)
    result = run(StreamWriter(send, [], renderer.event, tracker).run(batches(), "r", end))
    assert isinstance(result, DetokenizeFailed)
    *chunks, (event_name, event_data) = events(b"".join(data).decode())
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abc"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert event_name == "error" and event_data["error"]["code"] == "detokenize_failed"


def test_an_error_event_says_whether_another_replica_may_help() -> None:
    found = {}
    for error in (
        Unavailable("x", state="draining"), EngineDead("x"), RequestTimeout(5.0), DetokenizeFailed("x"),
        RuntimeError("x"),
    ):  # fmt: skip
        [(name, data)] = events(error_event(error, "r").decode())
        assert name == "error"
        found[data["error"]["code"]] = data["error"]["retryable"]
    assert found == {
        "draining": True, "engine_dead": True, "timeout": False, "detokenize_failed": False, "internal_error": False
    }  # fmt: skip
