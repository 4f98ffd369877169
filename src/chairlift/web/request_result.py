"""request_result: the result of a generation request by its outcome, which is a finish reason or an error code."""

from functools import cache

from chairlift.core.errors import error_from_wire, is_error_code
from chairlift.observability.slo import RequestResult
from chairlift.web.error_responses import error_response_of

WHOLE_RESPONSES = frozenset({"complete", "stop", "length"})


@cache
def _result_of_code(code: str) -> RequestResult:
    return RequestResult.of_status(error_response_of(error_from_wire(code, "", {})).status)


def request_result(outcome: str) -> RequestResult:
    """Return the result of an outcome; an unknown code is an error of the server."""
    if outcome in WHOLE_RESPONSES:
        return RequestResult.SUCCESS
    if outcome == "abort":
        return RequestResult.ABORTED
    return _result_of_code(outcome) if is_error_code(outcome) else RequestResult.SERVER_ERROR
