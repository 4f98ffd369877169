"""AdmissionController: rejections lengthen the interval of streams up to a maximum, and it shortens after them."""

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.errors import Overloaded
from chairlift.web.admission import (
    INTERVAL_SECONDS_PER_REJECTION,
    MAX_INTERVAL_SECONDS,
    AdmissionController,
    AdmissionLimits,
)
from chairlift.web.rate_estimators import DECAY_SECONDS


def test_refusals_space_the_news_of_streams_and_their_end_brings_them_back() -> None:
    clock = FakeClock()
    admission = AdmissionController(AdmissionLimits(max_waiting_requests=1), clock)
    admission.admit(1)
    assert admission.stream_interval() == 0.0

    def reject(count: int, seconds: float) -> None:
        for _ in range(count):
            clock.advance(seconds / count)
            with pytest.raises(Overloaded):
                admission.admit(1)

    reject(2000, 4.0)
    assert admission.stream_interval() == pytest.approx(500 * INTERVAL_SECONDS_PER_REJECTION, rel=0.01)
    reject(40_000, 4.0)
    assert admission.stream_interval() == MAX_INTERVAL_SECONDS
    clock.advance(10 * DECAY_SECONDS)
    assert admission.stream_interval() < 0.001
