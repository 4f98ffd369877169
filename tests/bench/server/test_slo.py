"""SLO: which responses are good, and limits that are refused."""

import pytest

from chairlift.bench.server.http_request_record import Outcome
from chairlift.bench.server.slo import SLO
from chairlift.core.errors import ConfigError
from support_scripted_server import ok_record
from support_shares import for_each


@for_each(("limits", "is_met"), [
    ({}, True), ({"ttft": 1.0}, True), ({"ttft": 0.9}, False), ({"tpot": 0.25}, True), ({"tpot": 0.2}, False),
    ({"itl": 0.4}, True), ({"itl": 0.35}, False), ({"e2e": 1.5}, True), ({"e2e": 1.4, "ttft": 9.0}, False),
])  # fmt: skip
def test_a_response_is_good_within_every_limit(limits: dict[str, float], is_met: bool) -> None:
    one = ok_record(1.0, 2.0, 2.1, 2.5, sent=1.5)
    assert SLO(limits).is_met(one) is is_met
    one.outcome = Outcome.ERROR_EVENT
    assert not SLO(limits).is_met(one)


@pytest.mark.parametrize(("limits", "said"), [
    ({"first": 1.0}, "--slo has no limit 'first'; available are ttft, tpot, itl, e2e"),
    ({"ttft": 0.0}, "ttft must be a positive number of seconds, got 0"), ({"e2e": float("nan")}, "got nan"),
])  # fmt: skip
def test_limits_that_cannot_be(limits: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SLO(limits)
