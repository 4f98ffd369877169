"""admit: one permit for each request, whose end ends the reservation; a rejection by load is refunded."""

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.errors import ChairliftError, Overloaded
from chairlift.web.admission import AdmissionController, AdmissionLimits, Permit
from chairlift.web.admit import admit
from chairlift.web.request_info import RequestInfo


class RecordingReservation:
    """A reservation that records the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def refund_request(self) -> None:
        self.calls.append("refund")

    def end(self, used: int) -> None:
        self.calls.append(f"end {used}")


def test_a_new_permit_counts_the_body_and_ends_the_reservation_once() -> None:
    admission, reservation = AdmissionController(AdmissionLimits(), FakeClock()), RecordingReservation()
    info = RequestInfo(body_bytes=10)
    permit = admit(info, admission, None, reservation)
    assert info.permit is permit and (admission.open_requests, admission.waiting_bytes) == (1, 10)
    permit.end(7)
    permit.end()
    assert reservation.calls == ["end 7"] and admission.open_requests == 0


def test_the_permit_of_the_early_check_is_used() -> None:
    admission, reservation = AdmissionController(AdmissionLimits(), FakeClock()), RecordingReservation()
    permit = admission.admit(0)
    assert admit(RequestInfo(permit=permit), admission, 5.0, reservation) is permit and admission.open_requests == 1
    permit.end(3)
    assert reservation.calls == ["end 3"]


class FailingAdmission(AdmissionController):
    """Rejects every request with an error."""

    def __init__(self, error: ChairliftError) -> None:
        super().__init__(AdmissionLimits(), FakeClock())
        self._error = error

    def admit(self, *args: object, **options: object) -> Permit:
        raise self._error


@pytest.mark.parametrize(("error", "calls"), [
    (Overloaded("full"), ["refund", "end 0"]), (ChairliftError("another"), ["end 0"]),
])  # fmt: skip
def test_a_request_without_a_permit_ends_its_reservation(error: ChairliftError, calls: list[str]) -> None:
    info, reservation = RequestInfo(), RecordingReservation()
    with pytest.raises(type(error)):
        admit(info, FailingAdmission(error), None, reservation)
    assert reservation.calls == calls and info.permit is None


def test_a_timeout_below_the_expected_wait_refunds_a_request_of_the_early_check() -> None:
    class Slow(AdmissionController):
        def check_wait(self, timeout: float, num_before: int) -> None:
            raise Overloaded("the expected wait is too long")

    admission, reservation = Slow(AdmissionLimits(), FakeClock()), RecordingReservation()
    info = RequestInfo(permit=admission.admit(0))
    with pytest.raises(Overloaded):
        admit(info, admission, 1.0, reservation)
    assert reservation.calls == ["refund", "end 0"] and admission.open_requests == 1
    assert info.permit is not None
    info.permit.end()  # as RequestMiddleware does
    assert reservation.calls == ["refund", "end 0"] and admission.open_requests == 0
