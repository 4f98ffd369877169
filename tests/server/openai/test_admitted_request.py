"""AdmittedRequest: a reservation and a permit end once for each request."""

from types import SimpleNamespace
from typing import Any

import pytest

from chairlift.core.errors import ChairliftError, InvalidRequest, Overloaded
from chairlift.server.openai.admitted_request_and_generation import AdmittedRequest
from chairlift.web.auth.principal import Principal
from chairlift.web.body import ClientGone
from chairlift.web.request_info import SCOPE_KEY, RequestInfo


class Recorder:
    """A fake replica with all attributes that admission uses; records the calls."""

    def __init__(self, rejection: ChairliftError | None = None) -> None:
        self.calls: list[str] = []
        self._rejection = rejection
        self.lifecycle = SimpleNamespace(check=lambda: self.calls.append("check"))
        self.tenants = SimpleNamespace(begin=lambda tenant: self)
        self.telemetry = SimpleNamespace(record_abort=lambda cause: self.calls.append(f"abort {cause}"))
        self.admission = SimpleNamespace(admit=self._admit)

    def _admit(self, tokens: int, *, timeout: float | None, on_end: Any, body_bytes: int) -> Any:
        if self._rejection is not None:
            raise self._rejection
        return SimpleNamespace(end=lambda: self.calls.append("permit ends"))

    def refund_request(self) -> None:
        self.calls.append("refund")

    def end(self, used: int) -> None:
        self.calls.append(f"reservation ends with {used}")


def admit_with(replica: Any) -> AdmittedRequest:
    scope = {SCOPE_KEY: RequestInfo(request_id="r", principal=Principal("a"))}
    return AdmittedRequest.begin(replica, scope, None)


@pytest.mark.parametrize(
    ("error", "calls"),
    [(Overloaded("full"), ["check", "refund", "reservation ends with 0"]),
     (InvalidRequest("no"), ["check", "reservation ends with 0"])],
)  # fmt: skip
def test_a_request_without_a_permit_ends_its_reservation(error: ChairliftError, calls: list[str]) -> None:
    replica = Recorder(error)
    with pytest.raises(type(error)):
        admit_with(replica)
    assert replica.calls == calls


@pytest.mark.parametrize(
    ("error", "calls"),
    [(InvalidRequest("no"), ["check", "permit ends"]), (Overloaded("full"), ["check", "refund", "permit ends"]),
     (ClientGone("gone"), ["check", "permit ends", "abort client"])],
)  # fmt: skip
def test_an_error_before_the_preparation_ends_the_permit(error: Exception, calls: list[str]) -> None:
    replica = Recorder()
    with pytest.raises(type(error)), admit_with(replica):
        raise error
    assert replica.calls == calls


def test_the_tracker_records_a_stream_error_which_is_then_dropped() -> None:
    stream_error = Overloaded("in the stream")
    ends: list[tuple[str, Exception]] = []
    with admit_with(Recorder()) as admitted:
        tracker: Any = SimpleNamespace(end=lambda request_id, error: ends.append((request_id, error)))
        admitted.tracker, admitted.stream_error = tracker, stream_error
    assert ends == [("r", stream_error)] and admitted.stream_error is None
