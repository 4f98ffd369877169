"""request_result: whose fault the end of a request was."""

import pytest

from chairlift.web.outcome_to_request_result import request_result
from support_shares import for_each


@for_each(("outcome", "result"), [
    ("stop", "success"), ("length", "success"), ("complete", "success"), ("abort", "aborted"),
    ("no_allowed_token", "client_error"), ("timeout", "aborted"), ("rate_limited", "rejected"),
    ("replica_failed", "server_error"), ("engine_dead", "server_error"), ("internal_error", "server_error"),
    ("a code of another server", "server_error"),
])  # fmt: skip
def test_an_outcome_has_a_result(outcome: str, result: str) -> None:
    assert request_result(outcome) == result


@pytest.mark.parametrize(("outcome", "status", "result"), [
    ("code_of_another_server", 400, "client_error"), ("other", 429, "rejected"), ("other", 503, "server_error"),
    ("timeout", 408, "aborted"),
])  # fmt: skip
def test_the_status_says_what_a_code_of_another_server_does_not(outcome: str, status: int, result: str) -> None:
    assert request_result(outcome, status) == result
