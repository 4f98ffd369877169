"""busy_kind: which responses are about the server and not about the request."""

import json
from typing import Any

import pytest

from chairlift.core.errors import EngineDead, InvalidRequest, ModelNotFound, NotFound, RateLimited, Unavailable
from chairlift.web.batch_api.busy_response import BusyKind, busy_kind
from chairlift.web.batch_files.batch_run import BatchResponse
from chairlift.web.error_responses import error_body, error_response_of


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (200, None, None), (400, {"code": "x"}, None), (429, {}, BusyKind.TENANT),
        (503, {}, BusyKind.BATCH_FOR_A_WHILE),
        (503, {"code": "unavailable"}, BusyKind.BATCH), (503, {"code": "engine_dead"}, None), (0, None, BusyKind.BATCH),
        (401, {}, BusyKind.BATCH), (403, {}, BusyKind.BATCH), (500, {}, None), (504, {}, None),
        (502, {}, BusyKind.BATCH_FOR_A_WHILE),
        (404, {"code": "model_not_found"}, BusyKind.BATCH), (404, {"type": "not_found_error"}, BusyKind.BATCH),
        (404, {"code": "not_found", "type": "not_found_error"}, None), (404, None, None), (413, {}, None),
    ],
)  # fmt: skip
def test_whose_requests_wait(status: int, error: Any, kind: BusyKind | None) -> None:
    assert busy_kind(BatchResponse(status, "", {"error": error})) is kind


@pytest.mark.parametrize("body", ["text", None, [], {"error": "text"}, {"error": ["x"]}])
def test_a_body_of_another_form_is_none_of_an_error(body: Any) -> None:
    assert busy_kind(BatchResponse(404, "", body)) is None
    assert busy_kind(BatchResponse(503, "", body)) is BusyKind.BATCH_FOR_A_WHILE


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_the_errors_of_this_server_in_the_form_of_each_api(path: str) -> None:
    is_anthropic = path == "/v1/messages"
    expected = {
        ModelNotFound("m", "n"): BusyKind.BATCH,
        NotFound("there is no response x"): BusyKind.BATCH if is_anthropic else None,
        Unavailable("starting"): BusyKind.BATCH_FOR_A_WHILE if is_anthropic else BusyKind.BATCH,
        EngineDead("dead"): BusyKind.BATCH_FOR_A_WHILE if is_anthropic else None,
        RateLimited("slow down"): BusyKind.TENANT,
        InvalidRequest("x"): None,
    }
    for error, kind in expected.items():
        body = json.loads(error_body(error, "req-1", path))
        assert busy_kind(BatchResponse(error_response_of(error).status, "", body)) is kind, error
