"""request_result: the result of a generation request by its outcome, which is a finish reason or an error code."""

from functools import cache

from chairlift.core.errors import RequestTimeout, error_from_wire, is_error_code
from chairlift.observability.request_results import RequestResult
from chairlift.web.error_responses import error_response_of

WHOLE_RESPONSES = frozenset({"complete", "stop", "length"})


@cache
def _result_of_code(code: str) -> RequestResult:
    if code == RequestTimeout.code:  # the client's own limit: only the latency targets say whether it was generous
        return RequestResult.ABORTED
    return RequestResult.of_status(error_response_of(error_from_wire(code, "", {})).status)


def request_result(outcome: str, status: int = 0) -> RequestResult:
    """Return the result of an outcome.

    An unknown code says what the HTTP status of its response says; without one it is an error of the server.
    """
    if outcome in WHOLE_RESPONSES:
        return RequestResult.SUCCESS
    if outcome == "abort":
        return RequestResult.ABORTED
    if is_error_code(outcome):
        return _result_of_code(outcome)
    return RequestResult.of_status(status) if status else RequestResult.SERVER_ERROR
