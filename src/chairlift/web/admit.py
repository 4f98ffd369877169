"""admit: gives a request that is within its tenant's limits its place in the admission queue; for server and router."""

from typing import Protocol

from chairlift.core.errors import Overloaded
from chairlift.web.admission import AdmissionController, Permit
from chairlift.web.request_info import RequestInfo


class OpenReservation(Protocol):
    """What a request has taken of its tenant's limits, until it ends."""

    def refund_request(self) -> None:
        """Refund the request: it was rejected because of other requests' load. end() follows."""
        ...

    def end(self, used: int) -> None:
        """End the request, which has used `used` tokens."""
        ...


def admit(
    info: RequestInfo, admission: AdmissionController, timeout: float | None, reservation: OpenReservation
) -> Permit:
    """Return the permit that the early check acquired, or else a new one; the permit's end ends the reservation.

    Raises Overloaded where the queue has no room or the expected wait exceeds the timeout. Then the reservation has
    ended, and its request is refunded.
    """
    try:
        if info.permit is None:
            info.permit = admission.admit(0, timeout=timeout, on_end=reservation.end, body_bytes=info.body_bytes)
        else:
            info.permit.attach(timeout, reservation.end)
    except BaseException as error:
        if isinstance(error, Overloaded):
            reservation.refund_request()
        reservation.end(0)
        raise
    return info.permit
