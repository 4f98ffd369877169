"""OpenRequest: the engine's outputs become outputs of transformers' kind; parameters come from request and settings."""

from typing import Any

import pytest

from chairlift.core.engine_output import EngineOutput, FinishReason, TokenLogprob, Usage
from chairlift.core.errors import InvalidRequest, RequestTimeout
from chairlift.core.request_timeline import Timeline, TimelineEvent
from chairlift.llm.transformers_compat.open_request import OpenRequest, open_request
from chairlift.llm.transformers_compat.request_queue import WaitingRequest
from chairlift.llm.transformers_compat.request_status import RequestStatus
from chairlift.llm.transformers_compat.settings import resolve_settings
from support_engine import LARGE_LIMITS


def opened(settings: dict[str, Any] | None = None, salt: str = "", **fields: Any) -> OpenRequest:
    values = {
        "request_id": "r", "input_ids": [5, 6], "max_new_tokens": None, "streaming": False, "record_timestamps": False,
        "eos_token_id": None, "timeout": None, "priority": 0, "sampling": {}, "seed": 7,
    } | fields  # fmt: skip
    return open_request(
        WaitingRequest(**values), resolve_settings(None, None, settings or {}), LARGE_LIMITS, (2, 3), salt
    )


def test_the_engine_s_request() -> None:
    request = opened(
        {"max_new_tokens": 9}, "salt", timeout=1.5, priority=4, sampling={"temperature": 0.5, "top_k": 3}
    ).request  # fmt: skip
    assert request.prompt_token_ids == (5, 6) and request.eos_token_ids == (2, 3)
    assert (request.params.max_tokens, request.params.temperature, request.params.top_k) == (9, 0.5, 3)
    assert (request.timeout, request.priority, request.cache_salt, request.params.seed) == (1.5, 4, "salt", 7)


def test_without_a_limit_the_output_is_as_long_as_there_is_room() -> None:
    request = opened().request
    assert request.params.max_tokens == LARGE_LIMITS.max_output_tokens(2) and request.params.temperature == 0


@pytest.mark.parametrize(
    ("fields", "eos"),
    [
        ({"eos_token_id": 9}, (9,)), ({"eos_token_id": [8, -1]}, (8,)), ({}, (2, 3)),
        ({"sampling": {"ignore_eos": True}}, ()),
    ],
)  # fmt: skip
def test_ends_of_sequence(fields: dict[str, Any], eos: tuple[int, ...]) -> None:
    assert opened(**fields).request.eos_token_ids == eos


def test_bad_values_are_named() -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'top_k'"):
        opened(sampling={"top_kk": 3})
    with pytest.raises(InvalidRequest, match="max_new_tokens"):
        opened(max_new_tokens=-1)


def test_only_streams_have_outputs_before_the_end() -> None:
    for streaming in (False, True):
        request = opened(streaming=streaming)
        timeline = Timeline((TimelineEvent("queued", 0.0), TimelineEvent("scheduled", 0.25)))
        first = request.process(EngineOutput("r", (4,), timeline=timeline))
        assert request.status is RequestStatus.DECODING and (first is not None) == streaming
        assert request.process(EngineOutput("r")) is None
        last = request.process(EngineOutput("r", (2,), finish_reason=FinishReason.STOP, usage=Usage(2, 2, 1)))
        assert last is not None and last.generated_tokens == [4, 2] and last.num_cached_tokens == 1
        assert last.status is RequestStatus.FINISHED and last.finish_reason == "stop" and last.error is None
        assert last.lifespan[0] - last.created_time >= 0.25 and last.lifespan[1] > 0
        if first is not None:
            assert first.generated_tokens == [4] and first.lifespan[1] == -1 and not first.is_finished()
        assert request.num_tokens == 2


def test_ends_other_than_a_finish_have_their_reason() -> None:
    failed = opened().process(EngineOutput.failed(opened().request, RequestTimeout(1.0)))
    assert failed is not None and failed.status is RequestStatus.FAILED and "timeout" in (failed.error or "")
    cancelled = opened().process(EngineOutput.ended(opened().request, FinishReason.ABORT))
    assert cancelled is not None and cancelled.status is RequestStatus.CANCELLED
    assert cancelled.error == "the request was cancelled" and cancelled.lifespan[0] == -1


def test_logprobs_and_times_where_requested() -> None:
    request = opened({"return_logprobs": True}, record_timestamps=True, streaming=True)
    output = request.process(EngineOutput("r", (4, 5), (TokenLogprob(4, -0.5), TokenLogprob(5, -0.25))))
    assert output is not None and output.logprobs == [-0.5, -0.25] and len(output.timestamps or ()) == 2
