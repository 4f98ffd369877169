"""GenerationTracker: what counts as started, and the errors that end a request."""

from typing import Any

import pytest

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import InvalidRequest, NoAllowedToken, NotFound, StructuredOutputTooComplex, Unavailable
from chairlift.core.request_timeline import Timeline, TimelineEvent
from chairlift.llm.text_event import TextEvent
from chairlift.observability.logging import current_trace_id
from chairlift.server.openai.completion_request import read_completion
from chairlift.server.openai.output.generation_tracker import GenerationTracker, with_client_field
from chairlift.server.telemetry import Telemetry
from chairlift.web.admission import AdmissionController, AdmissionLimits

ERROR = FinishReason.ERROR


def make_tracker(telemetry: Telemetry, **options: bool) -> GenerationTracker:
    permit, request = AdmissionController(AdmissionLimits()).admit(1), read_completion({"model": "fake", "prompt": "x"})
    return GenerationTracker(telemetry, permit, 0.0, [], request, is_incremental=True, **options)


def test_an_abort_by_the_server_is_a_retryable_error_without_its_tokens() -> None:
    """A router resumes the request from what was delivered; text at the abort may be held-back text."""
    telemetry = Telemetry("fake", ())
    tracker = make_tracker(telemetry, is_resumable=True)
    batch = [(0, TextEvent("r", "a", (1,))), (0, TextEvent("r", "b", (2,), finish_reason=FinishReason.ABORT))]
    events, error = tracker.take(batch)
    assert events == batch[:1] and isinstance(error, Unavailable)
    assert error.retryable and error.details["state"] == "draining"
    tracker.end("r", error)
    page = telemetry.metrics.render().decode()
    assert 'chairlift_requests_aborted_total{reason="server"} 1.0' in page
    assert 'chairlift_requests_finished_total{outcome="abort"} 1.0' in page


@pytest.mark.parametrize(
    ("has_token", "is_from_router", "outcome", "result"),
    [
        (False, True, "abort", "aborted"), (True, True, "unavailable", "server_error"),
        (False, False, "unavailable", "server_error"), (True, False, "unavailable", "server_error"),
    ],
)  # fmt: skip
def test_an_abort_by_the_server_that_no_router_makes_good_is_a_failure(
    has_token: bool, is_from_router: bool, outcome: str, result: str
) -> None:
    telemetry = Telemetry("fake", ())
    tracker = make_tracker(telemetry, is_from_router=is_from_router)
    if has_token:
        tracker.take([(0, TextEvent("r", "a", (1,)))])
    _, error = tracker.take([(0, TextEvent("r", "", (), finish_reason=FinishReason.ABORT))])
    tracker.end("r", error)
    page = telemetry.metrics.render().decode()
    assert 'chairlift_requests_aborted_total{reason="server"} 1.0' in page
    assert f'chairlift_requests_finished_total{{outcome="{outcome}"}} 1.0' in page
    assert f'chairlift_model_requests_total{{model="fake",result="{result}"}} 1.0' in page


def test_the_time_between_tokens_of_a_traced_request_is_an_exemplar_of_its_trace() -> None:
    telemetry = Telemetry("fake", ())
    token = current_trace_id.set("4bf9")
    tracker = make_tracker(telemetry)
    current_trace_id.reset(token)
    for _ in range(2):
        tracker.take([(0, TextEvent("r", "a", (1,)))])
    page, _ = telemetry.metrics.render_for("application/openmetrics-text")
    found = [line for line in page.decode().splitlines() if 'trace_id="4bf9"' in line]
    assert [line.partition("{")[0] for line in found] == ["chairlift_inter_token_latency_seconds_bucket"]


def test_the_time_of_the_first_token_is_kept() -> None:
    tracker = make_tracker(Telemetry("fake", ()))
    tracker.take([(0, TextEvent("r", "", ()))])
    assert tracker.first_token_at is None
    tracker.take([(0, TextEvent("r", "a", (1,)))])
    first = tracker.first_token_at
    tracker.take([(0, TextEvent("r", "b", (2,)))])
    assert first is not None and tracker.first_token_at == first


def test_an_error_of_a_structure_names_the_field_that_asked_for_it() -> None:
    data = with_client_field(InvalidRequest("structured.regex: parentheses", param="structured"), "regex")
    assert data.message == "regex: parentheses" and data.details == {"param": "regex"}
    data = with_client_field(
        InvalidRequest("structured: not possible with this model's tokenizer", param="structured"), "tools"
    )
    assert data.message == "tools: not possible with this model's tokenizer" and data.details == {"param": "tools"}
    internal = InvalidRequest("structured.grammar: at 3(14): failed to compile", param="structured")
    assert with_client_field(internal, "tools").message == "tools: failed to compile"
    assert with_client_field(internal, "grammar").message == "grammar: at 3(14): failed to compile"
    late = with_client_field(StructuredOutputTooComplex("too many states"), "guided_json")
    assert isinstance(late, StructuredOutputTooComplex) and late.details["param"] == "guided_json"
    for other in (InvalidRequest("n is bad", param="n"), NotFound("structured.regex: x")):
        assert with_client_field(other, "regex") is other
    plain = InvalidRequest("structured.regex: x", param="structured")
    assert with_client_field(plain, "") is plain, "no field of the client holds the structure"


@pytest.mark.parametrize(("event_names", "metric"), [
    (("queued", "scheduled"), 'requests_finished_total{outcome="no_allowed_token"}'),
    (("queued",), 'requests_rejected_total{code="no_allowed_token"}'),
])  # fmt: skip
def test_a_request_without_allowed_tokens_counts_as_started_once_it_was_scheduled(
    event_names: Any, metric: str
) -> None:
    request, telemetry = read_completion({"model": "fake", "prompt": "x"}), Telemetry("fake", ())
    tracker = GenerationTracker(
        telemetry, AdmissionController(AdmissionLimits()).admit(1), 0.0, [], request, is_incremental=False
    )
    timeline = Timeline(tuple(TimelineEvent(name, 0.0) for name in event_names))
    final_event = TextEvent("r", finish_reason=ERROR, error=NoAllowedToken("every token is banned"), timeline=timeline)
    _, error = tracker.take([(0, final_event)])
    assert isinstance(error, NoAllowedToken)
    tracker.end("r", error)
    lines = telemetry.metrics.render().decode().splitlines()
    counts = [
        each
        for each in lines
        if each.startswith(("chairlift_requests_finished_total{", "chairlift_requests_rejected_total{"))
    ]
    assert counts == [f"chairlift_{metric} 1.0"]


def test_a_comment_says_what_a_silent_request_waits_for() -> None:
    admission = AdmissionController(AdmissionLimits())
    first, second = admission.admit(1), admission.admit(1)
    request = read_completion({"model": "fake", "prompt": "x"})
    tracker = GenerationTracker(Telemetry("fake", ()), admission.admit(1), 0.0, [], request, is_incremental=True)
    assert tracker.comment() == b"waiting, 2 ahead"
    first.mark_running()
    assert tracker.comment() == b"waiting, 1 ahead"
    second.end()
    assert tracker.comment() == b"waiting"
    tracker.take([(0, TextEvent("r", "a", (1,)))])
    assert tracker.comment() == b"generating"
