"""Admission controllers in a known state for the tests of admission.py."""

from chairlift.core.clock import FakeClock
from chairlift.web.admission import AdmissionController, AdmissionLimits
from chairlift.web.rate_estimators import MIN_RATE_EVENTS


def counters(admission: AdmissionController) -> tuple[int, int, int]:
    """Return the numbers of waiting requests, waiting tokens and open requests."""
    return admission.waiting_requests, admission.waiting_tokens, admission.open_requests


def admission_with_rate(
    gap: float, *, limits: AdmissionLimits | None = None, waiting: int = 1
) -> tuple[AdmissionController, FakeClock]:
    """Return a queue of an engine with free slots that starts a request every `gap` seconds.

    `waiting` requests are in the queue.
    """
    clock = FakeClock()
    admission = AdmissionController(limits or AdmissionLimits(max_queue_wait=60, always_admitted=0), clock)
    admission.engine_counts = (1, 1)
    permits = [admission.admit(1) for _ in range(MIN_RATE_EVENTS + waiting)]
    for permit in permits[:MIN_RATE_EVENTS]:
        clock.advance(gap)
        permit.mark_running()
    assert admission.waiting_requests == waiting
    return admission, clock
