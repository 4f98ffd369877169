"""request_result: whose fault the end of a request was."""

import pytest

from chairlift.web.request_result import request_result


@pytest.mark.parametrize(("outcome", "result"), [
    ("stop", "success"), ("length", "success"), ("complete", "success"), ("abort", "aborted"),
    ("no_allowed_token", "client_error"), ("timeout", "client_error"), ("rate_limited", "rejected"),
    ("replica_failed", "server_error"), ("engine_dead", "server_error"), ("internal_error", "server_error"),
    ("a code of another server", "server_error"),
])  # fmt: skip
def test_an_outcome_has_a_result(outcome: str, result: str) -> None:
    assert request_result(outcome) == result
